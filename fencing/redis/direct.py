"""Past redis-py's own sending and reading: the sockets and transports of connections that it has opened.

redis-py opens a connection: address, TLS, credentials, database. Where it keeps the socket, or the stream, in the place
it does today, we write and read there: for threads without its bookkeeping around each command, for asyncio without a
task's turn and a stream's buffer in between. Elsewhere redis-py goes on writing and reading.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from fencing.redis.replies import NONE_YET, new_reader

__all__ = ["Replies", "Wire", "direct_socket", "direct_transport", "stream_writer"]

READ_BYTES = 65536


def direct_socket(connection: Any) -> socket.socket | None:
    """What a connection that redis-py has opened sends on; None where this redis-py has it elsewhere."""
    sock = getattr(connection, "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


class Wire:
    """For threads: a connection that redis-py has opened. Each wait is bounded by its time-out.

    Errors that Redis gives as replies are returned; a broken connection raises RedisError or OSError.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._sock = direct_socket(connection)
        self._reader = new_reader()
        self._seconds = seconds
        if self._sock is not None:
            self._sock.settimeout(seconds)

    def limit(self, seconds: float) -> bool:
        """Another time-out from now on. False: this redis-py sets it once, as it connects."""
        if seconds != self._seconds:
            if self._sock is None:
                return False
            self._sock.settimeout(seconds)
            self._seconds = seconds
        return True

    def ask(self, data: bytes) -> Any:
        """A command out, its reply in."""
        if self._sock is None:
            self._connection.send_packed_command([data])
            return self._read()
        self._sock.sendall(data)
        while (reply := self._reader.gets()) is NONE_YET:
            self._receive(self._sock)
        return reply

    def get(self) -> Any:
        """What arrives next; ``NONE_YET`` if nothing does within the time-out."""
        if self._sock is None:
            return self._read() if self._connection.can_read(timeout=self._seconds) else NONE_YET
        reply = self._reader.gets()
        if reply is NONE_YET:
            try:
                self._receive(self._sock)
            except TimeoutError:
                return NONE_YET
            reply = self._reader.gets()
        return reply

    def _receive(self, sock: socket.socket) -> None:
        received = sock.recv(READ_BYTES)
        if not received:
            raise redis.ConnectionError("Connection closed by server.")
        self._reader.feed(received)

    def _read(self) -> Any:
        """By redis-py itself."""
        try:
            return self._connection.read_response(disconnect_on_error=False)
        except (ResponseError, BusyLoadingError, AuthenticationError) as error:
            return error


def stream_writer(connection: Any) -> asyncio.StreamWriter | None:
    """What a connection that redis-py has opened writes to; None where this redis-py has it elsewhere."""
    writer = getattr(connection, "_writer", None)
    return writer if isinstance(writer, asyncio.StreamWriter) else None


def direct_transport(writer: asyncio.StreamWriter | None) -> asyncio.Transport | None:
    """The transport, where replies can be taken from it directly."""
    transport = None if writer is None else writer.transport
    return transport if isinstance(transport, asyncio.Transport) else None


class Replies(asyncio.Protocol):
    """Hands each reply, an error of Redis' included, to ``answer``. ``end`` gets what ended it: an exception."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[Any], None]) -> None:
        self._answer = answer
        self._reader = new_reader()
        self.end: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not NONE_YET:
                self._answer(reply)
        except (RedisError, OSError) as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or redis.ConnectionError("Connection closed by server."))

    def _end(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)
            self.end.exception()  # looked at: the task that waits for it may have been cancelled
