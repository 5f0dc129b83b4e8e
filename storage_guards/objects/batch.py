"""Several requests under way at the same time, within bounds of their number and their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fencing.kernel.effects import background
from storage_guards.objects.requests import Get, Lost, Put

AT_ONCE = 16
"""How many requests of one batch are under way at most."""

BYTES_AT_ONCE = 8 * 2**20
"""How many bytes they transfer together, unless it is a single one. It is the size of one part, so that a connection
that is fast enough for a part within ``upload_timeout`` is fast enough for all of them."""

ABORT_SECONDS = 5.0
"""How long the end of uploads or of a batch may take after a failure."""


class Batch:
    """Requests that are done at the same time. The first that fails cancels the others, and no more are begun.

    Each request keeps its own bound. So even a batch that is dropped in the middle leaves nothing running for long. All
    its methods run on one event loop. Several threads or tasks may share it: they get room in turn.

    Args:
        seconds: the bound of each request.
        perform: does a request.
    """

    def __init__(self, seconds: float, perform: Callable[[Any], Awaitable[Any]]) -> None:
        self._seconds = seconds
        self._perform = perform
        self._running: dict[asyncio.Task[None], int] = {}  # the bytes of each
        self._replies: list[Any] = []
        self._error: BaseException | None = None
        self._turn = asyncio.Lock()  # else a big request could wait behind small ones for ever

    async def add(self, request: Put | Get) -> None:
        """Begin a request when there is room for it.

        Raises:
            BaseException: the first failure of a request of this batch.
        """
        size = len(request.data) if isinstance(request, Put) else request.limit
        async with self._turn:
            while self._error is None and not self._has_room_for(size):
                await self._wait_for_one()
            if self._error is not None:
                raise self._error
            self._replies.append(None)
            done = self._do(len(self._replies) - 1, request)
            self._running[background(asyncio.get_running_loop(), done, f"object-store-guard: {request.key}")] = size

    async def finish(self) -> list[Any]:
        """Wait until all requests that were begun are done. Return the replies of all reads, in order; of a put, None.

        Raises:
            BaseException: as :meth:`add` does.
        """
        begun = set(self._running)
        while self._error is None and not begun.isdisjoint(self._running):
            await self._wait_for_one()
        if self._error is not None:
            raise self._error
        return self._replies

    async def abort(self, seconds: float) -> None:
        """Cancel all requests, and wait a while until they have ended."""
        self._fail(Lost("the batch was given up"))
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def _has_room_for(self, size: int) -> bool:
        running = self._running.values()
        return not running or (len(running) < AT_ONCE and sum(running) + size <= BYTES_AT_ONCE)

    async def _wait_for_one(self) -> None:
        # Each has its own bound, which ends before this one.
        ended, _ = await asyncio.wait(self._running, timeout=2 * self._seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if self._running.pop(task, None) is None:  # another thread's call has seen it first
                continue
            if task.cancelled():  # before its first step: it has no reply, and could not say so
                self._fail(Lost("a request was cancelled before it began"))
        if not ended:
            raise Lost(f"no request of several ended for {2 * self._seconds:.3g} s")

    async def _do(self, number: int, request: Put | Get) -> None:
        try:
            reply = await self._perform(request)
            if isinstance(request, Get):  # nobody asks for the others, of which there may be 100,000
                self._replies[number] = reply
        except asyncio.CancelledError:  # of this task only, so it is none for the caller
            self._fail(Lost(f"{request.key}: the request was cancelled"))
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        for task in self._running:
            task.cancel()  # also the one that fails: it ends without another wait
