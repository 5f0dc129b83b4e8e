"""What the replies of the guard's scripts mean. Pure functions."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from fencing.kernel.errors import CoordinatorUnavailable, FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Mark
from storage_guards.redis.commands import mark_key


class State(NamedTuple):
    """A mark, and the ids of its last writes, the newest first."""

    mark: Mark
    writes: tuple[str, ...]


def state_of(resource: str, found: list[Any]) -> State | None:
    """Return the state of a mark; None: there is none.

    Raises:
        GuardNotEnforceable: other data are under its key.
    """
    if found == [None] * 4:
        return None
    try:
        number, token, seq, writes = (part.decode("ascii") for part in found)
        return State(Mark(int(number), token, int(seq)), tuple(writes.split()))
    except (AttributeError, TypeError, ValueError):
        raise GuardNotEnforceable(
            f"the mark of {resource!r} is damaged: an operator must find out what has changed the key "
            f"{mark_key(resource)!r}, and restore it with the data"
        ) from None


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
            f"maxmemory-policy noeviction, or a volatile- policy: marks have no ttl"
        )


def error_of(refused: CoordinatorUnavailable, resource: str) -> FencingError | ValueError:
    """Return the guard's error for a server that refused to run a script. Nothing was done."""
    text = str(refused)
    if "OOM" in text or "READONLY" in text:
        return GuardUnavailable(
            f"Redis refuses writes now: it is out of memory, or no primary; nothing was written; retry later ({text})",
            resource=resource,
        )
    if "ompiling script" in text:
        return ValueError(f"Redis cannot compile the Lua; nothing was written: {text}")
    if moved(text):
        return GuardNotEnforceable(f"this server is a node of a Cluster: pass a RedisCluster client ({text})")
    return GuardNotEnforceable(text)


def moved(text: str) -> bool:
    """Return whether a Cluster's node sends the caller elsewhere."""
    return "MOVED " in text or "ASK " in text


def failed_command(which: int, error: bytes) -> ResponseError:
    """Return the error of a write of which one command, or the caller's Lua, failed."""
    subject = f"command {which}" if which else "the Lua"
    done = f"the {which - 1} commands before it stay done" if which else "what it did before stays done"
    return ResponseError(f"{subject} failed: {error.decode('utf-8', 'replace')}; {done}: Redis has no rollback")


def decoded(reply: Any) -> Any:
    """Return a reply with its bytes as text, as a client with decode_responses has it."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [decoded(each) for each in reply] if isinstance(reply, list) else reply
