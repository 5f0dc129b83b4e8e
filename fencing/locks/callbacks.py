"""Calls of users' callbacks on a bounded number of daemon threads, so that they do not block the library."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fencing.kernel import process

logger = logging.getLogger("fencing")

MAX_THREADS = 16
"""How many callbacks may run, or hang, at the same time. Further ones wait."""


class _Threads:
    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._places = threading.Semaphore(MAX_THREADS)

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        self._queue.append((callback, argument))
        if self._places.acquire(blocking=False):
            threading.Thread(target=self._work, name="fencing-on-lost", daemon=True).start()

    def _work(self) -> None:
        while True:
            while self._queue:
                try:
                    callback, argument = self._queue.popleft()
                except IndexError:
                    break
                try:
                    callback(argument)
                except Exception:  # noqa: BLE001 - every exception of a user's function is logged
                    log_failure(callback)
            self._places.release()
            # A callback that was queued between the last check and the release may have found no free thread.
            if not self._queue or not self._places.acquire(blocking=False):
                return


_threads = _Threads()


def call_in_thread(callback: Callable[[Any], Any], argument: Any) -> None:
    """Call ``callback(argument)`` on another thread; at once if fewer than MAX_THREADS run."""
    _threads.call(callback, argument)


def log_failure(callback: Callable[..., Any]) -> None:
    """Log the exception that is being handled, which a user's callback raised."""
    logger.error("the callback %r failed", callback, exc_info=True)


def _reset() -> None:
    global _threads
    _threads = _Threads()


process.after_fork(_reset)
