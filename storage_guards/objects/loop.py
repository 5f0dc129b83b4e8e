"""The event loop on which the sync object-store guard does its I/O, in a daemon thread.

There is one implementation of the I/O: obstore's asyncio functions. Plans of the sync guard run in the caller's thread,
and their requests on one event loop of this process. So each request is bounded exactly, and Ctrl-C works at once.
obstore's sync functions offer neither.

A signal handler may raise in the caller's thread at any step. ``concurrent.futures`` would then leave the lock of a
future taken, and the loop of all guards would wait for it for ever. So the outcome comes by a :class:`SafeEvent`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Coroutine
from typing import Any, Generic, NoReturn, TypeVar

from fencing.kernel.loop_thread import run_apart
from fencing.kernel.process import after_fork, has_greenlets, pid
from fencing.kernel.waking import SafeEvent, safe_lock
from fencing.kernel.workers import DaemonThread
from storage_guards.objects.requests import Lost

T = TypeVar("T")

_GRACE = 30.0
"""Extra seconds to wait for the loop's thread after the bound that the request itself keeps: a backstop."""

_END_SECONDS = 2.0
"""How long the end of the process waits for requests to be dropped."""

_starting = safe_lock()  # reentrant: to greenlets that came later, it is one thread's
_loop: asyncio.AbstractEventLoop | None = None
_ending = False


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop
    pid()  # it notices a fork
    with _starting:
        if _loop is None:
            loop = asyncio.SelectorEventLoop() if has_greenlets() else asyncio.new_event_loop()
            DaemonThread(run_apart, "object-store-guard", loop, loop.run_forever).start()
            _loop = loop  # last: Ctrl-C must not leave a loop that no thread runs
        return _loop


def _in_child() -> None:
    global _loop, _starting
    _loop, _starting = None, safe_lock()  # threads do not exist in a child


after_fork(_in_child)


@atexit.register
def _end() -> None:
    """Drop the requests of daemon threads that are under way.

    If obstore returned to an interpreter that is gone, the process would abort.
    """
    global _ending
    with _starting:
        _ending = True
    if _loop is not None:
        dropping = _Call(_drop_all(), _loop)
        dropping.start()
        dropping.ended.wait(_END_SECONDS)


async def _drop_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_END_SECONDS)


class _Call(Generic[T]):
    """A coroutine that runs on the loop for another thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._is_dropped = False
        self.ended = SafeEvent()

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._start)

    def drop(self) -> None:
        """Cancel the coroutine, or prevent its start."""
        self._is_dropped = True
        self._loop.call_soon_threadsafe(self._cancel)

    def result(self) -> T:
        """Return its result, or raise its error. Call it only after the end."""
        if self._task is None:
            raise asyncio.CancelledError
        return self._task.result()

    def _start(self) -> None:
        if self._is_dropped:
            self._coroutine.close()
            self.ended.set()
        else:
            self._task = self._loop.create_task(self._coroutine)
            self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is None:
            self._coroutine.close()
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it where the caller was interrupted
        self.ended.set()


def in_loop(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run a coroutine, which bounds itself to ``seconds``, on the loop of this process.

    It is cancelled where this thread stops waiting, by Ctrl-C for instance.

    Raises:
        Lost: the coroutine has not kept its bound, for instance after the whole process stood still.
    """
    call: _Call[T] | None = None
    try:
        if _ending:
            _refuse_at_exit()
        call = _Call(coroutine, _shared_loop())
        call.start()  # a step of its own: an interruption must find the call here
        if not call.ended.wait(seconds + _GRACE):
            raise Lost(f"the request neither answered nor ended for {seconds + _GRACE:.3g} s")
    except BaseException:
        if call is None:
            coroutine.close()
        else:
            call.drop()
        raise
    try:
        return call.result()
    except asyncio.CancelledError as error:
        _refuse_at_exit(error)


def _refuse_at_exit(error: BaseException | None = None) -> NoReturn:
    """Raise RuntimeError, because the process ends. A daemon thread stops here, as the interpreter would stop it
    anyway."""
    while _ending and threading.current_thread().daemon:
        time.sleep(_END_SECONDS)
    raise RuntimeError("the object-store guard cannot be used while the process is ending; use it earlier") from error
