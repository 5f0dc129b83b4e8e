"""Data in a real Redis behind the guard: what is refused, what is lost, and what is known of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from fencing import (
    Fence,
    GuardUnavailable,
    OutcomeUnknown,
    StaleFence,
    StaleRead,
    UnclaimedFence,
)
from fencing.redis.keys import slot_of, tag_of
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.redis.commands import mark_key
from storage_guards.redis.scripts import CLAIM, WRITE
from tests.support.fixtures import ProxyFactory
from tests.support.redis_guards import guard_of, in_block
from tests.support.redis_requests import asks_for
from tests.support.sides import Side

MINE = Fence("orders:42", 5, "a" * 22)
NEWER = Fence("orders:42", 6, "b" * 22)
OTHER = Fence("orders:43", 5, "c" * 22)
SET_1, SET_2 = ("SET", "total", 1), ("SET", "total", 2)


def value(server: RedisServer, key: str = "total") -> Any:
    return server.client().get(key)


def test_the_commands_of_a_write_are_one_script(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    commands = [("SET", "total", 7), ("INCRBY", "total", 3), ("HSET", "hash", "field", b"\xff"), ("del", "absent")]
    assert side.call(guard.write, MINE, *commands, claim=True) == [b"OK", 10, 1, 0]
    assert value(any_redis) == b"10"
    assert side.call(guard.mark, "orders:42").seq == 1, "one write, whatever it has"
    assert any_redis.client().ttl(mark_key("orders:42")) == -1, "a mark has no ttl"
    decoding = guard_of(side, any_redis.url, decode_responses=True)
    assert side.call(decoding.write, MINE, ("GETDEL", "total")) == ["10"]


def test_the_mark_is_in_the_slot_of_its_resource() -> None:
    for resource in ("orders:42", "{a}b", "{}", "x{y", "ä"):
        assert slot_of(mark_key(resource).encode()) == slot_of(resource.encode())
    assert mark_key("orders:42") == f"fencing:1:{{{tag_of('orders:42')}}}:mark:orders:42"


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (("GET", "total"), ValueError, "script"),
        (("FLUSHALL",), ValueError, "no command for this"),
        (("EVAL", "return 1", 0), ValueError, "script"),
        (("SET",), ValueError, "needs a key"),
        (("SET", "orders:42", 1), ValueError, "the key of the lock itself"),
        (("SET", "fencing:1:{0}:mark:orders:42", 1), ValueError, "the library's"),
        (("DEL", "total", b"fencing:1:{0}:counter"), ValueError, "the library's"),
        (("SET", "total", None), TypeError, "convert it first"),
        (("SET", "total", True), TypeError, "convert it first"),
        ("SET total 1", TypeError, "a tuple"),
        ((), TypeError, "a tuple"),
        (("RPUSH", "list", *range(5_000)), ValueError, "split it"),
    ],
    ids=str,
)
def test_a_command_that_is_refused_writes_nothing(
    side: Side, any_redis: RedisServer, command: Any, error: type[Exception], text: str
) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)
    assert text in str(side.expect(error, guard.write, MINE, SET_1, command))
    assert value(any_redis) is None
    assert side.call(guard.mark, "orders:42").seq == 0


def test_a_command_that_fails_leaves_the_earlier_ones_done(side: Side, any_redis: RedisServer) -> None:
    """Redis has no rollback: the error says so, and the write counts."""
    guard = guard_of(side, any_redis.url)
    any_redis.client().rpush("list", 1)
    side.call(guard.claim, MINE)
    failed = side.expect(redis.ResponseError, guard.write, MINE, ("INCR", "list"), SET_1)
    assert "command 1 failed: WRONGTYPE" in str(failed)
    assert "nothing was done before it" in str(failed)
    failed = side.expect(redis.ResponseError, guard.write, MINE, SET_1, ("INCR", "list"), ("SET", "last", 1))
    assert "command 2 failed: WRONGTYPE" in str(failed)
    assert "what was done before it stays done" in str(failed)
    assert (value(any_redis), value(any_redis, "last")) == (b"1", None)
    side.call(guard.write, MINE, SET_2)
    assert side.call(guard.mark, "orders:42").seq == 3


def test_lua_of_the_callers_own(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    lua = "redis.call('SET', KEYS[1], ARGV[1] + 1); return {KEYS[1], #ARGV}"
    arguments = {"keys": ["total"], "args": [4]}
    assert side.call(guard.script, MINE, lua, **arguments, claim=True) == [b"total", 1]
    assert value(any_redis) == b"5"
    assert side.call(guard.script, MINE, "redis.call('INCR', KEYS[1])", keys=["total"]) is None
    side.call(guard.claim, NEWER)
    side.expect(StaleFence, guard.script, MINE, lua, **arguments)
    assert value(any_redis) == b"6"


def test_lua_that_fails(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)
    side.expect(ValueError, guard.script, MINE, "this is no Lua")
    assert side.call(guard.mark, "orders:42").seq == 0
    failing = "redis.call('SET', KEYS[1], 1); redis.call('INCR', KEYS[2])"
    any_redis.client().rpush("list", 1)
    said = side.expect(redis.ResponseError, guard.script, MINE, failing, keys=["total", "list"])
    assert "WRONGTYPE" in str(said)
    assert "stays done" in str(said)
    assert value(any_redis) == b"1"
    said = side.expect(redis.ResponseError, guard.script, MINE, "return redis.error_reply('SORRY no')")
    assert "SORRY no" in str(said)
    side.expect(TypeError, guard.script, MINE, "return 1", keys="total")
    side.expect(ValueError, guard.script, MINE, "return 1", keys=["orders:42"])


def test_a_reply_that_is_no_text_stays_bytes(side: Side, any_redis: RedisServer) -> None:
    """Of a client that decodes replies. The write was acknowledged, so its outcome is known."""
    guard = guard_of(side, any_redis.url, decode_responses=True)
    assert side.call(guard.write, MINE, ("SET", "photo", b"\xff\xd8"), claim=True) == ["OK"]
    written = side.call(guard.write, MINE, ("SET", "total", 1, "GET"), ("SET", "photo", "text", "GET"))
    assert written == [None, b"\xff\xd8"]
    lua = "redis.call('SET', KEYS[1], ARGV[1]); return {ARGV[1], 'text'}"
    assert side.call(guard.script, MINE, lua, keys=["photo"], args=[b"\xff\xd9"]) == [b"\xff\xd9", "text"]
    assert value(any_redis, "photo") == b"\xff\xd9"


@pytest.mark.thorough
def test_a_claim_of_thousands_of_fences(side: Side, any_redis: RedisServer) -> None:
    """All of them or none: the answer of the script must not fail once the marks are raised."""
    guard = guard_of(side, any_redis.url)
    fences = [Fence(f"r{number}", 5, "a" * 22) for number in range(8_000)]
    side.call(guard.claim, *fences)
    assert side.call(guard.mark, "r7999").is_of(fences[-1])


# Blocks


def test_a_block_whose_data_changed_under_the_same_fence(side: Side, any_redis: RedisServer) -> None:
    guard, second = guard_of(side, any_redis.url), RedisGuard(any_redis.client())
    side.call(guard.claim, MINE)

    def work(transaction: Any, _: Any) -> None:
        second.write(MINE, SET_1)
        transaction.write("SET", "total", 3)

    with pytest.raises(StaleRead):
        in_block(side, guard, MINE, work=work)
    assert value(any_redis) == b"1"


def test_a_newer_claim_ends_a_block_that_only_reads(side: Side, any_redis: RedisServer) -> None:
    """So what it has read belongs together."""
    guard, second = guard_of(side, any_redis.url), RedisGuard(any_redis.client())
    with pytest.raises(StaleFence):
        in_block(side, guard, MINE, work=lambda *_: second.claim(NEWER), claim=True)


def test_a_block_of_two_resources(side: Side, any_redis: RedisServer) -> None:
    guard, second = guard_of(side, any_redis.url), RedisGuard(any_redis.client())
    side.call(guard.claim, MINE, OTHER)

    def transfer(transaction: Any, _: Any) -> None:
        transaction.write("DECRBY", "total", 5)
        transaction.write("INCRBY", "other", 5)

    in_block(side, guard, MINE, OTHER, work=transfer)
    assert (value(any_redis), value(any_redis, "other")) == (b"-5", b"5")
    assert side.call(guard.mark, "orders:43").seq == 1
    second.claim(Fence("orders:43", 6, "d" * 22))
    with pytest.raises(StaleFence):
        in_block(side, guard, MINE, OTHER, work=transfer)
    assert (value(any_redis), value(any_redis, "other")) == (b"-5", b"5")
    assert side.call(guard.mark, "orders:42").seq == 1


def test_what_a_block_reads_and_refuses(any_redis: RedisServer) -> None:
    guard = RedisGuard(any_redis.client())
    with guard.begin(MINE, claim=True) as transaction:
        transaction.write("SET", "total", 1)
        assert transaction.read("GET", "total") is None, "writes come at the end"
        assert transaction.read("MGET", "total", "x") == [None, None]
        with pytest.raises(ValueError, match="no command for this"):
            transaction.read("SET", "total", 2)
        with pytest.raises(ValueError, match="library's"):
            transaction.write("SET", "fencing:x", 2)
    assert value(any_redis) == b"1"
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"), guard.begin(MINE) as transaction:
        transaction.read("LLEN", "total")
    with pytest.raises(RuntimeError):
        transaction.write("SET", "total", 2)


# Replies that are lost, and requests that come late


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_write_is_decided_by_its_id(side: Side, any_redis: RedisServer, proxy: ProxyFactory, lost: str) -> None:
    through = proxy(any_redis)
    guard = guard_of(side, through.url(any_redis.url))
    side.call(guard.write, MINE, ("SET", "total", 0), claim=True)
    lose = through.drop_reply_when if lost == "reply" else through.drop_request_when
    lose(lambda request: asks_for(WRITE, request))
    unknown = side.expect(OutcomeUnknown, guard.write, MINE, SET_1)
    assert unknown.seq == 2
    assert side.call(guard.landed, unknown) is (lost == "reply")
    assert value(any_redis) == (b"1" if lost == "reply" else b"0")
    side.call(guard.write, MINE, SET_2)
    assert side.call(guard.landed, unknown) is (lost == "reply")
    for _ in range(16):
        side.call(guard.write, MINE, SET_2)
    assert side.call(guard.landed, unknown) is None, "16 writes later it is forgotten"


@pytest.mark.thorough
@pytest.mark.parametrize("asks", [True, False], ids=["landed was asked", "the next write came first"])
def test_a_write_that_arrives_late_is_refused(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, asks: bool
) -> None:
    """It has timed out. ``landed`` said that it never will land, or the holder has written again."""
    slow = proxy(any_redis)
    guard = guard_of(side, slow.url(any_redis.url), timeout=1.0)
    direct = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)
    slow.silence()
    unknown = side.expect(OutcomeUnknown, guard.write, MINE, SET_1)
    if asks:
        assert side.call(direct.landed, unknown) is False
    else:
        side.call(direct.write, MINE, SET_2)
    slow.restore()
    side.wait_until(lambda: slow.connections == 0)
    assert value(any_redis) == (None if asks else b"2"), "the late write was refused"
    assert side.call(direct.landed, unknown) is False


def test_a_lost_claim_is_repeated(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    guard = guard_of(side, through.url(any_redis.url))
    loss = through.drop_reply_when(lambda request: asks_for(CLAIM, request))
    side.call(guard.claim, MINE)
    assert loss.fired == 1


def test_a_task_that_is_cancelled_during_a_write(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)

    async def main() -> None:
        guard = AsyncRedisGuard(redis.asyncio.Redis.from_url(through.url(any_redis.url)))
        await guard.write(MINE, SET_2, claim=True)  # so that the server knows the script
        held = through.hold_reply_when(lambda request: asks_for(WRITE, request))
        task = asyncio.create_task(guard.write(MINE, SET_1))
        await asyncio.to_thread(held.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        unknown = cancelled.value.__cause__
        assert isinstance(unknown, OutcomeUnknown)
        assert await AsyncRedisGuard(redis.asyncio.Redis.from_url(any_redis.url)).landed(unknown) is True

    asyncio.run(main())


@pytest.mark.thorough
def test_a_server_that_is_silent_or_away(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    guard = guard_of(side, through.url(any_redis.url), timeout=1.0)
    through.refuse()
    started = time.monotonic()
    assert "; nothing was claimed; retry" in str(side.expect(GuardUnavailable, guard.claim, MINE))
    side.expect(GuardUnavailable, guard.write, MINE, SET_1)
    through.restore()
    side.call(guard.claim, MINE)  # connected now
    through.silence()
    assert "; a claim may have happened; retry" in str(side.expect(GuardUnavailable, guard.claim, MINE))
    side.expect(GuardUnavailable, guard.mark, "orders:42")
    assert time.monotonic() - started < 10
    through.restore()


@pytest.mark.parametrize("change", ["newer claim", "lost mark", "write"])
def test_a_block_reads_only_where_its_marks_are(any_redis: RedisServer, change: str) -> None:
    """A connection may lead to a former primary: what it has is not what the block has claimed."""
    client = any_redis.client()
    guard, direct = RedisGuard(client), RedisGuard(client)
    guard.write(MINE, SET_1, claim=True)
    error = {"newer claim": StaleFence, "lost mark": UnclaimedFence, "write": StaleRead}[change]
    with pytest.raises(error), guard.begin(MINE) as transaction:  # noqa: PT012 - the block is meant
        assert transaction.read("GET", "total") == b"1"
        if change == "newer claim":
            direct.claim(NEWER)
        elif change == "lost mark":
            client.delete(mark_key(MINE.resource))
        else:
            direct.write(MINE, SET_2)
        transaction.read("GET", "total")
        pytest.fail("the read was answered")


def test_a_lost_write_that_lands_after_a_read_is_no_state_to_write_over(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    through = proxy(any_redis)
    guard = guard_of(side, through.url(any_redis.url))
    side.call(guard.write, MINE, ("SET", "total", 0), claim=True)
    through.drop_reply_when(lambda request: asks_for(WRITE, request))
    side.expect(OutcomeUnknown, guard.write, MINE, SET_1)
    side.expect(StaleRead, guard.write, MINE, SET_2)
    assert value(any_redis) == b"1"
    side.call(guard.write, MINE, SET_2)  # it has been told


def test_a_write_of_the_guard_inside_its_own_block(side: Side, any_redis: RedisServer) -> None:
    """The block is refused, and told that it was its own doing."""
    guard = guard_of(side, any_redis.url)
    direct = RedisGuard(any_redis.client())
    side.call(guard.claim, MINE)
    for writer, is_own in ((direct, False), (guard, True)):
        if side.asynchronous and is_own:
            continue  # the sync guard shows it: the text is made by a plan

        def work(transaction: Any, _: Any, writer: Any = writer) -> None:
            transaction.write("SET", "total", 2)
            writer.write(MINE, SET_1)

        with pytest.raises(StaleRead) as refused:
            in_block(side, guard, MINE, work=work)
        assert ("write with the transaction" in str(refused.value)) is is_own
    assert value(any_redis) == b"1"


def test_a_transaction_takes_the_parts_of_a_command(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)

    def work(transaction: Any, _: Any) -> None:
        for command in ((SET_1,), ([SET_1],), ()):
            with pytest.raises(TypeError, match=r"such as write\('SET', key, value\)"):
                transaction.write(*command)
        transaction.write(*SET_2)

    in_block(side, guard, MINE, work=work)
    assert value(any_redis) == b"2"
