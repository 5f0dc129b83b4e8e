"""Waiting and waking that no interruption can break.

A signal handler may raise between any two steps of Python code. ``threading.Condition``, and all that is built on it,
takes its lock in Python code: an exception there leaves the lock taken for ever. Only ``with safe_lock()`` is safe, and
the calls of this module, which need no such lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from fencing.kernel import quirks

# Where greenlets take the place of threads, ``threading.Event`` may be another class, whose waits are not ours to wake.
if TYPE_CHECKING:
    _Event = threading.Event
else:
    _Event = object

LOST_WAKE_SECONDS = 0.05
"""How long a thread waits before it looks again: the thread that should have woken it may have been interrupted."""

RECHECK_SECONDS = 0.25
"""How long a thread waits at a stretch. In between, Python raises what another thread has thrown into this one, by
``PyThreadState_SetAsyncExc``, as time-out tools do."""


class SafeLock(type(threading.RLock())):  # type: ignore[misc]
    """A reentrant lock for ``with`` where Python skips the end of the block: see ``quirks.SKIPS_EXIT``.

    Its ``__exit__`` is that of C, which no exception can precede.
    """

    def __enter__(self) -> bool:
        levels = self._recursion_count()  # of this thread
        try:
            self.acquire()
        except BaseException:
            if self._recursion_count() > levels:  # or else it was interrupted before it had the lock
                self.release()
            raise
        return True


def safe_lock() -> threading.RLock:
    """Return a reentrant lock: no exception of a signal handler leaves it taken by ``with``."""
    return SafeLock() if quirks.SKIPS_EXIT else threading.RLock()


class Wake:
    """A flag that one thread waits for, and others set. Setting it never blocks."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was set already

    def is_set(self) -> bool:
        """Return whether it is set, and no thread has waited since."""
        return not self._lock.locked()

    def wait(self, seconds: float) -> None:
        """Wait until it is set, at most ``seconds``; infinity: no limit. Then it is no longer set."""
        ends_at = time.monotonic() + seconds
        while not self._lock.acquire(timeout=min(max(seconds, 0.0), RECHECK_SECONDS)):
            seconds = ends_at - time.monotonic()
            if seconds <= 0:
                return


class TaskWake:
    """A flag that one task waits for, and others set: the twin of :class:`Wake` for asyncio."""

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the task that waits, or the next one that will."""
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, at most ``seconds``; infinity: no limit. Then it is no longer set."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = None if seconds == float("inf") else loop.call_later(seconds, self.set)
            try:
                await self._future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        self._is_set = False


class SafeEvent(_Event):
    """An event as ``threading.Event``. Its ``set`` never blocks, even if a ``wait`` was interrupted anywhere."""

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: deque[Wake] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'set' if self._is_set else 'unset'}>"

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, and wake all threads that wait for it."""
        self._is_set = True
        for wake in list(self._wakes):
            wake.set()

    def clear(self) -> None:
        """Reset the flag."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most ``timeout`` seconds. Return whether it is set."""
        wake = Wake()
        try:
            self._wakes.append(wake)
            if not self._is_set:  # read after the line above: a set in between wakes it
                wake.wait(threading.TIMEOUT_MAX if timeout is None else timeout)
            return self._is_set
        finally:
            try:
                self._wakes.remove(wake)
            except ValueError:
                pass  # it was interrupted before it was added


class Turns:
    """A lock that can be waited for with a time limit. First come, first served; any thread may give a turn back.

    The steps that take and give back are single calls of C, so the caller must write them::

        turn = Wake()
        try:
            if not turns.take(turn, seconds):
                raise ...
            ...
        finally:
            turns.queue.pop(turn, None)  # the first call of the block: an interruption comes before it or after it
            turns.wake_first()
    """

    def __init__(self) -> None:
        self.queue: dict[Wake, None] = {}  # the first one has the turn

    def take(self, turn: Wake, seconds: float) -> bool:
        """Wait for the turn, at most ``seconds``. Return whether it came."""
        self.queue[turn] = None
        deadline = time.monotonic() + seconds
        while list(self.queue)[0] is not turn:  # noqa: RUF015 - an iterator breaks when another thread joins
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            turn.wait(min(left, LOST_WAKE_SECONDS))
        return True

    def wake_first(self) -> None:
        """Wake the thread whose turn it is now."""
        for turn in list(self.queue)[:1]:
            turn.set()


class AsyncTurns:
    """A lock for tasks, as :class:`Turns` is one for threads: first come, first served.

    It is used in the same way, and stays with no task that was interrupted, as an ``asyncio.Lock`` can.
    """

    def __init__(self) -> None:
        self.queue: dict[asyncio.Event, None] = {}  # the first one has the turn

    async def take(self, turn: asyncio.Event, seconds: float) -> bool:
        """Wait for the turn, at most ``seconds``. Return whether it came."""
        self.queue[turn] = None
        deadline = time.monotonic() + seconds
        while next(iter(self.queue)) is not turn:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(min(left, LOST_WAKE_SECONDS)) as limit:  # wait_for can swallow a cancel()
                    await turn.wait()
            except TimeoutError:
                if not limit.expired():
                    raise
            turn.clear()
        return True

    def wake_first(self) -> None:
        """Wake the task whose turn it is now."""
        for turn in list(self.queue)[:1]:
            turn.set()
