"""`max_waiters` of a lock: what a caller is told that may not wait, and how long a waiter counts."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from fencing import Holder, NotAcquired, RedlockCoordinator, hold_all
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.memory.table import WAITER_SECONDS
from tests.support.memory_side import MemorySide


def enlisted(side: MemorySide, coordinator: Any, place: Any = None, limit: int = 1) -> Any:
    """Ask once, as a waiter. Return the reply."""
    token = new_token() if place is None else place.token
    settings = coordinator.lock("r", max_waiters=limit)._settings
    plan = coordinator._backend.plan_queue("r", token, settings, floor=0, deadline=side.clock() + 60, place=place)
    return side.call(run_async if side.asynchronous else run, plan, coordinator._backend.perform)


def test_a_waiter_that_died_counts_no_more(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=60)
    lease = side.call(coordinator.acquire, "r")
    first = enlisted(side, coordinator)
    side.clock.advance(WAITER_SECONDS / 2)
    again = enlisted(side, coordinator, first.place)
    assert again.place is not None
    side.clock.advance(WAITER_SECONDS * 0.9)
    assert enlisted(side, coordinator).waiters == 1
    side.clock.advance(WAITER_SECONDS * 0.2)
    assert enlisted(side, coordinator).waiters is None
    assert enlisted(side, coordinator, again.place).waiters is None, "it is not refused when it comes back"
    side.call(lease.release)


def test_holder_tells_how_many_wait(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=60)
    lease = side.call(coordinator.acquire, "r")
    assert side.holder().waiting == 0
    enlisted(side, coordinator, limit=2)
    side.clock.advance(WAITER_SECONDS / 2)
    place = enlisted(side, coordinator, limit=2).place
    assert side.holder().waiting == 2
    side.clock.advance(WAITER_SECONDS * 0.6)
    assert side.holder().waiting == 1, "one that died counts no more"
    side.call(run_async if side.asynchronous else run, place.plan_leave(deadline=60), coordinator._backend.perform)
    assert side.holder().waiting == 0
    side.call(lease.release)


def test_two_holders_that_differ_in_this_alone_are_equal() -> None:
    """A forced release compares the holder that it was shown."""
    assert Holder("me", 7, 1.0, 2.0, waiting=1) == Holder("me", 7, 1.0, 2.0)
    assert "waiting=1" in repr(Holder("me", 7, 1.0, 2.0, waiting=1))


def test_the_error_of_several_locks_has_the_number_too(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=60, owner="a holder", max_waiters=1)
    lease = side.call(coordinator.acquire, "r")
    enlisted(side, coordinator)
    block = hold_all([coordinator.lock("q"), coordinator.lock("r")], timeout=5)
    error = side.expect(NotAcquired, block.__aenter__ if side.asynchronous else block.__enter__)
    assert (error.resource, error.reason, error.waiters, error.owner) == ("r", "full", 1, "a holder")
    assert side.holder("q") is None
    side.call(lease.release)


def test_a_service_without_a_queue_refuses_the_option() -> None:
    clients = [redis.Redis(host="127.0.0.1", port=port) for port in (1, 2, 3)]
    with pytest.raises(TypeError, match="RedlockCoordinator cannot count those who wait"):
        RedlockCoordinator(clients, max_waiters=3)
    with pytest.raises(TypeError, match="remove max_waiters"):
        RedlockCoordinator(clients).lock("r", max_waiters=3)
