"""Requests to Redis as data: a script with its keys and arguments, packed as far as possible."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fencing.redis.keys import keys_of, slot_of
from fencing.redis.resp import bulks, script_call
from fencing.redis.scripts import (
    ACQUIRE,
    ACQUIRE_ANY,
    ASK_REPLICAS,
    RELEASE,
    RELEASE_LATER,
    RELEASE_SEVERAL,
    WAIT,
    Script,
    command_of,
)

Arguments = tuple[str | int, ...]

_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python


class Form(NamedTuple):
    """A call of which only the token is missing, which is the first argument: the bytes around it are packed.

    ``listener`` is that of the waiter for whom the call may take the lock; empty: nobody waits; None: the call takes no
    lock, or nothing may be sent behind it. A remint is repeated with the same token, also after an interruption.
    """

    script: Script
    keys: tuple[str, ...]
    args: Arguments  # after the token
    head: bytes
    tail: bytes
    listener: str | None = None


class Call(NamedTuple):
    """The effect: run a script, and wait for its reply at most ``timeout`` seconds."""

    form: Form
    token: str | None  # None: the script has no token
    timeout: float = 0.0
    last_attempt: bool = False

    @property
    def script(self) -> Script:
        return self.form.script

    @property
    def keys(self) -> tuple[str, ...]:
        return self.form.keys

    @property
    def args(self) -> Arguments:
        return self.form.args if self.token is None else (self.token, *self.form.args)

    @property
    def packed(self) -> bytes:
        """The call by SHA-1 in wire format."""
        form, token = self.form, self.token
        return form.head if token is None else form.head + token.encode() + form.tail

    @property
    def slot(self) -> int | None:
        """The slot of a Redis Cluster that has all keys of the call; None: it has no keys, and any node will do."""
        keys = self.form.keys
        return slot_of(keys[0].encode()) if keys else None

    @property
    def may_take(self) -> bool:
        """Whether the call may take a lock, and is followed by its compensation."""
        return self.form.listener is not None

    @property
    def compensation(self) -> Call | None:
        """The call that frees the lock that this one may take.

        It is sent after this call on the same connection: see ``must_undo``. So a lock that was granted meanwhile does
        not stay until its ttl ends. The token is not asked with again: the two may arrive after a repetition.
        """
        if self.token is None or self.form.listener is None:
            return None
        if self.form.script is ACQUIRE_ANY:
            keys = self.form.keys[:-1]  # all but the counter are those of the release
            return call_without_token(RELEASE_SEVERAL, keys, (self.token,) * (len(keys) // 4))
        return release_call(self.form.keys[0], self.token, self.form.listener)


class Replicated(NamedTuple):
    """The effect: run a script that mints, and wait until enough replicas have what it wrote.

    ``perform`` raises NotAcquired if fewer replicas have it: if fewer are connected, before the script runs.
    """

    call: Call
    replicas: int


_COUNT_FORM = Form(ASK_REPLICAS, (), (), b"*2\r\n" + bulks(("INFO", "replication")), b"")


def count_call(timeout: float) -> Call:
    """Return the call that asks for the replicas: see ``online_replicas``."""
    return Call(_COUNT_FORM, None, timeout)


def online_replicas(reply: bytes) -> int:
    """Return how many replicas are connected, and have copied all data once."""
    return reply.count(b"state=online")


def wait_call(replicas: int, timeout: float) -> Call:
    """Return the call that waits until so many replicas have all that its connection wrote before, or half the time."""
    milliseconds = max(int(timeout * 500), 1)
    packed = b"*3\r\n" + bulks(("WAIT", replicas, milliseconds))
    return Call(Form(WAIT, (), (), packed, b""), None, timeout)


class Calls(NamedTuple):
    """The effect: run calls of several slots, on all their nodes at once, within ``timeout`` seconds.

    The result is a list. For each call it has the reply, or the ``NoReply`` or ``CoordinatorUnavailable`` that the call
    alone would have raised.
    """

    calls: tuple[Call, ...]
    timeout: float


class NodeCall(NamedTuple):
    """The effect: run a call without keys on the primary that has ``slot``.

    The result is the reply, and the first slot of the next primary; None: this was the last one.
    """

    call: Call
    slot: int


def plain_command(*words: str, replies: tuple[type, ...]) -> Call:
    """Return a command as a call, which is sent in the same way as a script."""
    script = command_of(*words, replies=replies)
    return Call(Form(script, (), (), b"*%d\r\n%b" % (len(words), script.by_sha), b""), None)


def scan_call(cursor: str, pattern: str, keys: int) -> Call:
    """Return the command for a page of the keys that match: the node looks at so many."""
    return plain_command("SCAN", cursor, "MATCH", pattern, "COUNT", str(keys), replies=(list,))


ASKING = plain_command("ASKING", replies=(bytes, str))
"""The command before a call whose slot is just moving to the node."""

CLUSTER_SLOTS = plain_command("CLUSTER", "SLOTS", replies=(list,))
"""The question which nodes have which slots."""


def call_without_token(script: Script, keys: tuple[str, ...], args: Arguments, packed: bytes | None = None) -> Call:
    """Return a call of which no argument is a token of its own; ``packed``: its keys and arguments, packed before."""
    if packed is None:
        packed = bulks((*keys, *args))
    return Call(Form(script, keys, args, script_call(script.by_sha, len(keys), len(args), packed), b""), None)


def by_text(call: Call) -> Call:
    """Return the same call with the script's text, for a server that may not know the script yet."""
    form, args = call.form, call.args
    head = script_call(form.script.by_text, len(form.keys), len(args), bulks(form.keys))
    if call.token is None:
        return call._replace(form=form._replace(head=head + bulks(args), tail=b""))
    head += b"$%d\r\n" % size_of(call.token)
    return call._replace(form=form._replace(head=head, tail=b"\r\n" + bulks(form.args)))


