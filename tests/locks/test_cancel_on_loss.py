"""Blocks under `hold(cancel_on_loss=True)`: they are cancelled when the lease is lost, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fencing import AsyncMemoryCoordinator, LeaseLost
from fencing.testing import ManualClock
from tests.support.memory_side import MemorySide


class Story:
    """A coordinator on a loop, and what may happen to its locks."""

    def __init__(self) -> None:
        self._side = MemorySide(asynchronous=True)
        self.coordinator: AsyncMemoryCoordinator = self._side.coordinator(ttl=10)
        self.clock: ManualClock = self._side.clock

    def take_away(self) -> None:
        self._side.take_away()

    def lose(self) -> None:
        """Take the lock away, and let the next renewal find that out."""
        self.take_away()
        self.clock.advance(4)


def run(story: Callable[[Story], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await story(Story())
            await asyncio.sleep(0)  # a cancellation that is left over would be raised here

    asyncio.run(main())


def test_a_loss_cancels_the_block() -> None:
    async def story(story: Story) -> None:
        steps: list[str] = []
        with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
            async with story.coordinator.hold("r", cancel_on_loss=True):
                story.lose()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    steps.append("cancelled")
                    raise
        assert steps == ["cancelled"]
        assert caught.value.reason == "gone"
        assert not caught.value.completed

    run(story)


def test_without_the_option_a_loss_does_not_cancel_the_block() -> None:
    async def story(story: Story) -> None:
        steps: list[str] = []
        with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
            async with story.coordinator.hold("r") as lease:
                story.lose()
                await lease.lost.wait()
                await asyncio.sleep(0)
                steps.append("went on")
        assert steps == ["went on"]
        assert caught.value.completed

    run(story)


def test_a_loss_that_leaves_the_block_is_not_a_cancellation() -> None:
    async def story(story: Story) -> None:
        with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
            async with story.coordinator.hold("r", cancel_on_loss=True) as lease:
                story.take_away()
                await lease.renew()
        assert not caught.value.completed

    run(story)


def test_a_loss_that_the_block_handles_is_not_a_cancellation() -> None:
    async def story(story: Story) -> None:
        with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
            async with story.coordinator.hold("r", cancel_on_loss=True) as lease:
                story.take_away()
                with pytest.raises(LeaseLost):
                    await lease.renew()
        assert caught.value.completed

    run(story)


def test_a_cancellation_from_outside_comes_out_as_one() -> None:
    async def story(story: Story) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with story.coordinator.hold("r", cancel_on_loss=True):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await story.coordinator.holder("r") is None

    run(story)


def test_a_loss_and_a_cancellation_at_once_come_out_as_a_cancellation() -> None:
    async def story(story: Story) -> None:
        inside = asyncio.Event()
        leases = []

        async def work() -> None:
            async with story.coordinator.hold("r", cancel_on_loss=True) as lease:
                leases.append(lease)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        leases[0]._holding.lose("gone")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(story)


def test_a_block_that_swallows_the_cancellation_still_learns_of_the_loss() -> None:
    async def story(story: Story) -> None:
        with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
            async with story.coordinator.hold("r", cancel_on_loss=True):
                story.lose()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
        assert caught.value.completed

    run(story)
