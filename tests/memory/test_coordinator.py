"""What is the memory coordinator's own. The contract is in test_contract.py, the rest of locks in tests/locks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fencing import Coordinator, Fence, LockTable, MemoryCoordinator, NotAcquired
from fencing.kernel.effects import Plan
from fencing.locks.holding import Grant, GrantOrFence
from fencing.memory.coordinator import MemoryBackend
from fencing.testing import ManualClock
from storage_guards import MemoryGuard
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
    plan = coordinator._backend.plan_renew([lease._holding], coordinator._backend.settings, deadline=clock() + 1)
    request = plan.send(None)
    table.ask(request, now=clock() - 3)  # its clock was read before the other one's
    holder = coordinator.holder("r")
    assert holder is not None
    assert holder.remaining == 10
    lease.release()


class KeepingBackend(MemoryBackend):
    """It keeps in each grant what a service might give it, and notes what it gets back."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[str, Any]] = []

    def plan_acquire(self, *args: Any, **more: Any) -> Plan[Any]:
        return self._plan_kept(super().plan_acquire(*args, **more))

    def plan_queue(self, *args: Any, **more: Any) -> Plan[Any]:
        return self._plan_kept(super().plan_queue(*args, **more))

    def plan_remint(self, grant: GrantOrFence, *args: Any, **more: Any) -> Plan[Any]:
        self.got.append(("remint", getattr(grant, "kept", None)))
        return self._plan_kept(super().plan_remint(grant, *args, **more))

    def plan_renew_each(self, grants: Sequence[Grant], *args: Any, **more: Any) -> Plan[Any]:
        self.got += [("renew", grant.kept) for grant in grants]
        return super().plan_renew_each(grants, *args, **more)

    def plan_release(self, grant: GrantOrFence, *args: Any, **more: Any) -> Plan[Any]:
        self.got.append(("release", getattr(grant, "kept", None)))
        return super().plan_release(grant, *args, **more)

    def _plan_kept(self, plan: Plan[Any]) -> Plan[Any]:
        grant = yield from plan
        if isinstance(grant, Grant):
            grant.kept = f"lease {grant.number}"
        return grant


def test_a_backend_gets_back_what_it_kept_in_a_grant_or_else_the_fence() -> None:
    backend = KeepingBackend()
    coordinator, guard = Coordinator(backend), MemoryGuard()
    lease = coordinator.acquire("r", timeout=5)
    lease.renew()
    adopted = coordinator.adopt(Fence.parse(str(lease.detach())))
    adopted.release()
    guarded = coordinator.lock("r", guards=[guard]).acquire(timeout=5)
    newest = guarded.reclaim()
    newest.release()
    first, second, third, last = (f"lease {each.fence.number}" for each in (lease, adopted, guarded, newest))
    expected = [("renew", first), ("remint", None), ("release", second), ("remint", third), ("release", last)]
    assert backend.got == expected


@pytest.mark.parametrize("number", [0, 2**53, True, 7.0, "7"])
def test_a_grant_has_a_fencing_number(number: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="fencing number"):
        Grant("r", number, "t" * 22, 0.0)
