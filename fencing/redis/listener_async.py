"""The connection on which an event loop is told that its waiters' turn has come; see ``fencing.redis.listener``.

redis-py reads it: doing so past it saved 5 to 9 % of the client's CPU time per lock that is handed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from fencing.kernel import process
from fencing.kernel.errors import FencingError
from fencing.kernel.retry import NoReply
from fencing.redis.calls import Call, release_call
from fencing.redis.connection_factory import ConnectionFactory
from fencing.redis.listener import DECLINE_SECONDS, Heartbeat, map_listen_error, message_of
from fencing.redis.waiters import Enlist, Leave, Wait, Waiter, Waiters


class _TaskWaiter(Waiter):
    __slots__ = ("_future", "_woken")

    def __init__(self, listener: str, resource: str, token: str) -> None:
        super().__init__(listener, resource, token)
        self._future: asyncio.Future[None] | None = None
        self._woken = False

    def wake(self) -> None:
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            alarm = None if seconds == float("inf") else loop.call_later(seconds, self.wake)
            try:
                await self._future
            finally:
                self._future = None
                if alarm is not None:
                    alarm.cancel()
        self._woken = False


class AsyncListener:
    """Listens for asyncio: each event loop has a connection, and a task that listens while somebody waits."""

    def __init__(
        self, client: redis.asyncio.Redis, perform: Callable[[Call], Awaitable[Any]], clock: Callable[[], float]
    ) -> None:
        self._make = partial(_LoopListener, ConnectionFactory(client), perform, clock)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopListener] = {}
        self._closed = False
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._loops = {}

    def _mine(self) -> _LoopListener:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(ended, None)
            mine = self._loops[loop] = self._make()
        return mine

    def listening(self) -> bool:
        """See :meth:`Listener.listening`."""
        mine = self._loops.get(asyncio.get_running_loop())
        return mine is not None and mine.connection is not None

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """See :meth:`Listener.perform`."""
        mine = self._mine()
        if isinstance(effect, Enlist):
            if self._closed:
                raise RuntimeError("this coordinator was closed; make a new one")
            return await mine.enlist(effect)
        if isinstance(effect, Leave):
            mine.waiters.remove(effect.waiter, effect.free_at)
            return None
        mine.waiters.waits(effect.waiter, effect.recheck)
        assert isinstance(effect.waiter, _TaskWaiter)
        await effect.waiter.wait(effect.seconds)
        return None

    async def close(self) -> None:
        """See :meth:`Listener.close`; of the running loop."""
        self._closed = True
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.close()


class _LoopListener:
    """The listener of one event loop, which alone uses it."""

    def __init__(
        self, factory: ConnectionFactory, perform: Callable[[Call], Awaitable[Any]], clock: Callable[[], float]
    ) -> None:
        self.connection: Any = None
        self.waiters = Waiters(clock, self._call_at)
        self._factory = factory
        self._perform = perform
        self._clock = clock
        self._connecting = asyncio.Lock()
        self._heartbeat = Heartbeat()
        self._listening: asyncio.Task[None] | None = None
        self._declining: set[asyncio.Task[None]] = set()

    async def enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _TaskWaiter(self.waiters.name, effect.resource, effect.token)
        if self.connection is None:
            seconds = self._factory.limited(effect.timeout)
            try:
                async with asyncio.timeout(seconds), self._connecting:
                    if self.connection is None:
                        await self._connect()
            except TimeoutError as error:
                raise NoReply(TimeoutError(f"no reply within {seconds:.3g} s"), may_have_run=False) from error
            except (RedisError, OSError) as error:
                raise map_listen_error(error, self._factory.address) from error
        self._heartbeat.used()  # the listening task asks once in a while, and a wait may be shorter
        self.waiters.add(waiter)
        return waiter

    async def _connect(self) -> None:
        connection = self._factory.make()
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self.waiters.channel, check_health=False)
            await connection.read_response(disconnect_on_error=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.connection = connection
        self._heartbeat = Heartbeat()
        self._listening = asyncio.create_task(self._listen(connection), name="fencing-listener")

    async def _listen(self, connection: Any) -> None:
        reading = asyncio.create_task(self._read(connection), name="fencing-listener-read")
        try:
            while self._heartbeat.goes_on(bool(self.waiters)) and not reading.done():
                await asyncio.wait([reading], timeout=self._heartbeat.TICK_SECONDS)
                if self._heartbeat.must_ping():
                    await connection.send_command("PING", check_health=False)
        except (RedisError, OSError):
            pass  # broken
        finally:
            if self.connection is connection:
                self.connection = None
                self.waiters.wake_all()
            reading.cancel()
            await connection.disconnect(nowait=True)
            await asyncio.wait([reading])

    async def _read(self, connection: Any) -> None:
        """Take in messages until the connection breaks, or brings what our scripts do not publish."""
        try:
            while True:
                text = message_of(await connection.read_response(disconnect_on_error=False))
                self._heartbeat.heard()
                if text is not None:
                    self._on_message(text)
        except (RedisError, OSError, ValueError):
            pass

    def _on_message(self, text: bytes) -> None:
        declined = self.waiters.on_message(text)
        if declined is not None:
            task = asyncio.create_task(self._decline(*declined), name="fencing-decline")
            self._declining.add(task)
            task.add_done_callback(self._declining.discard)

    async def _decline(self, resource: str, token: str) -> None:
        try:
            await self._perform(release_call(resource, token, self.waiters.name, timeout=DECLINE_SECONDS))
        except (FencingError, NoReply, RuntimeError):
            pass  # it ends by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        asyncio.get_running_loop().call_later(max(0.0, when - self._clock()), callback)

    async def close(self) -> None:
        self.connection = None
        self.waiters.wake_all()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
