"""Blocks of re-entrant locks in child tasks and threads, in generators, in forked children, and under interruptions."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, LeaseLost, MemoryCoordinator, NotAcquired
from fencing.locks.reentrant import blocks
from fencing.memory.table import LockTable
from fencing.testing import ManualClock
from tests.support import wait_until
from tests.support.blocks import number, number_async
from tests.support.every_step import Exit, at_every_step, is_idle
from tests.support.forks import in_child

# Tasks and threads that were started inside


def test_a_child_task_is_told() -> None:
    lock = AsyncMemoryCoordinator().lock("r", reentrant=True)

    async def child() -> Any:
        async with lock.hold(timeout=5):
            raise AssertionError("entered")

    async def main() -> None:
        async with lock.hold():
            with pytest.raises(RuntimeError, match="held by the task that started this one; pass it the lease"):
                await asyncio.gather(child())
            late = asyncio.ensure_future(asyncio.sleep(0))
        await late

        async def after() -> int:
            async with lock.hold() as lease:
                return lease.fence.number

        async with lock.hold(timeout=5) as lease:
            task = asyncio.ensure_future(after_end(ended, after))
            first = lease.fence.number
        ended.set()
        assert await task > first, "the record of a block that has ended counts no more"

    async def after_end(event: asyncio.Event, then: Callable[[], Any]) -> Any:
        await event.wait()
        return await then()

    ended = asyncio.Event()
    asyncio.run(main())


def test_fifty_tasks_take_turns() -> None:
    lock = AsyncMemoryCoordinator().lock("r", reentrant=True)
    inside: list[int] = []

    async def worker(me: int) -> None:
        async with lock.hold():
            inside.append(me)
            async with lock.hold():
                await asyncio.sleep(0)
                assert inside.pop() == me
                assert not inside

    async def main() -> None:
        await asyncio.gather(*(worker(me) for me in range(50)))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_thread_that_was_started_with_this_context_is_told() -> None:
    lock = MemoryCoordinator().lock("r", reentrant=True)

    def child() -> None:
        with lock.hold(timeout=5):
            raise AssertionError("entered")

    with lock.hold(), ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="held by the thread that started this one; pass it the lease"):
            pool.submit(contextvars.copy_context().run, child).result()
        assert isinstance(pool.submit(number, lock).result(), NotAcquired), "the other one inherited nothing"


# Blocks that end in another place


def test_a_block_that_ends_in_another_thread_counts() -> None:
    table = LockTable()
    lock = MemoryCoordinator(table).lock("r", reentrant=True)
    outer, inner = lock.hold(), lock.hold()
    with ThreadPoolExecutor(1) as pool:
        assert outer.__enter__() is inner.__enter__()
        pool.submit(outer.__exit__, None, None, None).result()
        assert table._held, "the inner block has not ended"
        pool.submit(inner.__exit__, None, None, None).result()
    assert not table._held
    with lock.hold() as lease:
        assert lease.held, "the note that stayed here counts no more"
    assert len(blocks.get()) == 1


def test_notes_of_blocks_that_ended_elsewhere_are_removed() -> None:
    coordinator = MemoryCoordinator()
    holds = [coordinator.lock(f"r{i}", reentrant=True).hold() for i in range(50)]
    with ThreadPoolExecutor(1) as pool:
        for hold in holds:
            hold.__enter__()
            pool.submit(hold.__exit__, None, None, None).result()
    assert len(blocks.get()) == 1


def test_a_block_that_ends_in_another_task_counts() -> None:
    table = LockTable()
    lock = AsyncMemoryCoordinator(table).lock("r", reentrant=True)

    async def fixture() -> AsyncIterator[Any]:
        async with lock.hold() as lease, lock.hold():
            yield lease

    async def main() -> None:
        generator = fixture()
        lease = await asyncio.ensure_future(anext(generator))
        assert lease.held
        assert isinstance(await number_async(lock), NotAcquired), "this task did not begin the block"
        await asyncio.ensure_future(anext(generator, None))
        assert not table._held

    asyncio.run(main())


def test_a_generator_holds_for_its_thread_until_it_is_collected() -> None:
    table = LockTable()
    lock = MemoryCoordinator(table).lock("r", reentrant=True)

    def holding() -> Iterator[Any]:
        with lock.hold() as lease:
            yield lease

    generator = holding()
    lease = next(generator)
    with lock.hold() as inner:
        assert inner is lease
    assert table._held
    del generator
    gc.collect()
    assert not table._held


def test_hold_as_a_decorator_recurses() -> None:
    table = LockTable()
    lock = MemoryCoordinator(table).lock("r", reentrant=True)

    @lock.hold(timeout=5)
    def factorial(n: int) -> int:
        assert len(table._held) == 1
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(5) == 120
    assert not table._held


def test_a_forked_child_does_not_hold_it() -> None:
    clock, table = ManualClock(), LockTable()
    lock = MemoryCoordinator(table, clock=clock).lock("r", reentrant=True)

    def check() -> None:
        assert isinstance(number(lock), NotAcquired)
        clock.advance(60)
        with lock.hold(timeout=0) as own, lock.hold() as inner:
            assert own is inner
            assert own._ended is None
            assert own is not lease
        assert not table._held

    with lock.hold() as lease, lock.hold():
        in_child(check)
        assert lease.held


def test_a_child_that_leaves_the_inherited_blocks_releases_nothing() -> None:
    table = LockTable()
    lock = MemoryCoordinator(table).lock("r", reentrant=True)
    reader, writer = os.pipe()
    with lock.hold(), lock.hold():
        child = os.fork()
    if child == 0:
        os.write(writer, b"%d" % len(table._held))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"1"
    os.close(reader)
    os.close(writer)
    assert not table._held


# Cancelling, and interruptions


def test_the_innermost_block_with_cancel_on_loss_raises_the_loss() -> None:
    clock = ManualClock()
    lock = AsyncMemoryCoordinator(clock=clock, renew=False).lock("r", reentrant=True)
    seen: list[str] = []

    async def main() -> None:
        async with lock.hold(cancel_on_loss=True):
            async with lock.hold(cancel_on_loss=True) as lease:
                pass
            assert lease._cancel is not None, "the outer block's is in force again"
            try:
                async with lock.hold(cancel_on_loss=True):
                    threading.Timer(0.01, clock.advance, [10]).start()
                    await asyncio.sleep(10)
            except LeaseLost as error:
                seen.append(error.reason)
                raise

    with pytest.raises(LeaseLost):
        asyncio.run(main())
    assert seen == ["expired"]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_step_of_an_inner_block() -> None:
    table = LockTable()
    coordinator = MemoryCoordinator(table, ttl=60)
    lock = coordinator.lock("r", reentrant=True)

    def work() -> None:
        with lock.hold(timeout=0), lock.hold():
            pass

    def check() -> None:
        wait_until(lambda: not table._held and is_idle(coordinator))

    work()
    assert at_every_step(work, check) > 50


def test_an_interruption_whose_traceback_is_kept() -> None:
    """The traceback keeps the inner block, but its end is not waited for."""
    table = LockTable()
    lock = MemoryCoordinator(table, ttl=60).lock("r", reentrant=True)
    kept: list[BaseException] = []

    class Ids(set[int]):
        def add(self, each: int) -> None:
            super().add(each)
            raise Exit

    hold = lock.hold()
    with pytest.raises(Exit) as raised, hold:  # noqa: PT012
        hold._inside = Ids(hold._inside or ())
        with lock.hold():
            raise AssertionError("entered")
    kept.append(raised.value)
    assert not table._held
