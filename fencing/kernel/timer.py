"""Calls at given moments, for threads; asyncio has ``loop.call_at``. One thread per process, which does no I/O."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable

from fencing.kernel import process
from fencing.kernel.waking import safe_lock
from fencing.kernel.workers import Worker

logger = logging.getLogger("fencing")

LINGER_SECONDS = 1.0
"""How long the thread stays without work, so that locks taken in a row do not start one thread each. It is also the
longest wait: after a suspend of the machine, calls that became due meanwhile must not wait longer."""

Callback = Callable[[], object]
CallAt = Callable[[float, Callback, Callable[[], bool]], object]
"""The type of :meth:`Timer.call_at`."""


class Timer:
    """A timer on the clock ``kernel.process.now``, with a thread that lives while calls are needed."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._worker = Worker("fencing-timer")
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._heap: list[tuple[float, int, Callback, Callable[[], bool]]] = []
        self._lock = safe_lock()  # reentrant: a destructor that runs here may take a lock of ours
        self._is_idle = False  # no call was wanted a while ago
        self._rechecks_at = math.inf  # when the thread checks the calls again; infinity: it may have ended

    def call_at(self, when: float, callback: Callback, wanted: Callable[[], bool]) -> None:
        """Call ``callback`` at ``when``.

        Args:
            when: the moment, on the clock ``kernel.process.now``.
            callback: must be fast, and must not block. Its exceptions are logged.
            wanted: returns whether the call is still needed; the timer asks from time to time. When no call is needed
                any more, it makes all calls at once, early, and the thread ends.
        """
        with self._lock:
            heapq.heappush(self._heap, (when, next(self._order), callback, wanted))
            must_wake = when < self._rechecks_at
        if must_wake:
            self._worker.wake(self._work)

    def _work(self) -> float | None:
        due, seconds = self._next()
        for callback in due:
            try:
                callback()
            except BaseException:
                logger.exception("a call of the timer failed")
        return seconds

    def _next(self) -> tuple[list[Callback], float | None]:
        """Return the calls that are due, and in how many seconds to check again."""
        with self._lock:
            now = process.now()
            due = []
            while self._heap and self._heap[0][0] <= now:
                due.append(heapq.heappop(self._heap)[2])
            was_idle, self._is_idle = self._is_idle, not due and not any(wanted() for _, _, _, wanted in self._heap)
            if was_idle and self._is_idle:
                due, self._heap, self._is_idle = [callback for _, _, callback, _ in self._heap], [], False
                self._rechecks_at = math.inf
                return due, 0.0 if due else None
            next_at = self._heap[0][0] if self._heap else math.inf
            self._rechecks_at = now if due else min(next_at, now + LINGER_SECONDS)
            return due, self._rechecks_at - now


_timer = Timer()


def timer() -> Timer:
    """Return the timer of this process."""
    return _timer
