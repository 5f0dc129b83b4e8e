"""Plans, and the two shells that run them.

A plan is a generator that decides without I/O: it yields what is to be done (an effect), is sent the result, or
thrown the error, and goes on from there. The same plan serves threads and asyncio, and a test can step through it.
The effects that locks and guards share are here; what talks to a coordinator's servers, or a guard's, is an effect of
its own, which their ``perform`` does.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fencing.kernel.fence import Fence
from fencing.kernel.guard import AsyncGuard, Guard

T = TypeVar("T")

Plan = Generator[Any, Any, T]
"""A plan that ends in a ``T``: yields effects, is sent their results."""


class Sleep(NamedTuple):
    """Do nothing for so many seconds."""

    seconds: float


class Claim(NamedTuple):
    """Claim the fence at a guard, which may take so many seconds."""

    guard: Guard | AsyncGuard
    fence: Fence
    timeout: float


class Shielded(NamedTuple):
    """Run a bounded plan to its end, whatever cancellations arrive meanwhile; they are delivered afterwards, what went
    wrong as their cause."""

    plan: Plan[Any]


def run(plan: Plan[T], perform: Callable[[Any], Any]) -> T:
    """Run a plan in this thread; ``perform`` does the effects that are not of this module."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = plan.send(result) if error is None else plan.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        result = error = None
        try:
            if isinstance(effect, Sleep):
                time.sleep(effect.seconds)
            elif isinstance(effect, Claim):
                claimed: Any = effect.guard.claim(effect.fence, timeout=effect.timeout)
                if inspect.iscoroutine(claimed):
                    claimed.close()
                    raise TypeError(f"{type(effect.guard).__name__} is an async guard, this is a sync lock")
            elif isinstance(effect, Shielded):
                result = run(effect.plan, perform)
            else:
                result = perform(effect)
        except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
            error = raised


async def run_async(plan: Plan[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Run a plan in this task; ``perform`` does the effects that are not of this module."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = plan.send(result) if error is None else plan.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        result = error = None
        try:
            if isinstance(effect, Sleep):
                await asyncio.sleep(effect.seconds)
            elif isinstance(effect, Claim):
                await effect.guard.claim(effect.fence, timeout=effect.timeout)  # type: ignore[misc]
            elif isinstance(effect, Shielded):
                result = await finish(run_async(effect.plan, perform))
            else:
                result = await perform(effect)
        except GeneratorExit:  # this coroutine is thrown away: nothing can be awaited any more
            raise
        except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
            error = raised


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await to its end what is bounded and must not be left half done, however often this task is cancelled. A
    cancellation is delivered then; its cause is how the coroutine failed, and None if it did not."""
    failure: BaseException | None = None

    async def carried() -> T:
        nonlocal failure
        try:
            return await coroutine
        except BaseException as error:
            failure = error
            raise

    task = asyncio.ensure_future(carried())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        waiter = task.get_loop().create_future()  # as asyncio.wait() does for many tasks, and slower
        task.add_done_callback(partial(_wake, waiter))
        try:
            await waiter
        except asyncio.CancelledError as error:
            cancelled = error
    coroutine.close()  # where its task was cancelled before it began
    if isinstance(failure, asyncio.CancelledError):  # with all tasks of a loop that ends: its cause is what is known
        raise (cancelled or failure) from failure.__cause__
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it: the cancellation comes first
    raise cancelled from failure
