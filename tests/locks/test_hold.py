"""Blocks under `hold`, and leases: what leaves a block, and what a lease says of itself."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from fencing import Fence, LeaseLost, Mark, MemoryCoordinator, StaleFence
from fencing.kernel import process
from tests.support.memory_side import MemorySide


def in_block(side: MemorySide, coordinator: Any, body: Callable[[Any], Any]) -> Any:
    """Run a sync body in a block under `hold`, sync or async, and return the lease."""

    def sync() -> Any:
        with coordinator.hold("r", timeout=5) as lease:
            body(lease)
        return lease

    async def asynchronous() -> Any:
        async with coordinator.hold("r", timeout=5) as lease:
            body(lease)
        return lease

    return side.call(asynchronous if side.asynchronous else sync)


def fail(error: BaseException) -> Callable[[Any], None]:
    def body(lease: Any) -> None:
        raise error

    return body


def test_the_lock_is_held_in_the_block_and_free_afterwards(side: MemorySide) -> None:
    seen: list[Any] = []

    def body(lease: Any) -> None:
        seen.append((lease.held, side.holder().number == lease.fence.number))

    lease = in_block(side, side.coordinator(), body)
    assert seen == [(True, True)]
    assert side.holder() is None
    assert not lease.held
    assert lease._ended == "released"
    assert lease.fence.resource == "r", "readable afterwards, for logs"


def test_an_error_of_the_block_comes_out_unchanged(side: MemorySide) -> None:
    error = ZeroDivisionError("mine")
    assert side.expect(ZeroDivisionError, in_block, side, side.coordinator(), fail(error)) is error
    assert side.holder() is None


def test_a_loss_does_not_mask_an_error_of_the_block(side: MemorySide) -> None:
    error = ZeroDivisionError("mine")

    def body(lease: Any) -> None:
        side.take_away()
        raise error

    assert side.expect(ZeroDivisionError, in_block, side, side.coordinator(), body) is error


def test_a_loss_found_at_the_end_of_the_block_is_raised(side: MemorySide) -> None:
    coordinator = side.coordinator()
    error = side.expect(LeaseLost, in_block, side, coordinator, lambda lease: side.take_away())
    assert error.reason == "gone"
    assert error.completed
    assert error.fence.resource == "r"


def test_a_known_loss_is_raised_although_the_service_does_not_answer(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=10)

    def body(lease: Any) -> None:
        side.cut_off(coordinator)
        side.clock.advance(10)
        assert not lease.held

    error = side.expect(LeaseLost, in_block, side, coordinator, body)
    assert (error.reason, error.completed) == ("expired", True)


def test_a_release_without_an_answer_at_the_end_of_a_block_is_logged(
    side: MemorySide, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = side.coordinator(ttl=10)
    in_block(side, coordinator, lambda lease: side.cut_off(coordinator))
    assert "could not be released; if it is still held, it frees itself within 9.9 s" in caplog.text


def test_a_lock_is_not_a_context_manager_and_says_so(side: MemorySide) -> None:
    lock = side.coordinator().lock("r")
    error = side.expect(TypeError, lock.__aenter__ if side.asynchronous else lock.__enter__)
    assert "with lock.hold(timeout=5) as lease:" in str(error)
    if not side.asynchronous:
        with pytest.raises(TypeError, match="a lock is reusable"), lock:
            pass


def test_an_adopted_lease_is_a_context_manager(side: MemorySide) -> None:
    lock = side.coordinator().lock("r")
    fence = side.call(lock.acquire).detach()

    def work() -> Any:
        with lock.adopt(fence) as lease:
            return lease.held and lease.fence.number > fence.number

    async def work_async() -> Any:
        async with await lock.adopt(fence) as lease:
            return lease.held and lease.fence.number > fence.number

    assert side.call(work_async if side.asynchronous else work)
    assert side.holder() is None


def test_stale_fence_leaving_the_block_marks_the_lease_lost(side: MemorySide) -> None:
    leases: list[Any] = []

    def body(lease: Any) -> None:
        leases.append(lease)
        raise StaleFence(fence=lease.fence, mark=Mark(lease.fence.number + 1, "b" * 22))

    side.expect(StaleFence, in_block, side, side.coordinator(), body)
    assert not leases[0].held


def test_stale_fence_in_an_exception_group_marks_the_lease_lost(side: MemorySide) -> None:
    leases: list[Any] = []

    def body(lease: Any) -> None:
        leases.append(lease)
        stale = StaleFence(fence=lease.fence, mark=Mark(lease.fence.number + 1, "b" * 22))
        raise ExceptionGroup("of a task group", [ValueError(), stale])

    side.expect(ExceptionGroup, in_block, side, side.coordinator(), body)
    assert leases[0].lost.is_set()


def test_closing_the_coordinator_in_the_block_masks_no_error(side: MemorySide) -> None:
    coordinator = side.coordinator()
    error = KeyError("mine")

    async def close_and_fail_async() -> None:
        async with coordinator.hold("r"):
            await coordinator.close()
            raise error

    def close_and_fail() -> None:
        with coordinator.hold("r"):
            coordinator.close()
            raise error

    assert side.expect(KeyError, close_and_fail_async if side.asynchronous else close_and_fail) is error


def test_a_stale_fence_of_another_resource_does_not_end_this_lease(side: MemorySide) -> None:
    def body(lease: Any) -> None:
        try:
            raise StaleFence(fence=Fence("other", 1, "a" * 22), mark=None, floor=1)
        except StaleFence as error:
            lease._lose_if_stale(error)
        lease.ensure_held()

    lease = in_block(side, side.coordinator(), body)
    assert lease._ended == "released"
    assert not lease.lost.is_set()


def test_a_lease_that_was_detached_in_the_block_is_not_released(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = in_block(side, coordinator, lambda lease: lease.detach())
    assert lease._ended == "detached"
    assert side.holder().number == lease.fence.number
    adopted = side.call(coordinator.lock("r").adopt, lease.fence)
    side.call(adopted.release)


def test_a_released_lease_says_what_is_wrong(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r")
    side.call(lease.release)
    for use in (lease.ensure_held, lease.renew, lease.detach):
        error = side.expect(LeaseLost, use)
        assert error.reason == "released"
        assert "was released; acquire the lock again" in str(error)


def test_the_remaining_time_runs_out(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=10, renew=False)
    lease = side.call(coordinator.acquire, "r")
    assert 9.8 < lease.remaining() <= 10
    side.clock.advance(5)
    assert 4.8 < lease.remaining() <= 5
    assert lease.held
    side.clock.advance(5)
    assert not lease.held
    assert lease.remaining() == 0.0
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    side.call(lease.release)


def test_a_forgotten_lease_warns(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r")
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    [warning] = [each for each in caught if each.category is ResourceWarning]
    assert "the lease on 'r'" in str(warning.message)
    assert "was never released; use hold()" in str(warning.message)


@pytest.mark.parametrize("several", [False, True])
def test_a_block_that_is_never_entered_warns_at_once(side: MemorySide, several: bool) -> None:
    """The code after ``coordinator.hold("r")`` without ``with`` runs unlocked."""
    coordinator = side.coordinator()
    statement = "async with" if side.asynchronous else "with"
    with pytest.warns(RuntimeWarning) as caught:
        coordinator.hold_all(["q", "r"]) if several else coordinator.hold("r")
    [warning] = caught
    name = "hold_all() of 'q, r'" if several else "hold() of 'r'"
    assert str(warning.message) == f"{name} was never entered, so nothing was locked; write `{statement} … as lease:`"
    assert warning.filename == __file__


def test_a_block_is_not_copied(side: MemorySide) -> None:
    """To drop the copy would free the lock."""
    coordinator = side.coordinator()
    for block in (coordinator.hold("r"), coordinator.hold_all(["q", "r"])):
        side.call(block.__aenter__ if side.asynchronous else block.__enter__)
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            copy.copy(block)
        side.call(block.__aexit__ if side.asynchronous else block.__exit__, None, None, None)


def test_hold_decorates_a_function(side: MemorySide) -> None:
    coordinator = side.coordinator()

    def count(number: int) -> int:
        assert side.holder("r").number
        return number + 1

    async def count_async(number: int) -> int:
        return count(number)

    counted = coordinator.hold("r")(count_async if side.asynchronous else count)
    assert [side.call(counted, number) for number in (1, 2)] == [2, 3]  # each call has a block of its own
    assert counted.__name__ in ("count", "count_async")
    assert side.holder("r") is None


def test_hold_decorates_only_what_runs_under_the_lock(side: MemorySide) -> None:
    """The body of an async function or a generator would run after the block."""

    def function() -> None: ...

    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    async def async_generator() -> Any:
        yield

    hold = side.coordinator().hold("r")
    for wrong in (function if side.asynchronous else coroutine, generator, async_generator, object, 1):
        with pytest.raises(TypeError, match="hold"):
            hold(wrong)


@pytest.mark.parametrize("way", ["hold", "locked"])
def test_a_sync_function_that_returns_a_coroutine_is_refused(way: str) -> None:
    """Such as a wrapper of an async function that does not say so."""
    coordinator = MemoryCoordinator()
    ran: list[None] = []

    async def work() -> None:
        ran.append(None)

    decorated = getattr(coordinator, way)("r")(lambda: work())
    with pytest.raises(TypeError, match="returned a coroutine, which would run without the lock"):
        decorated()
    assert not ran


@pytest.mark.parametrize("end", ["release", "detach"])
def test_a_lease_that_was_ended_does_not_warn(side: MemorySide, end: str) -> None:
    lease = side.call(side.coordinator().acquire, "r")
    side.call(getattr(lease, end))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    assert not [each for each in caught if "never released" in str(each.message)]


def test_the_repr_does_not_show_the_token(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r")
    assert f"of 'r', fence {lease.fence.number}, " in repr(lease)
    assert lease.fence.token not in repr(lease)
    side.call(lease.release)
    assert repr(lease).endswith("released>")


def test_a_lease_that_has_ended_has_no_time_left(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=10)
    released, detached, lost, forked = [side.call(coordinator.acquire, name) for name in "abcd"]
    seen: list[float] = []
    performs = coordinator._backend.perform

    def perform(effect: Any) -> Any:
        seen.append(released.remaining())
        return performs(effect)

    coordinator._backend.perform = perform
    side.call(released.release)
    assert seen == [0.0], "belief ends before the release is sent"
    del coordinator._backend.perform
    detached.detach()
    side.take_away("c")
    side.expect(LeaseLost, lost.renew)
    with patch.object(process, "pid", return_value=0):  # as in a forked child
        assert forked.remaining() == 0.0
    assert [lease.remaining() for lease in (released, detached, lost)] == [0.0] * 3
    assert forked.remaining() > 9
    side.call(forked.release)
