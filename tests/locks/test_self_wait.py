"""A hold that would wait for the block around it: an error in the place of a hang."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, MemoryCoordinator, NotAcquired
from fencing.locks.reentrant import begun, blocks
from tests.support.blocks import block, done, elsewhere, number, play
from tests.support.memory_side import MemorySide


def test_without_a_timeout_it_is_an_error_at_once(side: MemorySide) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        async with block(coordinator.lock("other")), block(coordinator.lock("r")), block(coordinator.lock("r")):
            raise AssertionError("entered")

    text = str(side.expect(RuntimeError, play, side, story))
    this = "task" if side.asynchronous else "thread"
    assert text == (
        f"this {this} holds 'r' already, in a block around this one, and would wait for itself for ever; "
        f"pass the lease on, or use lock.reentrant() for both blocks"
    )
    assert side.holder("r") is None


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_with_a_timeout_the_error_says_so(side: MemorySide, timeout: float) -> None:
    lock = side.kind(owner="me").lock("r")

    async def hold() -> None:
        async with block(lock, timeout=timeout):
            raise AssertionError("entered")

    def story_of_threads() -> None:
        with lock.hold(), lock.hold(timeout=timeout):
            raise AssertionError("entered")

    async def story() -> None:
        async with block(lock):
            await hold()

    error = side.expect(NotAcquired, story if side.asynchronous else story_of_threads)
    this = "task" if side.asynchronous else "thread"
    assert (error.reason, error.held_by_this) == ("held", this)
    assert f"'r' is held by this very {this}, in a block around this one" in str(error)
    assert error.owner == "me"


@pytest.mark.parametrize("outer", [True, False])
def test_one_re_entrant_block_is_not_enough(side: MemorySide, outer: bool) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        first = coordinator.lock("r", reentrant=outer)
        async with block(first), block(coordinator.lock("r", reentrant=not outer)):
            raise AssertionError("entered")

    text = str(side.expect(RuntimeError, play, side, story))
    assert text.endswith("use lock.reentrant() for both blocks")


@pytest.mark.parametrize("end", ["release", "detach", "lose"])
def test_a_lease_that_ended_does_not_count(side: MemorySide, end: str) -> None:
    coordinator = side.coordinator(renew=False)

    async def story() -> None:
        async with block(coordinator.lock("r")) as outer:
            if end != "lose":
                await done(getattr(outer, end)())
            if end != "release":
                side.clock.advance(10)
            async with block(coordinator.lock("r")) as inner:
                assert inner.fence.number > outer.fence.number
            await done(outer.release())

    if end == "lose":
        side.expect(Exception, play, side, story)  # LeaseLost of the outer block
    else:
        play(side, story)
    assert side.holder() is None


def test_acquire_is_never_refused(side: MemorySide) -> None:
    """Another thread or task may release a lease of `acquire`, so it may be worth waiting for."""
    lock = side.coordinator().lock("r")

    async def story() -> None:
        lease = await done(lock.acquire())
        with pytest.raises(NotAcquired) as raised:
            async with block(lock, timeout=0):
                raise AssertionError("entered")
        assert raised.value.held_by_this is None
        await done(lease.release())
        async with block(lock):
            assert await done(lock.try_acquire()) is None

    play(side, story)


def test_who_did_not_begin_the_block_waits(side: MemorySide) -> None:
    lock = side.kind().lock("r")

    async def story() -> None:
        async def wait_and_hold() -> bool:
            async with lock.hold():
                return True

        def wait_and_hold_in_thread() -> bool:
            with lock.hold():
                return True

        if side.asynchronous:
            async with lock.hold():
                task = asyncio.ensure_future(wait_and_hold())
                await asyncio.sleep(0)
            assert await task
        else:
            with ThreadPoolExecutor(1) as pool:
                with lock.hold():
                    future = pool.submit(contextvars.copy_context().run, wait_and_hold_in_thread)
                assert future.result()
            assert await elsewhere(side, wait_and_hold_in_thread)

    play(side, story)


def test_a_thread_whose_context_began_no_block_waits() -> None:
    """A worker thread of a web framework: it begins a block in the context of one request, and another one ends it."""
    lock = MemoryCoordinator().lock("r")
    hold = lock.hold()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, hold.__enter__).result()
        refused: Any = pool.submit(contextvars.copy_context().run, number, lock).result()
        assert isinstance(refused, NotAcquired)
        assert refused.held_by_this is None
    hold.__exit__(None, None, None)
    assert not begun(blocks.get())


def test_a_sync_lock_in_two_tasks_of_one_thread() -> None:
    """A thread that waits stops the other task, which would never free the lock."""
    lock = MemoryCoordinator().lock("r")

    async def child() -> None:
        with lock.hold():
            raise AssertionError("entered")

    async def main() -> None:
        with lock.hold(), pytest.raises(RuntimeError, match="this thread holds 'r' already"):
            await asyncio.gather(child())

    asyncio.run(main())
    with lock.hold(), pytest.raises(RuntimeError, match="this thread holds 'r' already"):
        asyncio.run(child())


def test_different_tasks_take_turns_with_a_plain_lock() -> None:
    lock = AsyncMemoryCoordinator().lock("r")
    numbers: list[int] = []

    async def worker() -> None:
        async with lock.hold() as lease:
            numbers.append(lease.fence.number)
            await asyncio.sleep(0)
            assert numbers[-1] == lease.fence.number, "another one held the lock meanwhile"

    async def main() -> None:
        async with lock.hold():
            tasks = [asyncio.ensure_future(worker()) for _ in range(5)]
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(set(numbers)) == 5
