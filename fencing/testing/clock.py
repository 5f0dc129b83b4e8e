"""A clock that a test moves by hand, so that leases expire and renew without real waiting."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from fencing.kernel.waking import safe_lock

Callback = Callable[[], object]


class ManualClock:
    """A clock that only :meth:`advance` moves. Pass it to a ``MemoryCoordinator(clock=…)``.

    Leases expire, and their renewals become due, by this clock. A renewal runs in its own thread or task, so a test
    must wait for its effect. Pauses between two attempts to get a lock are real, at most 0.2 s.

    Args:
        start: the seconds that it shows first.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._calls: list[tuple[float, int, Callback, Callable[[], bool]]] = []
        self._order = itertools.count()
        self._lock = safe_lock()

    def __call__(self) -> float:
        """Return the seconds that it shows."""
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now:g} s>"

    def call_at(self, when: float, callback: Callback, wanted: Callable[[], bool]) -> None:
        """Call ``callback`` in the :meth:`advance` that reaches ``when``, or at once if that moment is over.

        Args:
            when: the moment, in seconds of this clock.
            callback: called without arguments.
            wanted: returns whether the call is still needed at that moment.
        """
        with self._lock:
            if when > self._now:
                heapq.heappush(self._calls, (when, next(self._order), callback, wanted))
                return
        callback()

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and make the calls that become due, each at its moment.

        Args:
            seconds: 0 or more.

        Raises:
            TypeError, ValueError: ``seconds`` is not a number, is negative, or is not finite.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"advance takes a number of seconds, not {type(seconds).__name__}")
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"advance takes a finite number of seconds, 0 or more, not {seconds}")
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
