"""Stories of several blocks under ``hold``, written once: the sync side runs them without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fencing import NotAcquired
from tests.support.memory_side import MemorySide


@asynccontextmanager
async def block(lock: Any, **options: Any) -> AsyncIterator[Any]:
    """Hold a sync or async lock for a block."""
    hold = lock.hold(**options)
    if hasattr(type(hold), "_cancel"):
        async with hold as lease:
            yield lease
    else:
        with hold as lease:
            yield lease


async def done(result: Any) -> Any:
    """Return a result, awaited where that is needed."""
    return await result if inspect.isawaitable(result) else result


def play(side: MemorySide, story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a story: as one task, or step by step in this thread, where no loop runs and nothing may wait."""
    if side.asynchronous:
        return side.call(story)
    coroutine = story()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("a sync story awaits nothing")


def number(lock: Any) -> Any:
    """Return the fencing number in a block of a sync lock, or the error of one that cannot begin at once."""
    try:
        with lock.hold(timeout=0) as lease:
            return lease.fence.number
    except NotAcquired as error:
        return error


async def number_async(lock: Any) -> Any:
    """Do the same as :func:`number` with an async lock."""
    try:
        async with lock.hold(timeout=0) as lease:
            return lease.fence.number
    except NotAcquired as error:
        return error


async def elsewhere(side: MemorySide, function: Callable[[], Awaitable[Any] | Any]) -> Any:
    """Run a function where nothing is inherited: in a new thread, or in a task with an empty context."""
    if side.asynchronous:
        context = contextvars.Context()
        return await asyncio.get_running_loop().create_task(_await(function), context=context)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: contextvars.Context().run(lambda: results.append(function())))
    thread.start()
    thread.join(10)
    return results.pop()


async def _await(function: Callable[[], Any]) -> Any:
    return await done(function())
