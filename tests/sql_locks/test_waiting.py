"""Waiters on PostgreSQL: a release notifies them, and where it cannot, they poll."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from fencing import NotAcquired, SQLCoordinator
from fencing.sql.table import Request
from fencing.sql.waiters import LONGEST_WAIT_SECONDS
from tests.support import wait_until
from tests.support.sql_locks import LockDatabase, through

ON_POSTGRES = ("psycopg", "psycopg-async", "asyncpg")
SOON = LONGEST_WAIT_SECONDS / 2
"""Without a notification, a waiter asks again after this long at the earliest."""


class Waiting:
    """A thread that waits for a lock, and releases it."""

    def __init__(self, locks: LockDatabase, coordinator: Any, resource: str = "a", timeout: float = 20) -> None:
        self.error: BaseException | None = None
        self.granted_at = 0.0
        self.requests = 0
        self._side, self._coordinator, self._resource, self._timeout = locks.side, coordinator, resource, timeout
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            lease = self._side.call(self._coordinator.acquire, self._resource, timeout=self._timeout)
            self.granted_at = time.monotonic()
            self._side.call(lease.release)
        except Exception as error:  # noqa: BLE001 - join raises it
            self.error = error

    def join(self) -> float:
        """Return when the lock was granted."""
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.granted_at


def counted(coordinator: Any) -> list[str]:
    """A list that gets the operation of each request of the coordinator from now on."""
    operations: list[str] = []
    perform = coordinator._backend._connections.perform

    def counting(request: Request) -> Any:
        operations.append(request.operation)
        return perform(request)

    coordinator._backend._connections.perform = counting
    return operations


def listening(locks: LockDatabase) -> list[int]:
    """The servers' processes of sessions that listen, or are about to."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    return [pid for (pid,) in locks.sql(query)]


def until_announced(operations: list[str], count: int = 1) -> None:
    wait_until(lambda: operations.count("queue") >= count)


@pytest.mark.thorough
@through("psycopg", "asyncpg", of=ON_POSTGRES)
def test_a_release_wakes_a_waiter_that_does_not_poll(locks: LockDatabase) -> None:
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    lease = side.call(holder.acquire, "a")
    operations = counted(other)
    waiting = Waiting(locks, other)
    until_announced(operations)
    before = len(operations)
    time.sleep(0.3)  # polling, it would ask again twice
    assert len(operations) == before
    released_at = time.monotonic()
    assert side.call(lease.release) is True
    assert waiting.join() - released_at < SOON
    assert operations.count("queue") == 2


@pytest.mark.thorough
@through("psycopg", of=ON_POSTGRES)
def test_a_lease_that_ends_by_itself_is_noticed(locks: LockDatabase) -> None:
    """Its holder died: no release notifies anybody."""
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    side.call(side.call(holder.acquire, "opens a connection").release)
    side.call(side.call(holder.lock("a", ttl=1, renew=False).acquire).detach)
    started = time.monotonic()
    assert Waiting(locks, other).join() - started < SOON


def test_a_release_notifies_only_where_somebody_waits(postgres_url: str) -> None:
    with (
        SQLCoordinator(create_engine(postgres_url)) as coordinator,
        psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as spy,
    ):
        coordinator.create_tables()
        spy.execute("LISTEN fencing_wake")
        coordinator.acquire("nobody").release()
        coordinator.try_acquire("nobody").release()  # type: ignore[union-attr]
        lease = coordinator.acquire("somebody")
        waiter = threading.Thread(target=lambda: coordinator.acquire("somebody", timeout=20).release())
        waiter.start()
        wait_until(lambda: spy.execute("SELECT 1 FROM fencing_locks WHERE waited_until > 0").fetchone())
        lease.release()
        waiter.join(20)
        resources = [each.payload for each in spy.notifies(timeout=60, stop_after=2)]
    assert [each for each in resources if not each.startswith("fencing:")][:1] == ["somebody"]


@pytest.mark.thorough
@through("asyncpg", of=ON_POSTGRES)
def test_a_connection_that_breaks_is_opened_again(locks: LockDatabase) -> None:
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    lease = side.call(holder.acquire, "a")
    operations = counted(other)
    waiting = Waiting(locks, other)
    for _ in range(2):
        until_announced(operations)
        [pid] = listening(locks)
        operations.clear()
        locks.sql("SELECT pg_terminate_backend(:pid)", pid=pid)
        wait_until(lambda: "acquire" in operations)  # it polls meanwhile
    until_announced(operations)
    released_at = time.monotonic()
    side.call(lease.release)
    assert waiting.join() - released_at < SOON


