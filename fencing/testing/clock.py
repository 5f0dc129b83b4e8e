"""A clock that a test moves by hand, so that leases expire and renew without waiting."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

Callback = Callable[[], object]


class ManualClock:
    """Stands still until :meth:`advance` moves it. Give it to a ``MemoryCoordinator(clock=…)``.

    Leases expire, and their renewals are due, by this clock. A renewal then runs in its own thread or task: wait for
    what it changes. Pauses between two attempts to get a lock are real ones, of 0.2 s at the most.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._calls: list[tuple[float, int, Callback, Callable[[], bool]]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds that it shows."""
        return self._now

    def call_at(self, when: float, callback: Callback, wanted: Callable[[], bool]) -> None:
        """Have ``callback`` called by the :meth:`advance` that reaches ``when``, if it is still wanted then; at once
        where that moment is over."""
        with self._lock:
            if when > self._now:
                heapq.heappush(self._calls, (when, next(self._order), callback, wanted))
                return
        callback()

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and make the calls that are due, each at its moment."""
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"advance takes a number of seconds, not {type(seconds).__name__}")
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"time runs forwards, by a finite number of seconds, not by {seconds}")
        until = self._now + seconds
        while (callback := self._next(until)) is not None:
            callback()

    def _next(self, until: float) -> Callback | None:
        """Move on to the next call that is due, and return it; None: the end was reached.

        Both at once: a call that another thread adds meanwhile is due in this step, or finds the clock moved.
        """
        with self._lock:
            while self._calls and self._calls[0][0] <= until:
                when, _, callback, wanted = heapq.heappop(self._calls)
                if wanted():
                    self._now = max(self._now, when)
                    return callback
            self._now = max(self._now, until)
        return None
