"""This process: its id, its clock, the current thread and task, and what a fork must remake in the child."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Generic, NoReturn, TypeVar

from fencing.kernel import quirks

logger = logging.getLogger("fencing")

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

# CLOCK_BOOTTIME where there is one (Linux); CLOCK_MONOTONIC stops while the machine is suspended: clock_gettime(2).
now: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
"""The clock of leases: seconds since some fixed moment. It also counts while the machine is suspended."""


class OfThisProcess:
    """The base of what has connections or threads. Each process makes its own: it is neither pickled nor copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} belongs to its process, and is neither pickled nor copied; make one in each process"
        )


Remake = Callable[[], object]

NOTICE_SECONDS = 5.0
"""How long a thread waits for another one that has noticed the same fork, and remakes what is this process' own."""

_pid = _remade_by = os.getpid()
_noticing = threading.RLock()  # reentrant: what is remade asks for this process' id
_is_remaking = _is_forked = False
_keys = itertools.count()
_remakes: dict[int, Callable[[], Remake | None]] = {}  # in the order they came in; a dict's steps are atomic


def pid() -> int:
    """Return the id of this process.

    It notices a fork of which Python was not told, and calls what ``after_fork`` has registered. uWSGI forks so after
    it has loaded the application, unless ``py-call-uwsgi-fork-hooks`` is set. Two of its workers would share
    connections, and take the same token. So whatever takes one of these calls this first.

    https://uwsgi-docs.readthedocs.io/en/latest/Options.html
    """
    if os.getpid() != _remade_by:
        _notice_fork()
    return _pid


def after_fork(remake: Remake) -> None:
    """Register ``remake`` to be called in every forked child before the child continues.

    A fork copies locks as they are, held or free, but only the thread that forks. So the child must replace everything
    that another thread may have held or half changed. Calls run in the order of registration. An exception is logged,
    and does not stop the other calls.

    Args:
        remake: a function, or a bound method, which is referenced weakly. It must not block.
    """
    key = next(_keys)
    owner: Any = getattr(remake, "__self__", None)
    if owner is None:
        _remakes[key] = lambda: remake
        return
    function: Any = getattr(remake, "__func__")  # noqa: B009 - a method has it
    forget = _remakes.pop  # bound now: at interpreter exit the module may already be empty
    alive = weakref.ref(owner, partial(forget, key))  # in C, where nothing is interrupted; it passes the default

    def method() -> Remake | None:
        found = alive()
        return None if found is None else partial(function, found)

    _remakes[key] = method


def current_owner() -> tuple[int, object]:
    """Return the id of this thread, and the asyncio task that runs in it; None where there is none."""
    loop = quirks.running_loop_getter()()
    if loop is None:
        return threading.get_ident(), None
    import asyncio  # here, so that a program that only uses threads does not load it

    return threading.get_ident(), asyncio.current_task(loop)


def is_forked() -> bool:
    """Return whether this process was forked after this module was imported, and is no new program."""
    pid()
    return _is_forked


def _notice_fork() -> None:
    global _is_remaking, _noticing
    while not _noticing.acquire(timeout=NOTICE_SECONDS):
        _noticing, _is_remaking = threading.RLock(), False  # a thread of the parent had it as the process was forked
    try:
        if _is_remaking or os.getpid() == _remade_by:
            return
        _is_remaking = True
        try:
            _in_child()
        finally:
            _is_remaking = False
    finally:
        _noticing.release()


def has_greenlets() -> bool:
    """Return whether greenlets have taken the place of threads: then ``time.sleep`` is no longer a function of C."""
    return not isinstance(time.sleep, BuiltinFunctionType)


T = TypeVar("T")


def new_local(kind: type[T]) -> T:
    """Return an object of this class whose attributes each thread has for itself.

    ``threading.local`` is looked up now: greenlets may have taken the place of threads since this was imported.
    """
    base: Any = threading.local
    made: T = _local_class(kind, base)()  # type: ignore[arg-type] # mypy: not every class can be hashed
    return made


@functools.cache
def _local_class(kind: Any, base: Any) -> Any:
    return type(kind.__name__, (kind, base), {})


class OfThisThread(Generic[T]):
    """An object for a module. Called, it returns an object of a class whose attributes each thread has for itself.

    Args:
        kind: the class. Its attributes are what a thread has at first.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._made: dict[type, T] = {}  # by the class that ``threading.local`` is

    def __call__(self) -> T:
        base: type = threading.local
        found = self._made.get(base)
        return self._made.setdefault(base, new_local(self._kind)) if found is None else found


def _in_child() -> None:
    global _pid, _remade_by, _is_forked
    _pid, _is_forked = os.getpid(), True
    for found in list(_remakes.values()):
        remake = found()
        if remake is not None:
            try:
                remake()
            except BaseException:
                logger.exception("%r failed in a forked child", remake)
    _remade_by = _pid  # last: other threads of this process wait until all is remade


def _at_fork() -> None:
    global _noticing, _is_remaking
    _noticing, _is_remaking = threading.RLock(), False
    _in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_at_fork)
