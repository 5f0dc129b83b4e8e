"""Uses of Python beyond its documentation: private attributes, and undocumented behaviour.

Each use is one function, which says what happens if the attribute is absent. A test checks each one on the Python that
runs it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

SEEN = ("3.11", "3.15")
"""The oldest and the newest version of CPython in which all of these were checked."""


def wait_for_start_with(thread: threading.Thread, event: threading.Event) -> None:
    """Have ``thread.start()`` wait with this event until the thread runs.

    It is ``_started``. Without it, ``start()`` waits with an event that an interrupted wait may leave locked, so the
    thread may hang as it begins.
    """
    thread._started = event  # type: ignore[attr-defined]


def start(thread: threading.Thread) -> None:
    """Start the thread, and raise the exception that interrupts this, if there is one. The thread may run all the same.

    An interrupted ``start()`` takes the thread out of ``_limbo``. If the thread has done so itself, that is a KeyError
    in place of the interruption, which is its context. Where it is none, the KeyError is raised.
    """
    interruption: BaseException | None = None
    try:
        threading.Thread.start(thread)
    except KeyError as error:
        interruption = error.__context__
        if interruption is None:
            raise
    if interruption is not None:
        raise interruption


SKIPS_EXIT = sys.version_info[:2] == (3, 14)
"""Whether ``with`` of a manager of C, such as a lock, skips ``__exit__`` if a signal handler raises as ``__enter__``
returns: https://github.com/python/cpython/issues/148874. One whose ``__enter__`` is Python code
is not concerned."""

SHUTDOWN = "can't create new thread at interpreter shutdown"
"""What starting a thread says, from Python 3.12 on, as soon as the main thread has ended, also in ``atexit`` functions:
https://docs.python.org/3/whatsnew/3.12.html, "Changes in the Python API"."""


def is_ending(error: RuntimeError) -> bool:
    """Return whether a thread could not be started because the interpreter ends.

    It is the error's text. Where that differs, the error is treated as one of a process with too many threads.
    """
    return str(error) == SHUTDOWN


_WITHOUT_THREADS = ("daemon threads are disabled", "not supported for isolated subinterpreters")


def is_without_threads(error: RuntimeError) -> bool:
    """Return whether a daemon thread was refused because an isolated subinterpreter has none.

    It is the error's text, up to 3.11 another one than later. Where that differs, the error is raised as it is.
    """
    return any(text in str(error) for text in _WITHOUT_THREADS)


def is_thread_of_gevent() -> bool:
    """Return whether this is a thread of gevent's pool, which has no part in the event loop of the other greenlets.

    It is the class of such a thread's first greenlet. Where that differs, a lock on Redis raises ``greenlet.error``.
    """
    greenlet: Any = getattr(sys.modules.get("greenlet"), "getcurrent", lambda: None)()
    while greenlet is not None:
        if type(greenlet).__module__ == "gevent.threadpool":
            return True
        greenlet = greenlet.parent
    return False


def is_foreign_thread() -> bool:
    """Return whether something else than ``threading`` has started this thread: a library in C, for example.

    Such a thread has a dummy object. Without that class, the question cannot be answered, and raises AttributeError.
    """
    return isinstance(threading.current_thread(), threading._DummyThread)


@functools.cache  # so that a later call is one of C
def running_loop_getter() -> Callable[[], asyncio.AbstractEventLoop | None]:
    """Return the function that returns this thread's running event loop, or None. The documented one raises then.

    It is ``asyncio._get_running_loop``. There is no fallback.
    """
    import asyncio  # here, so that a program that only uses threads does not load it

    return asyncio._get_running_loop


class Apart:
    """What greenlets share, and a loop must have for itself: the running loop and task, and hooks of async generators.

    Python keeps them for each thread of the system. Where greenlets take the place of threads, a loop in one of them
    would be the running loop of all others, and no second one could run. So while it waits in its selector, the others
    have what they had before. It is ``asyncio._set_running_loop``, the loop's ``_selector``, and from Python 3.14 on
    ``asyncio.tasks._swap_current_task``: there, no task may begin beside a task of another loop. There is no fallback.

    Args:
        loop: one of Python's own, which begins to run in the greenlet that makes this.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        selector: Any = loop._selector  # type: ignore[attr-defined]
        self._select: Callable[[float | None], Any] = selector.select
        selector.select = self._wait
        self._outside = self._swap((None, None, None, None))

    def _swap(self, mine: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        import asyncio

        others = (asyncio._get_running_loop(), self._swap_task(None), *sys.get_asyncgen_hooks())
        asyncio._set_running_loop(mine[0])
        self._swap_task(mine[1])
        sys.set_asyncgen_hooks(*mine[2:])
        return others

    def _swap_task(self, task: Any) -> Any:
        """Make it the task that runs in the running loop; return the one before."""
        import asyncio

        loop = asyncio._get_running_loop()
        if sys.version_info < (3, 14) or loop is None:  # before 3.14, each loop has a place of its own
            return None
        return asyncio.tasks._swap_current_task(loop, task)

    def _wait(self, seconds: float | None = None) -> Any:
        mine = self._swap(self._outside)
        try:
            return self._select(seconds)
        finally:
            self._outside = self._swap(mine)

    def end(self) -> None:
        """Note that the loop runs no longer."""
        self._swap(self._outside)


def may_be_left_behind(task: asyncio.Task[Any]) -> None:
    """Have nothing logged if the task is pending when it is collected, because its loop was closed.

    It is ``_log_destroy_pending``, which ``asyncio.gather`` sets as well. Without it, the loop logs an error.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]


GeneratorContextManager = contextlib._GeneratorContextManager
"""The classes of what ``contextmanager`` and ``asynccontextmanager`` return, to be subclassed. They are called with a
generator function, its arguments, and its arguments by name, and keep the generator as ``gen``."""

AsyncGeneratorContextManager = contextlib._AsyncGeneratorContextManager

NEVER_ENTERED = "args"
"""The attribute that these managers have until they are entered: their arguments must not live longer than needed. If a
version kept it, blocks that were entered would be taken for forgotten ones."""
