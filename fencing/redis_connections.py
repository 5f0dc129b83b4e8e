"""The coordinator's own connections to Redis, and the doing of a ``Call`` on one.

The client's pool is left alone, so waiting for locks never takes a connection that the application needs. Connections
are few, bounded in number, and every wait on them is bounded by the call's own timeout.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from fencing.redis_blueprint import NOT_READY, REFUSED, Blueprint, command, nobody_will_ask_again, translated
from fencing.redis_plans import Call, NoReply

if sys.version_info >= (3, 11):
    from asyncio import timeout as async_timeout
else:
    from async_timeout import timeout as async_timeout

__all__ = ["AsyncConnections", "Connections"]

MAX_CONNECTIONS = 16
"""Per coordinator. A call holds one for a round trip, so a few serve hundreds of threads; who finds none free waits."""

IDLE_SECONDS = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

CLOCK_SLACK_SECONDS = 0.001


class Connections:
    """For threads. Safe to use after a fork: the child opens its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._blueprint = Blueprint(client)
        self.address = self._blueprint.address
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._free: deque[tuple[Any, float]] = deque()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def perform(self, call: Call) -> Any:
        """Run the call's script; the reply, or NoReply, or CoordinatorUnavailable where repeating would not help."""
        if self.closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        if os.getpid() != self._pid:
            self._reset()
        deadline = time.monotonic() + call.timeout
        places = self._places
        if not places.acquire(timeout=call.timeout):
            error = TimeoutError(f"all {MAX_CONNECTIONS} connections were busy for {call.timeout:.3g} s")
            raise NoReply(error, may_have_run=False)
        try:
            with translated(self.address):
                return self._exchange(call, deadline)
        finally:
            places.release()

    def _exchange(self, call: Call, deadline: float) -> Any:
        connection = self._take()
        try:
            self._limit(connection, call.timeout)
            try:
                connection.connect()
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                if isinstance(error, REFUSED + NOT_READY):
                    raise
                raise NoReply(error, may_have_run=False) from error
            self._limit(connection, deadline - time.monotonic())
            connection.send_packed_command(command(call))
            try:
                reply = connection.read_response(disconnect_on_error=False)
            except NoScriptError:
                connection.send_packed_command(command(call, whole=True))
                reply = connection.read_response(disconnect_on_error=False)
        except BaseException as error:
            if isinstance(error, ResponseError) and not isinstance(error, NOT_READY):
                self._free.append((connection, time.monotonic()))  # it answered: the connection is in order
            else:
                self._abandon(connection, call, error)
            raise
        self._free.append((connection, time.monotonic()))
        return reply

    def _take(self) -> Any:
        while True:
            try:
                connection, used = self._free.pop()
            except IndexError:
                return self._blueprint.make()
            if time.monotonic() - used <= IDLE_SECONDS:
                return connection
            try:
                if not connection.can_read(0):
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()

    def _limit(self, connection: Any, seconds: float) -> None:
        """Bound each wait on the connection. redis-py sets the time-out of a socket once, when it is made."""
        seconds = max(min(seconds, self._blueprint.user_timeout), 0.001)
        connection.socket_timeout = connection.socket_connect_timeout = seconds
        if connection._sock is not None:
            connection._sock.settimeout(seconds)

    def _abandon(self, connection: Any, call: Call, error: BaseException) -> None:
        """Close a connection whose reply never came, and with it all idle ones: what broke it broke them too."""
        interrupted = not isinstance(error, Exception)
        if call.undo and nobody_will_ask_again(call, interrupted) and connection._sock is not None:
            try:
                self._limit(connection, 0.01)
                connection.send_packed_command(command(call.undo, whole=True), check_health=False)
            except (RedisError, OSError):
                pass
        connection.disconnect()
        if isinstance(error, Exception):
            self._drop_idle()

    def _drop_idle(self) -> None:
        while True:
            try:
                self._free.pop()[0].disconnect()
            except IndexError:
                return

    def close(self) -> None:
        """Close all connections; later calls raise RuntimeError."""
        self.closed = True
        self._drop_idle()


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self.free: deque[tuple[Any, float]] = deque()
        self.places = asyncio.Semaphore(MAX_CONNECTIONS)

    def __del__(self) -> None:
        loop = self._loop()
        while self.free and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.free.pop()[0].disconnect(nowait=True), loop)


class AsyncConnections:
    """For asyncio; each event loop, and each process after a fork, gets connections of its own."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._blueprint = Blueprint(client)
        self.address = self._blueprint.address
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._loops: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}

    async def perform(self, call: Call) -> Any:
        """See :meth:`Connections.perform`."""
        if self.closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        if os.getpid() != self._pid:
            self._reset()
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            self._forget_closed_loops()
            mine = self._loops[loop] = _LoopConnections(loop)
        seconds = max(min(call.timeout, self._blueprint.user_timeout), 0.001)
        deadline = time.monotonic() + seconds
        with translated(self.address):
            try:
                async with async_timeout(seconds), mine.places:
                    return await self._exchange(mine, call, deadline)
            except asyncio.TimeoutError as error:
                raise redis.TimeoutError(f"no reply within {seconds:.3g} s") from error

    async def _exchange(self, mine: _LoopConnections, call: Call, deadline: float) -> Any:
        connection = await self._take(mine)
        try:
            try:
                await connection.connect()
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                if isinstance(error, REFUSED + NOT_READY):
                    raise
                raise NoReply(error, may_have_run=False) from error
            await connection.send_packed_command(command(call))
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except NoScriptError:
                await connection.send_packed_command(command(call, whole=True))
                reply = await connection.read_response(disconnect_on_error=False)
        except BaseException as error:
            if isinstance(error, ResponseError) and not isinstance(error, NOT_READY):
                mine.free.append((connection, time.monotonic()))
            else:
                await self._abandon(mine, connection, call, error, deadline)
            raise
        mine.free.append((connection, time.monotonic()))
        return reply

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
            self._loops.pop(loop, None)  # with its connections: their sockets are closed as they are collected

    async def _take(self, mine: _LoopConnections) -> Any:
        while mine.free:
            connection, used = mine.free.pop()
            if time.monotonic() - used <= IDLE_SECONDS:
                return connection
            # Its name before redis-py 8; there is nothing to be read, so nothing is destroyed.
            readable = getattr(connection, "can_read", None) or connection.can_read_destructive
            try:
                if not await readable():
                    return connection
            except (RedisError, OSError):
                pass
            await connection.disconnect(nowait=True)
        return self._blueprint.make()

    async def _abandon(
        self, mine: _LoopConnections, connection: Any, call: Call, error: BaseException, deadline: float
    ) -> None:
        # The time-out cancels, too; it comes at the deadline, give or take the clock's resolution.
        interrupted = not isinstance(error, Exception) and time.monotonic() < deadline - CLOCK_SLACK_SECONDS
        if call.undo and nobody_will_ask_again(call, interrupted) and connection.is_connected:
            try:
                await connection.send_packed_command(command(call.undo, whole=True), check_health=False)
            except (RedisError, OSError):
                pass
        await connection.disconnect(nowait=True)
        if isinstance(error, Exception):
            while mine.free:
                await mine.free.pop()[0].disconnect(nowait=True)

    async def close(self) -> None:
        """Close all connections of the running loop; later calls raise RuntimeError."""
        self.closed = True
        self._forget_closed_loops()
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        while mine is not None and mine.free:
            await mine.free.pop()[0].disconnect()
