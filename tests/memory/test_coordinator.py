"""Locks in memory, under a clock that a test moves: what leases do as time passes, without waiting for it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, LeaseLost, LockTable, MemoryCoordinator, NotAcquired
from fencing.locks.holding import Grant
from fencing.testing import Contract, ManualClock


class Side(Contract):
    def __init__(self, asynchronous: bool) -> None:
        self.clock = ManualClock()
        self.table = LockTable()
        self.kind: Any = AsyncMemoryCoordinator if asynchronous else MemoryCoordinator

    def coordinator(self, **options: Any) -> Any:
        return self.kind(self.table, clock=self.clock, **options)


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param == "async")


def test_a_lease_expires_with_its_ttl(side: Side) -> None:
    one, two = side.coordinator(ttl=10, renew=False), side.coordinator(owner="two")
    lease = side.call(one.acquire, "r")
    side.clock.advance(9.8)
    assert lease.held
    assert side.call(two.try_acquire, "r") is None
    side.clock.advance(0.3)
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    second = side.call(two.acquire, "r", timeout=0)
    assert second.fence.number > lease.fence.number
    assert side.call(one.holder, "r").owner == "two"
    assert side.call(lease.release) is False
    assert side.call(second.release) is True


def test_a_loss_is_told_as_soon_as_its_moment_is_reached(side: Side) -> None:
    """In one step of the clock, which passes the moments at which it would be looked at, too."""
    told: list[LeaseLost] = []
    lease = side.call(side.coordinator(ttl=10, renew=False).acquire, "r")
    lease.on_lost(told.append)
    side.clock.advance(11)
    side.wait_until(lambda: lease.lost.is_set() and told)
    assert told[0].reason == "expired"


def test_a_lease_renews_itself_as_long_as_it_is_held(side: Side) -> None:
    coordinator = side.coordinator(ttl=10)
    lease = side.call(coordinator.acquire, "r")
    for _ in range(72):
        side.clock.advance(5)
        side.wait_until(lambda: lease.remaining() > 6)
    assert side.call(lease.release) is True


def test_its_renewal_ends_with_its_lifetime(side: Side) -> None:
    coordinator = side.coordinator(ttl=10, max_lifetime=20)
    lease = side.call(coordinator.acquire, "r")
    for _ in range(3):
        side.clock.advance(5)
        side.wait_until(lambda: lease.remaining() > 6)
    side.clock.advance(30)
    assert not lease.held
    side.wait_until(lambda: lease.lost.is_set())
    assert side.call(coordinator.holder, "r") is None


def test_waiting_ends_by_the_same_clock(side: Side) -> None:
    lease = side.call(side.coordinator(renew=False, ttl=3600).acquire, "r")
    other = side.coordinator()

    given_up = threading.Event()

    def wait() -> Any:
        try:
            return side.expect(NotAcquired, other.acquire, "r", timeout=60)
        finally:
            given_up.set()

    def pass_time() -> None:
        while not given_up.wait(0.01):
            side.clock.advance(1)

    error, _ = side.race([wait, pass_time])
    assert error.waited >= 60
    side.call(lease.release)


def test_a_forgotten_lease_is_not_renewed(side: Side) -> None:
    coordinator = side.coordinator(ttl=10)
    forgotten = [side.call(coordinator.acquire, "r")]
    with pytest.warns(ResourceWarning, match="was never released"):
        forgotten.clear()
    gc.collect()
    side.clock.advance(11)
    assert side.call(coordinator.holder, "r") is None


def test_coordinators_without_a_common_table_do_not_know_each_other(side: Side) -> None:
    one, two = side.kind(clock=side.clock), side.kind(clock=side.clock)
    first, second = side.call(one.acquire, "r"), side.call(two.acquire, "r", timeout=0)
    assert first.held
    assert second.held
    side.call(first.release)
    side.call(second.release)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        ManualClock().advance(-1)


def test_a_closed_coordinator_grants_nothing_to_who_waits(side: Side) -> None:
    lease = side.call(side.coordinator().acquire, "r")
    other = side.coordinator()

    def close() -> None:
        time.sleep(0.05)  # so that mostly it waits by then; right either way
        side.call(other.close)
        side.call(lease.release)

    error, _ = side.race([lambda: side.expect(RuntimeError, other.acquire, "r", timeout=30), close])
    assert "make a new one" in str(error)


def test_a_renewal_that_was_overtaken_does_not_shorten_the_lease() -> None:
    clock, table = ManualClock(), LockTable()
    coordinator = MemoryCoordinator(table, clock=clock, ttl=10, renew=False)
    lease = coordinator.acquire("r")
    clock.advance(5)
    lease.renew()
    plan = coordinator.plan_renew([Grant(lease.fence, 0.0)], coordinator.settings, deadline=clock() + 1)
    request = plan.send(None)
    table.ask(request, now=clock() - 3)  # its clock was read before the other one's
    holder = coordinator.holder("r")
    assert holder is not None
    assert holder.remaining == 10
    lease.release()
