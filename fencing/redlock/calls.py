"""Requests to all nodes as data: one script with its arguments, and how many nodes must agree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fencing.redis.calls import Arguments, Call, Form, call_without_token, form_of, record_start, release_keys, size_of
from fencing.redis.keys import keys_of
from fencing.redis.resp import bulks, script_call
from fencing.redis.scripts import HOLDER, RELEASE, RELEASE_LATER, RELEASE_SEVERAL, Script
from fencing.redlock.scripts import ACQUIRE, HIGHEST, JOIN, RENEW

MEMBER_KEYS = ("fencing:1:member", "fencing:1:back", "fencing:1:seed", "fencing:1:highest")
"""The last keys of each script of ``member.lua``: what a node knows of itself."""

_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python

FOR_ANYONE = frozenset((RELEASE.name, RELEASE_LATER.name, RELEASE_SEVERAL.name, HOLDER.name))
"""The scripts that a node runs whether it is a member or not. All others end with the words of ``member.lua``."""


class Fanout(NamedTuple):
    """The effect: send a call to nodes, all at once, and collect their replies.

    It ends as soon as ``quorum`` nodes gave the same vote (see ``decisions.py``), all have replied, or the time is up.
    The result has an entry for each node: its reply; an exception; None: it was not asked, or not waited for.
    If a node gave no reply in time to a call with a compensation, that is sent behind it.

    Args:
        call: the call.
        nodes: the indices of the nodes.
        quorum: the number of equal votes after which no further reply is waited for.
        least: the minimum number of replies; with fewer, NoReply is raised.
        timeout: seconds.
    """

    call: Call
    nodes: tuple[int, ...]
    quorum: int
    least: int
    timeout: float

    @property
    def script(self) -> Script:
        return self.call.form.script

    @property
    def is_for_anyone(self) -> bool:
        return self.call.form.script.name in FOR_ANYONE


def bytes_for(call: Call, member: bytes, *, by_text: bool = False) -> bytes:
    """Return the call in wire format for one node; ``member``: the words of ``member.lua``, packed."""
    is_for_anyone = call.form.script.name in FOR_ANYONE
    if not by_text:
        return call.packed if is_for_anyone else call.packed + member
    keys, args = call.keys, call.args
    packed = bulks((*keys, *args))
    if is_for_anyone:
        return script_call(call.script.by_text, len(keys), len(args), packed)
    return script_call(call.script.by_text, len(keys), len(args) + 1, packed + member)


def member_words(run_id: str, longest_ms: int, restart_wait: bool) -> str:
    """Return the last argument of the scripts of members: see ``member.lua``."""
    return f"{run_id} {longest_ms} {int(restart_wait)}"


@lru_cache(maxsize=8192)  # names in use
def _grant_keys(resource: str) -> tuple[str, ...]:
    names = keys_of(resource)
    return (names.lock, names.holder, names.counter, *MEMBER_KEYS)


def grant_call(script: Script, resource: str, token: str, args: Arguments, proposal: int, more: Arguments = ()) -> Call:
    """Return a call of a script that grants.

    ``args``: those of ``grant.lua`` between the token and the proposal; ``more``: those behind it. Only an acquisition
    has a compensation: its token is not asked with again. The others are repeated with theirs.
    """
    keys, head, tail, listener = _grant_form(script, resource, args, len(more), size_of(token))
    text = str(proposal)
    tail += f"${len(text)}\r\n{text}\r\n".encode()
    if more:
        tail += bulks(more)
    return _new(Call, (_new(Form, (script, keys, (*args, proposal, *more), head, tail, listener)), token, 0.0, False))


@lru_cache(maxsize=8192)
def _grant_form(
    script: Script, resource: str, args: Arguments, more: int, token_size: int
) -> tuple[tuple[str, ...], bytes, bytes, str | None]:
    """Return the form of a script that grants: the keys, the bytes before and behind the token, and the listener."""
    keys, listener = _grant_keys(resource), "" if script is ACQUIRE else None
    more += 2  # the proposal, and the words of a member
    form = form_of(script, keys, args, listener, token_size=token_size, more=more)
    return keys, form.head, form.tail, form.listener


def renew_call(grants: Sequence[Any], milliseconds: Sequence[int | str]) -> Call:
    """Return the call that renews these grants, or confirms a fence: whatever has a resource, a number and a token.

    ``milliseconds``: the ttl of each.
    """
    keys = (*(key for grant in grants for key in keys_of(grant.resource)[:3]), *MEMBER_KEYS)
    args: tuple[Any, ...] = tuple(
        value
        for grant, ttl in zip(grants, milliseconds, strict=True)
        for value in (ttl, grant.token, record_start(grant.number, grant.token))
    )
    return _member_call(RENEW, keys, args)


def _member_call(script: Script, keys: tuple[str, ...], args: Arguments) -> Call:
    head = script_call(script.by_sha, len(keys), len(args) + 1, bulks((*keys, *args)))
    return Call(Form(script, keys, args, head, b""), None)


def holder_call(resource: str) -> Call:
    """Return the call that describes the holder."""
    names = keys_of(resource)
    return call_without_token(HOLDER, (names.lock, names.holder, names.queue), ())


def release_all_call(grants: Sequence[Any]) -> Call:
    """Return the call that frees several locks."""
    keys = tuple(key for grant in grants for key in release_keys(grant.resource))
    return call_without_token(RELEASE_SEVERAL, keys, tuple(grant.token for grant in grants))


def highest_call() -> Call:
    """Return the call that asks for a node's highest number."""
    return _member_call(HIGHEST, MEMBER_KEYS, ())


def join_call(seed: int, states: Sequence[str], *, at_once: bool) -> Call:
    """Return the call that admits nodes which are still in these states."""
    return _member_call(JOIN, MEMBER_KEYS, (seed, int(at_once), *states))
