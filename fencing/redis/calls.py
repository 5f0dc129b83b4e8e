"""Requests to Redis as data: a script with its keys and arguments, packed as far as possible."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fencing.redis.keys import keys_of
from fencing.redis.resp import bulks, script_call
from fencing.redis.scripts import RELEASE, Script


class Call(NamedTuple):
    """The effect: run a script, and wait for its reply at most ``timeout`` seconds."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    timeout: float = 0.0
    may_take: tuple[str, str, str] | None = None  # a lock: resource, token, and listener of its waiter
    last_attempt: bool = False
    packed: bytes | None = None  # the call by SHA-1 in wire format; None: it is packed when it is sent

    @property
    def compensation(self) -> Call | None:
        """The call that frees the lock that this one may take.

        It is sent after this call on the same connection, if the caller is cancelled while it waits, or if the last
        attempt gets no reply. So a lock that was granted meanwhile does not stay until its ttl ends.
        """
        return None if self.may_take is None else release_call(*self.may_take)


class PackedKeys(NamedTuple):
    """The keys of a script for one resource, which all its calls share."""

    keys: tuple[str, ...]
    packed: bytes  # in wire format


@lru_cache(maxsize=8192)  # names in use
def acquire_keys(resource: str) -> PackedKeys:
    names = keys_of(resource)
    keys = (names.lock, names.holder, names.counter, names.queue, names.listeners)
    return PackedKeys(keys, bulks(keys))


@lru_cache(maxsize=8192)
def _release_keys(resource: str) -> PackedKeys:
    names = keys_of(resource)
    keys = (names.lock, names.holder, names.queue, names.listeners)
    return PackedKeys(keys, bulks(keys))


def release_call(resource: str, token: str, listener: str = "", *, timeout: float = 0.0) -> Call:
    """Return the call that frees the lock if the token holds it; with a listener, it also removes the queue entry."""
    keys, packed = _release_keys(resource)
    args = (token, listener) if listener else (token,)
    packed = script_call(RELEASE.by_sha, len(keys), len(args), packed + bulks(args))
    return Call(RELEASE, keys, args, timeout, packed=packed)
