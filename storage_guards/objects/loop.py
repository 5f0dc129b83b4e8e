"""The event loop on which the sync object-store guard does its I/O, in a daemon thread.

There is one implementation of the I/O: obstore's asyncio functions. Plans of the sync guard run in the caller's thread,
and their requests on one event loop of this process. So each request is bounded exactly, and Ctrl-C works at once.
obstore's sync functions offer neither.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import time
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from fencing.kernel.process import after_fork
from storage_guards.objects.io import was_used
from storage_guards.objects.requests import Lost

T = TypeVar("T")

_GRACE = 30.0
"""Extra seconds to wait for the loop's thread after the bound that the request itself keeps: a backstop."""

_END_SECONDS = 2.0
"""How long the end of the process waits for requests to be dropped."""

_SETTLE_SECONDS = 0.05
"""Seconds for obstore's threads to leave Python after that: https://github.com/PyO3/pyo3-async-runtimes/issues/40"""

_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_ending = False


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _starting:
        if _loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="object-store-guard", daemon=True).start()
            _loop = loop  # last: Ctrl-C must not leave a loop that no thread runs
        return _loop


def _in_child() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()  # threads do not exist in a child


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
        try:
            asyncio.run_coroutine_threadsafe(_drop_all(), _loop).result(_END_SECONDS)
        except TimeoutError:
            pass
    if was_used():
        time.sleep(_SETTLE_SECONDS)


async def _drop_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_END_SECONDS)


def in_loop(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run a coroutine, which bounds itself to ``seconds``, on the loop of this process.

    It is cancelled where this thread stops waiting, by Ctrl-C for instance.

    Raises:
        Lost: the coroutine has not kept its bound, for instance after the whole process stood still.
    """
    try:
        if _ending:
            raise concurrent.futures.CancelledError
        future = asyncio.run_coroutine_threadsafe(coroutine, _shared_loop())
    except BaseException as error:
        coroutine.close()
        if isinstance(error, concurrent.futures.CancelledError):
            _refuse_at_exit(error)
        raise
    try:
        return future.result(seconds + _GRACE)
    except concurrent.futures.CancelledError as error:
        _refuse_at_exit(error)
    except TimeoutError as error:
        future.cancel()
        raise Lost(f"the request neither answered nor ended for {seconds + _GRACE:.3g} s") from error
    except BaseException:
        future.cancel()  # without effect where the error is the coroutine's own
        raise


def _refuse_at_exit(error: BaseException) -> NoReturn:
    """Raise RuntimeError, because the process ends. A daemon thread stops here, as the interpreter would stop it
    anyway."""
    while _ending and threading.current_thread().daemon:
        time.sleep(_END_SECONDS)
    raise RuntimeError("the object-store guard cannot be used while the process is ending; use it earlier") from error
