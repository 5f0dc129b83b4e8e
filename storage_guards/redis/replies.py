"""What the replies of the guard's scripts mean. Pure functions."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from redis.exceptions import AskError, ResponseError

from fencing.kernel.errors import CoordinatorUnavailable, FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Mark
from storage_guards.redis.commands import mark_key

_NOT_PERMITTED = re.compile("no permission|permissions to|can't (run this command|access at least one)", re.IGNORECASE)
"""The texts of an ACL's refusal, of a command or of a key, outside a script and inside one."""


class State(NamedTuple):
    """A mark, and the ids of its last writes, the newest first."""

    mark: Mark
    writes: tuple[str, ...]


def state_of(resource: str, found: list[Any]) -> State | None:
    """Return the state of a mark; None: there is none, or no writer's yet.

    Raises:
        GuardNotEnforceable: other data are under its key, or what a newer version of the library has written.
    """
    return found_under(resource, found)[0]


def found_under(resource: str, found: list[Any]) -> tuple[State | None, int]:
    """Return the state of a mark, as :func:`state_of` does, and what a claim must exceed where that is None.

    A later version, which has readers, makes a mark for the first of them. It has no token until a holder claims.
    """
    if found == [None] * 6:
        return None, 0
    *parts, its_readers, version = found
    if version not in (None, b"1"):
        raise GuardNotEnforceable(
            f"the mark of {resource!r} was written by a newer version of this library ({version!r:.40}); nothing was "
            f"written; upgrade this program"
        )
    try:
        _, token, _, writes = (part.decode("ascii") for part in parts)
        readers = _number(b"0" if its_readers is None else its_readers, 16)
        if not writes[:1].strip():
            raise ValueError("no write is named")
        if not token:
            return None, max(_number(parts[0], 16), readers)
        mark = Mark(_number(parts[0], 16), token, _number(parts[2], 18), readers)
        return State(mark, tuple(writes.split())), 0
    except (AttributeError, TypeError, ValueError):
        raise GuardNotEnforceable(
            f"the mark of {resource!r} is damaged: an operator must find out what has changed the key "
            f"{mark_key(resource)!r}, and restore it with the data"
        ) from None


def _number(text: bytes, digits: int) -> int:
    """Return a number of a mark, as the scripts take it. Raise ValueError where it is none."""
    if not text.isdigit() or len(text) > digits:
        raise ValueError("no number")
    return int(text)


def check_policy(info: bytes, address: str) -> None:
    """Refuse a Redis that may drop marks.

    Raises:
        GuardNotEnforceable: its eviction policy may drop them.
    """
    found = re.search(rb"maxmemory_policy:([a-z-]+)", info)
    policy = "unknown" if found is None else found[1].decode()
    if found is None or policy.startswith("allkeys-"):
        raise GuardNotEnforceable(
            f"Redis at {address} may evict marks (maxmemory-policy {policy}), and then a late holder could write; set "
            f"maxmemory-policy noeviction (a volatile- policy keeps marks, but evicts locks)"
        )


def error_of(refused: CoordinatorUnavailable, resource: str) -> FencingError | ValueError:
    """Return the guard's error for a server that refused to run a script. Nothing was done."""
    text = str(refused)
    if "OOM" in text:
        return GuardUnavailable(
            f"Redis is out of memory; nothing was written; free memory or raise its maxmemory, then retry ({text})",
            resource=resource,
        )
    if "READONLY" in text:
        return GuardUnavailable(
            f"Redis is no primary now; nothing was written; retry when the failover is over ({text})", resource=resource
        )
    if _NOT_PERMITTED.search(text):
        return GuardNotEnforceable(
            f"this user of Redis may not do that; nothing was written; give it the permissions of "
            f"docs/guards/redis.md: EVAL, EVALSHA, HMGET, HSET, HINCRBY, HGET and INFO (for once= also TIME, HLEN, "
            f"HKEYS and HDEL), its own commands, and the keys fencing:* and those of the data ({text})"
        )
    if "ompiling script" in text:
        return ValueError(f"Redis cannot compile the Lua; nothing was written: {text}")
    if isinstance(refused.__cause__, AskError):
        return GuardNotEnforceable(f"this server is a node of a Cluster: pass a RedisCluster client ({text})")
    return GuardNotEnforceable(text)


def failed_command(which: int, error: bytes) -> ResponseError:
    """Return the error of a write of which one command, or the caller's Lua, failed."""
    subject = f"command {which}" if which else "the Lua"
    done = "nothing was done before it" if which == 1 else "what was done before it stays done"
    return ResponseError(f"{subject} failed: {error.decode('utf-8', 'replace')}; {done}: Redis has no rollback")


def decoded(reply: Any) -> Any:
    """Return a reply with its bytes as text, for a client with decode_responses. What is no text stays bytes.

    An error would be wrong: the write is done, and was acknowledged.
    """
    if isinstance(reply, bytes):
        try:
            return reply.decode()
        except UnicodeDecodeError:
            return reply
    return [decoded(each) for each in reply] if isinstance(reply, list) else reply