@pytest.mark.thorough
@through("psycopg", of=ON_POSTGRES)
def test_a_server_without_a_connection_to_spare_is_polled(locks: LockDatabase) -> None:
    """All attempts to listen fail, and are made seldom."""
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    lease = side.call(holder.acquire, "a")
    side.call(other.holder, "a")
    attempts = []

    def refuse(seconds: float) -> Any:
        attempts.append(seconds)
        raise OSError("sorry, too many clients already")

    other._backend.listener._engine = type(
        "Refusing", (), {"open": staticmethod(refuse), "locks": other._backend._engine.locks}
    )()
    if side.asynchronous:
        table = other._backend.listener._of_loops
        make, refusing = table._make, other._backend.listener._engine

        def make_refusing(loop: Any) -> Any:
            mine = make(loop)
            mine._engine = refusing
            return mine

        table._make = make_refusing
    started = time.monotonic()
    waiting = Waiting(locks, other)
    wait_until(lambda: len(attempts) == 3)
    assert time.monotonic() - started > 0.1
    side.call(lease.release)
    waiting.join()


@pytest.mark.thorough
def test_behind_a_pooler_of_transactions_waiters_poll(pgbouncer_server: Any, postgres_url: str) -> None:
    """The notification to oneself does not arrive, because another client may have the session."""
    with SQLCoordinator(create_engine(postgres_url)) as direct:
        direct.create_tables()
        lease = direct.acquire("a")
        engine = create_engine(pgbouncer_server.url(postgres_url), connect_args={"prepare_threshold": None})
        with SQLCoordinator(engine) as pooled:
            operations = counted(pooled)
            waiter = threading.Thread(target=lambda: pooled.acquire("a", timeout=20).release())
            waiter.start()
            wait_until(lambda: not pooled._backend.listener._is_running and operations.count("acquire") > 10)
            lease.release()
            waiter.join(20)
            assert not waiter.is_alive()
            assert "queue" not in operations
        engine.dispose()


@pytest.mark.thorough
@through("psycopg", of=ON_POSTGRES)
def test_many_waiters_all_get_their_turn(locks: LockDatabase) -> None:
    """No notification is lost: each loss would cost some seconds."""
    coordinators = [locks.coordinator(direct=True) for _ in range(2)]
    lease = locks.side.call(coordinators[0].acquire, "a")
    operations = [counted(each) for each in coordinators]
    waiting = [Waiting(locks, each) for each in coordinators for _ in range(6)]
    for each in operations:
        until_announced(each, 6)
    started = time.monotonic()
    locks.side.call(lease.release)
    assert max(each.join() for each in waiting) - started < SOON


@pytest.mark.thorough
@through("psycopg", of=ON_POSTGRES)
def test_a_waiter_that_gives_up_leaves_nothing(locks: LockDatabase) -> None:
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    lease = side.call(holder.acquire, "a")
    side.call(side.call(other.acquire, "opens a connection").release)
    operations = counted(other)
    patient, hasty = Waiting(locks, other), Waiting(locks, other, timeout=1.5)
    until_announced(operations, 2)
    with pytest.raises(NotAcquired):
        hasty.join()
    released_at = time.monotonic()
    side.call(lease.release)
    assert patient.join() - released_at < SOON


@pytest.mark.thorough
@through("asyncpg", of=ON_POSTGRES)
def test_a_closed_coordinator_ends_its_waiters_and_its_connections(locks: LockDatabase) -> None:
    side, holder, other = locks.side, locks.coordinator(direct=True), locks.coordinator(direct=True)
    side.call(side.call(holder.acquire, "a").detach)
    operations = counted(other)
    waiting = Waiting(locks, other)
    until_announced(operations)
    side.call(other.close)
    with pytest.raises(RuntimeError, match="closed"):
        waiting.join()
    wait_until(lambda: not listening(locks))


def test_a_forked_child_listens_by_itself(postgres_url: str) -> None:
    coordinator = SQLCoordinator(create_engine(postgres_url))
    coordinator.create_tables()
    lease = coordinator.acquire("a")
    operations = counted(coordinator)
    waiter = threading.Thread(target=lambda: coordinator.acquire("a", timeout=20).release())
    waiter.start()
    until_announced(operations)
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: coordinator.acquire("b", timeout=20).release())
    other = SQLCoordinator(create_engine(postgres_url))
    blocking = other.acquire("b")
    process.start()
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as spy:
        announced = "SELECT 1 FROM fencing_locks WHERE resource = 'b' AND waited_until > 0"
        wait_until(lambda: spy.execute(announced).fetchone())
    blocking.release()
    process.join(20)
    assert process.exitcode == 0
    lease.release()
    waiter.join(20)
    assert not waiter.is_alive()
    coordinator.close()
    other.close()
