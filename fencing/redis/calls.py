"""Requests to Redis as data: a script with its keys and arguments, packed as far as possible."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fencing.redis.keys import keys_of
from fencing.redis.resp import bulk, bulks, script_call
from fencing.redis.scripts import ACQUIRE, RELEASE, Script

TOKEN_CHARACTERS = 22
"""Of the tokens of locks. Calls with such a token are packed in advance, up to the token."""

_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python


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


class _Form(NamedTuple):
    """A call of which only the token is missing: its keys, its other arguments, and the bytes around the token."""

    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    head: bytes
    tail: bytes


def _form(script: Script, keys: tuple[str, ...], args: tuple[str | int, ...] = (), *, more: int = 0) -> _Form:
    """Return the form of a call with the token, these arguments, and ``more`` arguments."""
    head = script_call(script.by_sha, len(keys), 1 + len(args) + more, bulks(keys))
    return _Form(keys, args, b"%b$%d\r\n" % (head, TOKEN_CHARACTERS), b"\r\n" + bulks(args))


@lru_cache(maxsize=8192)  # names in use
def _acquire_form(resource: str, args: tuple[str | int, ...], more: int) -> _Form:
    names = keys_of(resource)
    keys = (names.lock, names.holder, names.counter, names.queue, names.listeners)
    return _form(ACQUIRE, keys, args, more=more)


@lru_cache(maxsize=8192)
def _release_form(resource: str) -> _Form:
    names = keys_of(resource)
    return _form(RELEASE, (names.lock, names.holder, names.queue, names.listeners))


def acquire_call(
    resource: str, token: str, args: tuple[str | int, ...], timeout: float, *, last: bool, ticket: str | None = None
) -> Call:
    """Return the call that takes the lock if it is free.

    Args:
        resource: the name of the lock.
        token: of the grant.
        args: the arguments of lua/acquire.lua between the token and the ticket.
        timeout: seconds.
        last: whether this is the last attempt.
        ticket: of a waiter, or empty if it has none yet; then the last of ``args`` is its listener. None: the caller
            does not wait.
    """
    if ticket is None:
        keys, args, head, tail = _acquire_form(resource, args, 0)
        listener = ""
    else:
        keys, args, head, tail = _acquire_form(resource, args, 1)
        listener = str(args[-1])
        args, tail = (*args, ticket), tail + bulk(ticket)
    packed = head + token.encode() + tail if len(token) == TOKEN_CHARACTERS else None
    return _new(Call, (ACQUIRE, keys, (token, *args), timeout, (resource, token, listener), last, packed))


def decline_call(resource: str, token: str, listener: str, *, timeout: float) -> Call:
    """Return the call that declines an offer to the token, and leaves the queue. It frees no lock that was granted."""
    return Call(RELEASE, _release_form(resource).keys, (token, listener, "offer"), timeout)


def release_call(resource: str, token: str, listener: str = "", *, timeout: float = 0.0) -> Call:
    """Return the call that frees the lock if the token holds it; with a listener, it also removes the queue entry."""
    keys, _, head, tail = _release_form(resource)
    if listener or len(token) != TOKEN_CHARACTERS:
        return Call(RELEASE, keys, (token, listener) if listener else (token,), timeout)
    return _new(Call, (RELEASE, keys, (token,), timeout, None, False, head + token.encode() + tail))
