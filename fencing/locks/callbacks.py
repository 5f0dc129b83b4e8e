"""Calls of users' callbacks on a bounded number of daemon threads, so that they do not block the library."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from fencing.kernel import process
from fencing.kernel.waking import DaemonThread

logger = logging.getLogger("fencing")

MAX_THREADS = 16
"""How many callbacks may run, or hang, at the same time. Further ones wait."""


class _Threads:
    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []  # a thread whose start was interrupted is not alive

    def call(self, callback: Callable[[Any], Any], argument: Any) -> None:
        self._queue.append((callback, argument))
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < MAX_THREADS:
                thread = DaemonThread(self._work, "fencing-on-lost")
                self._threads.append(thread)
                try:
                    thread.start()
                except RuntimeError:
                    pass  # the interpreter is ending

    def _work(self) -> None:
        while True:
            try:
                callback, argument = self._queue.popleft()
            except IndexError:
                with self._lock:
                    if self._queue:  # it came in between, and may have found no free thread
                        continue
                    self._threads = [each for each in self._threads if each is not threading.current_thread()]
                    return
            try:
                callback(argument)
            except Exception:  # noqa: BLE001 - every exception of a user's function is logged
                log_failure(callback)


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
