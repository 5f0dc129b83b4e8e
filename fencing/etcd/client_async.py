"""The coordinator's own connections to etcd for asyncio, some for each event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fencing.etcd.calls import Call, Reply, reply_of
from fencing.etcd.client import MAX_CONNECTIONS, STREAM_SECONDS, URGENT
from fencing.etcd.connection_async import AsyncConnection
from fencing.etcd.endpoints import Endpoint, Endpoints, connect_failure, reply_failure
from fencing.etcd.waiters import Leave, Permit, Wait, end_stream, is_deletion, is_end, permit
from fencing.kernel.effects import finish
from fencing.kernel.errors import CLOSED
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.lending import AsyncPool
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.workers import PerLoop


class AsyncStream:
    """A connection that watches a key for a waiter."""

    __slots__ = ("connection", "key", "permit")

    def __init__(self, key: str, permitted: Permit) -> None:
        self.key, self.permit = key, permitted
        self.connection = AsyncConnection()


class AsyncConnections:
    """The connections of a coordinator for asyncio, per event loop. A forked child opens its own."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._pools = PerLoop(_new_pool, stop=_stop, keeps_inherited=True)
        self.closed = False

    async def perform(self, effect: Call | Wait | Leave) -> Any:
        """Make a request, or wait. A cancellation of a request is delivered after its reply.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: etcd refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if isinstance(effect, Leave):
            end_stream(effect.waiter)
            return None
        if self.closed and not (isinstance(effect, Call) and effect.is_release):
            raise RuntimeError(CLOSED)
        if isinstance(effect, Wait):
            return await self._wait(effect)
        return await finish(self._ask(effect))

    async def _ask(self, call: Call) -> Reply:
        deadline = time.monotonic() + call.timeout
        loop = asyncio.get_running_loop()
        own = pool = self._pools[loop]
        if call.path in URGENT or call.is_release:
            pool, connection = await pool.take_urgently(call.timeout)
        else:
            connection = await pool.take(call.timeout)
        endpoint = self._endpoints.current
        try:
            if not connection.is_usable(endpoint):
                await self._open(connection, endpoint, deadline)
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), LEAST_SECONDS)):
                    status, body = await connection.ask(call.path, call.body, call.credentials)
            except OSError as error:
                raise_interruption(error)
                raise reply_failure(error, endpoint, self._endpoints.address) from error
            return reply_of(status, body, endpoint.url)
        except NoReply:
            self._endpoints.failed(endpoint)
            raise
        finally:
            # A block may end after the closing. And the pool of a loop that is about to end was closed before this.
            if self.closed or not connection.used or self._pools.get(loop) is not own:
                connection.close()
            pool.give_back(connection)

    async def _open(self, connection: AsyncConnection, endpoint: Endpoint, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), LEAST_SECONDS)):
                await connection.open(endpoint, self._endpoints.tls)
        except (OSError, ValueError) as error:
            raise_interruption(error)
            raise connect_failure(error, endpoint, self._endpoints.address) from error

    async def _wait(self, wait: Wait) -> bool | None:
        until = time.monotonic() + wait.seconds
        stream: AsyncStream | None = wait.waiter.stream
        limit: asyncio.Timeout | None = None
        endpoint = self._endpoints.current
        try:
            if stream is not None and not (stream.key == wait.key and stream.connection.endpoint is endpoint):
                end_stream(wait.waiter)
                stream = None
            if stream is None:
                permitted = permit()
                if permitted is None:
                    return None
                stream = wait.waiter.stream = AsyncStream(wait.key, permitted)
                await self._open(stream.connection, endpoint, min(until, time.monotonic() + STREAM_SECONDS))
                stream.connection.send("watch", wait.body, wait.credentials)
            async with asyncio.timeout(max(until - time.monotonic(), LEAST_SECONDS)) as limit:
                while (lines := await stream.connection.next_lines()) is not None:
                    if any(map(is_deletion, lines)):
                        end_stream(wait.waiter)
                        return True
                    if any(map(is_end, lines)):
                        break
            end_stream(wait.waiter)
            return None
        except (OSError, NoReply) as error:
            if limit is not None and limit.expired():
                return False
            end_stream(wait.waiter)
            self._endpoints.failed(endpoint)
            if isinstance(error, NoReply):
                raise
            raise NoReply(error, may_have_run=False) from error
        except BaseException:
            end_stream(wait.waiter)
            raise

    async def close(self) -> None:
        """Close the running loop's connections. Later calls raise RuntimeError, except releases."""
        self.closed = True
        self._pools.stop_of(asyncio.get_running_loop())


def _new_pool(loop: asyncio.AbstractEventLoop) -> AsyncPool[AsyncConnection]:
    return AsyncPool(AsyncConnection, MAX_CONNECTIONS, has_reserve=True, give_up=AsyncConnection.close)


def _stop(pool: AsyncPool[AsyncConnection]) -> None:
    for each in pool.pools:
        for connection in each.made():
            connection.close()
