"""The coordinator's own connections to Redis for threads, and the performing of a ``Call`` on one of them.

The client's pool is not used, so locks never take a connection that the application needs. The number of connections is
bounded. The call's own timeout bounds every wait.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import redis
from redis.exceptions import NoScriptError, RedisError

from fencing.kernel.errors import CLOSED, CoordinatorUnavailable
from fencing.kernel.interruptions import interruption_in, raise_interruption
from fencing.kernel.lending import Pool
from fencing.kernel.opening import Openings
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.waking import RECHECK_SECONDS
from fencing.redis import quirks
from fencing.redis.calls import Call, count_call, online_replicas, wait_call
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import (
    ASK_INFO,
    IDLE_SECONDS,
    MAX_CONNECTIONS,
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
from fencing.redis.scripts import RELEASE, RELEASE_LATER, RELEASE_SEVERAL, RENEW
from fencing.redis.sentinel import Address

BROKEN = (RedisError, OSError, NoReply, CoordinatorUnavailable)
"""The errors of a connection, unless a signal handler raised them. Any other exception has interrupted a call."""

URGENT = frozenset((RELEASE, RELEASE_LATER, RELEASE_SEVERAL, RENEW))
"""The scripts of calls that must not wait for others. Those may wait for replicas, or for connections to be opened."""

UNDO_SECONDS = 0.01
"""The time limit of sending a compensation. If it fails, the lock expires after its ttl."""


class Connections:
    """The connections of a coordinator for threads. A forked child opens its own."""

    def __init__(self, client: redis.Redis, openings: Openings | None = None) -> None:
        self._pool = Pool(LazyConnection, MAX_CONNECTIONS, has_reserve=True)
        self.factory = ConnectionFactory(client, openings, partial(_adopt, self._pool))
        self.address, self.location = self.factory.address, self.factory.location
        self._user_timeout = self.factory.limit_seconds(math.inf)
        self._broken_at = 0.0  # a connection that was last used before this moment is opened again

    def when_moved(self, callback: Callable[[Address], None]) -> None:
        """Have a method called with the address when Sentinels name another primary. It is not kept alive."""
        self.factory.on_move = weakref.WeakMethod(callback)

    def perform(self, call: Call, lent: LazyConnection | None = None, started: float | None = None) -> Any:
        """Run the call's script and return its reply.

        Args:
            call: the call.
            lent: the connection for it, which the caller gives back; None: one of the pool.
            started: when the call's time began; None: now.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        pool = self._pool
        if pool.closed and call.form.script not in (RELEASE, RELEASE_LATER):  # a block may end after the closing
            raise RuntimeError(CLOSED)
        seconds = call.timeout
        if started is None:
            started = time.monotonic()
        try:
            connection = lent or pool.free.pop()  # take() does the same, but a call of Python takes its time
        except IndexError:
            if call.form.script in URGENT:
                pool, connection = pool.take_urgently(seconds)
            else:
                connection = pool.take(seconds)
        try:
            if not LEAST_SECONDS <= seconds <= self._user_timeout:
                seconds = self.factory.limit_seconds(seconds)
            was_open = connection.used > self._broken_at
            # 0 until the reply has arrived: a connection that was interrupted in between is never used again.
            used, connection.used = connection.used, 0.0
            try:
                left = seconds
                is_stale = was_open and started - used > IDLE_SECONDS and connection.is_stale()
                if is_stale or not was_open:
                    if is_stale:
                        self.factory.left_at = started
                    self._connect(connection, seconds)
                    left = max(seconds + started - time.monotonic(), LEAST_SECONDS)
                if not 0.0 < connection.seconds <= left:
                    connection.wait_within(left)
                reply = connection.ask(call.packed, started + seconds)
                if type(reply) is NoScriptError:
                    reply = connection.ask(command(call, by_text=True), started + seconds)
            except BaseException as error:
                self._raise_failure(connection, call, error, started)
                raise
            if type(reply) not in call.form.script.replies:
                self._raise_error_reply(connection, call, reply, was_open)
            connection.used = started
            return reply
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_error(error, self.address) from error
        finally:
            if lent is None:
                pool.give_back(connection)

    def perform_replicated(self, call: Call, replicas: int) -> Any:
        """Do what ``perform`` does, and wait for replicas, as in ``Replicated``.

        Raises:
            NotAcquired: fewer replicas have the grant.
        """
        started, connection = time.monotonic(), self._pool.take(call.timeout)
        try:
            online = online_replicas(self.perform(count_call(call.timeout), connection, started))
            if online < replicas:
                raise unreplicated(call, online, time.monotonic() - started)
            reply = self.perform(call, connection, started)
            if type(reply) is not bytes:  # nothing was granted
                return reply
            raw, now = connection.raw, time.monotonic()
            left = max(started + call.timeout - now, LEAST_SECONDS)
            confirmed = self.perform(wait_call(replicas, left), connection, now)
            if connection.raw is not raw:
                raise not_confirmed()
            if confirmed < replicas:
                raise unreplicated(call, confirmed, time.monotonic() - started)
            return reply
        finally:
            self._pool.give_back(connection)

    def _raise_failure(self, connection: LazyConnection, call: Call, error: BaseException, started: float) -> None:
        """Abandon the connection after a failure or an interruption. Raise NoReply if the call was undone."""
        interrupted = not isinstance(error, BROKEN) or interruption_in(error) is not None
        was_sent = not isinstance(error, (NoReply, CoordinatorUnavailable))  # or else there was no connection
        is_undone = was_sent and must_undo(call, time.monotonic() - started, interrupted=interrupted)
        self._abandon(connection, call.compensation if is_undone else None, interrupted=interrupted)
        if was_sent and not interrupted:
            self.factory.leave(error)
        if is_undone and not interrupted and isinstance(error, Exception):
            raise NoReply(error, may_have_run=True, was_undone=True) from error

    def _raise_error_reply(self, connection: LazyConnection, call: Call, error: Any, was_open: bool) -> NoReturn:
        if not isinstance(error, RedisError):
            self._abandon(connection)
            raise not_of_a_script(error)
        if isinstance(error, MAY_BE_ANOTHER) or is_logged_out(error):
            self._abandon(connection)
            self.factory.leave(error)
            if was_open and is_logged_out(error):
                raise NoReply(error, may_have_run=False) from error  # the next connection may use new credentials
        else:
            connection.used = time.monotonic()  # the connection works: it brought an answer
        raise error

    def _connect(self, connection: LazyConnection, seconds: float) -> None:
        try:
            deadline = time.monotonic() + seconds
            connection.open(self.factory.open(seconds), max(deadline - time.monotonic(), LEAST_SECONDS))
            if self.factory.must_ask_info():
                self.factory.check_info(connection.ask(ASK_INFO, deadline))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_connect_error(error, self.address) from error

    def _abandon(
        self, connection: LazyConnection, compensation: Call | None = None, *, interrupted: bool = False
    ) -> None:
        """Send a compensation, and close the connection. After an error, the idle ones count as broken too."""
        if connection.raw is None:
            return
        sock = quirks.socket_of(connection.raw)
        if compensation is not None and sock is not None:
            try:
                sock.settimeout(UNDO_SECONDS)
                sock.sendall(command(compensation, by_text=True))
            except OSError as failure:
                if interruption_in(failure) is not None:
                    connection.close()
                    raise
        connection.close()
        if not interrupted:
            self._broken_at = time.monotonic()

    def close(self) -> None:
        """Close all connections. Later calls raise RuntimeError, except releases."""
        self._pool.close()


def _adopt(pool: Pool[LazyConnection], factory: ConnectionFactory, opened: Any) -> bool:
    """Give a connection of redis-py that came too late for its call to a free place of the pool."""
    connection = pool.take_free(lambda each: each.raw is None)
    if connection is None:
        return False
    try:
        connection.open(opened, LEAST_SECONDS)
        if factory.must_ask_info():
            factory.check_info(connection.ask(ASK_INFO, time.monotonic() + RECHECK_SECONDS))
        connection.used = time.monotonic()
    except BROKEN as error:
        connection.close()  # the next call tries it again, and is told
        raise_interruption(error)
    finally:
        pool.give_back(connection)
    return True
