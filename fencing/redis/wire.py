"""Commands as bytes, as they go over the wire: RESP arrays of bulk strings. Pure.

Packed here, and not by the client library, so that the parts of a command that come again (a resource's keys, a
lease's token) are packed once. See https://redis.io/docs/latest/develop/reference/protocol-spec/ (sending commands).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bulk", "bulks", "script_call"]


def bulk(value: str | int) -> bytes:
    """One argument."""
    text = str(value)
    size = len(text) if text.isascii() else len(text.encode())
    return f"${size}\r\n{text}\r\n".encode()


def bulks(values: Iterable[str | int]) -> bytes:
    """Several arguments, one after the other."""
    return b"".join(map(bulk, values))


def script_call(script: bytes, keys: int, args: int) -> bytes:
    """The beginning of EVAL or EVALSHA; keys and arguments are to follow.

    Args:
        script: the command's name and what it runs, packed.
        keys, args: how many there are.
    """
    return b"*%d\r\n%b%b" % (3 + keys + args, script, bulk(keys))
