"""The commands that a guarded write or read may have, and where their keys are. Pure functions.

A command that is not in the tables is refused: its keys would be unknown, or it reaches further than the keys. The
caller's own Lua can have any command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fencing.redis.keys import keys_of, slot_of, tag_of

MOST_DONE = 1000
"""How many keys of what was done once a resource keeps. The lowest go first."""

MOST_PARTS = 5_000
"""The most parts of one command: Lua cannot pass many more to Redis."""

Argument = str | bytes | int | float
Command = tuple[Argument, ...]


def _first(arguments: Sequence[bytes]) -> Sequence[bytes]:
    return arguments[:1]


def _first_two(arguments: Sequence[bytes]) -> Sequence[bytes]:
    return arguments[:2]


def _all(arguments: Sequence[bytes]) -> Sequence[bytes]:
    return arguments


def _every_second(arguments: Sequence[bytes]) -> Sequence[bytes]:
    return arguments[::2]


def _after_first(arguments: Sequence[bytes]) -> Sequence[bytes]:
    return arguments[1:]


def _table(*rows: tuple[Callable[[Sequence[bytes]], Sequence[bytes]], str]) -> dict[str, Any]:
    return {name: keys for keys, names in rows for name in names.split()}


WRITES = _table(
    (_all, "DEL UNLINK SDIFFSTORE SINTERSTORE SUNIONSTORE PFMERGE"),
    (_every_second, "MSET MSETNX"),
    (_first_two, "COPY LMOVE RENAME RENAMENX RPOPLPUSH SMOVE ZRANGESTORE"),
    (_after_first, "BITOP"),
    (
        _first,
        (
            "APPEND BITFIELD DECR DECRBY EXPIRE EXPIREAT GEOADD GETDEL GETEX GETSET HDEL HEXPIRE HINCRBY "
            "HINCRBYFLOAT HMSET HPERSIST HSET HSETNX INCR INCRBY INCRBYFLOAT LINSERT LPOP LPUSH LPUSHX LREM LSET "
            "LTRIM PERSIST PEXPIRE PEXPIREAT PFADD PSETEX RPOP RPUSH RPUSHX SADD SET SETBIT SETEX SETNX SETRANGE "
            "SPOP SREM XACK XADD XDEL XTRIM ZADD ZINCRBY ZPOPMAX ZPOPMIN ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK "
            "ZREMRANGEBYSCORE"
        ),
    ),
)
"""The commands of writes: where each has its keys."""

READS = _table(
    (_all, "EXISTS MGET PFCOUNT SDIFF SINTER SUNION"),
    (
        _first,
        (
            "BITCOUNT BITPOS GEODIST GEOPOS GEOSEARCH GET GETBIT GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET "
            "HSTRLEN HVALS LINDEX LLEN LPOS LRANGE PTTL SCARD SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER STRLEN "
            "TTL TYPE XLEN XRANGE XREVRANGE ZCARD ZCOUNT ZLEXCOUNT ZMSCORE ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK "
            "ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCORE"
        ),
    ),
)
"""The commands that only read."""


def mark_key(resource: str) -> str:
    """Return the key of a resource's mark, in the resource's slot."""
    return f"fencing:1:{{{tag_of(resource)}}}:mark:{resource}"


def done_key(resource: str) -> str:
    """Return the key of what was done once under a resource, in the resource's slot."""
    return f"fencing:1:{{{tag_of(resource)}}}:done:{resource}"


def encode(argument: object) -> bytes:
    """Return an argument of a command as Redis gets it."""
    if isinstance(argument, bytes):
        return bytes(argument)
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return repr(argument).encode()
    raise TypeError(
        f"an argument of a command is a str, bytes, int or float, not {type(argument).__name__}; convert it first"
    )


def check_parts(command: Sequence[object], example: str) -> None:
    """Refuse a call of a transaction that has the whole command as a tuple, as the guard's ``write`` takes them."""
    if not command or isinstance(command[0], (tuple, list)):
        raise TypeError(f"in a transaction, pass the parts of one command, such as {example}; call it for each command")


def packed_command(command: object, table: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """Return the parts of a command, and its keys.

    Raises:
        TypeError, ValueError: it is no command, or none of this table. The text says what to do.
    """
    if not isinstance(command, (tuple, list)) or not command:
        raise TypeError(f"a command is a tuple such as ('SET', key, value), not {command!r:.80}")
    if len(command) > MOST_PARTS:
        raise ValueError(f"a command has at most {MOST_PARTS} parts, not {len(command)}; split it")
    name = command[0].upper() if isinstance(command[0], str) else command[0]
    if name not in table:
        hint = "write() takes those that write one key, or a few" if table is WRITES else "read() takes those that read"
        raise ValueError(f"{command[0]!r:.80} is no command for this: {hint}; for others use script() with keys")
    parts = [encode(part) for part in command]
    keys = list(table[name](parts[1:]))
    if not keys:
        raise ValueError(f"{name} needs a key")
    return parts, keys


def check_keys(resources: Iterable[str], keys: Iterable[bytes], *, one_slot: bool) -> None:
    """Refuse keys that are the library's own, and in a Cluster those in other slots than the resources.

    Raises:
        ValueError: a key is refused. The text says which name to choose.
    """
    resources = tuple(resources)
    locks = {keys_of(resource).lock.encode() for resource in resources}
    slot = slot_of(resources[0].encode())
    if one_slot and any(slot_of(resource.encode()) != slot for resource in resources):
        raise ValueError(
            f"in a Cluster one write has resources of one slot; these are in several: {', '.join(resources):.200}; "
            f"give them names with a common tag in braces"
        )
    for key in keys:
        if key in locks:
            raise ValueError(
                f"{resources[0]!r:.80} is the key of the lock itself; store the data under another one, such as "
                f"'data:' + the resource"
            )
        if key.startswith(b"fencing:"):
            raise ValueError(f"keys that begin with 'fencing:' are the library's; rename {key!r:.80}")
        if one_slot and slot_of(key) != slot:
            tag = tag_of(resources[0])
            raise ValueError(
                f"the key {key!r:.80} is in another slot of the Cluster than {resources[0]!r:.80}, so that no script "
                f"can check and write at once; give it the tag '{{{tag}}}', or the resource's own"
            )
