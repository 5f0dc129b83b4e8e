"""LeaseLost names the cause that is known, and no other."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, Fence, LeaseLost, Mark, MemoryCoordinator, StaleFence
from tests.support.blocks import block, play
from tests.support.memory_side import MemorySide

GUESSES = "(expired, taken over, flushed, or overwritten)"


def acquire(side: MemorySide, coordinator: Any, resource: str = "r") -> Any:
    return side.call(coordinator.acquire, resource)


def advance(side: MemorySide, lease: Any, seconds: int) -> None:
    """Move the clock in small steps. After each, wait for the renewal that is due."""
    holding = lease._holding

    def is_settled() -> bool:
        if holding.has_ended or side.clock() >= holding.deadline:
            return bool(holding.has_ended)
        due = holding.due_at
        return holding.unanswered_since is None if due is None else due > side.clock()

    for _ in range(seconds * 5):
        side.clock.advance(0.2)
        side.wait_until(is_settled)


def cause_of(side: MemorySide, lease: Any) -> str | None:
    error = side.expect(LeaseLost, lease.ensure_held)
    side.call(lease.release)
    assert (f": {error.cause}; " in str(error)) == (error.cause is not None)
    return error.cause


def test_renewal_was_off(side: MemorySide) -> None:
    lease = acquire(side, side.coordinator(ttl=10, renew=False))
    side.clock.advance(10)
    assert cause_of(side, lease) == "renewal was off (renew=False)"


def test_its_max_lifetime_was_over(side: MemorySide) -> None:
    lease = acquire(side, side.coordinator(ttl=10, max_lifetime=12))
    advance(side, lease, 40)
    assert cause_of(side, lease) == "its max_lifetime of 12 s was over"


def test_there_was_no_answer(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=9)
    lease = acquire(side, coordinator)
    side.cut_off(coordinator)
    advance(side, lease, 10)
    side.reconnect(coordinator)
    cause = cause_of(side, lease)
    silence = "no answer from this process' memory at memory for [56].\\d s; "
    assert re.fullmatch(rf"{silence}the last renewal, or the grant, was (8\.9|9\.\d) s ago", cause or ""), cause


def test_its_renewal_was_refused(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=9)
    lease = acquire(side, coordinator)
    backend = coordinator._backend

    def refuse(*_: object, **__: object) -> Any:
        raise CoordinatorUnavailable("permission denied: grant it")
        yield

    backend.plan_renew_each = refuse
    advance(side, lease, 10)
    del backend.plan_renew_each
    assert cause_of(side, lease) == "its renewal failed: permission denied: grant it"


def test_this_side_stood_still(side: MemorySide) -> None:
    """The clock jumps, as after a stop; nothing was due before."""
    lease = acquire(side, side.coordinator(ttl=9))
    side.clock._now += 30  # without the calls that were due
    cause = cause_of(side, lease)
    assert cause is not None
    assert cause.startswith("this process stood still for 2"), "from the moment on at which its renewal was due"


@pytest.mark.parametrize("noticed_by", ["renew", "exit"])
def test_another_holder_has_it(side: MemorySide, noticed_by: str) -> None:
    coordinator = side.coordinator()
    other = MemoryCoordinator(side.table, clock=side.clock, owner="host:7")

    async def story() -> None:
        async with block(coordinator.lock("r")) as lease:
            side.table._held.clear()
            other.acquire("r").detach()
            if noticed_by == "renew" and side.asynchronous:
                await lease.renew()
            elif noticed_by == "renew":
                lease.renew()

    error = side.expect(LeaseLost, play, side, story)
    taker = side.holder()
    assert (error.reason, error.completed) == ("gone", noticed_by == "exit")
    assert error.cause == f"host:7 has the lock, with the newer fence {taker.number}"


def test_nobody_has_it(side: MemorySide) -> None:
    lease = acquire(side, side.coordinator(ttl=9))
    lost: list[LeaseLost] = []
    side.call(in_loop(side, lambda: lease.on_lost(lost.append)))
    side.table._held.clear()
    side.clock.advance(5)
    side.wait_until(lambda: lost)
    assert lost[0].cause == cause_of(side, lease) == "the lock is free, nobody has it now"


def test_a_forced_release(side: MemorySide) -> None:
    leases = [acquire(side, side.coordinator(owner=str(number)), f"r{number}") for number in range(2)]
    operator = side.coordinator(owner="an operator")
    for number, lease in enumerate(leases):
        side.call(operator.force_release, f"r{number}")
        side.clock.advance(1)
        error = side.expect(LeaseLost, lease.renew)
        assert error.cause == "force-released by an operator"
    side.clock.advance(70)
    acquire(side, operator, "r2").detach()
    side.call(operator.force_release, "r2")
    assert list(side.table._forced) == ["r2"]


def in_loop(side: MemorySide, function: Any) -> Any:
    async def call() -> Any:
        return function()

    return call if side.asynchronous else function


def test_the_coordinator_has_lost_data(side: MemorySide) -> None:
    lease = acquire(side, side.coordinator())
    side.table._held.clear()
    side.table._last = lease.fence.number - 100
    MemoryCoordinator(side.table, clock=side.clock, owner="host:7").acquire("r").detach()
    error = side.expect(LeaseLost, lease.renew)
    side.call(lease.release)
    assert error.cause == (
        f"the coordinator has lost data: host:7 has the lock, with the older fence {lease.fence.number - 99}"
    )


def test_the_cause_is_not_known(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = acquire(side, coordinator)
    lease._holding.lose("gone")
    error = side.expect(LeaseLost, lease.ensure_held)
    side.call(lease.release)
    assert error.cause is None
    assert GUESSES in str(error)


def test_a_storage_admitted_a_newer_fence(side: MemorySide) -> None:
    lease = acquire(side, side.coordinator())
    newer = lease.fence.number + 1
    lease._lose_if_stale(StaleFence(fence=lease.fence, mark=Mark(newer, "b" * 22)))
    assert cause_of(side, lease) == f"the storage has admitted the newer fence {newer}"


def test_pickling_keeps_the_cause() -> None:
    error = LeaseLost(fence=Fence("r", 1, "t" * 22), reason="expired", cause="renewal was off (renew=False)")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.cause, str(copy)) == (error.cause, str(error))
    assert str(copy).endswith("has passed its deadline: renewal was off (renew=False); stop, and acquire again")


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("release_all", "its coordinator's release_all() freed it, as at SIGTERM"),
        ("close", "its coordinator was closed"),
    ],
)
def test_what_its_coordinator_has_released_says_so(side: MemorySide, end: str, cause: str) -> None:
    coordinator = side.coordinator()
    own, others = (side.call(coordinator.acquire, name, timeout=0) for name in ("own", "others"))
    side.call(own.release)
    side.call(getattr(coordinator, end))
    for error in (side.expect(LeaseLost, others.ensure_held), side.expect(LeaseLost, others.renew)):
        assert (error.reason, error.cause) == ("released", cause)
        assert f"was released: {cause}; acquire the lock again" in str(error)
    enter = others.__aenter__ if side.asynchronous else others.__enter__
    assert side.expect(LeaseLost, enter).cause == cause
    assert side.expect(LeaseLost, own.ensure_held).cause is None  # its user did that before
