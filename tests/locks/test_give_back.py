"""The background in which locks are given back."""

from __future__ import annotations

import asyncio
from typing import Any

from fencing import AsyncMemoryCoordinator
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import Fence, new_token
from fencing.locks.give_back import AsyncGiveBack
from tests.support.blocks import done, play
from tests.support.memory_side import MemorySide

left: list[asyncio.Task[None]] = []


async def leave_one_behind(give_back: AsyncGiveBack, settings: Any) -> None:
    """A block that ends when its loop ends all tasks: what it begins then is never ended."""

    async def block() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            give_back.later(Fence("r", 1, "t" * 22), settings)

    left.append(asyncio.create_task(block()))
    await asyncio.sleep(0)


def test_tasks_of_loops_that_have_ended_do_not_count() -> None:
    """Else nothing would be given back any more after a thousand of them."""
    coordinator = AsyncMemoryCoordinator()
    give_back = AsyncGiveBack(coordinator._backend)
    for _ in range(3):
        asyncio.run(leave_one_behind(give_back, coordinator._backend.settings))
    assert len(give_back._tasks) == 1
    assert sum(map(len, give_back._tasks.values())) == 1


def test_locks_with_one_token_are_all_given_back(side: MemorySide) -> None:
    """A request for any of several slots that has no answer may have taken each of them."""
    backend, token = side.coordinator()._backend, new_token()
    names = ["a", "b", "c"]

    async def story() -> None:
        for name in names:
            plan = backend.plan_acquire(name, token, backend.settings, floor=0, deadline=5.0)
            await done((run_async if side.asynchronous else run)(plan, backend.perform))
        for name in names:
            backend.give_back_later(Fence(name, 1, token), backend.settings)

    play(side, story)
    side.wait_until(lambda: all(side.holder(name) is None for name in names))
