"""The listener for asyncio: its messages wake an event loop's waiters; see ``fencing.redis.listener``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from fencing.kernel.effects import background, call_surely
from fencing.kernel.errors import CLOSED, FencingError
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import TaskWake
from fencing.kernel.workers import PerLoop
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.asyncio_protocol import receive_replies
from fencing.redis.calls import decline_call
from fencing.redis.client_async import AsyncConnections
from fencing.redis.connection_factory import ConnectionFactory
from fencing.redis.listener import (
    DECLINE_SECONDS,
    LEAST_LISTENING_SECONDS,
    Heartbeat,
    map_listen_error,
    message_of,
    must_leave,
)
from fencing.redis.sentinel import Address
from fencing.redis.waiters import Waiter, Waiters


class AsyncListener:
    """The listener for asyncio: each event loop has a connection, and a task that lives while there are waiters."""

    def __init__(self, client: redis.asyncio.Redis, connections: AsyncConnections, clock: Callable[[], float]) -> None:
        self._loops = PerLoop(partial(_LoopListener, ConnectionFactory(client), connections, clock))
        self._closed = False

    def is_waited_for(self, resource: str) -> bool:
        """Return whether the running loop has waiters for the resource, or had a moment ago. A hint."""
        listener = self._loops.get(asyncio.get_running_loop())
        return listener is not None and resource in listener.waiters

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, wait until it is woken, or remove it.

        Raises:
            NoReply: no connection in time; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        listener = self._loops[asyncio.get_running_loop()]
        if isinstance(effect, Enlist):
            if self._closed:
                raise RuntimeError(CLOSED)
            return await listener.enlist(effect)
        if isinstance(effect, Leave):
            listener.waiters.remove(effect.waiter, effect.free_at)
            return None
        listener.waiters.schedule_recheck(effect.waiter, effect.recheck)
        if not listener.is_outdated:  # or else it asks again at once, and then listens elsewhere
            await effect.waiter.waking.wait(effect.seconds)
        return None

    def move(self, primary: Address) -> None:
        """Leave a server that is no longer the primary: no message for the waiters comes from there any more."""
        for loop, listener in list(self._loops.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(listener.move, primary)

    async def close(self) -> None:
        """Stop listening on the running loop. Waiters ask again, and get the error that the coordinator is closed."""
        self._closed = True
        listener = self._loops.remove(asyncio.get_running_loop())
        if listener is not None:
            await listener.close()


class _LoopListener:
    """The listener of one event loop. Only that loop uses it."""

    def __init__(
        self,
        factory: ConnectionFactory,
        connections: AsyncConnections,
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.connection: Any = None
        self.waiters = Waiters(clock, self._call_at)
        self._factory = factory
        self._calls = connections
        self._opened_at = 0.0
        self._clock = clock
        self._connecting = asyncio.Lock()
        self._heartbeat = Heartbeat()
        self._loop = loop
        self._listening: asyncio.Task[None] | None = None
        self._declining: set[asyncio.Task[None]] = set()

    @property
    def is_outdated(self) -> bool:
        """Whether the calls have left the server that this listens to."""
        return self.connection is not None and must_leave(self._opened_at, self._calls.factory.left_at)

    async def enlist(self, effect: Enlist) -> Waiter:
        if self.is_outdated:
            self._leave()
        if effect.waiter is not None and self.connection is not None:
            return effect.waiter  # type: ignore[no-any-return] # it was added before, and only it removes itself
        waiter: Waiter = effect.waiter or Waiter(effect.resource, effect.token, TaskWake(), self.waiters.name)
        if self.connection is None:
            seconds = self._factory.limit_seconds(effect.timeout)
            try:
                async with asyncio.timeout(seconds), self._connecting:
                    if self.connection is None:
                        await self._connect(seconds)
            except TimeoutError as error:
                raise_interruption(error)
                raise NoReply(TimeoutError(f"no reply within {seconds:.3g} s"), may_have_run=False) from error
            except (RedisError, OSError) as error:
                raise_interruption(error)
                raise map_listen_error(error, self._factory.address) from error
        self._heartbeat.waiter_seen()  # the listening task checks once per tick, and a wait may be shorter
        self.waiters.add(waiter)
        return waiter

    async def _connect(self, seconds: float) -> None:
        await asyncio.sleep(self._opened_at + LEAST_LISTENING_SECONDS - time.monotonic())
        connection = await self._factory.find_async(seconds)
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self.waiters.channel, check_health=False)
            await connection.read_response(disconnect_on_error=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.connection, self._opened_at = connection, time.monotonic()
        self._heartbeat = Heartbeat()
        # Not in the task: uvloop may read before a task begins.
        _, reading = receive_replies(connection, self._loop, self._on_reply)
        self._listening = background(self._loop, self._listen(connection, reading), "fencing-listener")
        self._listening.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: Any, _: object = None) -> None:
        """Note that the task has ended, even if it was cancelled before it began, or interrupted while it ended."""
        if self.connection is connection:
            self.connection = None
            self.waiters.wake_all()

    async def _listen(self, connection: Any, reading: asyncio.Future[None]) -> None:
        try:
            while self._heartbeat.must_listen(bool(self.waiters)) and not reading.done():
                await asyncio.wait([reading], timeout=self._heartbeat.TICK_SECONDS)
                if self._heartbeat.must_ping():
                    await connection.send_command("PING", check_health=False)
        except (RedisError, OSError):
            pass  # the connection broke
        finally:
            if not self._loop.is_closed():
                self._ended(connection)
                reading.cancel()
                await connection.disconnect(nowait=True)
                await asyncio.wait([reading])

    def _on_reply(self, reply: Any) -> None:
        self._heartbeat.received()
        text = message_of(reply)
        if text is not None:
            try:
                self._on_message(text)
            except ValueError as error:
                raise RedisError(f"a message that our scripts do not publish: {text!r:.100}") from error

    def _on_message(self, text: bytes) -> None:
        declined = self.waiters.on_message(text)
        if declined is not None:
            task = background(asyncio.get_running_loop(), self._decline(*declined), "fencing-decline")
            self._declining.add(task)
            task.add_done_callback(self._declining.discard)

    async def _decline(self, resource: str, token: str) -> None:
        try:
            await self._calls.perform(decline_call(resource, token, self.waiters.name, timeout=DECLINE_SECONDS))
        except (FencingError, NoReply, RuntimeError):
            pass  # the offer expires by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, when - self._clock()), call_surely, loop, callback)

    def move(self, primary: Address) -> None:
        if self.connection is not None and self._factory.primary != primary:
            self._leave()

    def _leave(self) -> None:
        if self._listening is not None:
            self._ended(self.connection)
            self._listening.cancel()

    async def close(self) -> None:
        self.connection = None
        self.waiters.wake_all()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
