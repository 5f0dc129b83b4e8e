"""What a process does with its locks when it is told to end: SIGTERM, as orchestrators and init systems send it."""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from fencing.coordinator import Coordinator
from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel import process
from fencing.kernel.effects import background
from fencing.kernel.waking import SafeEvent
from fencing.kernel.workers import DaemonThread

CAMPAIGN_SECONDS = 5.0
"""How long the handler waits for campaigns to leave their queues, so that no lock is handed to a process that ends."""

CAMPAIGN_STEP_SECONDS = 0.002

LOOP_SECONDS = 7.0
"""How long an event loop may take for all of it. Then the signal is passed on without: the loop hangs."""

FIRST_PROCESS = 1

logger = logging.getLogger("fencing")


def on_sigterm(*coordinators: Coordinator | AsyncCoordinator) -> Callable[[], None]:
    """Release all locks of these coordinators when the process gets SIGTERM, so that others have them at once.

    Without it, a process that SIGTERM ends leaves each lock taken until its ttl is over; Ctrl-C releases them. First
    ``release_all`` of each coordinator is called, and its campaigns leave their queues: milliseconds, and six seconds
    at most. Then the handler that is there now is called, with the same signal: that of a server, or Python's own,
    which ends the process. As the first process of a container, which the kernel spares, it ends by ``sys.exit(143)``.
    So call this after the server has set its handler, for example in the lifespan of an ASGI application. A second
    SIGTERM goes to that handler alone.

    Where the process goes on after its handler, as a server that waits for its requests, the code that held a lock goes
    on without it: see :meth:`fencing.Coordinator.release_all`. A request for a lock, or a release, that is under way
    when the process ends may leave its lock taken. It does not help against SIGKILL, nor while the main thread runs in
    C code and Python calls no handlers.

    Args:
        coordinators: those whose locks are released. Async ones are released by the event loop that runs now; the
            handler that is there follows when they are.

    Returns:
        A function that puts back the handler that was there, unless another one has been set since.

    Raises:
        RuntimeError: this is not the main thread, no event loop runs that could release locks of an async coordinator,
            or the present handler is none that Python can call. Call it where the message says.
        TypeError: an argument is no coordinator, or there is none. Pass coordinators.
    """
    if not coordinators:
        raise TypeError("on_sigterm takes the coordinators whose locks are released; pass at least one")
    for each in coordinators:
        if not isinstance(each, (Coordinator, AsyncCoordinator)):
            raise TypeError(f"on_sigterm takes coordinators, not {type(each).__name__}; pass the one that made it")
    before = signal.getsignal(signal.SIGTERM)
    if before is None:
        raise RuntimeError("SIGTERM has a handler that was not set from Python, and cannot be called from it")
    if before == signal.SIG_DFL and process.pid() == FIRST_PROCESS:
        before = _exit  # the kernel ignores a signal for which the first process of a container has no handler
    handler = _Handler(coordinators, before)
    try:
        signal.signal(signal.SIGTERM, handler)
    except ValueError as error:
        raise RuntimeError("Python sets and calls signal handlers in the main thread alone: call it there") from error
    return handler.remove


