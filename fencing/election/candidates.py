"""The lock of an election as a replica that campaigns has it: its wait, its pause and its term can be ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from fencing.election.terms import is_loss
from fencing.kernel.effects import run
from fencing.kernel.waking import SafeEvent
from fencing.locks import plans
from fencing.locks.hold import Hold
from fencing.locks.hold_async import AsyncHold
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock import FencedLock
from fencing.locks.lock_async import AsyncFencedLock
from fencing.locks.locked import not_a_coroutine


class _Stopped(BaseException):
    """It ends the plan that waits for the lock, as any interruption does: the plan leaves the queue."""


class Pause:
    """The pause between two looks, which any thread can end for good."""

    def __init__(self) -> None:
        self._over = SafeEvent()

    def wait(self, seconds: float) -> None:
        """Do nothing for so long, or until it was ended."""
        self._over.wait(seconds)

    def end(self) -> None:
        """End this pause, and each further one."""
        self._over.set()


class AsyncPause:
    """The pause between two looks of a task."""

    async def wait(self, seconds: float) -> None:
        """Do nothing for so long."""
        await asyncio.sleep(seconds)

    def end(self) -> None:
        """Do nothing: another thread cannot wake the task, and the next look comes soon."""


class Candidate(FencedLock):
    """A thread's part in an election. ``stop`` is for other threads and for signal handlers.

    Attributes:
        may_be_granted: whether it is in the queue, leaves it, or holds a lock that it will release at once.
    """

    may_be_granted = False

    def __init__(self, lock: FencedLock) -> None:
        super().__init__(lock.coordinator, lock.resource)
        self._settings = lock._settings
        self._is_stopped = False
        self._pause = Pause()
        self._waiter: Any = None
        self._is_leaving = False

    def stop(self) -> None:
        """End the campaign, or the pause before it. A term goes on until its function returns."""
        self._is_stopped = True
        self._pause.end()
        waiter = self._waiter  # read after the flag was set: see _perform
        if waiter is not None:
            waiter.notify()

    def call(self, function: Callable[[Lease], object], lease: Lease) -> None:
        """Call what the leader does."""
        self.may_be_granted = False
        try:
            not_a_coroutine(function(lease), function)
        finally:
            self.may_be_granted = True  # its release is not answered yet

    def term(self) -> Hold:
        """Return the block of the next term."""
        return Hold(self, None)

    def acquire(self, timeout: float | None = None) -> Lease:
        """Wait for the lock without end, until ``stop`` is called."""
        plan = plans.acquire(self._backend, self.resource, self._settings, math.inf, self._lease)
        return run(plan, self._perform)

    def _perform(self, effect: Any) -> Any:
        waiter = getattr(effect, "waiter", None)
        self._waiter = waiter if hasattr(waiter, "notify") else None
        if self._is_stopped and not self._is_leaving:  # read after the line above
            self._is_leaving = True  # once: the plan makes requests to leave the queue
            raise _Stopped
        return self._backend.perform(effect)

    def pause(self, seconds: float) -> None:
        """Do nothing for so long, or until ``stop`` is called."""
        self._pause.wait(seconds)

    def has_ended_with(self, error: BaseException) -> bool:
        """Return whether the error only says that ``stop`` was called."""
        return isinstance(error, _Stopped)


class AsyncCandidate(AsyncFencedLock):
    """A task's part in an election. ``stop`` is for its event loop, for other threads and for signal handlers.

    Attributes:
        may_be_granted: whether it is in the queue, leaves it, or holds a lock that it will release at once.
        failure: the error of the function, unless it only says that the term is over.
    """

    may_be_granted = False

    def __init__(self, lock: AsyncFencedLock) -> None:
        super().__init__(lock.coordinator, lock.resource)
        self._settings = lock._settings
        self.failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cancelling_before = 0 if self._task is None else self._task.cancelling()
        self._has_cancelled = False

    def stop(self) -> None:
        """Cancel the campaign, the pause before it, or the term."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            pass  # the loop is closed: nothing runs there

    def _cancel(self) -> None:
        task = self._task
        if task is not None and not self._has_cancelled:
            self._has_cancelled = True
            task.cancel()

    async def call(self, function: Callable[[AsyncLease], Awaitable[object]], lease: AsyncLease) -> None:
        """Call what the leader does."""
        self.may_be_granted = False
        try:
            result: Any = function(lease)
            if not isinstance(result, Awaitable):
                kind = type(result).__name__
                raise TypeError(f"run takes an async function: this one returned {kind}, which cannot be awaited")
            await result
        except Exception as error:
            self.failure = None if is_loss(error, self.resource) else error
            raise
        finally:
            self.may_be_granted = True  # its release is not answered yet

    def term(self) -> AsyncHold:
        """Return the block of the next term."""
        return AsyncHold(self, None, True)

    async def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        await asyncio.sleep(seconds)

    def has_ended_with(self, error: BaseException) -> bool:
        """Return whether the error only says that ``stop`` was called."""
        return isinstance(error, asyncio.CancelledError) and self._end_cancelling()

    def end(self) -> None:
        """Cancel nothing from now on."""
        self._end_cancelling()
        self._task = None

    def _end_cancelling(self) -> bool:
        """Take back what ``stop`` has cancelled. Return whether it has, and nobody else has cancelled the task."""
        if self._task is None or not self._has_cancelled:
            return False
        self._has_cancelled = False
        return self._task.uncancel() <= self._cancelling_before
