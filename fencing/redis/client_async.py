"""The coordinator's own connections to Redis for asyncio: one for all calls of an event loop."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio

from fencing.kernel import process
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable
from fencing.kernel.lending import AsyncPool
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.workers import PerLoop
from fencing.redis.calls import Call, count_call, online_replicas, wait_call
from fencing.redis.connection_async import LoopConnection, Request
from fencing.redis.connection_factory import (
    IDLE_SECONDS,
    MAX_CONNECTIONS,
    ConnectionFactory,
    must_undo,
    not_confirmed,
    unreplicated,
)
from fencing.redis.scripts import RELEASE, RELEASE_LATER
from fencing.redis.sentinel import Address


class LoneConnection:
    """A connection that serves one caller at a time, for commands that block it. It is closed when this is collected.

    The connection itself is not collected: the task that reads from it refers to it.
    """

    __slots__ = ("__weakref__", "_loop", "_pid", "connection")

    def __init__(self, factory: ConnectionFactory, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._pid = loop, process.pid()
        self.connection = LoopConnection(factory, loop)

    @property
    def used(self) -> float:
        return self.connection.used

    def __del__(self) -> None:
        if self._pid == process.pid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.connection.stop)


class AsyncConnections:
    """The connections of a coordinator for asyncio, one per event loop. A forked child opens its own."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.factory = ConnectionFactory(client)
        self.address, self.location = self.factory.address, self.factory.location
        self.closed = False
        self._user_timeout = self.factory.limit_seconds(math.inf)
        factory = self.factory
        self._loops = PerLoop(partial(LoopConnection, factory), stop=LoopConnection.stop)
        self._lone = PerLoop(lambda loop: AsyncPool(partial(LoneConnection, factory, loop), MAX_CONNECTIONS))

    def when_moved(self, callback: Callable[[Address], None]) -> None:
        """Have a method called with the address when Sentinels name another primary. It is not kept alive."""
        self.factory.on_move = weakref.WeakMethod(callback)

    async def perform(self, call: Call, connection: LoopConnection | None = None) -> Any:
        """Run the call's script and return its reply. If the task is cancelled, the compensation is sent.

        Args:
            call: the call.
            connection: the connection for it; None: that of the loop, which all calls share.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        loop = asyncio.get_running_loop()
        if connection is None:
            connection = self._loops.get(loop)
        if connection is None or self.closed:
            connection = self._new_connection(call, loop)
        seconds = call.timeout
        if not LEAST_SECONDS <= seconds <= self._user_timeout:
            seconds = self.factory.limit_seconds(seconds)
        now = time.monotonic()
        future = loop.create_future()
        try:
            if not connection.open:
                await connection.wait_until_open(seconds)
            if now - connection.used > IDLE_SECONDS:
                await asyncio.sleep(0)  # so that the event loop sees whether the server has closed the connection
            connection.used = now
            connection.send(Request(call, future, now, now + seconds))
            try:
                return await future
            except asyncio.CancelledError:
                if must_undo(call, 0.0, interrupted=True) and connection.open:
                    connection.send_undo(call, now, now + seconds)
                raise
        finally:
            if self.closed:
                await connection.close()

    async def perform_replicated(self, call: Call, replicas: int) -> Any:
        """Do what ``perform`` does, and wait for replicas, as in ``Replicated``. WAIT blocks its connection.

        Raises:
            NotAcquired: fewer replicas have the grant.
        """
        loop, started = asyncio.get_running_loop(), time.monotonic()
        pool = self._lone[loop]
        lone = await pool.take(call.timeout)
        is_quiet = False
        try:
            reply = await self._perform_replicated(lone.connection, call, replicas, started)
            is_quiet = True
            return reply
        finally:
            pool.give_back(lone, last=not is_quiet)  # replies may be under way: the others are taken first

    async def _perform_replicated(self, connection: LoopConnection, call: Call, replicas: int, started: float) -> Any:
        online = online_replicas(await self.perform(count_call(call.timeout), connection))
        if online < replicas:
            raise unreplicated(call, online, time.monotonic() - started)
        reply = await self.perform(call, connection)
        if type(reply) is not bytes:  # nothing was granted
            return reply
        raw = connection.raw
        left = max(started + call.timeout - time.monotonic(), LEAST_SECONDS)
        confirmed = await self.perform(wait_call(replicas, left), connection)
        if connection.raw is not raw:
            raise not_confirmed()
        if confirmed < replicas:
            raise unreplicated(call, confirmed, time.monotonic() - started)
        return reply

    async def perform_all(self, calls: Sequence[Call], seconds: float) -> list[Any]:
        """Run calls, sent one directly after another. Return the reply to each, or the failure it alone would raise."""
        loop = asyncio.get_running_loop()
        connection = self._loops.get(loop) or self._new_connection(calls[0], loop)
        seconds = self.factory.limit_seconds(seconds)
        try:
            if not connection.open:
                await connection.wait_until_open(seconds)
        except (NoReply, CoordinatorUnavailable) as failure:
            return [failure] * len(calls)
        connection.used = now = time.monotonic()
        futures = [loop.create_future() for _ in calls]
        try:
            for call, future in zip(calls, futures, strict=True):
                connection.send(Request(call, future, now, now + seconds))
            results: list[Any] = []
            for future in futures:
                try:
                    results.append(await future)
                except (NoReply, CoordinatorUnavailable) as failure:
                    results.append(failure)
            return results
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # marked as retrieved: this task may have been cancelled

    def _new_connection(self, call: Call, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        if not self.closed:
            return self._loops[loop]
        if call.script not in (
            RELEASE,
            RELEASE_LATER,
        ):  # a block may end after the closing; it gets a connection of its own
            raise RuntimeError(CLOSED)
        return LoopConnection(self.factory, loop)

    async def close(self) -> None:
        """Close the connection of the running loop. Later calls raise RuntimeError, except releases."""
        self.closed = True
        connection = self._loops.remove(asyncio.get_running_loop())
        if connection is not None:
            await connection.close()
        pool = self._lone.remove(asyncio.get_running_loop())
        for lone in pool.made() if pool is not None else ():
            await lone.connection.close()
