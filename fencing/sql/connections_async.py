"""The connections of a SQL coordinator for asyncio: each event loop has its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from sqlalchemy.util import greenlet_spawn

from fencing.kernel import process
from fencing.kernel.effects import finish
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.workers import PerLoop
from fencing.sql.failures import FAILURES, explain, leaves_good_connection
from fencing.sql.own_engine import GRACE_SECONDS, MAX_CONNECTIONS, OwnConnection, OwnEngine
from fencing.sql.table import Request

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""How long the closing of a connection may take."""

CANCELLATIONS = 4
"""How often a task is cancelled within that time: ``asyncio.wait_for``, which drivers use, may lose one (until 3.12,
https://github.com/python/cpython/issues/86296)."""


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.free: list[tuple[OwnConnection, float]] = []  # used as a stack, with the moment of opening
        self.slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self.broken_at = 0.0


class AsyncConnections:
    """The connections of a coordinator for asyncio. A forked child opens its own."""

    def __init__(self, engine: OwnEngine) -> None:
        self._engine = engine
        self.closed = False
        # To collect those of a parent process might end its sessions.
        self._of_loops = PerLoop(lambda _: _OfLoop(), keeps_inherited=True)

    async def perform(self, request: Request) -> Any:
        """Perform a request, and return its reply. A cancellation is delivered after the reply.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the database refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if self.closed and request.operation != "release":  # a block may end after the closing
            raise RuntimeError("this coordinator was closed; make a new one")
        return await finish(self._perform(request))

    async def _perform(self, request: Request) -> Any:
        mine = self._of_loops[asyncio.get_running_loop()]
        until = process.now() + request.timeout
        try:
            await asyncio.wait_for(mine.slots.acquire(), request.timeout)
        except TimeoutError:
            busy = TimeoutError(f"all {MAX_CONNECTIONS} connections of the coordinator were busy")
            raise NoReply(busy, may_have_run=False) from None
        try:
            return await self._perform_on(mine, request, until)
        finally:
            mine.slots.release()

    async def _perform_on(self, mine: _OfLoop, request: Request, until: float) -> Any:
        connection: OwnConnection | None = None
        opened_at = time.monotonic()
        is_good = False
        try:
            while mine.free and connection is None:
                connection, opened_at = mine.free.pop()
                if opened_at < mine.broken_at:
                    await self._close(connection)
                    connection, opened_at = None, time.monotonic()
            if connection is None:
                left = max(until - process.now(), LEAST_SECONDS)
                connection = await _within(greenlet_spawn(self._engine.open, left), left, None)
            left = max(until + GRACE_SECONDS - process.now(), LEAST_SECONDS)
            reply = await _within(greenlet_spawn(connection.perform, request), left, connection)
            is_good = True
            return reply
        except FAILURES as error:
            is_good = leaves_good_connection(error)
            if not is_good:
                mine.broken_at = time.monotonic()
            raise explain(error, sent=connection is not None, address=self._engine.address) from error
        finally:
            if connection is not None:
                if is_good and not self.closed:  # nothing closes it after the closing
                    mine.free.append((connection, opened_at))
                else:
                    connection.hang_up()
                    await self._close(connection)

    async def _close(self, connection: OwnConnection) -> None:
        await asyncio.wait([asyncio.ensure_future(greenlet_spawn(connection.close))], timeout=CLOSE_SECONDS)

    async def close(self) -> None:
        """Close the running loop's connections. Later requests raise RuntimeError, except releases."""
        self.closed = True
        mine = self._of_loops[asyncio.get_running_loop()]
        while mine.free:
            await self._close(mine.free.pop()[0])


async def _within(coroutine: Coroutine[Any, Any, T], seconds: float, connection: OwnConnection | None) -> T:
    """Await the coroutine, and end it after this many seconds.

    The socket is closed first: a driver that is cancelled would ask the server to cancel, and wait for it.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            if connection is not None:
                connection.hang_up()
            for _ in range(CANCELLATIONS):
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=CLOSE_SECONDS / CANCELLATIONS)
            if task.done() and not task.cancelled():
                task.exception()
    if not task.done() or task.cancelled():
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return task.result()
