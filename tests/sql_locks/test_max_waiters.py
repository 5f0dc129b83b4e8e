"""`max_waiters` of locks in a table: a waiter has one of so many places, which are rows, and leaves it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fencing import NotAcquired
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.sql import plans, table
from tests.support import wait_until
from tests.support.sql_locks import LockDatabase, through

PLACES = "SELECT count(*) FROM fencing_locks WHERE owner = 'a waiter' AND token <> ''"

OVER = "UPDATE fencing_locks SET expires_at = expires_at - ttl WHERE owner = 'a waiter' AND ttl = 15000000"


def enlisted(locks: LockDatabase, coordinator: Any, place: Any = None) -> Any:
    """Ask once, as a waiter. Return the reply."""
    token, deadline = new_token() if place is None else place.token, coordinator._backend.clock() + 60
    plan = coordinator._backend.plan_queue(
        "a", token, coordinator._backend.settings, floor=0, deadline=deadline, place=place
    )
    return locks.side.call(run_async if locks.side.asynchronous else run, plan, coordinator._backend.perform)


def holders(locks: LockDatabase, coordinator: Any) -> list[str]:
    async def collect() -> list[str]:
        return [resource async for resource, _ in coordinator.holders()]

    if locks.side.asynchronous:
        return list(locks.side.call(collect))
    return [resource for resource, _ in coordinator.holders()]


@through("psycopg", "sqlite", "aiosqlite")
def test_of_six_racers_exactly_two_wait_and_leave_their_places(locks: LockDatabase) -> None:
    side, held = locks.side, locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    refused: list[NotAcquired] = []

    def ask(coordinator: Any) -> bool:
        try:
            return bool(side.call(side.call(coordinator.acquire, "a", timeout=50).release))
        except NotAcquired as error:
            refused.append(error)
            return False

    def release() -> tuple[Any, list[str]]:
        wait_until(lambda: len(refused) == 4, 40)
        seen = locks.sql(PLACES)[0][0], holders(locks, coordinators[0])
        side.call(held.release)
        return seen

    coordinators = [locks.coordinator(ttl=30, max_waiters=2, owner="a waiter") for _ in range(6)]
    *got, seen = side.race([*[partial(ask, each) for each in coordinators], release])
    assert sorted(got) == [False] * 4 + [True] * 2
    assert seen == (2, ["a"]), "a place is no lock of a user"
    assert {(error.reason, error.waiters) for error in refused} == {("full", 2)}
    assert locks.sql(PLACES)[0][0] == 0


@through("psycopg", "sqlite", of=("psycopg", "pymysql", "sqlite"))
def test_a_place_is_one_waiters_alone(locks: LockDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two have seen that the last place is free."""
    held = locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    coordinator, faster = (locks.coordinator(ttl=30, max_waiters=1) for _ in range(2))
    replies: list[Any] = []

    def choose(places: list[str]) -> str:
        if not replies:
            replies.append(None)
            replies.append(enlisted(locks, faster))
        return places[0]

    monkeypatch.setattr(table, "random", SimpleNamespace(choice=choose))
    assert enlisted(locks, coordinator).waiters == 1
    assert replies[1].place is not None
    locks.side.call(held.release)


@through("psycopg", "sqlite")
def test_the_place_of_a_waiter_that_died_is_free_when_its_time_is_over(locks: LockDatabase) -> None:
    held = locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    coordinator = locks.coordinator(ttl=30, max_waiters=1, owner="a waiter")
    assert enlisted(locks, coordinator).waiters is None
    assert enlisted(locks, coordinator).waiters == 1
    assert locks.side.call(coordinator.holder, "a").waiting is None, "those without a limit have no places"
    locks.sql(OVER)
    assert enlisted(locks, coordinator).waiters is None
    locks.side.call(held.release)


@through("psycopg", "sqlite")
def test_a_waiter_keeps_its_place_while_it_asks_again(locks: LockDatabase) -> None:
    """It renews it as it asks, but not each time: a waiter that polls asks six times a second."""
    held = locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    coordinator = locks.coordinator(ttl=30, max_waiters=1, owner="a waiter")
    ends = "SELECT max(expires_at) FROM fencing_locks WHERE owner = 'a waiter'"
    place = enlisted(locks, coordinator).place
    first = locks.sql(ends)
    assert enlisted(locks, coordinator, place).place is place
    assert locks.sql(ends) == first
    place._enlisted_at -= plans.PLACE_SECONDS / 3
    assert enlisted(locks, coordinator, place).place is place
    assert locks.sql(ends) > first
    locks.sql(OVER)  # it has stood still for too long, and another one came
    assert enlisted(locks, coordinator).waiters is None
    place._enlisted_at -= plans.PLACE_SECONDS / 3
    assert enlisted(locks, coordinator, place).place is place, "it is not refused now"
    locks.side.call(held.release)


@through("psycopg", "sqlite", "aiosqlite")
def test_a_waiter_leaves_its_place_when_its_coordinator_is_closed(locks: LockDatabase) -> None:
    side, held = locks.side, locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    coordinator = locks.coordinator(ttl=30, max_waiters=1, owner="a waiter")

    def close() -> None:
        wait_until(lambda: locks.sql(PLACES)[0][0] == 1, 40)
        side.call(coordinator.close)

    error, _ = side.race([lambda: side.expect(RuntimeError, coordinator.acquire, "a", timeout=50), close])
    assert "was closed" in str(error)
    assert locks.sql(PLACES)[0][0] == 0
    side.call(held.release)


@through("psycopg", "aiosqlite", of=("psycopg", "asyncpg", "sqlite", "aiosqlite"))
def test_a_waiter_that_is_interrupted_as_it_enlists_keeps_no_place(locks: LockDatabase) -> None:
    """Its plan does not know yet that it has one: the reply was on its way to it."""
    side, held = locks.side, locks.side.call(locks.coordinator(ttl=30).acquire, "a")
    coordinator = locks.coordinator(ttl=30, max_waiters=1, owner="a waiter")
    perform, raised = coordinator._backend.perform, []

    def interrupt(effect: Any) -> None:
        if getattr(effect, "operation", "") == "enlist":
            raised.append(locks.sql(PLACES)[0][0])
            raise ZeroDivisionError

    def perform_and_raise(effect: Any) -> Any:
        reply = perform(effect)
        interrupt(effect)
        return reply

    async def perform_and_raise_async(effect: Any) -> Any:
        reply = await perform(effect)
        interrupt(effect)
        return reply

    coordinator._backend.perform = perform_and_raise_async if side.asynchronous else perform_and_raise
    side.expect(ZeroDivisionError, coordinator.acquire, "a", timeout=50)
    assert raised == [1]
    assert locks.sql(PLACES)[0][0] == 0
    side.call(held.release)
