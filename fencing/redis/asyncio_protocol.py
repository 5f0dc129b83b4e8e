"""The asyncio ``Protocol`` of a connection to Redis, which passes on each reply as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError

from fencing.kernel.interruptions import interruption_in
from fencing.redis import quirks
from fencing.redis.foreign_connections import ForeignTransport, ReceivedReplies
from fencing.redis.resp import INCOMPLETE, new_reader


class ReplyProtocol(asyncio.Protocol):
    """A protocol that passes each reply, error replies too, to ``on_reply``.

    ``end`` gets the exception that ended the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_reply: Callable[[Any], None], reader: Any) -> None:
        self._on_reply = on_reply
        self._reader = reader
        self.end: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        if self.end.done():
            return
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                self._on_reply(reply)
        except BaseException as error:
            is_broken = isinstance(error, (RedisError, OSError)) and interruption_in(error) is None
            self._end(error if is_broken else redis.ConnectionError("a signal handler interrupted the reading"))
            if not is_broken:
                raise

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or redis.ConnectionError("Connection closed by server."))

    def _end(self, error: BaseException) -> None:
        if not self.end.done():
            self.end.set_exception(error)
            self.end.exception()  # marked as retrieved: the task that waits for it may have been cancelled


def receive_replies(
    connection: Any, loop: asyncio.AbstractEventLoop, on_reply: Callable[[Any], None]
) -> tuple[asyncio.Transport, asyncio.Future[None]]:
    """Pass each reply that an open connection receives to a function, from now on.

    Returns:
        What to write to; and a future that gets the exception with which the connection ends.
    """
    transport: Any = quirks.transport_of(connection)
    reader = new_reader()
    if transport is None:  # of a user's class
        transport, reader = ForeignTransport(loop, connection), ReceivedReplies()
    replies = ReplyProtocol(loop, on_reply, reader)
    transport.set_protocol(replies)
    if quirks.was_ended(connection):  # before the line above, so nobody is told
        replies.connection_lost(None)
    return transport, replies.end
