"""For threads: the coordinator's own connections to Redis, and the doing of a ``Call`` on one.

The client's pool is left alone, so waiting for locks never takes a connection that the application needs. Connections
are few, bounded in number, and every wait on them is bounded by the call's own timeout.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from fencing.redis_blueprint import (
    NOT_READY,
    Blueprint,
    command,
    logged_out,
    no_connection,
    nobody_will_ask_again,
    translated,
)
from fencing.redis_plans import Call, NoReply

__all__ = ["Connections"]

MAX_CONNECTIONS = 16
"""Per coordinator. A call holds one for a round trip, so a few serve hundreds of threads; who finds none free waits."""

IDLE_SECONDS = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

LEAST_SECONDS = 0.001


class _Line:
    """A place for one connection, which is made when it is first needed."""

    __slots__ = ("connection", "seconds", "used")

    def __init__(self) -> None:
        self.connection: Any = None
        self.used = 0.0
        self.seconds = 0.0  # the time-out its socket has


class Connections:
    """For threads. Safe to use after a fork: the child opens its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._blueprint = Blueprint(client)
        self.address = self._blueprint.address
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._free = deque(_Line() for _ in range(MAX_CONNECTIONS))  # the last one used is the next
        self._returned = threading.Condition(threading.Lock())
        self._waiting = 0
        self._broken_at = 0.0  # what was last used before is closed, and made anew when it is needed

    def perform(self, call: Call) -> Any:
        """Run the call's script; the reply, or NoReply, or CoordinatorUnavailable where repeating would not help."""
        if self.closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        if os.getpid() != self._pid:
            self._reset()
        started = time.monotonic()
        try:
            line = self._free.pop()
        except IndexError:
            line = self._wait_for_a_line(call.timeout)
        try:
            return self._exchange(line, call, started)
        except (RedisError, OSError) as error:
            raise translated(error, self.address) from error
        finally:
            if self.closed:
                self._close(line)
            self._free.append(line)
            if self._waiting:  # looked at after the line above: who waits, counts itself before it looks for a line
                with self._returned:
                    self._returned.notify()

    def _wait_for_a_line(self, seconds: float) -> _Line:
        deadline = time.monotonic() + seconds
        with self._returned:
            self._waiting += 1
            try:
                while True:
                    try:
                        return self._free.pop()
                    except IndexError:
                        if not self._returned.wait(deadline - time.monotonic()):
                            error = TimeoutError(f"all {MAX_CONNECTIONS} connections were busy for {seconds:.3g} s")
                            raise NoReply(error, may_have_run=False) from None
            finally:
                self._waiting -= 1

    def _exchange(self, line: _Line, call: Call, started: float) -> Any:
        seconds = max(min(call.timeout, self._blueprint.user_timeout), LEAST_SECONDS)
        known = line.used > self._broken_at
        try:
            if not known or (started - line.used > IDLE_SECONDS and self._is_stale(line)):
                self._connect(line, seconds)
                seconds = max(seconds + started - time.monotonic(), LEAST_SECONDS)
            if seconds != line.seconds:
                self._limit(line, seconds)
            connection = line.connection
            connection.send_packed_command(command(call))
            try:
                reply = connection.read_response(disconnect_on_error=False)
            except NoScriptError:
                connection.send_packed_command(command(call, whole=True))
                reply = connection.read_response(disconnect_on_error=False)
        except BaseException as error:
            if isinstance(error, ResponseError) and not isinstance(error, NOT_READY) and not logged_out(error):
                line.used = time.monotonic()  # it answered: the connection is in order
                raise
            self._abandon(line, call, error)
            if known and isinstance(error, RedisError) and logged_out(error):
                raise NoReply(error, may_have_run=False) from error  # the next connection may bring other credentials
            raise
        line.used = time.monotonic()
        return reply

    def _connect(self, line: _Line, seconds: float) -> None:
        self._close(line)
        line.connection = self._blueprint.make()
        self._limit(line, seconds)
        try:
            line.connection.connect()
        except (RedisError, OSError) as error:
            raise no_connection(error, self.address) from error

    def _is_stale(self, line: _Line) -> bool:
        try:
            return bool(line.connection.can_read(0))
        except (RedisError, OSError):
            return True

    def _limit(self, line: _Line, seconds: float) -> None:
        """Bound each wait on the connection. redis-py sets the time-out of a socket once, when it is made."""
        line.seconds = line.connection.socket_timeout = line.connection.socket_connect_timeout = seconds
        if line.connection._sock is not None:
            line.connection._sock.settimeout(seconds)

    def _abandon(self, line: _Line, call: Call, error: BaseException) -> None:
        """Close a connection whose reply never came, and with it all idle ones: what broke it broke them too."""
        connection, line.connection, line.used = line.connection, None, 0.0
        if connection is None:
            return
        interrupted = not isinstance(error, Exception)
        if call.undo and nobody_will_ask_again(call, interrupted) and connection._sock is not None:
            try:
                connection._sock.settimeout(0.01)
                connection.send_packed_command(command(call.undo, whole=True), check_health=False)
            except (RedisError, OSError):
                pass
        connection.disconnect()
        if isinstance(error, Exception):
            self._broken_at = time.monotonic()

    def close(self) -> None:
        """Close all connections; later calls raise RuntimeError."""
        self.closed = True
        while self._free:
            self._close(self._free.pop())

    def _close(self, line: _Line) -> None:
        if line.connection is not None:
            line.connection.disconnect()
