"""What works beside its callers, and lives no longer than it is needed: threads, and the objects of event loops.

What is difficult about both is here, and nowhere else. A signal handler may raise at any step of the caller's thread. A
thread may get work just when it is about to end. A fork copies no other thread, and an ending interpreter starts none.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fencing.kernel import process, quirks
from fencing.kernel.waking import LOST_WAKE_SECONDS, SafeEvent, Wake, safe_lock

logger = logging.getLogger("fencing")

T = TypeVar("T")


START_SECONDS = 5.0
"""How long a thread may take to begin. One that is not there then is taken for dead."""


class _Started(SafeEvent):
    """Says that a thread has begun. What another thread throws into its starter can end it before that: as it is made,
    it has its starter's number (seen in CPython 3.11)."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has begun."""
        if not super().wait(START_SECONDS if timeout is None else timeout):
            raise RuntimeError(f"a new thread did not begin within {START_SECONDS:g} s")
        return True

    def _at_fork_reinit(self) -> None:
        """Do nothing. Up to Python 3.13 at least, a forked child calls this, and there is no lock to be made anew."""


_NO_THREADS = (
    "this subinterpreter has no daemon threads, and leases are renewed by one: take locks in the main interpreter, or "
    "use threads or processes in place of isolated subinterpreters"
)


class DaemonThread(threading.Thread):
    """A daemon thread whose start can be interrupted: the thread then runs, or it does not, but it never hangs."""

    def __init__(self, target: Callable[..., object], name: str, *args: object) -> None:
        try:
            super().__init__(target=target, name=name, args=args, daemon=True)
        except RuntimeError as error:
            if quirks.is_without_threads(error):
                raise RuntimeError(_NO_THREADS) from error
            raise
        quirks.wait_for_start_with(self, _Started())

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the interpreter is ending, so the thread would not run. Python 3.12 checks that itself. Or the
                thread did not begin; if it does later, it runs all the same. Or this is an isolated subinterpreter.
        """
        if sys.is_finalizing():
            raise RuntimeError(quirks.SHUTDOWN)
        try:
            quirks.start(self)
        except RuntimeError as error:
            if quirks.is_without_threads(error):
                raise RuntimeError(_NO_THREADS) from error
            raise


Work = Callable[[], float | None]
"""A function that does the work that there is, without waiting for more. It returns in how many seconds there will be
more; None: it has to be woken for that."""


class Worker:
    """A daemon thread that lives while there is work. A forked child starts its own.

    Args:
        name: the thread's name.
        most: how many threads may work at the same time. Each call of ``wake`` starts one, up to this number.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        self._name, self._most = name, most
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = safe_lock()  # reentrant: a destructor or a signal handler that runs here may wake it, too
        self._wake = Wake()
        self._threads: set[threading.Thread] = set()
        self._kind = threading.Lock

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return bool(self._threads)

    def wake(self, work: Work) -> None:
        """Have ``work`` called at once. The caller has added what is to be done before.

        ``work`` is called again until it returns None. An exception is logged, and it is called again, too. It is
        always the same function: a thread that runs already calls its own.

        Raises:
            RuntimeError: no thread could be started; mostly because the interpreter is ending.
        """
        if self._kind is not threading.Lock:  # greenlets are threads since: a lock of before would stop all of them
            self._reset()
        self._wake.set()  # before the next line: a thread that ends checks it while it has the lock
        with self._lock:
            if len(self._threads) < self._most:
                thread = DaemonThread(self._run, self._name, work)
                thread.start()  # if this is interrupted, the thread may run all the same, and adds itself
                self._begin(thread)

    def _run(self, work: Work) -> None:
        thread = threading.current_thread()
        seconds: float | None = 0.0
        try:
            self._begin(thread)
            while thread in self._threads:  # not in it: the work is done, or this is a child that it has forked
                try:
                    self._wake.wait(seconds or 0.0)
                    seconds = work()
                    if seconds is None:
                        self._end(thread)
                except BaseException:
                    logger.critical("the thread %r failed, and continues", self._name, exc_info=True)
                    seconds = LOST_WAKE_SECONDS
        finally:
            self._threads.discard(thread)

    def _begin(self, thread: threading.Thread) -> None:
        with self._lock:
            if len(self._threads) < self._most:  # else it was added, or its start was interrupted, and others began
                self._threads.add(thread)

    def _end(self, thread: threading.Thread) -> None:
        with self._lock:
            if not self._wake.is_set():
                self._threads.discard(thread)


class PerLoop(dict[asyncio.AbstractEventLoop, T]):
    """One object for each event loop.

    ``table[loop]`` is made at its first use, and ``table.get(loop)`` is None before. Objects of closed loops are
    dropped when another loop gets its object. A forked child has none of its parent's objects.

    Args:
        make: makes the object of a loop. It must not refer to the owner of the table, which would keep itself alive.
        stop: begins to end an object. It is called on the object's loop if the table is collected before the loop ends,
            or if ``stop_objects_of`` ends what that loop has.
        drop: ends an object whose loop is closed, when it is dropped; it must not need the loop.
        keeps_inherited: whether a forked child keeps its parent's objects, unused: to collect them would do harm.
    """

    _stop: Callable[[T], object] | None = None  # also where an interruption left the object without its own

    def __init__(
        self,
        make: Callable[[asyncio.AbstractEventLoop], T],
        *,
        stop: Callable[[T], object] | None = None,
        drop: Callable[[T], object] | None = None,
        keeps_inherited: bool = False,
    ) -> None:
        super().__init__()
        self._make = make
        self._stop, self._drop = stop, drop
        self._inherited: list[Any] | None = [] if keeps_inherited else None
        process.after_fork(self._in_child)
        key = next(_keys)
        _tables[key] = weakref.ref(self, partial(_tables.pop, key))  # in C; it passes the reference as the default

    def __missing__(self, loop: asyncio.AbstractEventLoop) -> T:
        self._drop_closed()
        return self.setdefault(loop, self._make(loop))

    def remove(self, loop: asyncio.AbstractEventLoop) -> T | None:
        """Remove the object of a loop, and return it; None: it has none. Objects of closed loops are dropped."""
        self._drop_closed()
        return self.pop(loop, None)

    def _drop_closed(self) -> None:
        for loop in [each for each in list(self) if each.is_closed()]:  # the list is made in one step of C
            found = self.pop(loop, None)
            if found is not None and self._drop is not None:
                self._drop(found)

    def stop_of(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to end the object of this loop, which runs. A later use makes a new one."""
        found = self.pop(loop, None)
        if found is not None and self._stop is not None:
            self._stop(found)

    def _in_child(self) -> None:
        if self._inherited is not None:
            self._inherited.extend(self.values())
        self.clear()

    def __del__(self) -> None:
        if self._stop is not None:
            for loop, found in self.items():
                try:
                    loop.call_soon_threadsafe(self._stop, found)
                except RuntimeError:
                    pass  # the loop is closed


_keys = itertools.count()
_tables: dict[int, weakref.ref[PerLoop[Any]]] = {}


def stop_objects_of(loop: asyncio.AbstractEventLoop) -> None:
    """Begin to end all objects of a loop that is about to be closed. Call it on the loop."""
    for reference in list(_tables.values()):
        table = reference()
        if table is not None:
            table.stop_of(loop)
