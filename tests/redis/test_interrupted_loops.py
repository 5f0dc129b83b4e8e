"""Exceptions of signal handlers at any step of asyncio's part: in tasks, and in callbacks of the event loop.

The loop loses the exceptions of its callbacks. They must not make anything hang, or leave a lock taken.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, FencingError
from fencing.kernel.effects import call_surely

FOLDER = str(sys.modules["fencing"].__file__).removesuffix("__init__.py")
HANGS_AFTER = 30.0


class Failure(Exception):
    """An exception of a signal handler."""


@contextmanager
def interruption(step: int, error: type[BaseException]) -> Iterator[list[Any]]:
    """Raise the exception at one step of the library's code. The list has the steps left, and where it was raised."""
    state: list[Any] = [step, ""]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(FOLDER):
            return
        if code.co_name == "__del__" or (event == "call" and code is call_surely.__code__):
            return  # a destructor's exceptions are not raised; a callback cannot be called again before it begins
        state[0] -= 1
        if state[0] == -1:
            state[1] = f"{code.co_filename}:{frame.f_lineno} {event} {argument}"
            raise error

    sys.setprofile(profile)
    try:
        yield state
    finally:
        sys.setprofile(None)


async def _until_free(client: Any, coordinator: Any, where: str) -> None:
    for _ in range(6000):
        if not await client.exists("r") and not coordinator._renewal.held():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"the lock stays taken after an interruption at {where}")


async def _storm(url: str, error: type[BaseException], first: int, stride: int, *, renews: bool) -> int:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    client = redis.asyncio.Redis.from_url(url)
    ttl = 0.06 if renews else 60
    interrupted = unreached = 0
    async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), ttl=60) as coordinator:

        async def work(ttl: float = ttl) -> None:
            async with coordinator.lock("r", ttl=ttl).hold(timeout=5) as lease:
                holding = lease._holding  # attributes only: a call of the library would be a step
                deadlines = {holding.deadline}
                while renews and len(deadlines) < 3 and not holding._ended:
                    await asyncio.sleep(0.005)
                    deadlines.add(holding.deadline)

        await work(1 if renews else ttl)
        for step in range(first, 5000, stride):
            state: list[Any] = []
            began = time.monotonic()
            try:
                async with asyncio.timeout(HANGS_AFTER):
                    with interruption(step, error) as state:
                        await work()
            except (error, FencingError, TimeoutError):
                pass
            assert time.monotonic() - began < HANGS_AFTER, f"it hangs after an interruption at {state[1]}"
            await _until_free(client, coordinator, state[1])
            if state[0] < 0:
                interrupted, unreached = interrupted + 1, 0
            elif (unreached := unreached + 1) == 3:  # a lease that is lost early has fewer steps
                break
        async with asyncio.timeout(HANGS_AFTER):
            await work(60 if not renews else 3)  # leases are still renewed
    await client.aclose()
    return interrupted


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("stride", [9, 1])
@pytest.mark.parametrize("error", [Failure, TimeoutError, ConnectionResetError])
def test_steps_of_a_block(any_redis: RedisServer, error: type[BaseException], stride: int) -> None:
    assert asyncio.run(_storm(any_redis.url, error, stride // 2, stride, renews=False)) > 150 / stride


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("stride", [40, 3])
def test_steps_of_renewals(any_redis: RedisServer, stride: int) -> None:
    """Renewals have a thread of their own, which no signal interrupts. The loop answers that it lives."""
    assert asyncio.run(_storm(any_redis.url, Failure, stride // 2, stride, renews=True)) > 150 / stride
