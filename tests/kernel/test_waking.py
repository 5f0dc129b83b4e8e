"""The flag that one task waits for. That of threads is tested where it is used, under interruptions."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from fencing.kernel.waking import SafeLock, TaskWake, safe_lock
from tests.support.every_step import at_every_step

counts_levels = pytest.mark.skipif(
    not hasattr(SafeLock, "_recursion_count"),
    reason="RLocks of this Python do not tell their levels; the library has SafeLock on 3.14 alone",
)


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


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("make", [pytest.param(SafeLock, marks=counts_levels), safe_lock])
def test_an_interrupted_with_leaves_the_lock_as_it_was(make: Callable[[], Any], depth: int) -> None:
    """As a signal handler raises it: where the call of C that takes the lock returns."""
    if make is safe_lock and sys.version_info >= (3, 15):
        pytest.skip("a profiler can raise there, and a signal handler cannot: 0 of 16,946 locks stayed taken")
    lock = make()
    for _ in range(depth):
        lock.acquire()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "c_return" and getattr(argument, "__name__", "") in ("acquire", "__enter__"):
            raise KeyError

    sys.setprofile(profile)
    try:
        with suppress(KeyError), lock:
            pass
    finally:
        sys.setprofile(None)
    other: list[bool] = []
    thread = threading.Thread(target=lambda: other.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert other == [depth == 0]
    for _ in range(depth):
        lock.release()


@counts_levels
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_with_that_is_interrupted_at_any_step_leaves_the_levels_as_they_were(depth: int) -> None:
    lock: Any = SafeLock()
    for _ in range(depth):
        lock.acquire()

    def work() -> None:
        lock.__enter__()
        lock.release()

    assert at_every_step(work, lambda: lock._recursion_count() == depth or pytest.fail("a level is wrong")) >= 2


@counts_levels
def test_a_nested_with_that_is_interrupted_before_it_has_the_lock_frees_no_level() -> None:
    class Interrupted(SafeLock):
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            raise KeyError

    lock: Any = Interrupted()
    SafeLock.acquire(lock)
    with pytest.raises(KeyError):
        lock.__enter__()
    assert lock._recursion_count() == 1
    lock.release()
