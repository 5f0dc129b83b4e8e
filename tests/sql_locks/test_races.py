"""Many connections that race for one lock: one is granted, and nobody else believes it is free."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from fencing import SQLCoordinator
from fencing.kernel import lending
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant
from fencing.sql.own_engine import MAX_CONNECTIONS
from fencing.sql.table import Request
from fencing.testing.contract import Contract
from tests.support import wait_until
from tests.support.bursts import MANY, burst_until
from tests.support.sql_locks import LockDatabase, through

CONNECTIONS = 50


@pytest.mark.thorough
@through("psycopg")
def test_one_of_fifty_is_granted(locks: LockDatabase) -> None:
    """The first round is for a name without a row, the others for one that was released."""
    coordinators = [locks.coordinator(direct=True) for _ in range(CONNECTIONS)]
    for each in coordinators:  # opens the connection
        backend = each._backend
        plan(locks, each, backend.plan_holder("warm", backend.settings, deadline=backend.clock() + 20))
    last = 0
    for _ in range(3):
        replies = locks.side.race([partial(acquire, locks, each) for each in coordinators])
        [(holder, grant)] = [(c, reply) for c, reply in zip(coordinators, replies, strict=True) if type(reply) is Grant]
        refusals = [reply for reply in replies if type(reply) is Taken]
        assert len(refusals) == CONNECTIONS - 1
        assert all(0 < reply.remaining <= 10 for reply in refusals)
        assert grant.fence.number > last
        last = grant.fence.number
        backend = holder._backend
        plan(locks, holder, backend.plan_release(grant.fence, backend.settings, deadline=backend.clock() + 5))


def acquire(locks: LockDatabase, coordinator: Any) -> Any:
    made = coordinator._backend.plan_acquire(
        "raced", new_token(), coordinator._backend.settings, floor=0, deadline=coordinator._backend.clock() + 20
    )
    return plan(locks, coordinator, made)


def plan(locks: LockDatabase, coordinator: Any, made: Any) -> Any:
    return locks.side.call(run_async if locks.side.asynchronous else run, made, coordinator._backend.perform)


@pytest.mark.thorough
@through("pymysql", of=("pymysql", "aiomysql"))
def test_a_grant_that_is_younger_than_the_statement_that_reads_it(locks: LockDatabase) -> None:
    """The statement begins, and waits for the table. Then the lock is granted, and read."""
    side, reader = locks.side, locks.coordinator(direct=True)
    assert side.call(reader.holder, "a") is None
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    with locks.transaction() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(text("LOCK TABLES fencing_locks WRITE"))
        reading = pool.submit(side.call, reader.holder, "a")
        waiting = "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE '%metadata lock%'"
        wait_until(lambda: locks.sql(waiting))
        insert = "INSERT INTO fencing_locks (resource, number, token, owner, granted_at, expires_at, ttl)"
        connection.execute(text(f"{insert} SELECT 'a', 1, 'x', '', {now}, {now} + 10000000, 10000000"))
        connection.execute(text("UNLOCK TABLES"))
        holder = reading.result(20)
    assert holder.held_for >= 0
    assert holder.remaining <= 10


@pytest.mark.thorough
def test_renewals_that_find_the_rows_in_other_orders_do_not_wait_for_each_other(postgres_url: str) -> None:
    """The planner of one reads the table as it was written, that of the other reads the index."""
    as_written = "-c enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off"
    by_name = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off"
    engines = [create_engine(postgres_url, connect_args={"options": options}) for options in (as_written, by_name)]
    coordinators = [SQLCoordinator(engine) for engine in engines]
    coordinators[0].create_tables()
    names = [f"{i:04}" for i in range(2000)]
    values: dict[str, Any] = {"count": len(names), "ttl": 10_000_000}
    values |= {f"r{i}": name for i, name in enumerate(names)} | {f"t{i}": name for i, name in enumerate(names)}
    values |= {f"n{i}": 1 for i in range(len(names))}
    far = 2**52
    for _ in range(5):  # past the plan, which would ask again after a deadlock
        with engines[0].begin() as connection:
            connection.execute(text("TRUNCATE fencing_locks"))
            rows = [{"name": name} for name in reversed(names)]
            insert = text(f"INSERT INTO fencing_locks VALUES (:name, 1, :name, '', 0, {far})")
            connection.execute(insert, rows)
        renewals = [partial(each._backend.perform, Request("renew", values, 5.0)) for each in coordinators]
        answers = Contract().race(renewals)
        assert [len(each.renewed | each.kept) for each in answers] == [len(names)] * 2
        assert len(answers[0].renewed | answers[1].renewed) == len(names), "one of the two renews each"
    for coordinator, engine in zip(coordinators, engines, strict=True):
        coordinator.close()
        engine.dispose()


@pytest.mark.thorough
@through("pymysql", of=("psycopg", "pymysql", "sqlite"))
def test_more_threads_than_connections(locks: LockDatabase) -> None:
    """Forty threads take turns at eight connections, and never hold a lock together."""
    coordinator = locks.coordinator(direct=True)
    inside = threading.Lock()

    def work(_: int) -> None:
        with coordinator.hold("one", timeout=20):
            assert inside.acquire(blocking=False)
            inside.release()

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(work, range(40)))
    if locks.driver.database == "postgres":
        [[count]] = locks.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        beside = "one for renewals and releases alone, one that listens, one of the fixture, and one that counts"
        assert count <= MAX_CONNECTIONS + 4, beside


@pytest.mark.deep
@through("psycopg", "psycopg-async", of=("psycopg", "psycopg-async", "asyncpg"))
def test_the_connections_of_a_burst_are_given_up(locks: LockDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.1)
    coordinator = locks.coordinator(direct=True)

    def connections() -> int:
        [[count]] = locks.sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(count)

    others = connections()
    burst_until(locks.side, coordinator, MANY, lambda: connections() > others + 4)
    locks.side.wait_until(lambda: connections() <= others + 2)  # one for requests, one that listens
    assert locks.side.call(locks.side.call(coordinator.acquire, "a", timeout=60).release) is True
