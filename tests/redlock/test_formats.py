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
    "ACQUIRE": "ba6609c24e62998a0095d19a3ebefee156bf8e3b",
    "REMINT": "59c16a73e1e9fa49d8346ce9049de985e2cf8f3f",
    "FORCE_RELEASE": "5f5aafc8b6c4829edcec459a2b0fb810f348b407",
    "RENEW": "16b9a9dcdb0a091df5184b5e7ef23a35ffc0607b",
    "HIGHEST": "2655f41d712fa0283eb7a46b85faa598209eacab",
    "JOIN": "8555ec53c8f60037286c6c4a354c8a9b1d3420ac",
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
