"""RESP, the protocol of Redis: commands packed into bytes, replies parsed from bytes. No I/O.

Commands are packed here and not by redis-py, so that repeated parts (a resource's keys, a lease's token) are packed
only once. hiredis parses replies where it is installed, or else a small parser of our own. Error replies are returned
as the exceptions that redis-py has for them.
See https://redis.io/docs/latest/develop/reference/protocol-spec/.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

try:
    import hiredis
except ImportError:  # recommended, not required
    hiredis = None  # type: ignore[assignment]

REPLIED = (ResponseError, BusyLoadingError, AuthenticationError)
"""The exceptions of redis-py for an error reply. The connection still works."""

INCOMPLETE = object()
"""The result of ``gets()`` while the next reply is incomplete."""

MOST_NESTED = 9
"""How deep arrays may be in one another, as in hiredis (``read.h``). Replies to the scripts have three levels."""

ERRORS: dict[str, type[RedisError]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
"""The error codes with an exception of their own: see the page above, simple errors."""


def bulk(value: str | int | bytes) -> bytes:
    """Pack one argument."""
    data = value if type(value) is bytes else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def bulks(values: Iterable[str | int | bytes]) -> bytes:
    """Pack several arguments."""
    return b"".join(map(bulk, values))


def script_call(script: bytes, keys: int, args: int, packed: bytes) -> bytes:
    """Pack an EVAL or EVALSHA.

    Args:
        script: the command's name and the script's SHA-1 or text, packed.
        keys: the number of keys.
        args: the number of arguments.
        packed: the keys and the arguments, packed.
    """
    return b"*%d\r\n%b%b%b" % (3 + keys + args, script, bulk(keys), packed)


def new_reader() -> Any:
    """Return a new reader for one connection.

    It has ``feed(bytes)`` and ``gets()``, which raises InvalidResponse if the bytes are not a reply.
    """
    if hiredis is None:
        return Reader()
    return hiredis.Reader(protocolError=InvalidResponse, replyError=_error, notEnoughData=INCOMPLETE)


class Reader:
    """A parser of the replies of scripts: arrays, bulk strings, integers, errors."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def gets(self) -> Any:
        """Return the next reply, or ``INCOMPLETE``."""
        try:
            reply, end = _read(self._data, 0)
        except EOFError:
            return INCOMPLETE
        except ValueError as error:
            raise InvalidResponse(f"this is not a reply of Redis: {self._data[:80]!r}") from error
        self._data = self._data[end:]
        return reply


def _read(data: bytes, start: int, levels: int = MOST_NESTED) -> tuple[Any, int]:
    """Parse a reply, and return it with its end. Raise EOFError if it is incomplete, ValueError if it is malformed."""
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
        size = int(rest)
        if size < 0:
            return None, end
        if not levels:
            raise ValueError("arrays are nested too deep")
        for _ in range(size):
            item, end = _read(data, end, levels - 1)
            items.append(item)
        return items, end
    if kind == b":":
        return int(rest), end
    if kind == b"-":
        return _error(rest.decode("utf-8", "replace")), end
    if kind == b"+":
        return rest, end
    raise ValueError(f"a reply of the unknown kind {kind!r}")


def _error(text: str) -> RedisError:
    code, _, rest = text.partition(" ")
    kind = ERRORS.get(code)
    try:
        return ResponseError(text) if kind is None else kind(rest)
    except (ValueError, IndexError):  # a redirection that names no slot, or no node
        return ResponseError(text)
