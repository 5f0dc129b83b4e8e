"""Several locks at once: all or none, in one order, claimed when all are held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencing import (
    CoordinatorUnavailable,
    Fence,
    GuardUnavailable,
    LeaseLost,
    Mark,
    NotAcquired,
    StaleFence,
    hold_all,
)
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.memory_side import MemorySide


def in_block(side: MemorySide, held: Any, body: Callable[[Any], Any]) -> Any:
    """Run a sync body in a block under several locks, sync or async, and return the leases."""

    def sync() -> Any:
        with held as leases:
            body(leases)
        return leases

    async def asynchronous() -> Any:
        async with held as leases:
            body(leases)
        return leases

    return side.call(asynchronous if side.asynchronous else sync)


def guard_of(side: MemorySide) -> Any:
    return AsyncMemoryGuard() if side.asynchronous else MemoryGuard()


def free(side: MemorySide, *resources: str) -> bool:
    return all(side.holder(each) is None for each in resources)


def nothing(leases: Any) -> None:
    pass


def test_all_are_held_in_the_order_given_and_released(side: MemorySide) -> None:
    def body(leases: Any) -> None:
        b, a = leases
        assert (b.fence.resource, a.fence.resource) == ("b", "a")
        assert all(side.holder(each.fence.resource).number == each.fence.number for each in leases)

    leases = in_block(side, side.coordinator().hold_all(["b", "a"], timeout=5), body)
    assert free(side, "a", "b")
    assert all(each._ended == "released" for each in leases)


def test_an_error_of_the_block_comes_out_and_all_are_released(side: MemorySide) -> None:
    error = ZeroDivisionError("mine")

    def body(leases: Any) -> None:
        raise error

    held = side.coordinator().hold_all(["a", "b"], timeout=5)
    assert side.expect(ZeroDivisionError, in_block, side, held, body) is error
    assert free(side, "a", "b")


@pytest.mark.parametrize("taken", ["a", "b", "c"])
def test_none_is_held_where_one_is_taken(side: MemorySide, taken: str) -> None:
    other = side.call(side.coordinator(owner="another").acquire, taken)
    for timeout in (0, 0.05):
        held = side.coordinator().hold_all(["c", "a", "b"], timeout=timeout)
        if timeout:
            threading.Timer(0.05, side.clock.advance, [1]).start()
        error = side.expect(NotAcquired, in_block, side, held, nothing)
        assert (error.resource, error.reason, error.owner) == (taken, "held", "another")
        assert free(side, *{"a", "b", "c"} - {taken})
    side.call(other.release)


def test_one_deadline_for_all(side: MemorySide) -> None:
    """The wait for the first one uses up the time of the others: they are not tried."""
    first = side.call(side.coordinator().acquire, "a")
    asked = []
    coordinator = side.coordinator()
    perform = coordinator._backend.perform

    def watch(effect: Any) -> Any:
        asked.append(effect.arguments[0])
        if len(asked) == 3:
            side.clock.advance(6)
        return perform(effect)

    async def watch_async(effect: Any) -> Any:
        return await watch(effect)

    coordinator._backend.perform = watch_async if side.asynchronous else watch
    error = side.expect(NotAcquired, in_block, side, coordinator.hold_all(["a", "b"], timeout=5), nothing)
    assert (error.resource, error.reason) == ("a", "held")
    assert error.waited >= 5
    assert set(asked) == {"a"}
    side.call(first.release)


def test_what_there_was_no_time_for_is_not_tried(side: MemorySide) -> None:
    coordinator = side.coordinator()
    perform, asked = coordinator._backend.perform, []

    def slow(effect: Any) -> Any:
        asked.append((effect.operation, effect.arguments[0]))
        side.clock.advance(6 if effect.operation == "acquire" else 0)
        return perform(effect)

    async def slow_async(effect: Any) -> Any:
        return await slow(effect)

    coordinator._backend.perform = slow_async if side.asynchronous else slow
    error = side.expect(NotAcquired, in_block, side, coordinator.hold_all(["a", "b"], timeout=5), nothing)
    assert (error.resource, error.reason) == ("b", "late")
    assert asked == [("acquire", "a"), ("release", "a")]


def test_claims_come_when_all_are_held_and_each_guard_gets_one(side: MemorySide) -> None:
    one, two = guard_of(side), guard_of(side)
    claims: list[tuple[Any, list[str]]] = []
    for guard in (one, two):
        original = guard.claim

        def claim(*fences: Fence, timeout: float, guard: Any = guard, original: Any = original) -> Any:
            assert not free(side, "a")
            assert not free(side, "b")
            claims.append((guard, [fence.resource for fence in fences]))
            return original(*fences, timeout=timeout)

        async def claim_async(*fences: Fence, timeout: float, claim: Any = claim) -> None:
            await claim(*fences, timeout=timeout)

        guard.claim = claim_async if side.asynchronous else claim
    coordinator = side.coordinator()
    locks = [coordinator.lock("b", guards=[one, two]), coordinator.lock("a", guards=[one])]
    leases = in_block(side, hold_all(locks, timeout=5), nothing)
    assert claims == [(one, ["a", "b"]), (two, ["b"])]
    assert side.call(one.mark, "a").number == leases[1].fence.number


def test_a_refused_fence_is_reminted_and_all_are_claimed_again(side: MemorySide) -> None:
    guard = guard_of(side)
    newer = Fence("b", 2**51, "x" * 22)
    side.call(guard.claim, newer)

    def body(leases: Any) -> None:
        assert side.holder("b").number == leases[1].fence.number > newer.number

    leases = in_block(side, side.coordinator(guards=[guard]).hold_all(["a", "b"], timeout=5), body)
    assert [side.call(guard.mark, name).number for name in "ab"] == [each.fence.number for each in leases]
    assert free(side, "a", "b")


class Refuses:
    """A guard that refuses a resource's claims with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.claims = 0

    def refuse(self, fences: tuple[Fence, ...]) -> None:
        self.claims += 1
        if isinstance(self.error, StaleFence):
            newest = Mark(fences[-1].number + 1, "x" * 22, 1)
            raise StaleFence(fence=fences[-1], mark=newest)
        raise self.error


