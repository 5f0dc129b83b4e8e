"""An event loop of our own in a daemon thread, for what must go on while the loops of users are busy."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from fencing.kernel import process, quirks
from fencing.kernel.timer import LINGER_SECONDS
from fencing.kernel.workers import Worker, stop_objects_of

CLOSE_SECONDS = 1.0
"""How long the end of a loop may take: of its tasks, and of its connections."""

_inherited: list[asyncio.AbstractEventLoop] = []
"""Loops of the parent process, in a forked child. To collect one would warn, and to close it would harm the parent."""


def run_apart(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function that runs a loop. Where greenlets take the place of threads, the others do not see that it runs.

    Args:
        loop: one of our own, which begins to run in ``function``.
    """
    if not process.has_greenlets():
        function()
        return
    apart = quirks.Apart(loop)
    try:
        function()
    finally:
        apart.end()


class LoopThread:
    """An event loop in a daemon thread. Both live while there are calls, or while they are wanted.

    At the end its ``PerLoop`` objects are stopped, and its tasks are cancelled. A later call begins a new loop. A
    forked child begins its own.

    Args:
        name: the thread's name.
        is_wanted: a bound method, which is referenced weakly: whether the loop has to stay. It is asked each second.
    """

    def __init__(self, name: str, is_wanted: Callable[[], bool]) -> None:
        self._worker = Worker(name)
        self._is_wanted = weakref.WeakMethod(is_wanted)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        if self._loop is not None:
            _inherited.append(self._loop)
        self._loop = None
        self._over: Future[None] | None = None  # done when the last loop is closed
        self._calls: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._more = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._worker.is_running

    def call(self, callback: Callable[[], object], give_up: Callable[[], object]) -> None:
        """Have ``callback`` called on the loop, soon.

        Args:
            callback: must not raise.
            give_up: called in its place, with the exception at hand, if no loop could be made: a process may have no
                file descriptors left. It must not raise.

        Raises:
            RuntimeError: no thread could be started; mostly because the interpreter is ending.
        """
        call = callback, give_up
        self._calls.append(call)  # before the next lines: a loop that ends looks for it
        self.recheck()
        try:
            self._worker.wake(self._work)
        except RuntimeError:
            self._calls.remove(call)
            raise

    def recheck(self) -> None:
        """Have the loop look at once whether it is still wanted."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._more.set)
            except RuntimeError:
                pass  # it was closed at this moment

    async def wait_until_over(self) -> None:
        """Wait for the end of a loop that is not wanted any more, for a bounded time."""
        over = self._over
        if over is not None:
            mine = asyncio.get_running_loop()
            waiter = mine.create_future()
            over.add_done_callback(
                partial(_wake, mine, waiter)
            )  # asyncio.wrap_future would log if this loop ends first
            await asyncio.wait([waiter], timeout=2 * CLOSE_SECONDS)

    def _work(self) -> float | None:
        if not self._calls:
            return None
        try:
            loop = asyncio.SelectorEventLoop()  # drivers know it everywhere, whatever the policy of the user's program
        except OSError:
            while self._calls:
                self._calls.popleft()[1]()
            return None
        run_apart(loop, partial(self._run_on, loop))
        return 0.0 if self._calls else None

    def _run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        over = self._over = Future[None]()
        try:
            self._more = asyncio.Event()
            self._loop = loop
            loop.run_until_complete(self._run())
        finally:
            self._loop = None
            try:
                loop.run_until_complete(_end(loop))
            finally:
                loop.close()
                over.set_result(None)

    async def _run(self) -> None:
        is_over = False
        while self._calls or not is_over:
            self._more.clear()
            while self._calls:
                self._calls.popleft()[0]()
            try:
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._more.wait()
            except TimeoutError:
                pass
            is_wanted = self._is_wanted()
            is_over = is_wanted is None or not is_wanted()
            del is_wanted  # it keeps its owner alive


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _: Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(waiter.set_result, None)
    except RuntimeError:
        pass  # that loop is closed


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left on the loop, in a bounded time."""
    this = asyncio.current_task()
    for must_cancel in (False, True, False):
        for task in asyncio.all_tasks() - {this} if must_cancel else ():
            task.cancel()
        stop_objects_of(loop)  # each time: what is under way, or is cancelled, may make new ones
        until = loop.time() + CLOSE_SECONDS / 3
        while (tasks := asyncio.all_tasks() - {this}) and (left := until - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=left)
    await loop.shutdown_asyncgens()
