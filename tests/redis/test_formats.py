"""The golden form of all that locks keep in one Redis. An older program reads it, too, and so do other languages."""

from __future__ import annotations

import time
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing.kernel.fence import digest_of
from fencing.redis import scripts
from fencing.redis.calls import Call, acquire_call, form_of, queue_call, release_call, release_later_call, size_of
from fencing.redis.keys import keys_of
from fencing.redis.scripts import FORCE_RELEASE
from tests.support.formats import CHANGED, unchanged
from tests.support.redis_formats import kept_in, send, shas_of

MINE, THEIRS, THIRD, FORCED = (letter * 22 for letter in "abcd")
OWNER = "worker 7 ü"
KEYS = keys_of("orders:42")

NAMES = {
    "lock": "orders:42",
    "holder": "fencing:1:{12193}:holder:orders:42",
    "counter": "fencing:1:{12193}:counter",
    "queue": "fencing:1:{12193}:waiting:orders:42",
    "listeners": "fencing:1:{12193}:listeners:orders:42",
    "forced": "fencing:1:{12193}:forced:orders:42",
}
HELD = {
    "orders:42": ("string", "a ttl", b"a" * 22),
    "fencing:1:{12193}:counter": ("string", "for ever", b"8"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"8 aaaaaaaaaaaaaaaaaaaaaa <us> worker 7 \xc3\xbc"),
}
QUEUED = {
    "fencing:1:{12193}:waiting:orders:42": (
        "zset",
        "a ttl",
        [(b"here bbbbbbbbbbbbbbbbbbbbbb", 1795313443589306.0), (b"there cccccccccccccccccccccc", 1795313443589307.0)],
    ),
    "fencing:1:{12193}:listeners:orders:42": ("hash", "a ttl", {"here": b"1", "there": b"1"}),
}
OFFERED = {
    "orders:42": ("string", "a ttl", b"b" * 22),
    "fencing:1:{12193}:counter": ("string", "for ever", b"8"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"offer here"),
    "fencing:1:{12193}:waiting:orders:42": (
        "zset",
        "a ttl",
        [(b"there cccccccccccccccccccccc", 1795313443589307.0)],
    ),
    "fencing:1:{12193}:listeners:orders:42": ("hash", "a ttl", {"there": b"1"}),
}
MESSAGES = {
    (b"fencing:1:wake:here", b"passed * orders:42"),
    (b"fencing:1:wake:there", b"passed * orders:42"),
    (b"fencing:1:wake:here", b"grant bbbbbbbbbbbbbbbbbbbbbb orders:42"),
    (b"fencing:1:wake:there", b"recheck 252 orders:42"),
}
RELEASED = {
    "orders:42": ("string", "a ttl", b"b" * 22),
    "fencing:1:{12193}:counter": ("string", "for ever", b"8"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"8 bbbbbbbbbbbbbbbbbbbbbb <us>-<us> worker 7 \xc3\xbc"),
}
FORCED_OUT = {
    "orders:42": ("string", "a ttl", b"d" * 22),
    "fencing:1:{12193}:counter": ("string", "for ever", b"9"),
    "fencing:1:{12193}:forced:orders:42": ("string", "a ttl", b"aaaaaaaaaaaaaaaaaaaaaa operator"),
    "fencing:1:{12193}:holder:orders:42": ("string", "a ttl", b"9 dddddddddddddddddddddd <us> operator"),
}
SCRIPTS = {
    "ACQUIRE": "9da5016f1146acdff537a7ff90f066c9dd4627e3",
    "ACQUIRE_ANY": "1e55d6adcd18e13d233183bf58c108530092c340",
    "RENEW": "f7dde797d7c9657fbc555cb66d1118f5d0544b37",
    "RELEASE": "7cc2614a242181033b729ac47d19b765b10ad2f4",
    "RELEASE_LATER": "53f0a1e23aec56d1cf2b6be66ab797b27cca2004",
    "RELEASE_SEVERAL": "3746ebc028beda224b36af2d675a6fc3dae6f8b1",
    "REMINT": "c23076cd0155ad07f14b9c218ad61cd4df42417c",
    "HOLDER": "c4e21cec18e61fc2c01f348af5435a5d239e7950",
    "HOLDERS": "ed9e479c598bdf39b268a766c847a0a9bd2720eb",
    "FORCED_BY": "e9d290d42f6f412c14d471bcb55f6df222ce1d70",
    "FORCE_RELEASE": "ad9361ce71a2f8f127d17e5a3a18a1de5ca100fa",
}


def taken(client: Any) -> None:
    """Take the lock; the number is 8."""
    assert send(client, acquire_call("orders:42", MINE, (30_000, OWNER, 7, 0), 1.0, True)) == b"8"


