"""For threads: the coordinator's own connections to Redis, and the doing of a ``Call`` on one.

The client's pool is left alone, so waiting for locks never takes a connection that the application needs. Connections
are few, bounded in number, and every wait on them is bounded by the call's own timeout.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, NoReturn

import redis
from redis.exceptions import NoScriptError, RedisError

from fencing.kernel.retry import NoReply
from fencing.redis.blueprint import (
    NOT_READY,
    Blueprint,
    command,
    logged_out,
    no_connection,
    nobody_will_ask_again,
    translated,
)
from fencing.redis.calls import Call
from fencing.redis.direct import Wire, direct_socket

__all__ = ["Connections"]

MAX_CONNECTIONS = 16
"""Per coordinator. A call holds one for a round trip, so a few serve hundreds of threads; who finds none free waits."""

IDLE_SECONDS = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

LEAST_SECONDS = 0.001


class _Line:
    """A place for one connection, which is made when it is first needed."""

    __slots__ = ("connection", "used", "wire")

    def __init__(self) -> None:
        self.connection: Any = None
        self.wire: Any = None
        self.used = 0.0

    def open(self, connection: Any, seconds: float) -> None:
        """Connect, each wait at most so long."""
        self.close()
        self.connection = connection
        connection.socket_timeout = connection.socket_connect_timeout = seconds
        connection.connect()
        self.wire = Wire(connection, seconds)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.disconnect()
            self.connection = None


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
                line.close()
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
        used, line.used = line.used, 0.0  # until the reply is in: wherever this is interrupted, it is never used again
        try:
            if not known or (started - used > IDLE_SECONDS and self._is_stale(line)) or not line.wire.limit(seconds):
                self._connect(line, seconds)
                line.wire.limit(max(seconds + started - time.monotonic(), LEAST_SECONDS))
            reply = line.wire.ask(command(call))
            if isinstance(reply, NoScriptError):
                reply = line.wire.ask(command(call, whole=True))
        except BaseException as error:
            self._abandon(line, call, error)
            raise
        if isinstance(reply, RedisError):
            self._refused(line, call, reply, known)
        line.used = time.monotonic()
        return reply

    def _refused(self, line: _Line, call: Call, error: RedisError, known: bool) -> NoReturn:
        if isinstance(error, NOT_READY) or logged_out(error):
            self._abandon(line, call, error)
            if known and logged_out(error):
                raise NoReply(error, may_have_run=False) from error  # the next connection may bring other credentials
        else:
            line.used = time.monotonic()  # it answered: the connection is in order
        raise error

    def _connect(self, line: _Line, seconds: float) -> None:
        try:
            line.open(self._blueprint.make(), seconds)
        except (RedisError, OSError) as error:
            raise no_connection(error, self.address) from error

    def _is_stale(self, line: _Line) -> bool:
        try:
            return bool(line.connection.can_read(0))
        except (RedisError, OSError):
            return True

    def _abandon(self, line: _Line, call: Call, error: BaseException) -> None:
        """Close a connection whose reply never came, and with it all idle ones: what broke it broke them too."""
        connection = line.connection
        if connection is None:
            return
        interrupted = not isinstance(error, Exception)
        sock = direct_socket(connection)
        if call.undo and nobody_will_ask_again(call, interrupted) and sock is not None:
            try:
                sock.settimeout(0.01)
                sock.sendall(command(call.undo, whole=True))
            except OSError:
                pass
        line.close()
        if isinstance(error, Exception):
            self._broken_at = time.monotonic()

    def close(self) -> None:
        """Close all connections; later calls raise RuntimeError."""
        self.closed = True
        while self._free:
            self._free.pop().close()
