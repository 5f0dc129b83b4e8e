"""``once=`` of the guard of data in Redis: of all writes with one key at most one is accepted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.exceptions

from examples.servers import RedisServer
from fencing import AlreadyDone, Fence, OutcomeUnknown, StaleFence, TooOld
from storage_guards.redis.commands import MOST_DONE, done_key, mark_key
from tests.support.redis_guards import guard_of, in_block
from tests.support.servers import Proxy
from tests.support.sides import Side

MINE, NEWER, OTHER = (Fence(name, number, f"{number}" * 22) for name, number in (("r", 5), ("r", 6), ("s", 5)))
DAY = "2026-11-23"
ADD = ("INCR", "total")


@pytest.fixture
def guard(side: Side, any_redis: RedisServer) -> Any:
    return guard_of(side, any_redis.url)


def total(server: RedisServer) -> int:
    found: Any = server.client().get("total")
    return int(found or 0)


def test_at_most_one_write_of_a_key_is_accepted(side: Side, any_redis: RedisServer, guard: Any) -> None:
    client = any_redis.client()

    def refused(method: Any, fence: Fence, *args: Any, **options: Any) -> AlreadyDone:
        before = client.hgetall(mark_key("r"))
        error = side.expect(AlreadyDone, method, fence, *args, once=DAY, **options)
        assert isinstance(error, AlreadyDone)
        if not options.get("claim"):
            assert client.hgetall(mark_key("r")) == before
        return error

    assert side.call(guard.write, MINE, ADD, claim=True, once=DAY) == [1]
    error = refused(guard.write, MINE, ADD)
    assert (error.resource, error.key, error.number, error.is_own) == ("r", DAY, 5, True)
    assert abs(datetime.now(UTC) - error.at) < timedelta(minutes=5)
    assert not refused(guard.write, NEWER, ADD, claim=True).is_own
    refused(guard.script, NEWER, "return redis.call('INCR', KEYS[1])", keys=["total"])
    with pytest.raises(AlreadyDone):
        in_block(side, guard, NEWER, once=DAY, work=lambda *_: pytest.fail("the block has run"))
    assert total(any_redis) == 1
    assert side.call(guard.write, OTHER, ADD, claim=True, once=DAY) == [2]
    side.expect(StaleFence, guard.write, MINE, ADD, once=DAY)
    assert side.call(guard.write, NEWER, ADD) == [3]


def test_blocks_and_lua_of_ones_own(side: Side, any_redis: RedisServer, guard: Any) -> None:
    """They get their own keys and arguments, without those of the key."""
    in_block(side, guard, MINE, claim=True, once="b", work=lambda transaction, _: transaction.write(*ADD))
    in_block(side, guard, MINE, once="empty", work=lambda *_: None)
    lua = "return {#KEYS, #ARGV, KEYS[1], ARGV[1], redis.call('INCR', KEYS[1])}"
    assert side.call(guard.script, MINE, lua, keys=["total"], args=["x"], once="s") == [1, 1, b"total", b"x", 2]
    for key in ("b", "empty", "s"):
        side.expect(AlreadyDone, guard.write, MINE, ADD, once=key)
    assert total(any_redis) == 2


def test_a_block_is_refused_at_its_end(side: Side, any_redis: RedisServer, guard: Any) -> None:
    """It was not done as the block began, and then another block does it: the mark has changed."""
    other = guard_of(Side(False), any_redis.url)

    def work(transaction: Any, _: Any) -> None:
        other.write(NEWER, ADD, claim=True, once=DAY)
        transaction.write(*ADD)

    side.call(guard.claim, MINE)
    with pytest.raises(StaleFence):
        in_block(side, guard, MINE, once=DAY, work=work)
    assert total(any_redis) == 1


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_landed_knows_it_whatever_came_later(
    side: Side, any_redis: RedisServer, proxy: Callable[[RedisServer], Proxy], lost: str
) -> None:
    network, direct = proxy(any_redis), guard_of(Side(False), any_redis.url)
    guard = guard_of(side, network.url(any_redis.url), timeout=1)
    side.call(guard.write, MINE, ADD, claim=True)
    direct.write(OTHER, ADD, claim=True, once=DAY)  # the server knows the script: its first reply is the write's

    def is_write(request: bytes) -> bool:
        return DAY.encode() in request

    loss = network.drop_reply_when(is_write) if lost == "reply" else network.drop_request_when(is_write)
    error = side.expect(OutcomeUnknown, guard.write, MINE, ADD, once=DAY)
    assert loss.fired == 1
    assert error.once == DAY
    assert side.call(guard.landed, error) is (lost == "reply")
    for _ in range(17):
        direct.write(MINE, ADD)
    assert side.call(guard.landed, error) is (True if lost == "reply" else None)
    if lost == "reply":
        with pytest.raises(AlreadyDone) as refused:
            direct.write(MINE, ADD, once=DAY)
        assert refused.value.is_own
    else:
        direct.write(MINE, ADD, once=DAY)
        assert side.call(guard.landed, error) is None


def test_what_failed_counts_as_done(side: Side, any_redis: RedisServer, guard: Any) -> None:
    """Redis has no rollback."""
    side.expect(redis.exceptions.ResponseError, guard.write, MINE, ADD, ("LPUSH", "total", 1), claim=True, once=DAY)
    side.expect(AlreadyDone, guard.write, MINE, ADD, once=DAY)
    assert total(any_redis) == 1


def test_the_lowest_keys_go_first(side: Side, any_redis: RedisServer, guard: Any) -> None:
    """By their bytes, whatever the language of the server."""
    client = any_redis.client()
    keys = [f"k{number:04d}" for number in range(MOST_DONE - 2)]
    client.hset(done_key("r"), mapping=dict.fromkeys(keys, b"1 1 a"))
    side.call(guard.claim, MINE)
    for key in ("💥", "a", "B", "ä"):
        side.call(guard.write, MINE, ADD, once=key)
    assert client.hlen(done_key("r")) == MOST_DONE + 1
    assert client.hget(done_key("r"), "") == b"a"
    for late in ("B", "a", "Z"):
        error = side.expect(TooOld, guard.write, MINE, ADD, once=late)
        assert (error.resource, error.key, error.floor) == ("r", late, "a")
        with pytest.raises(TooOld):
            in_block(side, guard, MINE, once=late, work=lambda *_: pytest.fail("the block has run"))
    side.expect(AlreadyDone, guard.write, MINE, ADD, once="ä")
    side.call(guard.write, MINE, ADD, once="k0000b")
    side.expect(TooOld, guard.write, MINE, ADD, once="k0000")
    assert total(any_redis) == 5


@pytest.mark.parametrize(
    ("once", "kind"), [("", ValueError), ("a\0", ValueError), ("x" * 256, ValueError), (1, TypeError)]
)
def test_a_key_is_a_short_text(
    side: Side, any_redis: RedisServer, guard: Any, once: Any, kind: type[Exception]
) -> None:
    side.expect(kind, guard.write, MINE, ADD, claim=True, once=once)
    side.expect(kind, guard.script, MINE, "return 1", claim=True, once=once)
    with pytest.raises(kind):
        in_block(side, guard, MINE, claim=True, once=once, work=lambda *_: None)
    with pytest.raises(ValueError, match="exactly one lease"):
        in_block(side, guard, MINE, OTHER, claim=True, once=DAY, work=lambda *_: None)
    assert side.call(guard.mark, "r") is None
