"""The event loop on which the sync object-store guard does its I/O, in a daemon thread.

There is one implementation of the I/O: obstore's asyncio functions. Plans of the sync guard run in the caller's thread,
and their requests on one event loop of this process. So each request is bounded exactly, and Ctrl-C is heard at once:
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
"""Seconds that waiting for the loop's thread gets beyond the bound that the request itself keeps: a backstop."""

_END_SECONDS = 2.0
"""How long the end of the process waits for requests to be dropped."""

_SETTLE_SECONDS = 0.05
"""What obstore's threads then get to let go of Python: https://github.com/PyO3/pyo3-async-runtimes/issues/40"""

_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_ending = False


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="object-store-guard", daemon=True).start()
        return _loop


def _in_child() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()  # threads do not live on in a child


after_fork(_in_child)


@atexit.register
def _end() -> None:
    """Drop the requests that daemon threads have under way.

    Where obstore comes back to an interpreter that is gone, the process ends in an abort.
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

    It is cancelled where this thread stops waiting, by Ctrl-C for one.

    Raises:
        Lost: the coroutine has not kept its bound, as after the whole process stood still.
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
        raise Lost(f"no answer for {seconds + _GRACE:.3g} s, nor an end") from error
    except BaseException:
        future.cancel()  # nothing, where the error is the coroutine's own
        raise


def _refuse_at_exit(error: BaseException) -> NoReturn:
    """Stop here, because the process ends: a daemon thread for good, as the interpreter would have it do anyway."""
    while _ending and threading.current_thread().daemon:
        time.sleep(_END_SECONDS)
    raise RuntimeError("the object-store guard cannot be used any more: the process is ending") from error
