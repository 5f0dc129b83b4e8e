"""Calls at given moments, for threads; asyncio has ``loop.call_at``. One thread per process, which does no I/O."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from fencing.kernel import process
from fencing.kernel.waking import DaemonThread, Wake

logger = logging.getLogger("fencing")

LINGER_SECONDS = 1.0
"""How long the thread stays without work, so that locks taken in a row do not start one thread each. It is also the
longest wait: after a suspend of the machine, calls that became due meanwhile must not wait longer."""

Callback = Callable[[], object]
CallAt = Callable[[float, Callback, Callable[[], bool]], object]
"""The type of :meth:`Timer.call_at`."""


class Timer:
    """A timer on the clock ``kernel.process.now``, with a daemon thread that lives while calls are needed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callback, Callable[[], bool]]] = []
        self._order = itertools.count()
        self._lock = threading.RLock()  # reentrant: a destructor that runs here may take a lock of ours
        self._wake = Wake()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

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
            if self._thread is None:
                thread = DaemonThread(self._run, "fencing-timer")
                thread.start()  # interrupted, it may run all the same: two threads do no harm
                self._thread = thread
            elif when < self._wakes_at:
                self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                due = self._wait()
                if due is None:
                    return
                for callback in due:
                    self._call(callback)
            except BaseException:
                logger.critical("the timer of leases failed, and continues", exc_info=True)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except BaseException:
            logger.exception("a call of the timer of leases failed")

    def _wait(self) -> list[Callback] | None:
        """Wait, and return the calls that are due; None: no call was needed for a while, and the thread ends."""
        idle = False
        while True:
            with self._lock:
                now = process.now()
                due = []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
                if due:
                    return due
                any_wanted = any(wanted() for _, _, _, wanted in self._heap)
                if idle and not any_wanted:
                    if not self._heap:
                        self._thread = None
                        return None
                    calls, self._heap = self._heap, []
                    return [callback for _, _, callback, _ in calls]
                idle = not any_wanted
                self._wakes_at = min(self._heap[0][0], now + LINGER_SECONDS) if self._heap else now + LINGER_SECONDS
                seconds = self._wakes_at - now
            self._wake.wait(seconds)
            self._wakes_at = -float("inf")


_timer = Timer()


def timer() -> Timer:
    """Return the timer of this process."""
    return _timer


def _reset() -> None:
    global _timer
    _timer = Timer()  # the old one's thread, and the thread that held its lock, are in the parent


process.after_fork(_reset)
