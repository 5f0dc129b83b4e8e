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
from redis.exceptions import RedisError

from fencing.redis_replies import NONE_YET, new_reader

__all__ = ["Exchange", "Replies", "direct_socket", "direct_transport", "stream_writer"]

READ_BYTES = 65536


def direct_socket(connection: Any) -> socket.socket | None:
    """What a connection that redis-py has opened sends on; None where this redis-py has it elsewhere."""
    sock = getattr(connection, "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


class Exchange:
    """For threads: a command out, its reply in. Each wait is bounded by the socket's time-out."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = new_reader()

    def __call__(self, data: bytes) -> Any:
        """The reply, or the error that Redis gave as one; OSError: the connection is broken."""
        self._sock.sendall(data)
        while (reply := self._reader.gets()) is NONE_YET:
            received = self._sock.recv(READ_BYTES)
            if not received:
                raise redis.ConnectionError("Connection closed by server.")
            self._reader.feed(received)
        return reply


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
