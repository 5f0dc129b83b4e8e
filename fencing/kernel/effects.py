"""Plans, and the two functions that run them.

A plan is a generator that decides without I/O. It yields an effect, which says what to do; it is sent the result, or
thrown the error, and continues. The same plan serves threads and asyncio, and a test can step through it. This module
has the effects that locks and guards share. Effects of one service belong to that service, and its ``perform`` does
them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fencing.kernel import process, quirks
from fencing.kernel.fence import Fence
from fencing.kernel.guard import AsyncGuard, Guard

T = TypeVar("T")

Plan = Generator[Any, Any, T]
"""A plan that returns a ``T``: it yields effects, and is sent their results."""


class Sleep(NamedTuple):
    """The effect: do nothing for this many seconds."""

    seconds: float


class Claim(NamedTuple):
    """The effect: claim the fences at a guard, all or none, within this many seconds."""

    guard: Guard | AsyncGuard
    fences: tuple[Fence, ...]
    timeout: float


class GiveWay(NamedTuple):
    """The effect: let other threads or tasks run first, if they are ready."""


class Shielded(NamedTuple):
    """The effect: run a bounded plan to its end, even if the task is cancelled meanwhile.

    The cancellation is delivered afterwards. Its cause is the plan's failure, if it failed.
    """

    plan: Plan[Any]


_yield_cpu: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


def _give_way() -> None:
    """Let other threads run."""
    if process.has_greenlets():
        time.sleep(0)
    else:
        _yield_cpu()


_SHARED = frozenset((Sleep, Claim, GiveWay, Shielded))

_running_loop = quirks.running_loop_getter()


def run(plan: Plan[T], perform: Callable[[Any], Any]) -> T:
    """Run a plan in this thread, and return its value; ``perform`` does the effects that are not of this module.

    A signal handler may raise between any two steps. The plan is thrown that exception too.
    """
    process.pid()  # it notices a fork
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            while True:
                try:
                    effect = plan.send(result) if error is None else plan.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                result = error = None
                try:
                    result = _perform(effect, perform) if type(effect) in _SHARED else perform(effect)
                except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
                    error = raised
        except BaseException as raised:
            if getattr(plan, "gi_frame", None) is None:  # the plan has ended with it
                error = None  # it refers to this frame, and would be collected late, with all that was interrupted
                raise
            result, error = None, raised  # raised between two effects


def _perform(effect: Sleep | Claim | GiveWay | Shielded, perform: Callable[[Any], Any]) -> Any:
    if isinstance(effect, GiveWay):
        return _give_way()
    if isinstance(effect, Sleep):
        return time.sleep(effect.seconds)
    if isinstance(effect, Shielded):
        return run(effect.plan, perform)
    claimed: Any = effect.guard.claim(*effect.fences, timeout=effect.timeout)
    if inspect.iscoroutine(claimed):
        claimed.close()
        raise TypeError(f"{type(effect.guard).__name__} is an async guard, but this is a sync lock; use a sync guard")
    return None


def require_asyncio() -> None:
    """Raise RuntimeError unless an event loop of asyncio runs this coroutine: nothing has been asked for then."""
    if _running_loop() is None:
        raise RuntimeError(
            "no event loop of asyncio runs this coroutine. Under trio, or without a loop, use the sync class: call the "
            "whole block in one thread, as with trio.to_thread.run_sync"
        )


async def run_async(plan: Plan[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Run a plan in this task, and return its value; ``perform`` does the effects that are not of this module."""
    require_asyncio()
    process.pid()  # it notices a fork
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = plan.send(result) if error is None else plan.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException:
            error = None  # see run
            raise
        result = error = None
        try:
            if type(effect) not in _SHARED:
                result = await perform(effect)
            elif isinstance(effect, Sleep):
                await asyncio.sleep(effect.seconds)
            elif isinstance(effect, GiveWay):
                await asyncio.sleep(0)
            elif isinstance(effect, Claim):
                await effect.guard.claim(*effect.fences, timeout=effect.timeout)  # type: ignore[misc]
            else:
                result = await finish(run_async(effect.plan, perform))
        except GeneratorExit:  # this coroutine is being closed: nothing can be awaited any more
            raise
        except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
            error = raised


def background(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task that needs no end: if its loop is closed first, nothing is logged.

    ``asyncio.run`` cancels all tasks once. A task that begins after that, because a block ends, is left behind.
    """
    task = loop.create_task(coroutine, name=name)
    quirks.may_be_left_behind(task)
    return task


def call_surely(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call a callback of the loop. If an exception interrupts it, call it once more soon, and raise the exception.

    The loop only logs exceptions of its callbacks. So the exception of a signal handler must not end a chain of calls.
    """
    try:
        callback(*args)
    except BaseException:
        loop.call_soon(callback, *args)
        raise


class Unbroken(asyncio.Future[None]):
    """What a task waits for that a cancellation does not wake. The task gets the cancellation when it goes on.

    It is for waits that have a bound of their own. anyio cancels a task at each step of the loop until the task ends:
    thousands of times in a second, and each time the task would run.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Return False: it is not cancelled."""
        return False


def wake(waiter: asyncio.Future[None], _: object = None) -> None:
    """Wake whoever waits for this future. As a callback it gets what has ended."""
    if not waiter.done():
        waiter.set_result(None)


async def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a bounded coroutine to its end, however often this task is cancelled meanwhile.

    The cancellation is delivered afterwards. Its cause is the coroutine's failure; None if it succeeded.
    """
    failure: BaseException | None = None
    loop = asyncio.get_running_loop()
    waiter = Unbroken(loop=loop)

    async def record_failure() -> T:
        nonlocal failure
        try:
            return await coroutine
        except BaseException as error:
            failure = error
            raise
        finally:
            wake(waiter, None)  # as the callback does: an interruption may hit one of them

    task = loop.create_task(record_failure())
    task.add_done_callback(partial(wake, waiter))  # asyncio.wait() does the same for many tasks, but is slower
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        if waiter.done():
            waiter = Unbroken(loop=loop)
            task.add_done_callback(partial(wake, waiter))
        try:
            await waiter
        except asyncio.CancelledError as error:
            cancelled = error
    coroutine.close()  # needed if its task was cancelled before it began
    if isinstance(failure, asyncio.CancelledError):  # all tasks of an ending loop were cancelled: keep the cause
        raise (cancelled or failure) from failure.__cause__
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # marked as retrieved, so that asyncio does not report it: the cancellation comes first
    raise cancelled from failure
