"""The connection on which a process is told that its waiters' turn has come, for threads; and what asyncio shares.

It is the coordinator's own, opened when somebody begins to wait, and closed a while after nobody does. The client's
pool is left alone. See ``fencing.redis.waiters`` for what the messages mean, and ``lua/queue.lua`` for what sends them.
redis-py reads it: doing so past it saved 5 to 9 % of the CPU time that waking takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.exceptions import NoPermissionError, RedisError

from fencing.kernel import process
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.kernel.retry import NoReply
from fencing.locks.timer import timer
from fencing.redis import quirks
from fencing.redis.calls import Call, release_call
from fencing.redis.client import Line
from fencing.redis.connection_factory import ConnectionFactory, map_connect_error
from fencing.redis.waiters import Enlist, Leave, Wait, Waiter, Waiters

DECLINE_SECONDS = 1.0
"""What declining an offer may take. If it fails, the offer ends by itself, soon after."""


class Heartbeat:
    """Keeps how long nothing has been heard on a connection, and for how long nobody has waited."""

    LINGER_SECONDS = 3.0
    """How long the connection stays when nobody waits, so that locks waited for in a row do not open one each."""

    PING_SECONDS = 3.0
    """After so much silence the server is asked for a sign of life; after twice as much the connection is dead."""

    TICK_SECONDS = 1.0
    """How often it is asked whether to go on."""

    def __init__(self) -> None:
        self._heard = self._used = time.monotonic()
        self._asked = False

    def heard(self) -> None:
        """Note that something was heard."""
        self._heard, self._asked = time.monotonic(), False

    def used(self) -> None:
        """Note that somebody waits."""
        self._used = time.monotonic()

    def goes_on(self, anybody_waits: bool) -> bool:
        """Return whether to listen on. RedisError: the connection is dead."""
        now = time.monotonic()
        if anybody_waits:
            self.used()
        if now - self._heard > 2 * self.PING_SECONDS:
            raise RedisError(f"nothing was heard for {now - self._heard:.1f} s")
        return now - self._used < self.LINGER_SECONDS

    def must_ping(self) -> bool:
        """Return whether it is time to ask for a sign of life, now."""
        asked, self._asked = self._asked, time.monotonic() - self._heard > self.PING_SECONDS
        return self._asked and not asked


def map_listen_error(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Map an error of connecting and subscribing: worth another attempt, or not."""
    if isinstance(error, NoPermissionError):
        return CoordinatorUnavailable(
            f"Redis at {address} does not let this user wait for locks: {error}; add the ACL rules "
            f"+subscribe +publish +ping &fencing:1:wake:*",
            address=address,
        )
    return map_connect_error(error, address)


def message_of(reply: Any) -> bytes | None:
    """Return the text of a message; None: the reply is none."""
    return reply[2] if isinstance(reply, list) and reply[0] == b"message" else None


class _ThreadWaiter(Waiter):
    __slots__ = ("_bell",)

    def __init__(self, listener: str, resource: str, token: str) -> None:
        super().__init__(listener, resource, token)
        self._bell = threading.Lock()
        self._bell.acquire()

    def wake(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it has been woken already

    def wait(self, seconds: float) -> None:
        self._bell.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Listener:
    """Listens for threads, in a daemon thread that lives while somebody waits. After a fork the child has its own."""

    def __init__(self, client: redis.Redis, perform: Callable[[Call], Any], clock: Callable[[], float]) -> None:
        self._factory = ConnectionFactory(client)
        self._perform = perform
        self._clock = clock
        self._line: Line | None = None
        self._closed = False
        self._reset()
        process.after_fork(self._after_fork)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._waiters = Waiters(self._clock, self._call_at)

    def _after_fork(self) -> None:
        line, self._line = self._line, None
        self._reset()
        if line is not None:
            quirks.close_copy(line.connection)  # or the server would take the parent's listener for alive

    def listening(self) -> bool:
        """Return whether a connection is open, so that one who waits now need not open it. A hint."""
        return self._line is not None

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Do what a plan wants done about its waiter."""
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        with self._lock:
            if isinstance(effect, Leave):
                self._waiters.remove(effect.waiter, effect.free_at)
                return None
            self._waiters.waits(effect.waiter, effect.recheck)
        assert isinstance(effect.waiter, _ThreadWaiter)
        effect.waiter.wait(effect.seconds)
        return None

    def close(self) -> None:
        """Listen no more. Those that still wait ask, and are told that the coordinator is closed."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
            self._waiters.wake_all()
        if line is not None:
            line.close()

    def _enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _ThreadWaiter(self._waiters.name, effect.resource, effect.token)
        deadline = time.monotonic() + effect.timeout
        if self._closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        if self._line is None:
            if not self._connecting.acquire(timeout=effect.timeout):
                raise NoReply(TimeoutError("another thread is still connecting"), may_have_run=False)
            try:
                if self._line is None:
                    self._connect(deadline)
            finally:
                self._connecting.release()
        with self._lock:
            if self._line is None:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            self._waiters.add(waiter)
        return waiter

    def _connect(self, deadline: float) -> None:
        line = Line()
        try:
            try:
                line.open(self._factory.make(), self._factory.limited(deadline - time.monotonic()))
                line.connection.send_command("SUBSCRIBE", self._waiters.channel, check_health=False)
                line.read()
            except (RedisError, OSError) as error:
                raise map_listen_error(error, self._factory.address) from error
            thread = threading.Thread(target=self._listen, args=(line,), name="fencing-listener", daemon=True)
            self._line = line
            thread.start()
        except BaseException:
            self._line = None
            line.close()
            raise

    def _listen(self, line: Line) -> None:
        heartbeat = Heartbeat()
        try:
            limited = line.limit(heartbeat.TICK_SECONDS)
            while self._goes_on(heartbeat, line):
                try:
                    if not limited and not line.connection.can_read(timeout=heartbeat.TICK_SECONDS):
                        raise redis.TimeoutError
                    text = message_of(line.read())
                except redis.TimeoutError:
                    if heartbeat.must_ping():
                        line.connection.send_command("PING", check_health=False)
                    continue
                heartbeat.heard()
                if text is not None:
                    self._on_message(text)
        except (RedisError, OSError, ValueError, TypeError, AttributeError):
            pass  # broken, or closed under our hands
        finally:
            with self._lock:
                if self._line is line:
                    self._line = None
                    self._waiters.wake_all()
            line.close()

    def _goes_on(self, heartbeat: Heartbeat, line: Line) -> bool:
        with self._lock:
            if self._line is not line:
                return False
            if not heartbeat.goes_on(bool(self._waiters)):
                self._line = None
        return self._line is line

    def _on_message(self, text: bytes) -> None:
        with self._lock:
            declined = self._waiters.on_message(text)
        if declined is not None:
            try:
                self._perform(release_call(*declined, self._waiters.name, timeout=DECLINE_SECONDS))
            except (FencingError, NoReply, RuntimeError):
                pass  # it ends by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        timer().call_at(when, partial(self._locked, callback), wanted)

    def _locked(self, callback: Callable[[], object]) -> None:
        with self._lock:
            callback()