def test_the_names_of_the_keys() -> None:
    unchanged("the names of the keys", {name: getattr(KEYS, name) for name in NAMES}, NAMES)
    unchanged("a key with braces", keys_of("{a}b").holder, "fencing:1:{20200}:holder:{a}b")


def test_a_lock_that_is_held(any_redis: RedisServer) -> None:
    client = any_redis.client()
    taken(client)
    unchanged("a lock that is held", kept_in(client), HELD)


def test_a_lock_that_is_released_and_stays_taken(any_redis: RedisServer) -> None:
    client = any_redis.client()
    taken(client)
    assert send(client, release_later_call("orders:42", MINE, THEIRS, 30_000, 1.0)) == 1
    unchanged("a lock that is released, and stays taken", kept_in(client), RELEASED)


def test_a_number_is_the_servers_clock_in_microseconds(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    for args in ((30_000, OWNER), (30_000, OWNER, 0, 1)):
        send(client, acquire_call("orders:42", MINE, args, 1.0, True))
        found = kept_in(client)
        unchanged("the counter", found[KEYS.counter], ("string", "for ever", b"<us>"))
        record = b"<us> aaaaaaaaaaaaaaaaaaaaaa <us> worker 7 \xc3\xbc"
        unchanged("the record of the holder", found[KEYS.holder], ("string", "a ttl", record))
        number, _, granted, _ = client.get(KEYS.holder).split(b" ", 3)
        assert number == granted == client.get(KEYS.counter)
        client.flushall()


def test_waiters_an_offer_and_the_messages(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    while True:
        client.flushall()
        taken(client)
        listener = client.pubsub()
        listener.subscribe("fencing:1:wake:here", "fencing:1:wake:there")
        for _ in range(2):
            assert listener.get_message(timeout=60)["type"] == "subscribe"
        for name, token, ticket in (("here", THEIRS, "1795313443589306"), ("there", THIRD, "1795313443589307")):
            call = queue_call("orders:42", token, (30_000, OWNER, 0, 0, name), ticket, 1.0, True)
            assert send(client, call)[0] == b"queued"
        unchanged("the queue", kept_in(client), HELD | QUEUED)
        began = time.monotonic()
        assert send(client, release_call("orders:42", MINE)) == 3
        found = kept_in(client)
        took = time.monotonic() - began
        messages = [listener.get_message(timeout=60) for _ in range(4)]
        listener.close()
        if took < 0.2:
            break  # otherwise the offer, which lasts for a quarter of a second, may have ended
    unchanged("an offer", found, OFFERED)
    unchanged("the messages", {(each["channel"], each["data"]) for each in messages}, MESSAGES)


def test_the_message_to_a_listener_that_was_silent(any_redis: RedisServer) -> None:
    """The lock is free, and its last offer was not accepted."""
    client: Any = any_redis.client()
    client.set(KEYS.holder, "offer here")
    client.zadd(KEYS.queue, {f"here {THEIRS}": 1})
    client.hset(KEYS.listeners, "here", 1)
    listener = client.pubsub()
    listener.subscribe("fencing:1:wake:here")
    assert listener.get_message(timeout=60)["type"] == "subscribe"
    taken(client)
    message = (listener.get_message(timeout=60) or {}).get("data")
    listener.close()
    unchanged("the message that entries were removed", message, b"passed * orders:42")
    unchanged("a lock that is held", kept_in(client), HELD)


def test_a_forced_release(any_redis: RedisServer) -> None:
    client = any_redis.client()
    taken(client)
    args = (30_000, "operator", 0, 0, digest_of(MINE))
    keys = (KEYS.lock, KEYS.holder, KEYS.counter, KEYS.forced)
    call = Call(form_of(FORCE_RELEASE, keys, args, None, token_size=size_of(FORCED)), FORCED)
    assert send(client, call) == b"9"
    unchanged("a forced release", kept_in(client), FORCED_OUT)


def test_the_scripts() -> None:
    """A script is part of the format: programs of two versions run theirs on the same keys."""
    unchanged("the scripts of one Redis", shas_of(scripts), SCRIPTS)


def test_a_change_fails_with_the_words() -> None:
    with pytest.raises(AssertionError) as changed:
        unchanged("a name", b"new", b"old")
    assert str(changed.value) == (
        "a name: this is a change of format: raise the version, say how old and new run together\n"
        "  found:  b'new'\n  golden: b'old'"
    )
    with pytest.raises(AssertionError, match=CHANGED):
        unchanged("a number is no text", 1, True)
    unchanged("the same", {"a": [b"1"]}, {"a": [b"1"]})
