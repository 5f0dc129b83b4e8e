"""Calls at given moments, for threads, as ``loop.call_at`` for asyncio. One thread per process, which does no I/O."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable

from fencing import clock

__all__ = ["LINGER_SECONDS", "Timer", "timer"]

logger = logging.getLogger("fencing")

LINGER_SECONDS = 1.0
"""How long the thread stays when nothing is to come, so that locks taken in a row do not start one each. It is also its
longest wait: a machine that was suspended has missed what its clock should have called."""

SWEEP_ABOVE = 100
"""From how many entries on those called off are swept out, once they are the half."""


class Call:
    """One call to come."""

    __slots__ = ("_timer", "callback")

    def __init__(self, timer: Timer, callback: Callable[[], None]) -> None:
        self._timer = timer
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Call it off. Takes no lock: it may run in a finalizer, in the middle of anything."""
        if self.callback is not None:
            self.callback = None
            self._timer.cancelled += 1


class Timer:
    """Makes calls at moments of ``fencing.clock``, in a daemon thread that lives while there are some to come."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Call]] = []
        self._order = itertools.count()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")
        self.cancelled = 0  # about how many of the entries; only a reason to sweep

    def call_at(self, when: float, callback: Callable[[], None]) -> Call:
        """Call ``callback`` at ``when``. It must be quick, and not block; what it raises is logged."""
        call = Call(self, callback)
        with self._changed:
            if self.cancelled * 2 > len(self._heap) > SWEEP_ABOVE:
                self._heap = [entry for entry in self._heap if entry[2].callback is not None]
                heapq.heapify(self._heap)
                self.cancelled = 0
            heapq.heappush(self._heap, (when, next(self._order), call))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="fencing-timer", daemon=True)
                thread.start()
                self._thread = thread
            elif when < self._wakes_at:
                self._changed.notify()
        return call

    def _run(self) -> None:
        while True:
            try:
                due = self._wait()
                if due is None:
                    return
                for call in due:
                    self._make(call)
            except BaseException:
                logger.critical("the timer of leases failed, and goes on", exc_info=True)

    def _make(self, call: Call) -> None:
        callback, call.callback = call.callback, None
        try:
            if callback is not None:
                callback()
        except Exception:
            logger.exception("a call of the timer of leases failed")

    def _wait(self) -> list[Call] | None:
        """The calls that are due; None: nothing has been to come for a while, and the thread ends."""
        with self._changed:
            idle = False
            while True:
                while self._heap and self._heap[0][2].callback is None:
                    heapq.heappop(self._heap)
                now = clock.now()
                due = []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
                if due:
                    return due
                if not self._heap and idle:
                    self._thread = None
                    return None
                idle = not self._heap
                self._wakes_at = min(self._heap[0][0], now + LINGER_SECONDS) if self._heap else now + LINGER_SECONDS
                self._changed.wait(self._wakes_at - now)
                self._wakes_at = -float("inf")


_timer = Timer()


def timer() -> Timer:
    """The timer of this process."""
    return _timer


def _forget() -> None:
    global _timer
    _timer = Timer()  # its thread, and whoever held its lock, are in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
