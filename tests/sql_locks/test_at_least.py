"""``hold(at_least=...)`` in a table: waiters on PostgreSQL, and a coordinator that is closed in the block."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencing.sql.table import Request
from tests.support import wait_until
from tests.support.sql_locks import LockDatabase, through

EACH = ("psycopg", "pymysql", "aiosqlite")


def enter(locks: LockDatabase, block: Any) -> Any:
    return locks.side.call(block.__aenter__ if locks.side.asynchronous else block.__enter__)


def leave(locks: LockDatabase, block: Any) -> None:
    locks.side.call(block.__aexit__ if locks.side.asynchronous else block.__exit__, None, None, None)


@pytest.mark.thorough
@through("psycopg", of=("psycopg", "asyncpg"))
def test_a_waiter_gets_the_lock_when_it_frees_itself(locks: LockDatabase) -> None:
    """The block ends while it waits, and believes in a ttl of a minute: it is notified, and learns the new end."""
    side, holder, other = locks.side, locks.coordinator(direct=True, ttl=60), locks.coordinator(direct=True, ttl=60)
    block, operations = holder.hold("a", at_least=1.0), []
    perform = other._backend._connections.perform

    def counting(request: Request) -> Any:
        operations.append(request.operation)
        return perform(request)

    other._backend._connections.perform = counting
    with ThreadPoolExecutor(1) as pool:
        began, lease = time.monotonic(), enter(locks, block)
        waiting = pool.submit(side.call, other.acquire, "a", timeout=50)
        wait_until(lambda: locks.sql("SELECT 1 FROM fencing_locks WHERE waited_until > 0"))
        leave(locks, block)
        following = waiting.result(60)
    assert time.monotonic() - began > 0.9, "not before its end"
    assert operations.count("queue") >= 3, "at first, when the block ended, and when the lock was free"
    assert following.fence.number > lease.fence.number
    side.call(following.release)


@through(*EACH)
def test_a_closing_that_could_not_release_leaves_it_to_the_block(
    locks: LockDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = locks.coordinator(direct=True)
    block = coordinator.hold("a", at_least=600)
    enter(locks, block)
    monkeypatch.setattr(coordinator._backend, "held", list)  # as if there was no time for it
    locks.side.call(coordinator.close)
    leave(locks, block)
    other = locks.coordinator(direct=True)
    holder = locks.side.call(other.holder, "a")
    assert holder.released
    assert 10 < holder.remaining <= 600


@through(*EACH)
def test_a_lock_is_not_free_because_it_outlasts_its_ttl(locks: LockDatabase) -> None:
    """A lease that ends later than two ttls from now would be that of a clock that has gone back."""
    coordinator = locks.coordinator(direct=True, ttl=1, renew=False)
    block = coordinator.hold("a", at_least=600)
    enter(locks, block)
    leave(locks, block)
    assert locks.side.call(coordinator.try_acquire, "a") is None
    locks.sql("UPDATE fencing_locks SET expires_at = granted_at")
    locks.side.call(locks.side.call(coordinator.acquire, "a").release)
    assert locks.sql("SELECT ttl, released_at FROM fencing_locks WHERE resource = 'a'") == [(1_000_000, 0)]
