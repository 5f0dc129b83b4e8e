"""Stories of a coordinator whose calls are interrupted or cancelled, and what cancels at one of its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fencing import CoordinatorUnavailable, NotAcquired

Story = Callable[[Any], None]
"""Is told with a world, which has a ``coordinator`` whose calls are interrupted, and ``names`` of locks."""


def hold(world: Any) -> None:
    with world.coordinator.hold(world.names[0], timeout=30):
        pass


def renew(world: Any) -> None:
    with world.coordinator.hold(world.names[0], timeout=30) as lease:
        lease.renew()


def hold_all(world: Any) -> None:
    with world.coordinator.hold_all(world.names, timeout=30):
        pass


def try_in_vain(world: Any) -> None:
    assert world.coordinator.try_acquire(world.names[0]) is None


def wait_in_vain(world: Any) -> None:
    try:
        with world.coordinator.hold(world.names[0], timeout=0.03):
            pass
    except (NotAcquired, CoordinatorUnavailable):  # on a busy machine the time is up before there is an answer
        pass


def wait(world: Any) -> None:
    """The other coordinator gives the lock back when this one waits for it."""
    with world.coordinator.hold(world.names[0], timeout=30):
        pass


ALONE = (hold, renew, hold_all)
HELD = (try_in_vain, wait_in_vain, wait)


class Cancelling:
    """Cancels a task at one of the effects that a coordinator performs: before it, while it is under way, or after.

    Args:
        wait: the class of the effects that wait.
    """

    def __init__(self, coordinator: Any, wait: type[Any]) -> None:
        backend = coordinator._backend
        perform = backend.perform
        self.left, self.moment = -1, ""
        self.task: asyncio.Task[None] | None = None
        self.at_wait: Callable[[], object] = lambda: None

        async def perform_cancelled(effect: Any) -> Any:
            is_it = self.left == 0
            self.left -= 1
            task = self.task
            assert task is not None
            if is_it and self.moment == "before":
                task.cancel()
            elif is_it and self.moment == "under way":
                asyncio.get_running_loop().call_later(0.0005, task.cancel)
            if isinstance(effect, wait) and effect.seconds > 1:
                self.at_wait()
            result = await perform(effect)
            if is_it and self.moment == "after":
                task.cancel()
            return result

        backend.perform = perform_cancelled


async def hold_async(coordinator: Any, name: str) -> None:
    async with coordinator.hold(name, timeout=30) as lease:
        await lease.renew()


async def wait_in_vain_async(coordinator: Any, name: str) -> None:
    try:
        async with coordinator.hold(name, timeout=0.03):
            pass
    except (NotAcquired, CoordinatorUnavailable):  # on a busy machine the time is up before there is an answer
        pass


async def wait_async(coordinator: Any, name: str) -> None:
    """The other coordinator gives the lock back when this one waits for it."""
    async with coordinator.hold(name, timeout=30):
        pass


async def try_in_vain_async(coordinator: Any, name: str) -> None:
    assert await coordinator.try_acquire(name) is None
