"""The coordinator's own connections to Redis for threads, and the performing of a ``Call`` on one of them.

The client's pool is not used, so locks never take a connection that the application needs. The number of connections is
bounded. The call's own timeout bounds every wait.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import redis
from redis.exceptions import NoScriptError, RedisError

from fencing.kernel import process
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.interruptions import interruption_in, raise_interruption
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.waking import LOST_WAKE_SECONDS, Wake
from fencing.redis import quirks
from fencing.redis.calls import Call, count_call, online_replicas, wait_call
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import (
    ASK_INFO,
    MAY_BE_ANOTHER,
    ConnectionFactory,
    command,
    is_logged_out,
    map_connect_error,
    map_error,
    must_undo,
    not_confirmed,
    not_of_a_script,
    unreplicated,
)
from fencing.redis.scripts import RELEASE
from fencing.redis.sentinel import Address

MAX_CONNECTIONS = 16
"""Per coordinator. A call uses one for a round trip, so a few serve hundreds of threads; the others wait for one."""

IDLE_SECONDS = 1.0
"""A connection that was idle for longer is checked before it is used: the server may have closed it."""

BROKEN = (RedisError, OSError, NoReply, CoordinatorUnavailable)
"""The errors of a connection, unless a signal handler raised them. Any other exception has interrupted a call."""

UNDO_SECONDS = 0.01
"""The time limit of sending a compensation. If it fails, the lock expires after its ttl."""


class _Seeker:
    """A thread that waits for a connection. After its first vain wait it is late, and gets the next one."""

    __slots__ = ("connection", "is_late", "wake")

    def __init__(self) -> None:
        self.connection: LazyConnection | None = None
        self.is_late = False
        self.wake = Wake()


class Connections:
    """The connections of a coordinator for threads. A forked child opens its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._factory = ConnectionFactory(client)
        self.address, self.location = self._factory.address, self._factory.location
        self.closed = False
        self._user_timeout = self._factory.limit_seconds(math.inf)
        self._reset()
        process.after_fork(self._reset)

    def when_moved(self, callback: Callable[[Address], None]) -> None:
        """Have a method called with the address when Sentinels name another primary. It is not kept alive."""
        self._factory.on_move = weakref.WeakMethod(callback)

    def _reset(self) -> None:
        self._free: deque[LazyConnection] = deque()  # used as a stack
        self._lock = threading.RLock()
        # Weak: a connection that an interruption took from its call is collected, and another one may take its place.
        self._made: list[weakref.ref[LazyConnection]] = []
        self._waiting: deque[_Seeker] = deque()
        self._broken_at = 0.0  # a connection that was last used before this moment is opened again

    def perform(self, call: Call, replicas: int = 0) -> Any:
        """Run the call's script and return its reply; ``replicas``: as in ``Replicated``.

        Raises:
            NotAcquired: fewer replicas have the grant.
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if self.closed and call.script is not RELEASE:  # a block may end after the closing
            raise RuntimeError("this coordinator was closed; make a new one")
        started = time.monotonic()
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._wait_for_connection(call.timeout)
        try:
            if replicas:
                return self._exchange_replicated(connection, call, replicas, started)
            return self._exchange(connection, call, started)
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_error(error, self.address) from error
        finally:
            self._take_back(connection)

    def _take_back(self, connection: LazyConnection) -> None:
        """Lend a connection to the next call."""
        if self.closed:
            connection.close()
        if self._waiting:
            self._pass_on(connection)
        else:
            self._free.append(connection)
            if self._waiting:  # a thread first says that it waits, and then looks for a free connection
                self._pass_on(None)

    def _pass_on(self, connection: LazyConnection | None) -> None:
        """Wake the first thread that waits. One that has waited for long gets the connection, the others compete."""
        try:
            seeker = self._waiting.popleft()
        except IndexError:
            seeker = None
        if connection is not None:
            if seeker is not None and seeker.is_late:
                seeker.connection = connection
            else:
                self._free.append(connection)
        if seeker is not None:
            seeker.wake.set()

    def _new_connection(self) -> LazyConnection | None:
        with self._lock:
            self._made = [made for made in self._made if made() is not None]
            if len(self._made) >= MAX_CONNECTIONS:
                return None
            connection = LazyConnection()
            self._made.append(weakref.ref(connection))
            return connection

    def _wait_for_connection(self, seconds: float) -> LazyConnection:
        deadline = time.monotonic() + seconds
        seeker = _Seeker()
        try:
            while True:
                connection = self._new_connection()
                if connection is not None:
                    return connection
                (self._waiting.appendleft if seeker.is_late else self._waiting.append)(seeker)
                try:
                    return self._free.pop()
                except IndexError:
                    pass
                left = deadline - time.monotonic()
                if left <= 0:
                    error = TimeoutError(f"all {MAX_CONNECTIONS} connections were busy for {seconds:.3g} s")
                    raise NoReply(error, may_have_run=False)
                seeker.wake.wait(min(left, LOST_WAKE_SECONDS))
                self._stop_waiting(seeker)
                connection, seeker.connection = seeker.connection, None
                if connection is not None:
                    return connection
                seeker.is_late = True
        finally:
            self._stop_waiting(seeker)
            if seeker.connection is not None:
                self._pass_on(seeker.connection)

    def _stop_waiting(self, seeker: _Seeker) -> None:
        try:
            self._waiting.remove(seeker)
        except ValueError:
            pass  # it was woken

    def _exchange(self, connection: LazyConnection, call: Call, started: float) -> Any:
        seconds = call.timeout
        if not LEAST_SECONDS <= seconds <= self._user_timeout:
            seconds = self._factory.limit_seconds(seconds)
        was_open = connection.used > self._broken_at
        # 0 until the reply has arrived: a connection that was interrupted in between is never used again.
        used, connection.used = connection.used, 0.0
        try:
            if not was_open or (started - used > IDLE_SECONDS and connection.is_stale()):
                self._connect(connection, seconds)
                connection.set_timeout(max(seconds + started - time.monotonic(), LEAST_SECONDS))
            elif seconds != connection.seconds:
                connection.set_timeout(seconds)
            reply = connection.ask(call.packed, started + seconds)
            if type(reply) is NoScriptError:
                reply = connection.ask(command(call, by_text=True), started + seconds)
        except BaseException as error:
            interrupted = not isinstance(error, BROKEN) or interruption_in(error) is not None
            was_sent = not isinstance(error, (NoReply, CoordinatorUnavailable))  # or else there was no connection
            is_undone = was_sent and must_undo(call, time.monotonic() - started, interrupted=interrupted)
            self._abandon(connection, call.compensation if is_undone else None, interrupted=interrupted)
            if is_undone and not interrupted and isinstance(error, Exception):
                raise NoReply(error, may_have_run=True, was_undone=True) from error
            raise
        if type(reply) not in call.form.script.replies:
            self._raise_error_reply(connection, call, reply, was_open)
        connection.used = started
        return reply

    def _exchange_replicated(self, connection: LazyConnection, call: Call, replicas: int, started: float) -> Any:
        online = online_replicas(self._exchange(connection, count_call(call.timeout), started))
        if online < replicas:
            raise unreplicated(call, online, time.monotonic() - started)
        reply = self._exchange(connection, call, started)
        if type(reply) is not bytes:  # nothing was granted
            return reply
        raw, now = connection.raw, time.monotonic()
        left = max(started + call.timeout - now, LEAST_SECONDS)
        confirmed = self._exchange(connection, wait_call(replicas, left), now)
        if connection.raw is not raw:
            raise not_confirmed()
        if confirmed < replicas:
            raise unreplicated(call, confirmed, time.monotonic() - started)
        return reply

    def _raise_error_reply(self, connection: LazyConnection, call: Call, error: Any, was_open: bool) -> NoReturn:
        if not isinstance(error, RedisError):
            self._abandon(connection)
            raise not_of_a_script(error)
        if isinstance(error, MAY_BE_ANOTHER) or is_logged_out(error):
            self._abandon(connection)
            if was_open and is_logged_out(error):
                raise NoReply(error, may_have_run=False) from error  # the next connection may use new credentials
        else:
            connection.used = time.monotonic()  # the connection works: it brought an answer
        raise error

    def _connect(self, connection: LazyConnection, seconds: float) -> None:
        try:
            started = time.monotonic()
            made = self._factory.find(seconds)
            connection.open(made, max(started + seconds - time.monotonic(), LEAST_SECONDS))
            if self._factory.must_ask_info():
                self._factory.check_info(connection.ask(ASK_INFO, time.monotonic() + seconds))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_connect_error(error, self.address) from error

    def _abandon(self, connection: LazyConnection, undo: Call | None = None, *, interrupted: bool = False) -> None:
        """Send a compensation, and close the connection. After an error, the idle ones count as broken too."""
        if connection.raw is None:
            return
        sock = quirks.socket_of(connection.raw)
        if undo is not None and sock is not None:
            try:
                sock.settimeout(UNDO_SECONDS)
                sock.sendall(command(undo, by_text=True))
            except OSError as failure:
                if interruption_in(failure) is not None:
                    connection.close()
                    raise
        connection.close()
        if not interrupted:
            self._broken_at = time.monotonic()

    def close(self) -> None:
        """Close all connections. Later calls raise RuntimeError, except releases."""
        self.closed = True
        while self._free:
            self._free.pop().close()
