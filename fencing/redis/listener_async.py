"""For asyncio: the hub, see ``fencing.redis.hub``; one for each event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from fencing.kernel.errors import FencingError
from fencing.kernel.retry import NoReply
from fencing.redis import hub as redis_hub
from fencing.redis.blueprint import Blueprint
from fencing.redis.calls import Call, release_call
from fencing.redis.direct import Replies, direct_transport, stream_writer
from fencing.redis.hub import DECLINE_SECONDS, Silence, message, not_listening
from fencing.redis.waiters import Enlist, Leave, Wait, Waiter, Waiting

__all__ = ["AsyncWakeups"]


class _TaskWaiter(Waiter):
    __slots__ = ("_future", "_rings")

    def __init__(self, hub: str, resource: str, token: str) -> None:
        super().__init__(hub, resource, token)
        self._future: asyncio.Future[None] | None = None
        self._rings = False

    def ring(self) -> None:
        self._rings = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        if not self._rings:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            alarm = None if seconds == float("inf") else loop.call_later(seconds, self.ring)
            try:
                await self._future
            finally:
                self._future = None
                if alarm is not None:
                    alarm.cancel()
        self._rings = False


class AsyncWakeups:
    """For asyncio: a hub for each event loop, and a task that listens while somebody waits."""

    def __init__(
        self, client: redis.asyncio.Redis, perform: Callable[[Call], Awaitable[Any]], clock: Callable[[], float]
    ) -> None:
        self._make = partial(_LoopHub, Blueprint(client), perform, clock)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopHub] = {}
        self._closed = False

    def _mine(self) -> _LoopHub:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None or mine.pid != os.getpid():
            for ended in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(ended, None)
            mine = self._loops[loop] = self._make()
        return mine

    def listening(self) -> bool:
        """See :meth:`Wakeups.listening`."""
        mine = self._loops.get(asyncio.get_running_loop())
        return mine is not None and mine.pid == os.getpid() and mine.connection is not None

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        mine = self._mine()
        if isinstance(effect, Enlist):
            if self._closed:
                raise RuntimeError("this coordinator was closed; make a new one")
            return await mine.enlist(effect)
        if isinstance(effect, Leave):
            mine.waiting.remove(effect.waiter, effect.free_at)
            return None
        mine.waiting.waits(effect.waiter, effect.look)
        assert isinstance(effect.waiter, _TaskWaiter)
        await effect.waiter.wait(effect.seconds)
        return None

    async def close(self) -> None:
        """See :meth:`Wakeups.close`; of the running loop."""
        self._closed = True
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.close()


class _LoopHub:
    """The hub of one event loop, which alone uses it."""

    def __init__(
        self, blueprint: Blueprint, perform: Callable[[Call], Awaitable[Any]], clock: Callable[[], float]
    ) -> None:
        self.pid = os.getpid()
        self.connection: Any = None
        self.waiting = Waiting(clock, self._call_at)
        self._blueprint = blueprint
        self._perform = perform
        self._clock = clock
        self._connecting = asyncio.Lock()
        self._silence = Silence()
        self._listening: asyncio.Task[None] | None = None
        self._declining: set[asyncio.Task[None]] = set()

    async def enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _TaskWaiter(self.waiting.name, effect.resource, effect.token)
        if self.connection is None:
            seconds = max(min(effect.timeout, self._blueprint.user_timeout), 0.001)
            try:
                async with asyncio.timeout(seconds), self._connecting:
                    if self.connection is None:
                        await self._connect()
            except TimeoutError as error:
                raise NoReply(TimeoutError(f"no reply within {seconds:.3g} s"), may_have_run=False) from error
            except (RedisError, OSError) as error:
                raise not_listening(error, self._blueprint.address) from error
        self._silence.used()  # the listening task looks once in a while, and a wait may be shorter
        self.waiting.add(waiter)
        return waiter

    async def _connect(self) -> None:
        connection = self._blueprint.make()
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self.waiting.channel, check_health=False)
            await connection.read_response(disconnect_on_error=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.connection = connection
        self._silence = Silence()
        loop = asyncio.get_running_loop()
        replies = None
        transport = direct_transport(stream_writer(connection))
        if transport is not None:
            replies = Replies(loop, self._answer)
            transport.set_protocol(replies)
        self._listening = loop.create_task(self._listen(connection, replies), name="fencing-wakeups")

    async def _listen(self, connection: Any, replies: Replies | None) -> None:
        try:
            while self._silence.goes_on(bool(self.waiting)):
                try:
                    async with asyncio.timeout(redis_hub.TICK_SECONDS):
                        if replies is not None:
                            await asyncio.shield(replies.end)
                        else:
                            self._answer(await connection.read_response(disconnect_on_error=False))
                except TimeoutError:
                    if self._silence.to_ask():
                        await connection.send_command("PING", check_health=False)
        except (RedisError, OSError):
            pass  # broken, or not what our scripts publish
        finally:
            if self.connection is connection:
                self.connection = None
                self.waiting.stir()
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        self._silence.broken()
        text = message(reply)
        if text is None:
            return
        try:
            declined = self.waiting.heard(text)
        except ValueError as error:
            raise RedisError(f"not what our scripts publish: {text[:80]!r}") from error
        if declined is not None:
            task = asyncio.get_running_loop().create_task(self._decline(*declined), name="fencing-decline")
            self._declining.add(task)
            task.add_done_callback(self._declining.discard)

    async def _decline(self, resource: str, token: str) -> None:
        try:
            await self._perform(release_call(resource, token, self.waiting.name, timeout=DECLINE_SECONDS))
        except (FencingError, NoReply, RuntimeError):
            pass  # it ends by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        asyncio.get_running_loop().call_later(max(0.0, when - self._clock()), callback)

    async def close(self) -> None:
        self.connection = None
        self.waiting.stir()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
