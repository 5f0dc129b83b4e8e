"""The listener for threads: a connection whose messages wake a process' waiters. Some parts serve asyncio too.

The connection is the coordinator's own; the client's pool is not used. It is opened when the first waiter comes, and
closed a few seconds after the last one has gone. ``lua/queue.lua`` sends the messages, and ``fencing.redis.waiters``
handles them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError

from fencing.kernel import process
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable, FencingError
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import NoReply
from fencing.kernel.timer import timer
from fencing.kernel.waking import Turns, Wake, safe_lock
from fencing.kernel.workers import DaemonThread
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis import quirks
from fencing.redis.calls import decline_call
from fencing.redis.client import Connections
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import ConnectionFactory, map_connect_error
from fencing.redis.resp import bulks
from fencing.redis.sentinel import Address
from fencing.redis.waiters import Waiter, Waiters

DECLINE_SECONDS = 1.0
"""The time limit of declining an offer. If it fails, the offer expires soon after."""


LEAST_LISTENING_SECONDS = 1.0
"""How much later than a connection the next one is opened, where they end at once, or calls break again and again."""


class Heartbeat:
    """The times at which a connection last received something, and at which there was last a waiter."""

    LINGER_SECONDS = 3.0
    """How long the connection stays open without waiters, so that waits in a row do not open one each."""

    PING_SECONDS = 3.0
    """After this long without data a PING is sent; after twice as long the connection is dead."""

    TICK_SECONDS = 1.0
    """How often the listener checks whether it must continue."""

    def __init__(self) -> None:
        self._received_at = self._waiter_seen_at = time.monotonic()
        self._ping_due = False

    def received(self) -> None:
        """Note that data was received."""
        self._received_at, self._ping_due = time.monotonic(), False

    def waiter_seen(self) -> None:
        """Note that there is a waiter."""
        self._waiter_seen_at = time.monotonic()

    def must_listen(self, has_waiters: bool) -> bool:
        """Return whether to continue listening. Raise RedisError if the connection is dead."""
        now = time.monotonic()
        if has_waiters:
            self.waiter_seen()
        if now - self._received_at > 2 * self.PING_SECONDS:
            raise RedisError(f"nothing was received for {now - self._received_at:.1f} s")
        return now - self._waiter_seen_at < self.LINGER_SECONDS

    def must_ping(self) -> bool:
        """Return whether a PING must be sent now: once in each silence."""
        was_due, self._ping_due = self._ping_due, time.monotonic() - self._received_at > self.PING_SECONDS
        return self._ping_due and not was_due


def must_leave(opened_at: float, left_at: float) -> bool:
    """Return whether to listen on another connection, because the calls have left their server since.

    That one may still be there, and answer: it is a replica now, or cut off, and nobody's messages come from it.
    """
    return left_at > opened_at and time.monotonic() - opened_at > LEAST_LISTENING_SECONDS


def map_listen_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of connecting and subscribing: NoReply if another attempt may succeed."""
    if isinstance(error, NoPermissionError):
        return CoordinatorUnavailable(
            f"Redis at {address} does not let this user wait for locks: {error}; add the ACL rules "
            f"+subscribe +publish +ping &fencing:1:wake:*",
            address=address,
            refused=True,
        )
    return map_connect_error(error, address)


def message_of(reply: Any) -> bytes | None:
    """Return the text of a message; None: the reply is not a message."""
    return reply[2] if isinstance(reply, list) and reply[0] == b"message" else None


