"""The golden form of all that a node of Redlock keeps, beside what locks on one Redis keep."""

from __future__ import annotations

from typing import Any

from examples.servers import RedisServer
from fencing.redlock import scripts
from fencing.redlock.calls import grant_call, highest_call, join_call, member_words
from fencing.redlock.scripts import ACQUIRE, REMINT
from tests.support.formats import unchanged
from tests.support.redis_formats import kept_in, send, shas_of

RUN_ID = "0123456789abcdef0123456789abcdef01234567"
WORDS = "0123456789abcdef0123456789abcdef01234567 60000 1"
BACK = b"0123456789abcdef0123456789abcdef01234567 <us> us"

ADMITTED = {
    "fencing:1:highest": ("string", "for ever", b"7"),
    "fencing:1:member": ("string", "for ever", WORDS.encode()),
    "fencing:1:seed": ("string", "for ever", b"7"),
}
HELD = {
    "fencing:1:highest": ("string", "for ever", b"9"),
    "fencing:1:member": ("string", "for ever", WORDS.encode()),
    "fencing:1:seed": ("string", "for ever", b"7"),
    "fencing:1:{12193}:counter": ("string", "for ever", b"9"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"9 aaaaaaaaaaaaaaaaaaaaaa <us> worker 7 \xc3\xbc"),
    "orders:42": ("string", "a ttl", b"a" * 22),
}
REMINTED = HELD | {
    "fencing:1:highest": ("string", "for ever", b"13"),
    "fencing:1:{12193}:counter": ("string", "for ever", b"13"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"13 bbbbbbbbbbbbbbbbbbbbbb <us> me"),
    "orders:42": ("string", "a ttl", b"b" * 22),
}
SCRIPTS = {
    "ACQUIRE": "f143358b41b6efea8c13cf3fd1e431a3e91be0ec",
    "REMINT": "ade64ebe256dd18f03d95c884a85a0de4a7abaf8",
    "FORCE_RELEASE": "915d152bd8cef0033de6f1df768e015729748367",
    "RENEW": "8794cbee85791956aaa1a2b03e3f7e4fbd327c19",
    "HIGHEST": "ce11cebbcbed88554da647f68fd00f371d688a36",
    "JOIN": "96cf9780c0a6af58ac7a913a062ac59f9053a6f3",
}


def test_the_words_of_a_member() -> None:
    unchanged("the words of a member", member_words(RUN_ID, 60_000, True), WORDS)
    unchanged("without a wait", member_words(RUN_ID, 60_000, False), WORDS[:-1] + "0")


def test_a_node_from_its_first_call_to_a_remint(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    assert send(client, highest_call(), WORDS)[0] == b"stranger"
    unchanged("a node that waits", kept_in(client), {"fencing:1:back": ("string", "for ever", BACK)})
    state = client.get("fencing:1:back").decode()
    assert send(client, join_call(7, [state], at_once=True), WORDS) == [b"member", b"7"]
    unchanged("a node that was admitted", kept_in(client), ADMITTED)
    grant = grant_call(ACQUIRE, "orders:42", "a" * 22, (30_000, "worker 7 ü", 0), 9)
    assert send(client, grant, WORDS) == b"9"
    unchanged("a lock at a node", kept_in(client), HELD)
    remint = grant_call(REMINT, "orders:42", "b" * 22, (30_000, "me", 12), 1, ("a" * 22, 9))
    assert send(client, remint, WORDS) == b"13"
    unchanged("a lock at a node, with a new fence", kept_in(client), REMINTED)


def test_the_scripts() -> None:
    """A script is part of the format: programs of two versions run theirs on the same keys."""
    unchanged("the scripts of Redlock", shas_of(scripts), SCRIPTS)
