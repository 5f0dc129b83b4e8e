"""Re-entrant locks: one lease for blocks inside blocks of the same thread or task, and no request for it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fencing import (
    AsyncFencedLock,
    FencedLock,
    LeaseLost,
    Mark,
    MemoryCoordinator,
    NotAcquired,
    StaleFence,
)
from fencing.locks.reentrant import MOST_DEPTH, begun, blocks
from fencing.memory.table import LockTable
from storage_guards import MemoryGuard
from tests.support.blocks import block, done, elsewhere, number, number_async, play
from tests.support.memory_side import MemorySide


def counted(coordinator: Any) -> list[str]:
    """Return a list of the operations that the coordinator requests from now on."""
    operations: list[str] = []
    perform = coordinator._backend.perform

    def counting(effect: Any) -> Any:
        operations.append(effect.operation)
        return perform(effect)

    async def counting_async(effect: Any) -> Any:
        operations.append(effect.operation)
        return await perform(effect)

    coordinator._backend.perform = counting_async if inspect.iscoroutinefunction(perform) else counting
    return operations


def test_every_depth_has_the_same_lease_and_one_request_is_made(side: MemorySide) -> None:
    coordinator = side.coordinator()
    operations = counted(coordinator)

    async def story() -> None:
        lock = coordinator.lock("r", reentrant=True)
        async with block(lock) as outer:
            async with block(coordinator.lock("r").reentrant()) as middle, block(lock, timeout=0) as inner:
                assert outer is middle is inner
                assert outer.held
            assert operations == ["acquire"]
            assert outer.held, "only the outermost end releases"
            async with block(lock) as again:
                assert again is outer
        assert operations == ["acquire", "release"]
        assert side.holder() is None
        async with block(lock) as second:
            assert second.fence.number > outer.fence.number

    play(side, story)
    assert not begun(blocks.get())


def test_the_three_spellings(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=5)
    kind = AsyncFencedLock if side.asynchronous else FencedLock
    for lock in (
        coordinator.lock("r", reentrant=True, ttl=7),
        coordinator.lock("r", ttl=7).reentrant(),
        kind(coordinator, "r", reentrant=True, ttl=7),
        kind(coordinator, "r", reentrant=True, ttl=7).reentrant(),
    ):
        assert type(lock) is kind
        assert (lock._is_reentrant, lock._settings.ttl, lock.coordinator) == (True, 7, coordinator)
    plain = coordinator.lock("r")
    plain.reentrant()
    assert not plain._is_reentrant, "it returns another lock"
    assert "True or False" in str(side.expect(TypeError, coordinator.lock, "r", reentrant=1))


def test_guards_are_claimed_once() -> None:
    guard = MemoryGuard()
    lock = MemoryCoordinator(guards=[guard]).lock("r", reentrant=True)
    with lock.hold() as lease, lock.hold():
        mark = guard.mark("r")
        assert mark is not None
        assert mark.number == lease.fence.number


def test_a_lost_lease_refuses_inner_blocks(side: MemorySide) -> None:
    coordinator = side.coordinator(renew=False)
    lock = coordinator.lock("r", reentrant=True)

    async def story() -> None:
        async with block(lock):
            side.clock.advance(10)
            async with block(lock):
                raise AssertionError("entered")

    error = side.expect(LeaseLost, play, side, story)
    assert error.reason == "expired"
    assert not error.completed
    assert side.holder() is None, "and nothing is acquired silently"


@pytest.mark.parametrize("end", ["release", "detach"])
def test_a_lease_that_ended_inside_refuses_inner_blocks(side: MemorySide, end: str) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story() -> None:
        async with block(lock) as lease:
            await done(getattr(lease, end)())
            with pytest.raises(LeaseLost, match=end):
                async with block(lock):
                    raise AssertionError("entered")

    play(side, story)


def test_a_loss_is_raised_at_the_end_of_an_inner_block(side: MemorySide) -> None:
    lock = side.coordinator(renew=False).lock("r", reentrant=True)
    seen: list[LeaseLost] = []

    async def story() -> None:
        async with block(lock):
            try:
                async with block(lock):
                    side.clock.advance(10)
            except LeaseLost as error:
                seen.append(error)
                raise ZeroDivisionError from None

    side.expect(ZeroDivisionError, play, side, story)
    assert [(error.reason, error.completed) for error in seen] == [("expired", True)]


def test_a_stale_fence_that_leaves_an_inner_block_ends_the_lease(side: MemorySide) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story() -> None:
        async with block(lock) as lease:
            with pytest.raises(StaleFence):
                async with block(lock):
                    raise StaleFence(fence=lease.fence, mark=Mark(lease.fence.number + 1, "b" * 22))
            assert lease.lost.is_set()

    play(side, story)


def test_an_error_at_depth_two_releases_once(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lock = coordinator.lock("r", reentrant=True)
    operations = counted(coordinator)
    raised = ZeroDivisionError("mine")

    async def story() -> None:
        async with block(lock), block(lock):
            raise raised

    assert side.expect(ZeroDivisionError, play, side, story) is raised
    assert operations == ["acquire", "release"]
    assert not begun(blocks.get())


def test_other_options_inside_are_refused(side: MemorySide) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        async with block(coordinator.lock("r", reentrant=True)) as lease:
            async with block(coordinator.lock("r", reentrant=True, ttl=10)):
                pass  # spelled differently, but the same
            async with block(coordinator.lock("r", reentrant=True, ttl=5, owner="me")):
                raise AssertionError(f"entered {lease}")

    text = str(side.expect(ValueError, play, side, story))
    assert "'r' with another ttl, owner; use the same options for both" in text
    assert side.holder() is None


@pytest.mark.parametrize("timeout", ["5", -1])
def test_a_wrong_timeout_is_refused_inside(side: MemorySide, timeout: Any) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story() -> None:
        async with block(lock), block(lock, timeout=timeout):
            raise AssertionError("entered")

    assert "timeout" in str(side.expect((TypeError, ValueError), play, side, story))  # type: ignore[arg-type]


def test_the_depth_is_bounded(side: MemorySide) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story() -> int:
        holds = [lock.hold() for _ in range(MOST_DEPTH + 1)]
        enter, leave = ("__aenter__", "__aexit__") if side.asynchronous else ("__enter__", "__exit__")
        for hold in holds[:-1]:
            await done(getattr(hold, enter)())
        with pytest.raises(RecursionError, match="'r' is held 1000 times"):
            await done(getattr(holds[-1], enter)())
        for hold in holds[:-1]:  # in any order
            assert side.holder() is not None
            await done(getattr(hold, leave)(None, None, None))
        return len(holds)

    assert play(side, story) == MOST_DEPTH + 1
    assert side.holder() is None


def test_who_inherits_nothing_waits(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lock = coordinator.lock("r", reentrant=True)

    async def story() -> None:
        def other() -> Any:
            return side.coordinator().lock("r", reentrant=True).try_acquire()

        def same_coordinator() -> Any:
            return number_async(lock) if side.asynchronous else number(lock)

        async with block(lock):
            assert await elsewhere(side, other) is None
            error = await elsewhere(side, same_coordinator)
            assert isinstance(error, NotAcquired)
            assert error.held_by_this is None

    play(side, story)


def test_acquire_is_not_re_entrant(side: MemorySide) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story() -> None:
        async with block(lock):
            assert await done(lock.try_acquire()) is None

    play(side, story)


def test_another_coordinator_is_another_lock(side: MemorySide) -> None:
    one, two = side.coordinator(), side.kind(LockTable(), clock=side.clock)

    async def story() -> None:
        async with block(one.lock("r", reentrant=True)) as first, block(two.lock("r", reentrant=True)) as second:
            assert first is not second

    play(side, story)
