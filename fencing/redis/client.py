"""The coordinator's own connections to Redis for threads, and how a ``Call`` is performed on one.

The client's pool is left alone, so waiting for locks never takes a connection that the application needs. Connections
are few, bounded in number, and every wait on them is bounded by the call's own timeout.

Where redis-py keeps its socket in the known place, calls are written to it and read from it: that saves a tenth of a
pair's CPU time, and redis-py would close the socket when a sending is interrupted, and with it the way for the
compensation. Time-outs are Python's: with those that the kernel keeps (SO_RCVTIMEO) each signal makes it count anew, so
a wait would have no bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NoReturn

import redis
from redis.exceptions import NoScriptError, RedisError

from fencing.kernel import process
from fencing.kernel.retry import NoReply
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.connection_factory import (
    LEAST_SECONDS,
    NOT_READY,
    REPLIED,
    ConnectionFactory,
    command,
    is_logged_out,
    map_connect_error,
    map_error,
    must_undo,
)
from fencing.redis.resp import INCOMPLETE, new_reader

MAX_CONNECTIONS = 16
"""Per coordinator. A call holds one for a round trip, so a few serve hundreds of threads; the others wait for one."""

IDLE_SECONDS = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

READ_BYTES = 65536

UNDO_SECONDS = 0.01
"""What sending a compensation may take. If it fails, the lock ends with its ttl."""


class Line:
    """A place for one connection, which is made when it is first needed."""

    __slots__ = ("_reader", "_seconds", "connection", "used")

    def __init__(self) -> None:
        self.connection: Any = None
        self.used = 0.0
        self._seconds = 0.0  # the time-out of each wait; 0: unknown
        self._reader: Any = None  # of what is read past redis-py

    def open(self, connection: Any, seconds: float) -> None:
        """Connect, with such a time-out for each wait."""
        self.close()
        self.connection = connection
        quirks.limit_connecting(connection, seconds)
        connection.connect()
        self._seconds = seconds
        self._reader = new_reader()

    def limit(self, seconds: float) -> bool:
        """Change the time-out. False: this redis-py sets it once, as it connects."""
        if seconds != self._seconds:
            sock = quirks.socket_of(self.connection)
            if sock is None:
                return False
            sock.settimeout(seconds)
            self._seconds = seconds
        return True

    def ask(self, data: bytes) -> Any:
        """Send a command and return its reply, be it an error. RedisError or OSError: the connection is broken."""
        sock = quirks.socket_of(self.connection)
        if sock is None:
            try:
                self.connection.send_packed_command([data], check_health=False)
                return self.read()
            except REPLIED as error:
                return error
        sock.sendall(data)
        while (reply := self._reader.gets()) is INCOMPLETE:
            received = sock.recv(READ_BYTES)
            if not received:
                raise redis.ConnectionError("Connection closed by server.")
            self._reader.feed(received)
        return reply

    def read(self) -> Any:
        """Return what comes next. TimeoutError of redis-py: nothing within the time-out; others: it is broken."""
        return self.connection.read_response(disconnect_on_error=False)

    def is_stale(self) -> bool:
        """Return whether an idle connection has been closed, or has something that nobody asked for."""
        if quirks.socket_of(self.connection) is not None:
            self._seconds = 0.0  # redis-py may have set its own time-out as it looked: 5.0 does
        try:
            return bool(self.connection.can_read(0))
        except (RedisError, OSError):
            return True

    def close(self) -> None:
        """Close the connection, if there is one. Two threads may do so at the same time."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()


class Connections:
    """Performs calls for threads. Safe to use after a fork: the child opens connections of its own."""

    def __init__(self, client: redis.Redis) -> None:
        self._factory = ConnectionFactory(client)
        self.address = self._factory.address
        self.closed = False
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._free = deque(Line() for _ in range(MAX_CONNECTIONS))  # the last one used is the next
        self._returned = threading.Condition(threading.Lock())
        self._waiting = 0
        self._broken_at = 0.0  # what was last used before is closed, and made anew when it is needed

    def perform(self, call: Call) -> Any:
        """Run the call's script and return its reply.

        Raises:
            NoReply: worth another attempt.
            CoordinatorUnavailable: repeating would not help.
        """
        if self.closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        started = time.monotonic()
        try:
            line = self._free.pop()
        except IndexError:
            line = self._wait_for_a_line(call.timeout)
        try:
            return self._exchange(line, call, started)
        except (RedisError, OSError) as error:
            raise map_error(error, self.address) from error
        finally:
            if self.closed:
                line.close()
            self._free.append(line)
            if self._waiting:  # read after the line above: a waiting thread counts itself before it looks for a line
                with self._returned:
                    self._returned.notify()

    def _wait_for_a_line(self, seconds: float) -> Line:
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

    def _exchange(self, line: Line, call: Call, started: float) -> Any:
        seconds = self._factory.limited(call.timeout)
        known = line.used > self._broken_at
        used, line.used = line.used, 0.0  # until the reply is in: wherever this is interrupted, it is never used again
        try:
            if not known or (started - used > IDLE_SECONDS and line.is_stale()) or not line.limit(seconds):
                self._connect(line, seconds)
                line.limit(max(seconds + started - time.monotonic(), LEAST_SECONDS))
            reply = line.ask(command(call))
            if isinstance(reply, NoScriptError):
                reply = line.ask(command(call, whole=True))
        except BaseException as error:
            self._abandon(line, call, error)
            raise
        if isinstance(reply, RedisError):
            self._refused(line, call, reply, known)
        line.used = time.monotonic()
        return reply

    def _refused(self, line: Line, call: Call, error: RedisError, known: bool) -> NoReturn:
        if isinstance(error, NOT_READY) or is_logged_out(error):
            self._abandon(line, call, error)
            if known and is_logged_out(error):
                raise NoReply(error, may_have_run=False) from error  # the next connection may bring other credentials
        else:
            line.used = time.monotonic()  # it answered: the connection is in order
        raise error

    def _connect(self, line: Line, seconds: float) -> None:
        try:
            line.open(self._factory.make(), seconds)
        except (RedisError, OSError) as error:
            raise map_connect_error(error, self.address) from error

    def _abandon(self, line: Line, call: Call, error: BaseException) -> None:
        """Close a connection whose reply never came, and with it all idle ones: what broke it broke them too."""
        if line.connection is None:
            return
        sock = quirks.socket_of(line.connection)
        undo = call.compensation if must_undo(call, interrupted=not isinstance(error, Exception)) else None
        if undo is not None and sock is not None:
            try:
                sock.settimeout(UNDO_SECONDS)
                sock.sendall(command(undo, whole=True))
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
