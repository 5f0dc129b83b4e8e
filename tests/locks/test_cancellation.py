"""Cancelled tasks: they give back what they hold. No request is cut short that gives something back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, GuardUnavailable, MemoryCoordinator, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence
from fencing.memory.table import LockTable
from tests.support.loops import until
from tests.support.memory_side import SlowCoordinator


def run(story: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(bounded())


async def cancel(task: asyncio.Task[Any], times: int) -> None:
    """Cancel the task so often, and let it take note of each cancellation."""
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)


class HangingGuard:
    """Its claim does not end, or fails with `error`."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.error: Exception | None = None

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        self.entered.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def mark(self, resource: str) -> None:
        return None


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_cancelled_holder_releases(times: int) -> None:
    async def story() -> None:
        coordinator = SlowCoordinator("release")
        inside = asyncio.Event()

        async def work() -> None:
            async with coordinator.hold("r"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        await cancel(task, times)
        await until(coordinator.asked.is_set)
        assert not task.done(), "the release comes first"
        coordinator.permitted.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await coordinator.holder("r") is None

    run(story())


def test_a_cancelled_release_is_finished_first() -> None:
    async def story() -> None:
        coordinator = SlowCoordinator("release")
        lease = await coordinator.acquire("r")
        task = asyncio.create_task(lease.release())
        await until(coordinator.asked.is_set)
        await cancel(task, 3)
        assert not task.done()
        coordinator.permitted.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await coordinator.holder("r") is None
        assert await lease.release() is True, "what it has found out is not lost"

    run(story())


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_claim_gives_the_lock_back(times: int) -> None:
    async def story() -> None:
        guard = HangingGuard()
        coordinator = AsyncMemoryCoordinator(guards=[guard])
        task = asyncio.create_task(coordinator.acquire("r"))
        await guard.entered.wait()
        assert await coordinator.holder("r") is not None
        await cancel(task, times)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await coordinator.holder("r") is None

    run(story())


def test_a_failed_claim_gives_the_lock_back() -> None:
    async def story() -> None:
        guard = HangingGuard()
        guard.error = GuardUnavailable("away")
        coordinator = AsyncMemoryCoordinator(guards=[guard])
        with pytest.raises(GuardUnavailable):
            await coordinator.acquire("r")
        assert await coordinator.holder("r") is None

    run(story())


def test_a_second_cancellation_does_not_stop_what_gives_the_lock_back() -> None:
    async def story() -> None:
        guard = HangingGuard()
        coordinator = SlowCoordinator("release", guards=[guard])
        task = asyncio.create_task(coordinator.acquire("r"))
        await guard.entered.wait()
        task.cancel()
        await until(coordinator.asked.is_set)
        await cancel(task, 3)
        assert not task.done()
        coordinator.permitted.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await coordinator.holder("r") is None

    run(story())


def test_a_cancelled_waiter_is_granted_nothing_later() -> None:
    async def story() -> None:
        coordinator = AsyncMemoryCoordinator()
        lease = await coordinator.acquire("r")
        task = asyncio.create_task(coordinator.acquire("r"))
        await asyncio.sleep(0)
        await cancel(task, 1)
        with pytest.raises(asyncio.CancelledError):
            await task
        await lease.release()
        assert await coordinator.holder("r") is None

    run(story())


def test_a_cancellation_during_the_release_keeps_what_the_block_says_of_its_write() -> None:
    """The second cancellation replaces the first one, which had the OutcomeUnknown as its cause."""
    unknown = OutcomeUnknown(fence=Fence("r", 1, "t" * 22), seq=1)

    async def main() -> BaseException | None:
        coordinator = AsyncMemoryCoordinator(LockTable(), ttl=60)
        perform, entered, going = coordinator._backend.perform, asyncio.Event(), asyncio.Event()

        async def slow(request: Any) -> Any:
            if request.operation == "release":
                entered.set()
                await going.wait()
            return await perform(request)

        coordinator._backend.perform = slow  # type: ignore[method-assign, assignment]

        async def block() -> None:
            async with coordinator.hold("r", timeout=1):
                raise asyncio.CancelledError from unknown

        task = asyncio.ensure_future(block())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        going.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value.__cause__

    assert asyncio.run(main()) is unknown


def test_an_interrupt_during_the_release_keeps_what_the_block_says_of_its_write() -> None:
    unknown = OutcomeUnknown(fence=Fence("r", 1, "t" * 22), seq=1)
    coordinator = MemoryCoordinator(LockTable(), ttl=60)
    perform = coordinator._backend.perform

    def interrupted(request: Any) -> Any:
        if request.operation == "release":
            raise KeyboardInterrupt
        return perform(request)

    def block() -> None:
        with coordinator.hold("r", timeout=1):
            coordinator._backend.perform = interrupted  # type: ignore[method-assign, assignment]
            raise unknown

    with pytest.raises(KeyboardInterrupt) as caught:
        block()
    coordinator._backend.perform = perform  # type: ignore[method-assign]
    assert caught.value.__cause__ is unknown
