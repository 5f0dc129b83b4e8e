"""Calls of users' callbacks on a bounded number of daemon threads, so that they do not block the library."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from fencing.kernel import process
from fencing.kernel.workers import Worker

logger = logging.getLogger("fencing")

MAX_THREADS = 16
"""How many callbacks may run, or hang, at the same time. Further ones wait."""

_queue: deque[tuple[Callable[[Any], Any], Any]] = deque()
_worker = Worker("fencing-on-lost", MAX_THREADS)


def call_in_thread(callback: Callable[[Any], Any], argument: Any) -> None:
    """Call ``callback(argument)`` on another thread; at once if fewer than MAX_THREADS run."""
    _queue.append((callback, argument))
    try:
        _worker.wake(_call_next)
    except RuntimeError:
        pass  # the interpreter is ending


def _call_next() -> float | None:
    try:
        callback, argument = _queue.popleft()
    except IndexError:
        return None
    try:
        callback(argument)
    except BaseException:  # noqa: BLE001 - every exception of a user's function is logged
        log_failure(callback)
    return 0.0


def log_failure(callback: Callable[..., Any]) -> None:
    """Log the exception that is being handled, which a user's callback raised."""
    logger.error("the callback %r failed", callback, exc_info=True)


process.after_fork(lambda: _queue.clear())
