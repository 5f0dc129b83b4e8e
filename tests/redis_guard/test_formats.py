"""The golden form of a mark in Redis: an older program reads it, too, and so do other languages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import AlreadyDone, Fence, TooOld
from storage_guards import RedisGuard
from storage_guards.redis import scripts
from storage_guards.redis.commands import done_key, mark_key
from storage_guards.redis.scripts import checked_script
from tests.support.formats import unchanged
from tests.support.redis_formats import kept_in, shas_of

MINE, NEWER = Fence("orders:42", 5, "a" * 22), Fence("orders:42", 8, "b" * 22)
KEY = "fencing:1:{12193}:mark:orders:42"
DONE = "fencing:1:{12193}:done:orders:42"
ID = re.compile(rb"[A-Za-z0-9+/]{12}")

CLAIMED = {"number": b"5", "seq": b"0", "token": b"a" * 22, "writes": b"<id>"}
WRITTEN = CLAIMED | {"seq": b"1", "writes": b"<id> <id>"}
WRITTEN_OFTEN = CLAIMED | {"seq": b"17", "writes": b" ".join([b"<id>"] * 16)}
CLAIMED_AGAIN = {"number": b"8", "seq": b"0", "token": b"b" * 22, "writes": b" ".join([b"<id>"] * 16)}
WITH_READERS = CLAIMED_AGAIN | {"readers": b"6", "version": b"1"}
SCRIPTS = {
    "CLAIM": "e50716925a01a8a9602a2701c9a17face13bfa1e",
    "READ_MARKS": "732f71fc1657592fee69cc06acc3b1f2375a072e",
    "READ": "bb3217889f971c39f2d3f9f598e9832a07df23b3",
    "WRITE_ONCE": "d60f3069f049df3db15d41b78815903ea8787df5",
    "WRITE": "4a2c00f35782008d4172dcbd4f70b2cc7253a7a4",
    "SETTLE": "3f453dc435ec0ea9962161be04e82aac93ab3ecb",
    "checked_script_once": "b1b71ea0d485aedfdf925ef3a68825add6deb487",
    "checked_script": "6587549b6a47d150d2bbb569e70ccaf6bd06f145",
}


def mark_in(client: Any) -> Any:
    """Return the kept mark, with its ids replaced."""
    kind, lifetime, fields = kept_in(client)[KEY]
    return kind, lifetime, fields | {"writes": ID.sub(b"<id>", fields["writes"])}


def test_the_name_of_a_mark() -> None:
    unchanged("the name of a mark", mark_key("orders:42"), KEY)
    unchanged("the name of what was done once", done_key("orders:42"), DONE)


def test_a_mark_from_its_first_claim(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    guard = RedisGuard(client)
    guard.claim(MINE)
    unchanged("a mark that was claimed", mark_in(client), ("hash", "for ever", CLAIMED))
    guard.write(MINE, ("SET", "total", 1))
    unchanged("a mark with a write", mark_in(client), ("hash", "for ever", WRITTEN))
    for _ in range(16):
        guard.write(MINE, ("SET", "total", 1))
    unchanged("a mark with many writes", mark_in(client), ("hash", "for ever", WRITTEN_OFTEN))
    before = client.hget(KEY, "writes")
    client.hset(KEY, mapping={"readers": 6, "version": 1})
    guard.claim(NEWER)
    unchanged("a mark that was claimed again", mark_in(client), ("hash", "for ever", WITH_READERS))
    unchanged("its writes", client.hget(KEY, "writes"), before)


def test_what_was_done_once(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    guard = RedisGuard(client)
    guard.write(MINE, ("SET", "total", 1), claim=True, once="2026-11-23")
    kind, lifetime, fields = kept_in(client)[DONE]
    found = {field: ID.sub(b"<id>", value) for field, value in fields.items()}
    unchanged("what was done once", (kind, lifetime, found), ("hash", "for ever", {"2026-11-23": b"5 <us> <id>"}))
    client.delete(DONE)
    client.hset(DONE, mapping={"": "2026-01-29", "2026-01-30": f"4 1795313443589306 {'a' * 12}"})
    with pytest.raises(AlreadyDone) as error:
        guard.write(MINE, ("SET", "total", 1), once="2026-01-30")
    assert (error.value.number, str(error.value.at)) == (4, "2026-11-22 02:10:43+00:00")
    with pytest.raises(TooOld, match="2026-01-29"):
        guard.write(MINE, ("SET", "total", 1), once="2026-01-29")


def test_the_scripts() -> None:
    """A script is part of the format: programs of two versions run theirs on the same mark."""
    found = shas_of(scripts) | {
        "checked_script": checked_script("return 1").sha,
        "checked_script_once": checked_script("return 1", once=True).sha,
    }
    unchanged("the scripts of the guard", found, SCRIPTS)
