"""One connection to Redis for threads, opened when it is first needed.

redis-py connects. Then calls are written to its socket and read from it directly, because that bounds the wait for a
whole reply: redis-py bounds only each part. It also keeps the socket open when sending is interrupted: redis-py would
close it, and the compensation could not be sent. It is no faster. In five runs, a pair took .98, .84, 1.01, 1.12 and
1.03 of the time that it takes through redis-py. Time-outs are Python's: the kernel's (SO_RCVTIMEO) start again at every
signal, so a wait would have no bound.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import redis
from redis.exceptions import RedisError

from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.waking import RECHECK_SECONDS
from fencing.redis import quirks
from fencing.redis.foreign_connections import ForeignSocket, ReceivedReplies
from fencing.redis.resp import INCOMPLETE, new_reader

READ_BYTES = 65536


class LazyConnection:
    """A connection that is opened when it is first needed."""

    __slots__ = ("__weakref__", "_fd", "_reader", "_sock", "raw", "seconds", "used")

    CLOSED = 0.0
    """When a connection was used that is not open."""

    def __init__(self) -> None:
        self.raw: Any = None
        self.used = self.CLOSED
        self.seconds = 0.0  # the time-out of each wait; 0: unknown
        self._sock: Any = None  # redis-py's, or what takes its place
        self._fd: int | None = None  # of a plain socket; only the call that has this connection may close it
        self._reader: Any = None  # parses replies that are read without redis-py

    def open(self, connection: Any, seconds: float) -> None:
        """Use this connection of redis-py, which is open, and set the time-out of each wait."""
        self.close()
        self.raw = connection
        self.seconds = 0.0
        sock = quirks.socket_of(connection)
        # A plain socket's file is written to without the poll() that its methods begin with. TLS needs those methods.
        self._fd = sock.fileno() if type(sock) is socket.socket and os.name == "posix" else None
        if sock is not None:
            self._sock, self._reader = sock, new_reader()
        else:  # of a user's class
            self._sock, self._reader = ForeignSocket(connection), ReceivedReplies()
        self.wait_within(seconds)

    def set_timeout(self, seconds: float) -> None:
        """Set the time-out of each wait."""
        if seconds != self.seconds:
            self._sock.settimeout(seconds)
            self.seconds = seconds

    def wait_within(self, seconds: float) -> None:
        """Wait so long at most, and at a stretch no longer than ``RECHECK_SECONDS``: see ``kernel/waking.py``."""
        self.set_timeout(min(max(seconds, LEAST_SECONDS), RECHECK_SECONDS))

    def ask(self, data: bytes, deadline: float) -> Any:
        """Send a command and return its reply; an error reply is returned, not raised.

        The caller has set a time-out that does not exceed the time until the deadline.

        Args:
            data: the command, packed.
            deadline: the moment until which the whole reply must be there. redis-py limits only each part of a reply.

        Raises:
            RedisError, OSError: the connection is broken.
        """
        sock, reader = self._sock, self._reader
        if self._fd is not None:  # nearly always all of it fits at once
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                pass
        if data:
            self.set_timeout(max(deadline - time.monotonic(), LEAST_SECONDS))
            sock.sendall(data)
            self.wait_within(deadline - time.monotonic())
        while True:
            try:
                received = sock.recv(READ_BYTES)
            except TimeoutError as error:
                raise_interruption(error)
            else:
                if not received:
                    raise redis.ConnectionError("Connection closed by server.")
                reader.feed(received)
                if (reply := reader.gets()) is not INCOMPLETE:
                    return reply
            left = deadline - time.monotonic()
            if left <= 0:
                raise redis.TimeoutError("the whole reply did not come in time")
            self.wait_within(left)

    def send(self, data: bytes) -> None:
        """Send commands. Their replies must be read, one by one."""
        self._sock.sendall(data)

    def next_reply(self, deadline: float) -> Any:
        """Return the next reply; an error reply is returned, not raised. After the deadline, what has arrived is read,
        for ``RECHECK_SECONDS`` at most.

        Raises:
            RedisError, OSError: the connection is broken, or there was no reply in time.
        """
        sock, reader = self._sock, self._reader
        while (reply := reader.gets()) is INCOMPLETE:
            left = deadline - time.monotonic()
            if left <= -RECHECK_SECONDS:
                raise redis.TimeoutError("the whole reply did not come in time")
            self.wait_within(left)
            try:
                received = sock.recv(READ_BYTES)
            except TimeoutError as error:
                raise_interruption(error)
                if left <= RECHECK_SECONDS:
                    raise
                continue
            if not received:
                raise redis.ConnectionError("Connection closed by server.")
            reader.feed(received)
        return reply

    @property
    def waits_on(self) -> socket.socket | None:
        """The socket, to wait until there is something to read; None: the connection's class has none."""
        return self._sock if isinstance(self._sock, socket.socket) else None

    def read_arrived(self) -> list[Any]:
        """Return the replies and messages that have arrived whole. Error replies are returned, not raised.

        Raises:
            RedisError, OSError: the connection is broken.
        """
        found: list[Any] = []
        sock, reader = self._sock, self._reader
        is_more = True
        while is_more:
            received = sock.recv(READ_BYTES)
            if not received:
                raise redis.ConnectionError("Connection closed by server.")
            reader.feed(received)
            is_more = self._fd is None and hasattr(sock, "pending") and sock.pending() > 0  # TLS reads ahead
        while (reply := reader.gets()) is not INCOMPLETE:
            found.append(reply)
        return found

    def read(self) -> Any:
        """Return the next reply or message.

        Raises:
            redis.TimeoutError: nothing arrived within the time-out.
            RedisError, OSError: the connection is broken.
        """
        sock, reader = self._sock, self._reader
        while (reply := reader.gets()) is INCOMPLETE:
            try:
                received = sock.recv(READ_BYTES)
            except TimeoutError as error:
                raise_interruption(error)
                raise redis.TimeoutError("nothing arrived in time") from error
            if not received:
                raise redis.ConnectionError("Connection closed by server.")
            reader.feed(received)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def is_stale(self) -> bool:
        """Return whether an idle connection was closed by the server, or holds data that no call asked for."""
        self.seconds = 0.0  # can_read() of redis-py may set its own time-out: 5.0 does
        try:
            return bool(self.raw.can_read(0))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            return True

    def close(self) -> None:
        """Close the connection, if there is one. Two threads may call this at the same time."""
        raw, self.raw = getattr(self, "raw", None), None  # an interruption may have come before it was set
        self._sock = self._fd = None
        self.used = self.CLOSED  # a block that ends after the closing opens it again
        if raw is not None:
            raw.disconnect()

    def __del__(self) -> None:
        self.close()  # or else a garbage collector may reach the socket before ``raw``, which closes it
