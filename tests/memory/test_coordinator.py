"""What is the memory coordinator's own. The contract is in test_contract.py, the rest of locks in tests/locks."""

from __future__ import annotations

import threading
from typing import Any

from fencing import LockTable, MemoryCoordinator, NotAcquired
from fencing.locks.holding import Grant
from fencing.testing import ManualClock
from tests.support.memory_side import MemorySide


def test_waiting_ends_by_the_same_clock(side: MemorySide) -> None:
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
            side.clock.advance(5)

    error, _ = side.race([wait, pass_time])
    assert error.waited >= 60
    side.call(lease.release)


def test_coordinators_without_a_common_table_do_not_exclude_each_other(side: MemorySide) -> None:
    one, two = side.kind(clock=side.clock), side.kind(clock=side.clock)
    first, second = side.call(one.acquire, "r"), side.call(two.acquire, "r", timeout=0)
    assert first.held
    assert second.held
    side.call(first.release)
    side.call(second.release)


def test_closing_a_coordinator_ends_the_waiting_of_its_callers(side: MemorySide) -> None:
    lease = side.call(side.coordinator().acquire, "r")
    other = side.coordinator()
    asked = threading.Event()
    ask = side.table.ask

    def noted(request: Any, now: float) -> Any:
        reply = ask(request, now)
        asked.set()
        return reply

    side.table.ask = noted  # type: ignore[method-assign]

    def close() -> None:
        assert asked.wait(30)
        side.call(other.close)
        side.call(lease.release)

    error, _ = side.race([lambda: side.expect(RuntimeError, other.acquire, "r", timeout=30), close])
    assert "make a new one" in str(error)


def test_a_late_renewal_does_not_shorten_the_lease() -> None:
    clock, table = ManualClock(), LockTable()
    coordinator = MemoryCoordinator(table, clock=clock, ttl=10, renew=False)
    lease = coordinator.acquire("r")
    clock.advance(5)
    lease.renew()
    plan = coordinator._backend.plan_renew(
        [Grant(lease.fence, 0.0)], coordinator._backend.settings, deadline=clock() + 1
    )
    request = plan.send(None)
    table.ask(request, now=clock() - 3)  # its clock was read before the other one's
    holder = coordinator.holder("r")
    assert holder is not None
    assert holder.remaining == 10
    lease.release()
