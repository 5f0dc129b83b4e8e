"""The hub: one connection on which a process, or an event loop, is told when its waiters' turn has come.

It is the coordinator's own, opened when somebody begins to wait, and closed a while after nobody does; the client's
pool is left alone. See ``redis_waiting`` for what the messages mean, and ``lua/queue.lua`` for who sends them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError

from fencing.errors import CoordinatorUnavailable, FencingError
from fencing.redis_blueprint import REFUSED, Blueprint
from fencing.redis_plans import Call, NoReply, release_call
from fencing.redis_waiting import Enlist, Leave, Wait, Waiter, Waiting
from fencing.timer import timer

if sys.version_info >= (3, 11):
    from asyncio import timeout as async_timeout
else:
    from async_timeout import timeout as async_timeout

__all__ = ["AsyncWakeups", "Wakeups"]

LINGER_SECONDS = 3.0
"""How long the connection stays when nobody waits, so that locks waited for in a row do not open one each."""

PING_SECONDS = 3.0
"""After so much silence the server is asked for a sign of life; after twice as much the connection counts as dead."""

TICK_SECONDS = 1.0

DECLINE_SECONDS = 1.0
"""What declining an offer may take. If it fails, the offer ends by itself, soon after."""


class _Silence:
    """How long nothing has been heard on a connection, and for how long nobody has waited. Pure."""

    def __init__(self) -> None:
        self._heard = self._used = time.monotonic()
        self._asked = False

    def broken(self) -> None:
        self._heard, self._asked = time.monotonic(), False

    def goes_on(self, anybody_waits: bool) -> bool:
        """Whether to listen on; redis.ConnectionError where the connection counts as dead."""
        now = time.monotonic()
        if anybody_waits:
            self._used = now
        if now - self._heard > 2 * PING_SECONDS:
            raise RedisError(f"nothing was heard for {now - self._heard:.1f} s")
        return now - self._used < LINGER_SECONDS

    def to_ask(self) -> bool:
        """Whether it is time to ask for a sign of life, now."""
        asked, self._asked = self._asked, time.monotonic() - self._heard > PING_SECONDS
        return self._asked and not asked


def _not_listening(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Why the connection was not made: worth another attempt, or not."""
    if isinstance(error, NoPermissionError):
        return CoordinatorUnavailable(
            f"Redis at {address} does not let this user wait for locks: {error}; add the ACL rules "
            f"+subscribe +publish +ping &fencing:1:wake:*",
            address=address,
        )
    if isinstance(error, REFUSED):
        return CoordinatorUnavailable(
            f"Redis at {address} refused the credentials: {error}; correct the client's username and password",
            address=address,
        )
    return NoReply(error, may_have_run=False)


def _message(reply: Any) -> bytes | None:
    return reply[2] if isinstance(reply, list) and reply[0] == b"message" else None