class SyncRefuses(Refuses):
    def claim(self, *fences: Fence, timeout: float | None = None) -> None:
        self.refuse(fences)

    def mark(self, resource: str) -> None: ...


class AsyncRefuses(Refuses):
    async def claim(self, *fences: Fence, timeout: float | None = None) -> None:
        self.refuse(fences)

    async def mark(self, resource: str) -> None: ...


def refusing(side: MemorySide, error: Exception) -> Any:
    return (AsyncRefuses if side.asynchronous else SyncRefuses)(error)


def test_fences_that_are_superseded_each_time(side: MemorySide) -> None:
    guard = refusing(side, StaleFence(fence=Fence("b", 1, "x" * 22), mark=None, floor=1))
    error = side.expect(
        NotAcquired, in_block, side, side.coordinator(guards=[guard]).hold_all(["a", "b"], timeout=5), nothing
    )
    assert (error.resource, error.reason, guard.claims) == ("b", "superseded", 5)
    assert free(side, "a", "b")


def test_a_guard_that_does_not_answer(side: MemorySide) -> None:
    guard = refusing(side, GuardUnavailable("away", resource="b"))
    side.expect(
        GuardUnavailable, in_block, side, side.coordinator(guards=[guard]).hold_all(["a", "b"], timeout=5), nothing
    )
    assert free(side, "a", "b")


def test_a_coordinator_that_does_not_answer(side: MemorySide) -> None:
    one, two = side.coordinator(), side.coordinator()
    side.cut_off(two)
    side.expect(CoordinatorUnavailable, in_block, side, hold_all([one.lock("a"), two.lock("b")], timeout=5), nothing)
    assert free(side, "a")


def test_a_closed_coordinator(side: MemorySide) -> None:
    one, two = side.coordinator(), side.coordinator()
    side.call(two.close)
    side.expect(RuntimeError, in_block, side, hold_all([one.lock("a"), two.lock("b")], timeout=5), nothing)
    assert free(side, "a")


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_coordinator_that_is_closed_during_the_claims(side: MemorySide, names: list[str]) -> None:
    guard = guard_of(side)
    coordinator = side.coordinator(guards=[guard])
    original = guard.claim

    def claim(*fences: Fence, timeout: float) -> Any:
        coordinator._backend.closed = True
        return original(*fences, timeout=timeout)

    guard.claim = claim
    held = coordinator.hold(*names, timeout=5) if len(names) == 1 else coordinator.hold_all(names, timeout=5)
    error = side.expect(RuntimeError, in_block, side, held, nothing)
    assert "make a new one" in str(error)
    assert free(side, *names)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_the_loss_of_one_is_told_at_the_end(side: MemorySide, lost: str) -> None:
    def body(leases: Any) -> None:
        side.take_away(lost)

    held = side.coordinator(renew=False).hold_all(["a", "b"], timeout=5)
    error = side.expect(LeaseLost, in_block, side, held, body)
    assert (error.fence.resource, error.completed) == (lost, True)
    assert free(side, "a", "b")


