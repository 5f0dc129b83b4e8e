"""Rows of locks that nobody uses any more: they go, and no number is minted twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine

from fencing import CoordinatorUnavailable, SQLCoordinator
from fencing.sql import table
from fencing.sql.table import Request
from tests.support import wait_until
from tests.support.refusals import refused_as_held
from tests.support.sql_locks import LockDatabase, through

DAY = 86400.0
OLD = 200_000_000_000  # µs
SOME = ("psycopg", "pymysql", "aiosqlite")


def grow_old(locks: LockDatabase, resource: str, *, columns: tuple[str, ...] = ("granted_at", "number")) -> None:
    """Make a row as old as if its lock had been granted long ago."""
    changes = ", ".join(f"{column} = {column} - {OLD}" for column in columns)
    locks.sql(f"UPDATE fencing_locks SET {changes} WHERE resource = :r", r=key(locks, resource))


def key(locks: LockDatabase, resource: str) -> Any:
    return resource.encode() if locks.driver.database == "mariadb" else resource


def names(locks: LockDatabase) -> set[str]:
    rows = locks.sql("SELECT resource FROM fencing_locks")
    return {name.decode() if isinstance(name, bytes) else name for (name,) in rows}


def pair(locks: LockDatabase, coordinator: Any, resource: str) -> int:
    lease = locks.side.call(coordinator.acquire, resource, timeout=5)
    assert locks.side.call(lease.release) is True
    return int(lease.fence.number)


@pytest.mark.thorough
@through(*SOME)
def test_old_rows_of_free_locks_go_and_their_numbers_do_not_come_back(locks: LockDatabase) -> None:
    side, coordinator = locks.side, locks.coordinator(direct=True)
    numbers = {name: pair(locks, coordinator, name) for name in ("old", "new")}
    held = side.call(coordinator.acquire, "held")
    ended = side.call(side.call(coordinator.lock("ended", ttl=2.4, renew=False).acquire).detach)
    wait_until(lambda: side.call(coordinator.holder, "ended") is None)
    for name in ("old", "held", "ended"):
        grow_old(locks, name)
    assert side.call(coordinator.prune, older_than=DAY) == 2
    assert names(locks) == {table.FLOOR, "new", "held"}
    assert locks.sql("SELECT number FROM fencing_locks WHERE resource = :r", r=key(locks, "")) == [
        (ended.number - OLD,)
    ]
    future = numbers["old"] + 10**15  # as if the clock had gone back since: the floor is above it
    locks.sql("UPDATE fencing_locks SET number = :n WHERE resource = :r", n=future, r=key(locks, ""))
    assert pair(locks, coordinator, "old") == future + 1
    assert pair(locks, coordinator, "another") == future + 1
    assert numbers["new"] < pair(locks, coordinator, "new") < future
    assert side.call(coordinator.prune, older_than=DAY) == 0
    assert {resource for resource, _ in list_holders(side, coordinator)} == {"held"}
    assert side.call(held.release) is True


def list_holders(side: Any, coordinator: Any) -> list[Any]:
    if not side.asynchronous:
        return list(coordinator.holders())

    async def collect() -> list[Any]:
        return [each async for each in coordinator.holders()]

    return list(side.call(collect))


@through("psycopg")
def test_more_rows_than_one_request_deletes(locks: LockDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(0, 2 * table.PAGE_ROWS + 1, 500):
        rows = ", ".join(f"('{n}', {n + 1}, '', '', 0, 0)" for n in range(i, min(i + 500, 2 * table.PAGE_ROWS + 1)))
        locks.sql(f"INSERT INTO fencing_locks (resource, number, token, owner, granted_at, expires_at) VALUES {rows}")
    assert locks.side.call(locks.coordinator(direct=True).prune, older_than=DAY) == 2 * table.PAGE_ROWS + 1
    assert locks.sql("SELECT number FROM fencing_locks") == [(2 * table.PAGE_ROWS + 1,)]


@through("psycopg", of=("psycopg", "pymysql", "sqlite"))
def test_numbers_grow_while_rows_are_pruned_all_the_time(locks: LockDatabase) -> None:
    worker, pruner = locks.coordinator(direct=True), locks.coordinator(direct=True)
    stop, pruned = threading.Event(), 0

    def prune() -> None:
        nonlocal pruned
        while not stop.is_set():
            pruned += pruner._backend.perform(
                Request("prune", {"age": 1}, 5.0)
            )  # by far younger ones than prune() takes

    with ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(prune)
        try:
            numbers: list[int] = []
            while len(numbers) < 30 or (pruned < 3 and len(numbers) < 3000):
                numbers.append(pair(locks, worker, "a"))
        finally:
            stop.set()
        pruning.result()
    assert numbers == sorted(set(numbers))
    assert pruned >= 3


@through("psycopg", of=("psycopg", "pymysql", "sqlite"))
def test_a_row_whose_number_is_not_as_old_as_its_grant_stays(locks: LockDatabase) -> None:
    """It was ahead of the clock. A request that began before the clock reached it would mint a lower one."""
    coordinator = locks.coordinator(direct=True)
    number = pair(locks, coordinator, "ahead")
    grow_old(locks, "ahead", columns=("granted_at",))
    assert locks.side.call(coordinator.prune, older_than=60) == 0
    grow_old(locks, "ahead", columns=("number",))
    assert locks.side.call(coordinator.prune, older_than=60) == 1
    assert pair(locks, coordinator, "ahead") > number


@pytest.mark.parametrize("age", [0, -1, 59.9, True, "1", float("nan"), 10**10, None])
def test_an_age_that_is_none_is_refused(tmp_path: Any, age: Any) -> None:
    coordinator = SQLCoordinator(create_engine(f"sqlite:///{tmp_path}/x.db"))
    with pytest.raises((TypeError, ValueError), match="older_than is a number of seconds"):
        coordinator.prune(older_than=age)
    coordinator.close()


PRIVILEGES = ("SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE, DELETE")


@pytest.mark.thorough
@through("psycopg", "pymysql", of=("psycopg", "asyncpg", "pymysql", "aiomysql"))
def test_the_least_privileges(locks: LockDatabase, least: Any) -> None:
    """A user that has exactly those of the documentation does all; without DELETE it cannot prune."""
    side = locks.side
    with least(locks, PRIVILEGES[0]) as coordinator:
        side.call(coordinator.create_tables)  # there is nothing to create
        lease = side.call(coordinator.acquire, "a", timeout=5)
        assert side.call(coordinator.try_acquire, "a") is None
        # It waits, listens and announces itself.
        refused_as_held(partial(side.call, coordinator.acquire, "a", timeout=0.3))
        side.call(lease.renew)
        side.call(coordinator.force_release, "a")
        assert side.call(coordinator.holder, "a") is None
        error = side.expect(CoordinatorUnavailable, coordinator.prune, older_than=DAY)
        assert "DELETE to prune" in str(error)
        adopted = side.call(side.call(coordinator.acquire, "b", timeout=5).detach)
        side.call(side.call(coordinator.lock("b").adopt, adopted).release)
    with least(locks, PRIVILEGES[1]) as coordinator:
        grow_old(locks, "a")
        assert side.call(coordinator.prune, older_than=DAY) == 1
