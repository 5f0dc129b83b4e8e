"""The background in which locks are given back."""

from __future__ import annotations

import asyncio
from typing import Any

from fencing import AsyncMemoryCoordinator
from fencing.kernel.fence import Fence
from fencing.locks.give_back import AsyncGiveBack

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