class _ThreadWaiter(Waiter):
    __slots__ = ("_bell",)

    def __init__(self, hub: str, resource: str, token: str) -> None:
        super().__init__(hub, resource, token)
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    def wait(self, seconds: float) -> None:
        self._bell.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Wakeups:
    """For threads: a daemon thread listens while somebody waits. After a fork the child has a hub of its own."""

    def __init__(self, client: redis.Redis, perform: Callable[[Call], Any], clock: Callable[[], float]) -> None:
        self._blueprint = Blueprint(client)
        self._perform = perform
        self._clock = clock
        self._connection: Any = None
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._waiting = Waiting(self._clock, self._call_at)

    def after_fork(self) -> None:
        """In the child: its copy of the connection would keep the hub alive in the server's eyes."""
        connection, self._connection = self._connection, None
        if connection is not None and connection._sock is not None:
            connection._sock.close()
        self._reset()

    def listening(self) -> bool:
        """Whether who waits now need not open a connection first. A hint."""
        return self._connection is not None

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        with self._lock:
            if isinstance(effect, Leave):
                self._waiting.remove(effect.waiter, effect.free_at)
                return None
            self._waiting.waits(effect.waiter, effect.look)
        assert isinstance(effect.waiter, _ThreadWaiter)
        effect.waiter.wait(effect.seconds)
        return None

    def close(self) -> None:
        """Listen no more. Who still waits asks, and is told that the coordinator is closed."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._waiting.stir()
        if connection is not None:
            connection.disconnect()

    def _enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _ThreadWaiter(self._waiting.name, effect.resource, effect.token)
        deadline = time.monotonic() + effect.timeout
        if self._connection is None:
            if not self._connecting.acquire(timeout=effect.timeout):
                raise NoReply(TimeoutError("another thread is still connecting"), may_have_run=False)
            try:
                if self._connection is None:
                    self._connect(deadline)
            finally:
                self._connecting.release()
        with self._lock:
            if self._connection is None:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            self._waiting.add(waiter)
        return waiter

    def _connect(self, deadline: float) -> None:
        connection = self._blueprint.make(protocol=2)  # whose messages are plain arrays
        try:
            try:
                connection.socket_connect_timeout = connection.socket_timeout = self._left(deadline)
                connection.connect()
                connection._sock.settimeout(self._left(deadline))
                connection.send_command("SUBSCRIBE", self._waiting.channel, check_health=False)
                connection.read_response(disconnect_on_error=False)
                connection._sock.settimeout(PING_SECONDS)
            except (RedisError, OSError) as error:
                raise _not_listening(error, self._blueprint.address) from error
            thread = threading.Thread(target=self._listen, args=(connection,), name="fencing-wakeups", daemon=True)
            self._connection = connection
            thread.start()
        except BaseException:
            self._connection = None
            connection.disconnect()
            raise

    def _left(self, deadline: float) -> float:
        return max(min(deadline - time.monotonic(), self._blueprint.user_timeout), 0.001)

    def _listen(self, connection: Any) -> None:
        silence = _Silence()
        try:
            while self._goes_on(silence, connection):
                if connection.can_read(timeout=TICK_SECONDS):
                    text = _message(connection.read_response(disconnect_on_error=False))
                    silence.broken()
                    if text is not None:
                        self._heard(text)
                elif silence.to_ask():
                    connection.send_command("PING", check_health=False)
        except (RedisError, OSError, ValueError, TypeError, AttributeError):
            pass  # broken, or closed under our hands
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                    self._waiting.stir()
            connection.disconnect()

    def _goes_on(self, silence: _Silence, connection: Any) -> bool:
        with self._lock:
            if self._connection is not connection:
                return False
            if not silence.goes_on(bool(self._waiting)):
                self._connection = None
        return self._connection is connection

    def _heard(self, text: bytes) -> None:
        with self._lock:
            declined = self._waiting.heard(text)
        if declined is not None:
            try:
                self._perform(release_call(*declined, self._waiting.name, timeout=DECLINE_SECONDS))
            except (FencingError, NoReply, RuntimeError):
                pass  # it ends by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        timer().call_at(when, partial(self._locked, callback), wanted)

    def _locked(self, callback: Callable[[], object]) -> None:
        with self._lock:
            callback()


_all: weakref.WeakSet[Wakeups] = weakref.WeakSet()


def _after_fork() -> None:
    for wakeups in list(_all):
        wakeups.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopHub] = weakref.WeakKeyDictionary()

    def _mine(self) -> _LoopHub:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None or mine.pid != os.getpid():
            mine = self._loops[loop] = self._make()
        return mine

    def listening(self) -> bool:
        """See :meth:`Wakeups.listening`."""
        mine = self._loops.get(asyncio.get_running_loop())
        return mine is not None and mine.pid == os.getpid() and mine.connection is not None

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        mine = self._mine()
        if isinstance(effect, Enlist):
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
        self._listening: asyncio.Task[None] | None = None
        self._declining: set[asyncio.Task[None]] = set()

    async def enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _TaskWaiter(self.waiting.name, effect.resource, effect.token)
        if self.connection is None:
            seconds = max(min(effect.timeout, self._blueprint.user_timeout), 0.001)
            try:
                async with async_timeout(seconds), self._connecting:
                    if self.connection is None:
                        await self._connect()
            except asyncio.TimeoutError as error:
                raise NoReply(TimeoutError(f"no reply within {seconds:.3g} s"), may_have_run=False) from error
            except (RedisError, OSError) as error:
                raise _not_listening(error, self._blueprint.address) from error
        self.waiting.add(waiter)
        return waiter

    async def _connect(self) -> None:
        connection = self._blueprint.make(protocol=2)
        try:
            await connection.connect()
            await connection.send_command("SUBSCRIBE", self.waiting.channel, check_health=False)
            await connection.read_response(disconnect_on_error=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.connection = connection
        self._listening = asyncio.get_running_loop().create_task(self._listen(connection), name="fencing-wakeups")

    async def _listen(self, connection: Any) -> None:
        silence = _Silence()
        try:
            while silence.goes_on(bool(self.waiting)):
                try:
                    async with async_timeout(TICK_SECONDS):
                        text = _message(await connection.read_response(disconnect_on_error=False))
                except asyncio.TimeoutError:
                    if silence.to_ask():
                        await connection.send_command("PING", check_health=False)
                    continue
                silence.broken()
                if text is not None:
                    self._heard(text)
        except (RedisError, OSError):
            pass  # broken
        finally:
            if self.connection is connection:
                self.connection = None
                self.waiting.stir()
            await connection.disconnect(nowait=True)

    def _heard(self, text: bytes) -> None:
        declined = self.waiting.heard(text)
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
