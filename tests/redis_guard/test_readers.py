"""Marks that a later version has written: with readers, without a writer, or in another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import Fence, GuardNotEnforceable, Mark, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER
from storage_guards.redis.commands import mark_key
from storage_guards.redis.scripts import WRITE
from tests.support.fixtures import ProxyFactory
from tests.support.redis_guards import guard_of, in_block
from tests.support.redis_requests import asks_for
from tests.support.sides import Side

MINE, NEWER = Fence("orders:42", 5, "a" * 22), Fence("orders:42", 8, "b" * 22)
OTHER = Fence("orders:43", 5, "c" * 22)
KEY = mark_key("orders:42")
SET_1 = ("SET", "total", 1)


def set_mark(server: RedisServer, **fields: Any) -> None:
    client: Any = server.client()
    client.hset(KEY, mapping=fields)


def state(server: RedisServer) -> Any:
    return server.client().hgetall(KEY)


def test_a_claim_must_exceed_each_reader_and_keeps_their_number(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)
    set_mark(any_redis, readers=7)
    assert side.call(guard.mark, "orders:42") == Mark(5, MINE.token, 0, readers=7)
    before = state(any_redis)
    for late in (Fence("orders:42", 7, "d" * 22), Fence("orders:42", 6, "d" * 22), MINE):
        refused = side.expect(StaleFence, guard.claim, OTHER, late)
        assert refused.mark == Mark(5, MINE.token, 0, readers=7)
        assert "the newer reader 7 was admitted" in str(refused)
    assert state(any_redis) == before
    assert side.call(guard.mark, "orders:43") is None, "all or none"
    side.call(guard.claim, NEWER)
    side.call(guard.claim, NEWER)  # a lost reply
    side.call(guard.write, NEWER, SET_1)
    assert side.call(guard.mark, "orders:42") == Mark(8, NEWER.token, 1, readers=7)


def test_a_write_and_a_read_must_exceed_each_reader(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.write, MINE, ("SET", "total", 0), claim=True)
    set_mark(any_redis, readers=4)
    side.call(guard.write, MINE, ("INCR", "total"))
    set_mark(any_redis, readers=5)
    assert side.expect(StaleFence, guard.write, MINE, SET_1).mark == Mark(5, MINE.token, 2, readers=5)
    side.expect(StaleFence, guard.script, MINE, "redis.call('SET', 'total', 2)")
    with pytest.raises(StaleFence):
        in_block(side, guard, MINE, work=lambda *_: None)
    assert any_redis.client().get("total") == b"1"


def test_a_reader_that_comes_during_a_block_ends_it(any_redis: RedisServer) -> None:
    side = Side(False)
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)

    def work(transaction: Any, read: Callable[..., Any]) -> None:
        set_mark(any_redis, readers=6)
        read("GET", "total")
        pytest.fail("the read was answered")

    with pytest.raises(StaleFence):
        in_block(side, guard, MINE, work=work)


def test_numbers_are_compared_exactly(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    last, last_but_one = (Fence("orders:42", number, "d" * 22) for number in (MAX_NUMBER, MAX_NUMBER - 1))
    side.call(guard.claim, MINE)
    set_mark(any_redis, readers=MAX_NUMBER - 1)
    side.expect(StaleFence, guard.claim, last_but_one)
    side.call(guard.write, last, SET_1, claim=True)
    set_mark(any_redis, readers=MAX_NUMBER)
    side.expect(StaleFence, guard.write, last, SET_1)
    side.expect(StaleFence, guard.claim, last)


@pytest.mark.parametrize(("number", "readers", "floor"), [(0, 7, 7), (7, 3, 7), (7, None, 7), (0, None, 0)])
def test_a_mark_without_a_writer_is_none_and_must_be_exceeded(
    side: Side, any_redis: RedisServer, number: int, readers: int | None, floor: int
) -> None:
    guard = guard_of(side, any_redis.url)
    set_mark(
        any_redis, number=number, token="", seq=0, writes="w" * 12, **({} if readers is None else {"readers": readers})
    )
    before = state(any_redis)
    assert side.call(guard.mark, "orders:42") is None
    side.expect(UnclaimedFence, guard.write, NEWER, SET_1)
    if floor:
        refused = side.expect(StaleFence, guard.claim, Fence("orders:42", floor, "d" * 22))
        assert (refused.mark, refused.floor) == (None, floor)
    assert state(any_redis) == before
    side.call(guard.write, NEWER, SET_1, claim=True)
    assert side.call(guard.mark, "orders:42") == Mark(8, NEWER.token, 1, readers=readers or 0)


def test_readers_that_are_no_number_are_damage(side: Side, any_redis: RedisServer) -> None:
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)
    for damaged in ("", "x", MAX_NUMBER + 1):
        set_mark(any_redis, readers=damaged)
        before = state(any_redis)
        for call in (lambda: guard.claim(NEWER), lambda: guard.write(MINE, SET_1), lambda: guard.mark("orders:42")):
            assert "is damaged" in str(side.expect(GuardNotEnforceable, call))
        assert state(any_redis) == before


DAMAGE = {
    "number": (None, "", "x", "nan", "-1", "1e3", " 5", "0" * 17),
    "token": (None, "x", "o" * 21, "o" * 21 + " "),
    "seq": (None, "", "x", "-1", "1" * 19, 2**63 - 1),
    "writes": (None, "", " ", " " + "a" * 12),
    "readers": ("nan", "-1", " 1", "1e3"),
}


def test_a_mark_that_is_damaged_is_refused_and_stays(side: Side, any_redis: RedisServer) -> None:
    guard, client = guard_of(side, any_redis.url), any_redis.client()
    side.call(guard.claim, MINE)
    whole: Any = client.hgetall(mark_key("orders:42"))
    for field, values in DAMAGE.items():
        for value in values:
            client.delete(mark_key("orders:42"))
            client.hset(mark_key("orders:42"), mapping=whole)
            if value is None:
                client.hdel(mark_key("orders:42"), field)
            else:
                client.hset(mark_key("orders:42"), field, value)
            before = state(any_redis)
            calls = [lambda: guard.claim(NEWER), lambda: guard.write(MINE, SET_1), lambda: guard.mark("orders:42")]
            if field in ("number", "readers"):
                calls.append(lambda: guard.claim(Fence("orders:42", 1, "o" * 22)))
            for call in calls:
                assert "is damaged" in str(side.expect(GuardNotEnforceable, call)), (field, value)
            assert state(any_redis) == before, (field, value)


# A newer version


def test_a_mark_of_a_newer_version_is_refused_and_stays(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    through = proxy(any_redis)
    guard = guard_of(side, through.url(any_redis.url))
    side.call(guard.write, MINE, ("SET", "total", 0), claim=True)
    through.drop_request_when(lambda request: asks_for(WRITE, request))
    unknown = side.expect(OutcomeUnknown, guard.write, MINE, SET_1)
    set_mark(any_redis, version="1")
    side.call(guard.claim, MINE)
    set_mark(any_redis, version="2")
    before = state(any_redis)
    for call in (
        lambda: guard.claim(MINE),
        lambda: guard.claim(OTHER, NEWER),
        lambda: guard.write(MINE, SET_1),
        lambda: guard.script(MINE, "redis.call('SET', 'total', 2)"),
        lambda: guard.landed(unknown),
        lambda: guard.mark("orders:42"),
    ):
        refused = str(side.expect(GuardNotEnforceable, call))
        assert "'orders:42' was written by a newer version of this library" in refused
        assert "upgrade this program" in refused
    with pytest.raises(GuardNotEnforceable, match="newer version"):
        in_block(side, guard, MINE, work=lambda *_: None)
    assert state(any_redis) == before
    assert any_redis.client().get("total") == b"0"
    assert side.call(guard.mark, "orders:43") is None


def test_a_program_that_is_newer_takes_a_mark_during_a_block(any_redis: RedisServer) -> None:
    side = Side(False)
    guard = guard_of(side, any_redis.url)
    side.call(guard.claim, MINE)

    def work(transaction: Any, read: Callable[..., Any]) -> None:
        transaction.write(*SET_1)
        set_mark(any_redis, version="2")
        with pytest.raises(GuardNotEnforceable, match="newer version"):
            read("GET", "total")

    with pytest.raises(GuardNotEnforceable, match="newer version"):
        in_block(side, guard, MINE, work=work)
    assert any_redis.client().get("total") is None
