"""The connections of a SQL coordinator for asyncio: each event loop has its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from sqlalchemy.util import greenlet_spawn

from fencing.kernel import process
from fencing.kernel.effects import background, finish
from fencing.kernel.errors import CLOSED
from fencing.kernel.lending import AsyncPool
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.workers import PerLoop
from fencing.sql.failures import FAILURES, explain, leaves_good_connection
from fencing.sql.own_engine import GRACE_SECONDS, MAX_CONNECTIONS, OwnConnection, OwnEngine
from fencing.sql.table import LAST, URGENT, Request

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""How long the closing of a connection may take."""

CANCELLATIONS = 4
"""How often a task is cancelled within that time: ``asyncio.wait_for``, which drivers use, may lose one (until 3.12,
https://github.com/python/cpython/issues/86296)."""


class _Slot:
    """The place of a connection, which is opened when it is needed."""

    __slots__ = ("__weakref__", "connection", "opened_at", "used")

    def __init__(self) -> None:
        self.connection: OwnConnection | None = None
        self.opened_at = self.used = 0.0


class _OfLoop:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.pool = AsyncPool(_Slot, MAX_CONNECTIONS, has_reserve=True, give_up=_give_up)
        self.broken_at = 0.0  # a connection that was opened before this moment is opened again
        self.is_stopped = False

    def stop(self) -> None:
        """Begin to close all connections. Requests that are under way fail, or open one, and then close theirs."""
        self.is_stopped = True
        for pool in self.pool.pools:
            for slot in pool.made():
                if slot.connection is not None and slot not in pool.free:
                    slot.connection.shut()
        background(asyncio.get_running_loop(), self.close_free(), "fencing-sql")

    async def close_free(self) -> None:
        """Close the connections that are not lent."""
        for pool in self.pool.pools:
            while pool.free:
                await _close(pool.free.pop())

    def hang_up(self) -> None:
        """Close all sockets. Tasks that a loop has left behind keep their connections, and nothing collects those."""
        for slot in [slot for pool in self.pool.pools for slot in pool.made()]:
            connection, slot.connection = slot.connection, None
            if connection is not None:
                connection.hang_up()


class AsyncConnections:
    """The connections of a coordinator for asyncio. A forked child opens its own."""

    def __init__(self, engine: OwnEngine) -> None:
        self._engine = engine
        self.closed = False
        # To collect those of a parent process might end its sessions.
        self._of_loops = PerLoop(lambda _: _OfLoop(), stop=_OfLoop.stop, drop=_OfLoop.hang_up, keeps_inherited=True)

    async def perform(self, request: Request) -> Any:
        """Perform a request, and return its reply. A cancellation is delivered after the reply.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the database refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if self.closed and request.operation not in LAST:
            raise RuntimeError(CLOSED)
        return await finish(self._perform(request))

    async def _perform(self, request: Request) -> Any:
        mine = self._of_loops[asyncio.get_running_loop()]
        until = process.now() + request.timeout
        pool = mine.pool
        if request.operation in URGENT:
            pool, slot = await pool.take_urgently(request.timeout)
        else:
            slot = await pool.take(request.timeout)
        try:
            return await self._perform_on(slot, mine, request, until)
        finally:
            pool.give_back(slot)

    async def _perform_on(self, slot: _Slot, mine: _OfLoop, request: Request, until: float) -> Any:
        sent = is_good = False
        try:
            if slot.opened_at < mine.broken_at:
                await _close(slot)
            if slot.connection is None:
                opened_at, left = time.monotonic(), max(until - process.now(), LEAST_SECONDS)
                slot.connection = await _within(greenlet_spawn(self._engine.open, left), left, None)
                slot.opened_at = opened_at
            sent = True
            left = max(until + GRACE_SECONDS - process.now(), LEAST_SECONDS)
            reply = await _within(greenlet_spawn(slot.connection.perform, request), left, slot.connection)
            is_good = True
            return reply
        except FAILURES as error:
            is_good = leaves_good_connection(error)
            if not is_good:
                mine.broken_at = time.monotonic()
            raise explain(error, sent=sent, address=self._engine.address) from error
        finally:
            slot.used = time.monotonic()
            is_last = self.closed or mine.is_stopped  # nothing closes it after the closing
            if (is_last or not is_good) and slot.connection is not None:
                slot.connection.hang_up()
                await _close(slot)

    async def close(self) -> None:
        """Close the running loop's connections. Later requests raise RuntimeError, except releases."""
        self.closed = True
        await self._of_loops[asyncio.get_running_loop()].close_free()


async def _close(slot: _Slot) -> None:
    connection, slot.connection = slot.connection, None
    if connection is not None:
        await asyncio.wait([asyncio.ensure_future(greenlet_spawn(connection.close))], timeout=CLOSE_SECONDS)


def _give_up(slot: _Slot) -> None:
    background(asyncio.get_running_loop(), _close(slot), "fencing-sql")


async def _within(coroutine: Coroutine[Any, Any, T], seconds: float, connection: OwnConnection | None) -> T:
    """Await the coroutine, and end it after this many seconds.

    The socket is shut first: a driver that is cancelled would ask the server to cancel, and wait for it.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            if connection is not None:
                connection.shut()
                await asyncio.wait([task], timeout=CLOSE_SECONDS / CANCELLATIONS)
            for _ in range(CANCELLATIONS):
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=CLOSE_SECONDS / CANCELLATIONS)
            if task.done() and not task.cancelled():
                task.exception()
    if not task.done() or task.cancelled():
        raise TimeoutError(f"no answer within {seconds:.3g} s")
    return task.result()
