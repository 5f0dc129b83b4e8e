"""Replies taken as they arrive, without a task's turn and a stream's buffer in between.

redis-py opens the connection: address, TLS, credentials, database. Then, where hiredis is installed and redis-py keeps
its stream where it does today, the transport gets a protocol of ours. Elsewhere redis-py goes on reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

try:
    import hiredis
except ImportError:  # it is recommended, not required
    _READER: Any = None
else:
    _READER = hiredis.Reader

__all__ = ["Replies", "direct_transport", "stream_writer"]

NONE_YET = object()

MEANING: dict[str, type[RedisError]] = {
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
"""The error codes that are told apart. https://redis.io/docs/latest/develop/reference/protocol-spec/ (simple errors)"""


def stream_writer(connection: Any) -> asyncio.StreamWriter | None:
    """What a connection that redis-py has opened writes to; None where this redis-py has it elsewhere."""
    writer = getattr(connection, "_writer", None)
    return writer if isinstance(writer, asyncio.StreamWriter) else None


def direct_transport(writer: asyncio.StreamWriter | None) -> asyncio.Transport | None:
    """The transport, where replies can be taken from it directly."""
    transport = None if writer is None or _READER is None else writer.transport
    return transport if isinstance(transport, asyncio.Transport) else None


class Replies(asyncio.Protocol):
    """Hands each reply, an error of Redis' included, to ``answer``. ``end`` gets what ended it: an exception."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[Any], None]) -> None:
        self._answer = answer
        self._reader = _READER(protocolError=InvalidResponse, replyError=_meant, notEnoughData=NONE_YET)
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


def _meant(text: str) -> RedisError:
    code, _, rest = text.partition(" ")
    meaning = MEANING.get(code)
    return ResponseError(text) if meaning is None else meaning(rest)