class _Handler:
    """The handler of the signal. It works once, and only in the process that has set it."""

    def __init__(self, coordinators: Sequence[Coordinator | AsyncCoordinator], before: Any) -> None:
        self._sync = [each for each in coordinators if isinstance(each, Coordinator)]
        self._async = [each for each in coordinators if isinstance(each, AsyncCoordinator)]
        self._before = before
        self._pid = process.pid()
        self._loop = _loop_for(self._async)
        self._task: Any = None  # so that it is not collected
        self._has_worked = False
        self._passed_on = SafeEvent()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.remove()
        has_worked, self._has_worked = self._has_worked, True
        if has_worked or process.pid() != self._pid:  # or else the locks are the parent's
            self._pass_on(number, frame)
        elif process.has_greenlets():  # the hub cannot wait for a reply
            _thread.start_new_thread(self._release_and_raise, (number,))  # Thread.start would wait for it
        else:
            self._release()
            if self._loop is not None and self._begin_in_loop(number):
                return
            if any(each._may_be_elected for each in self._sync):  # perhaps in this thread, which first has to go on
                thread = DaemonThread(self._raise_again, "fencing-on-sigterm", number)
                thread.daemon = False  # the end of the main thread waits for it: the signal is passed on in any case
                thread.start()
            else:
                self._pass_on(number, frame)

    def remove(self) -> None:
        """Put back the handler of before, unless another one has been set since."""
        current: Any = signal.getsignal(signal.SIGTERM)
        if current is self:
            signal.signal(signal.SIGTERM, self._before)

    def _release(self) -> None:
        for coordinator in self._sync:
            try:
                coordinator.release_all()
            except Exception:
                logger.exception("the locks of %r could not be released", coordinator)

    def _release_and_raise(self, number: int) -> None:
        self._release()
        if self._loop is None or not self._begin_in_loop(number):
            self._raise_again(number)

    def _raise_again(self, number: int) -> None:
        """Wait until the campaigns that were stopped have left their queues. Then the signal comes once more."""
        until = time.monotonic() + CAMPAIGN_SECONDS
        while any(each._may_be_elected for each in self._sync) and time.monotonic() < until:
            time.sleep(CAMPAIGN_STEP_SECONDS)
        os.kill(os.getpid(), number)

    def _begin_in_loop(self, number: int) -> bool:
        """Let the event loop do the rest. Return False if it has ended, and can release nothing."""
        assert self._loop is not None
        if not self._loop.is_running():  # it would take the call, and perhaps never make it
            return False
        try:
            self._loop.call_soon_threadsafe(self._begin, self._loop, number)
        except RuntimeError:
            return False
        _thread.start_new_thread(self._pass_on_late, (number,))
        return True

    def _pass_on_late(self, number: int) -> None:
        if not self._passed_on.wait(LOOP_SECONDS):
            self._passed_on.set()
            os.kill(os.getpid(), number)

    def _begin(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._task = background(loop, self._release_async(loop, number), "fencing-on-sigterm")

    async def _release_async(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        until = time.monotonic() + CAMPAIGN_SECONDS
        try:
            await self._release_all()
            while self._must_go_on() and time.monotonic() < until:
                await asyncio.sleep(CAMPAIGN_STEP_SECONDS)
                if self._ends_process:
                    await self._release_all()
        finally:
            if self._ends_process:
                self._pass_on_once(number)  # in the same step: no task takes a lock in between
            else:
                loop.call_soon(self._pass_on_once, number)  # not here: the handler may raise, as sys.exit() does

    async def _release_all(self) -> None:
        for result in await asyncio.gather(*(each.release_all() for each in self._async), return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("locks of an async coordinator could not be released", exc_info=result)

    def _must_go_on(self) -> bool:
        """Return whether campaigns have yet to leave their queues, or tasks have taken locks since the release."""
        return any(each._may_be_elected for each in (*self._async, *self._sync)) or (
            self._ends_process and any(each._backend.held() for each in self._async)
        )

    @property
    def _ends_process(self) -> bool:
        """Whether nothing runs any more when the signal has been passed on."""
        return bool(self._before == signal.SIG_DFL)

    def _pass_on_once(self, number: int) -> None:
        if not self._passed_on.is_set():
            self._passed_on.set()
            self._pass_on(number, None)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Let the handler of before do what it does."""
        if callable(self._before):
            self._before(number, frame)
        elif self._ends_process:
            signal.signal(number, signal.SIG_DFL)  # one that was set since may have called this one
            os.kill(os.getpid(), number)  # this ends the process as the first signal would have


def _exit(number: int, frame: FrameType | None) -> None:
    """End the process, as the signal would have, with the status that a shell gives that."""
    sys.exit(128 + number)


def _loop_for(coordinators: Sequence[AsyncCoordinator]) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that releases the locks of async coordinators; None: there are none."""
    if not coordinators:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no event loop runs that could release the locks of an async coordinator: call on_sigterm in a coroutine"
        ) from None
