"""Replies as they come over the wire, read: by hiredis, where it is installed, or by a small reader of our own. Pure.

See https://redis.io/docs/latest/develop/reference/protocol-spec/. An error that Redis gives as a reply is returned as
the exception that redis-py has for it.
"""

from __future__ import annotations

from typing import Any

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
    hiredis = None  # type: ignore[assignment]

__all__ = ["NONE_YET", "Reader", "new_reader"]

NONE_YET = object()
"""What ``gets()`` returns while the next reply is incomplete."""

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
"""The error codes that are told apart: the page above, simple errors."""


def new_reader() -> Any:
    """A reader for one connection: ``feed(bytes)``, and ``gets()``, which raises InvalidResponse for what is none."""
    if hiredis is None:
        return Reader()
    return hiredis.Reader(protocolError=InvalidResponse, replyError=_meant, notEnoughData=NONE_YET)


class Reader:
    """Reads what scripts reply: arrays, bulk strings, integers, errors."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """More has arrived."""
        self._data += data

    def gets(self) -> Any:
        """The next reply, or ``NONE_YET``."""
        try:
            reply, end = _read(self._data, 0)
        except EOFError:
            return NONE_YET
        except ValueError as error:
            raise InvalidResponse(f"not a reply of Redis: {self._data[:80]!r}") from error
        self._data = self._data[end:]
        return reply


def _read(data: bytes, start: int) -> tuple[Any, int]:
    """A reply and where it ends. EOFError: it is incomplete; ValueError: it is none."""
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        raise EOFError
    kind, rest, end = data[start : start + 1], data[start + 1 : line_end], line_end + 2
    if kind == b"$":
        size = int(rest)
        if size < 0:
            return None, end
        if len(data) < end + size + 2:
            raise EOFError
        return data[end : end + size], end + size + 2
    if kind == b"*":
        items = []
        for _ in range(int(rest)):
            item, end = _read(data, end)
            items.append(item)
        return items, end
    if kind == b":":
        return int(rest), end
    if kind == b"-":
        return _meant(rest.decode("utf-8", "replace")), end
    if kind == b"+":
        return rest, end
    raise ValueError(f"a reply of the unknown kind {kind!r}")


def _meant(text: str) -> RedisError:
    code, _, rest = text.partition(" ")
    meaning = MEANING.get(code)
    return ResponseError(text) if meaning is None else meaning(rest)
