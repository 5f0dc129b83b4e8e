"""What the plans ask of Redis, as data: a script with its keys and arguments, packed as far as it can be."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fencing.redis.keys import keys_of
from fencing.redis.resp import bulk, bulks, script_call
from fencing.redis.scripts import ACQUIRE, RELEASE, Script


class Call(NamedTuple):
    """The effect: run a script, and wait for its reply at most so many seconds."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    timeout: float = 0.0
    may_take: tuple[str, str, str] | None = None  # a lock: resource, token, and listener of its waiter
    last_attempt: bool = False
    packed: bytes | None = None  # the call by its SHA-1 as it goes over the wire, where its parts were at hand

    @property
    def compensation(self) -> Call | None:
        """The call that frees what this one may take.

        It is sent behind it on the same connection if the caller is cancelled while it waits, or if no reply comes to
        the last attempt. A lock granted meanwhile is thus not left to its ttl.
        """
        return None if self.may_take is None else release_call(*self.may_take)


class Prefix(NamedTuple):
    """What all calls of a script for a resource have in common: all but the arguments."""

    keys: tuple[str, ...]
    packed: bytes  # up to there, as it goes over the wire


@lru_cache(maxsize=8192)  # of names in use
def acquire_start(resource: str) -> Prefix:
    its = keys_of(resource)
    keys = (its.lock, its.holder, its.counter, its.queue, its.offered)
    return Prefix(keys, script_call(ACQUIRE.by_sha, len(keys), 7) + bulks(keys))


@lru_cache(maxsize=8192)
def release_start(resource: str) -> Prefix:
    its = keys_of(resource)
    keys = (its.lock, its.holder, its.queue, its.offered)
    return Prefix(keys, script_call(RELEASE.by_sha, len(keys), 2) + bulks(keys))


def release_call(resource: str, token: str, listener: str = "", *, timeout: float = 0.0) -> Call:
    """Free the lock if the token holds it; with a listener, take the token out of the queue as well."""
    keys, packed = release_start(resource)
    return Call(RELEASE, keys, (token, listener), timeout, packed=packed + bulk(token) + bulk(listener))