class Listener:
    """The listener for threads: a daemon thread that lives while there are waiters. A forked child has its own."""

    def __init__(self, client: redis.Redis, connections: Connections, clock: Callable[[], float]) -> None:
        self._factory = ConnectionFactory(client)
        self._calls = connections
        self._opened_at = 0.0
        self._clock = clock
        self._connection: LazyConnection | None = None
        self._closed = False
        self._reset()
        process.after_fork(self._after_fork)

    def _reset(self) -> None:
        self._lock = safe_lock()
        self._connecting = Turns()
        self._waiters = Waiters(self._clock, self._call_at)

    def _after_fork(self) -> None:
        connection, self._connection = self._connection, None
        self._reset()
        if connection is not None:
            quirks.close_copy(connection.raw)  # otherwise the parent's listener would seem alive after it has ended

    def is_waited_for(self, resource: str) -> bool:
        """Return whether there are waiters for the resource, or were a moment ago. A hint."""
        return resource in self._waiters

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, block until it is woken, or remove it.

        Raises:
            NoReply: no connection in time; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        with self._lock:
            if isinstance(effect, Leave):
                self._waiters.remove(effect.waiter, effect.free_at)
                return None
            self._waiters.schedule_recheck(effect.waiter, effect.recheck)
        if not self._is_outdated():  # or else it asks again at once, and then listens elsewhere
            effect.waiter.waking.wait(effect.seconds)
        return None

    def close(self) -> None:
        """Stop listening. Waiters ask again, and get the error that the coordinator is closed."""
        self._closed = True
        self._disconnect()

    def move(self, primary: Address) -> None:
        """Leave a server that is no longer the primary: no message for the waiters comes from there any more."""
        if self._connection is not None and self._factory.primary != primary:
            self._disconnect()

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            self._waiters.wake_all()
        if connection is not None:
            connection.close()

    def _is_outdated(self) -> bool:
        return self._connection is not None and must_leave(self._opened_at, self._calls.factory.left_at)

    def _enlist(self, effect: Enlist) -> Waiter:
        if self._is_outdated():
            self._disconnect()
        if effect.waiter is not None and self._connection is not None:
            return effect.waiter  # type: ignore[no-any-return] # it was added before, and only it removes itself
        waiter: Waiter = effect.waiter or Waiter(effect.resource, effect.token, Wake(), self._waiters.name)
        deadline = time.monotonic() + effect.timeout
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._connection is None:
            connecting, turn = self._connecting, Wake()
            try:
                if not connecting.take(turn, effect.timeout):
                    raise NoReply(TimeoutError("another thread is still connecting"), may_have_run=False)
                if self._connection is None:
                    self._connect(deadline)
            finally:
                connecting.queue.pop(turn, None)
                connecting.wake_first()
        with self._lock:
            if self._connection is None:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            self._waiters.add(waiter)
        return waiter

    def _connect(self, deadline: float) -> None:
        Wake().wait(min(self._opened_at + LEAST_LISTENING_SECONDS, deadline) - time.monotonic())
        connection = LazyConnection()
        subscription = b"*2\r\n" + bulks(("SUBSCRIBE", self._waiters.channel))
        try:
            try:
                deadline = min(deadline, time.monotonic() + self._factory.limit_seconds(math.inf))
                seconds = deadline - time.monotonic()
                connection.open(self._factory.open(seconds), seconds)
                reply = connection.ask(subscription, deadline)
                if isinstance(reply, RedisError):
                    raise reply
            except (RedisError, OSError) as error:
                raise_interruption(error)
                raise map_listen_error(error, self._factory.address) from error
            thread = DaemonThread(self._listen, "fencing-listener", connection)
            self._connection, self._opened_at = connection, time.monotonic()
            thread.start()
        except BaseException:
            self._connection = None
            connection.close()
            raise

    def _listen(self, connection: LazyConnection) -> None:
        heartbeat = Heartbeat()
        try:
            connection.set_timeout(heartbeat.TICK_SECONDS)
            while self._must_listen(heartbeat, connection):
                try:
                    text = message_of(connection.read())
                except redis.TimeoutError:
                    if heartbeat.must_ping():
                        connection.raw.send_command("PING", check_health=False)
                    continue
                heartbeat.received()
                if text is not None:
                    self._on_message(text)
        except (RedisError, OSError, ValueError, TypeError, AttributeError):
            pass  # the connection broke, or another thread closed it
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                    self._waiters.wake_all()
            connection.close()

    def _must_listen(self, heartbeat: Heartbeat, connection: LazyConnection) -> bool:
        with self._lock:
            if self._connection is not connection:
                return False
            if not heartbeat.must_listen(bool(self._waiters)):
                self._connection = None
        return self._connection is connection

    def _on_message(self, text: bytes) -> None:
        with self._lock:
            declined = self._waiters.on_message(text)
        if declined is not None:
            try:
                self._calls.perform(decline_call(*declined, self._waiters.name, timeout=DECLINE_SECONDS))
            except (FencingError, NoReply, RuntimeError):
                pass  # the offer expires by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        timer().call_at(when, partial(self._call_locked, callback), wanted)

    def _call_locked(self, callback: Callable[[], object]) -> None:
        with self._lock:
            callback()