def test_a_lock_that_is_lost_during_the_claims_begins_anew(side: MemorySide) -> None:
    guard = guard_of(side)
    original, claims = guard.claim, []

    def claim(*fences: Fence, timeout: float) -> Any:
        claims.append(fences)
        if len(claims) == 1:
            side.take_away("a")
            side.clock.advance(11)  # over the ttl
        return original(*fences, timeout=timeout)

    async def claim_async(*fences: Fence, timeout: float) -> None:
        await claim(*fences, timeout=timeout)

    guard.claim = claim_async if side.asynchronous else claim

    def body(leases: Any) -> None:
        assert all(side.holder(each.fence.resource).number == each.fence.number for each in leases)

    in_block(side, side.coordinator(guards=[guard], renew=False).hold_all(["a", "b"]), body)
    assert len(claims) == 2
    assert free(side, "a", "b")


def test_what_is_refused(side: MemorySide) -> None:
    coordinator, other = side.coordinator(), MemorySide(not side.asynchronous).coordinator()
    lock = coordinator.lock("a")
    for error, says, call in (
        (TypeError, "write hold_all([name, ...])", lambda: coordinator.hold_all("ab")),
        (TypeError, "the leases come in its order", lambda: coordinator.hold_all({"a", "b"})),
        (TypeError, "takes a list of locks, not set", lambda: hold_all({lock})),
        (TypeError, "coordinator.hold_all takes names", lambda: hold_all(["a"])),  # type: ignore[list-item]
        (TypeError, "takes a list of locks, not", lambda: hold_all(lock)),
        (TypeError, "either sync or async", lambda: hold_all([lock, other.lock("b")])),
        (ValueError, "'a' is given twice", lambda: coordinator.hold_all(["a", "b", "a"])),
        (ValueError, "1 to 100 locks, not 0", lambda: coordinator.hold_all([])),
        (ValueError, "1 to 100 locks, not 101", lambda: coordinator.hold_all([str(i) for i in range(101)])),
        (ValueError, "must not be negative", lambda: coordinator.hold_all(["a"], timeout=-1)),
        (TypeError, "did you mean 'ttl'", lambda: coordinator.hold_all(["a"], tll=1)),
    ):
        with pytest.raises(error) as caught:
            call()
        assert says in str(caught.value)
    held = coordinator.hold_all(["a", "b"])
    in_block(side, held, nothing)
    error_twice = side.expect(TypeError, in_block, side, held, nothing)
    assert "once for each block" in str(error_twice)


def test_a_block_inside_that_would_wait_for_itself(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lock = coordinator.lock("b")

    def inside(outer: Any, inner: Any) -> Any:
        def sync() -> None:
            with outer, inner:
                pass

        async def asynchronous() -> None:
            async with outer, inner:
                pass

        return side.expect(RuntimeError, side.call, asynchronous if side.asynchronous else sync)

    for outer, inner in (
        (coordinator.hold_all(["a", "b"]), lock.hold()),
        (lock.hold(), coordinator.hold_all(["a", "b"])),
        (lock.hold(), coordinator.hold_all(["a", "b"], timeout=5)),
        (coordinator.hold_all(["a", "b"]), coordinator.hold_all(["b", "c"], timeout=5)),
    ):
        assert "holds 'b' already" in str(inside(outer, inner))
        assert free(side, "a", "b", "c")


def test_a_re_entrant_lock_is_shared_inside(side: MemorySide) -> None:
    lock = side.coordinator().lock("a").reentrant()

    def sync() -> Any:
        with hold_all([lock]) as [outer], lock.hold() as inner:
            return outer is inner

    async def asynchronous() -> Any:
        async with hold_all([lock]) as [outer], lock.hold() as inner:
            return outer is inner

    assert side.call(asynchronous if side.asynchronous else sync)
    assert free(side, "a")


class Interruption(BaseException):
    """An exception of a signal handler."""


def test_a_second_interruption_while_all_are_given_back_leaves_none_taken() -> None:
    side = MemorySide(False)
    coordinator = side.coordinator()
    perform = coordinator._backend.perform
    requests: list[tuple[str, str]] = []

    def interrupted(effect: Any) -> Any:
        request = (effect.operation, effect.arguments[0])
        requests.append(request)
        if request == ("acquire", "c") or (request == ("release", "b") and requests.count(request) == 1):
            raise Interruption
        return perform(effect)

    coordinator._backend.perform = interrupted
    with pytest.raises(Interruption), coordinator.hold_all(["a", "b", "c"]):
        pass
    side.wait_until(lambda: free(side, "a", "b", "c"))
    assert not coordinator._renewal.held()