def size_of(token: str) -> int:
    """Return the number of bytes of a token; a user's own one may be any text."""
    return len(token) if token.isascii() else len(token.encode())


def form_of(
    script: Script, keys: tuple[str, ...], args: Arguments, listener: str | None, *, token_size: int, more: int = 0
) -> Form:
    """Return the form of a call for tokens of this size. ``more`` arguments will be added."""
    head = script_call(script.by_sha, len(keys), 1 + len(args) + more, bulks(keys))
    return Form(script, keys, args, b"%b$%d\r\n" % (head, token_size), b"\r\n" + bulks(args), listener)


@lru_cache(maxsize=8192)  # names in use
def _acquire_form(resource: str, args: Arguments, token_size: int) -> Form:
    return form_of(ACQUIRE, _acquire_keys(resource), args, "", token_size=token_size)


@lru_cache(maxsize=8192)
def _queue_form(resource: str, args: Arguments, token_size: int, more: int) -> Form:
    return form_of(ACQUIRE, _acquire_keys(resource), args, str(args[-1]), token_size=token_size, more=more)


@lru_cache(maxsize=8192)
def _release_form(resource: str, token_size: int) -> Form:
    return form_of(RELEASE, release_keys(resource), (), None, token_size=token_size)


def _acquire_keys(resource: str) -> tuple[str, ...]:
    names = keys_of(resource)
    return (names.lock, names.holder, names.counter, names.queue, names.listeners)


def record_start(number: int, token: str) -> str:
    """Return the words with which the holder record of a grant begins: see ``lua/common.lua``."""
    return f"{number} {token} "


def release_keys(resource: str) -> tuple[str, ...]:
    """Return the keys of the scripts that release a lock."""
    names = keys_of(resource)
    return (names.lock, names.holder, names.queue, names.listeners)


def acquire_call(resource: str, token: str, args: Arguments, timeout: float, last_attempt: bool) -> Call:
    """Return the call that takes the lock if it is free; ``args``: those of lua/acquire.lua after the token."""
    return _new(Call, (_acquire_form(resource, args, size_of(token)), token, timeout, last_attempt))


def queue_call(
    resource: str,
    token: str,
    args: Arguments,
    ticket: str,
    timeout: float,
    last_attempt: bool,
    max_waiters: int | None = None,
) -> Call:
    """Return the call that takes the lock, or enters the queue.

    Args:
        resource: the name of the lock.
        token: of the grant.
        args: the arguments of lua/acquire.lua between the token and the ticket; the last one is the waiter's listener.
        ticket: of the waiter; empty: it has none yet.
        timeout: seconds.
        last_attempt: whether the call is not repeated.
        max_waiters: how many may wait; None: they are not counted.
    """
    more: Arguments = (ticket,) if max_waiters is None else (ticket, max_waiters)
    form = _queue_form(resource, args, size_of(token), len(more))
    form = form._replace(args=(*args, *more), tail=form.tail + bulks(more))
    return Call(form, token, timeout, last_attempt)


@lru_cache(maxsize=1024)
def _any_form(resources: tuple[str, ...], args: Arguments, token_size: int) -> Form:
    keys = tuple(key for each in resources for key in release_keys(each))
    return form_of(ACQUIRE_ANY, (*keys, keys_of(resources[0]).counter), args, "", token_size=token_size)


def any_call(resources: tuple[str, ...], token: str, args: Arguments) -> Call:
    """Return the call that takes one of these slots; ``args``: those of lua/acquire_any.lua after the token."""
    return Call(_any_form(resources, args, size_of(token)), token)


def decline_call(resource: str, token: str, listener: str, *, timeout: float) -> Call:
    """Return the call that declines an offer to the token, and leaves the queue. It frees no lock that was granted."""
    form = form_of(RELEASE, release_keys(resource), (listener, "offer"), None, token_size=size_of(token))
    return Call(form, token, timeout)


def release_later_call(resource: str, token: str, new_token: str, milliseconds: int, timeout: float) -> Call:
    """Return the call that releases the lock if the token holds it, and leaves it taken for so long."""
    names = keys_of(resource)
    keys, args = (names.lock, names.holder, names.queue), (new_token, milliseconds)
    return Call(form_of(RELEASE_LATER, keys, args, None, token_size=size_of(token)), token, timeout)


def release_call(resource: str, token: str, listener: str = "", timeout: float = 0.0) -> Call:
    """Return the call that frees the lock if the token holds it; with a listener, it also removes the queue entry."""
    if listener:
        form = form_of(RELEASE, release_keys(resource), (listener,), None, token_size=size_of(token))
    else:
        form = _release_form(resource, size_of(token))
    return _new(Call, (form, token, timeout, False))
