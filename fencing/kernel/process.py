"""What belongs to this process: its id, its clock, who runs in it, and what a fork must remake in the child."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

logger = logging.getLogger("fencing")

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

# CLOCK_BOOTTIME where there is one (Linux); CLOCK_MONOTONIC would stand still in suspend: clock_gettime(2).
now: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""The clock that leases are measured by: seconds since some fixed moment, also counting while the machine is
suspended."""

Remake = Callable[[], object]

_pid = os.getpid()
_keys = itertools.count()
_remakes: dict[int, Callable[[], Remake | None]] = {}  # in the order they came in; a dict's steps are atomic


def pid() -> int:
    """The id of this process. Cheaper than ``os.getpid()``, for it is looked up once in each process."""
    return _pid


def after_fork(remake: Remake) -> None:
    """Have ``remake`` called in every forked child before the child goes on.

    A fork copies locks as they are, taken or free, and no thread but the one that forks. So whatever a thread of the
    parent may have held or half changed has to be made anew. The calls come in the order of their registration; what
    one raises is logged, and hinders no other.

    Args:
        remake: a function, or a bound method, which is held weakly and forgotten with its object. It must not block.
    """
    key = next(_keys)
    owner: Any = getattr(remake, "__self__", None)
    if owner is None:
        _remakes[key] = lambda: remake
        return
    function: Any = getattr(remake, "__func__")  # noqa: B009 - a method has it
    forget = _remakes.pop  # not looked up as the interpreter ends, when the module may be empty
    alive = weakref.ref(owner, lambda _: forget(key, None))

    def method() -> Remake | None:
        found = alive()
        return None if found is None else partial(function, found)

    _remakes[key] = method


def current_owner() -> tuple[int, object]:
    """Who runs: this thread, and the asyncio task in it, where there is one."""
    return threading.get_ident(), _current_task()


def _current_task() -> object:
    import asyncio  # here, for a program that uses threads alone need not load it

    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


def _in_child() -> None:
    global _pid
    _pid = os.getpid()
    for found in list(_remakes.values()):
        remake = found()
        if remake is not None:
            try:
                remake()
            except Exception:
                logger.exception("%r failed in a forked child", remake)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
