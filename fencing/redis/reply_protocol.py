"""A connection of asyncio that passes on each reply of Redis as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError

from fencing.kernel.interruptions import interruption_in
from fencing.redis.resp import INCOMPLETE, new_reader


class ReplyProtocol(asyncio.Protocol):
    """A protocol that passes each reply, error replies too, to ``on_reply``.

    ``end`` gets the exception that ended the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_reply: Callable[[Any], None]) -> None:
        self._on_reply = on_reply
        self._reader = new_reader()
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
