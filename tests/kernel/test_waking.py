"""The flag that one task waits for. That of threads is tested where it is used, under interruptions."""

from __future__ import annotations

import asyncio
import math

import pytest

from fencing.kernel.waking import TaskWake


def test_a_task_is_woken_before_its_wait_and_during_it() -> None:
    async def story() -> None:
        wake = TaskWake()
        wake.set()
        await wake.wait(math.inf)
        waiting = asyncio.ensure_future(wake.wait(math.inf))
        await asyncio.sleep(0)
        assert not waiting.done(), "the first wait has used it up"
        wake.set()
        wake.set()
        await waiting
        await wake.wait(0.01)  # it ends by itself

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_cancelled_wait_leaves_no_timer_and_may_be_repeated() -> None:
    async def story() -> None:
        wake = TaskWake()
        waiting = asyncio.ensure_future(wake.wait(0.02))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.05)
        again = asyncio.ensure_future(wake.wait(math.inf))
        await asyncio.sleep(0)
        assert not again.done(), "the timer of the first wait would have woken it"
        wake.set()
        await again

    asyncio.run(asyncio.wait_for(story(), 30))
