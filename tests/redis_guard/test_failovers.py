"""A failover of Redis: it loses marks and data together, and a former primary cannot know what its successor has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fencing import (
    Fence,
    OutcomeUnknown,
    UnclaimedFence,
)
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.redis.scripts import WRITE
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_guards import guard_of
from tests.support.redis_requests import asks_for
from tests.support.sides import Side

MINE = Fence("orders:42", 5, "a" * 22)
NEWER = Fence("orders:42", 6, "b" * 22)
OTHER = Fence("orders:43", 5, "c" * 22)
SET_1, SET_2 = ("SET", "total", 1), ("SET", "total", 2)


@dataclass(eq=False)
class Holder:
    """What guards need of a lease."""

    fence: Fence


class Pair:
    """A primary and its replica, which has all data so far, and an address that leads to one of them."""

    def __init__(self, side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory) -> None:
        self.servers = primary, replica = fresh_redis(), fresh_redis()
        self.first, self.second = primary.client(), replica.client()
        self.first.config_set("repl-diskless-sync-delay", 0)
        self.second.replicaof(primary.host, primary.port)
        side.wait_until(lambda: self.second.info("replication")["master_link_status"] == "up")
        self.through = proxy(primary)
        self.url = self.through.url(primary.url)

    def promote(self) -> None:
        """Promote the replica when it has all. The old primary does not know it."""
        self.first.set("last", 1)  # WAIT is for the writes of its own connection, and those before them
        assert self.first.wait(1, 5000) == 1
        self.second.replicaof("NO", "ONE")

    def lead_to(self, which: int, side: Side, guard: Any) -> None:
        self.through.retarget(self.servers[which])
        self.through.cut()
        side.call(guard.mark, "orders:42")  # on a new connection: a write must not meet the broken one


def test_a_failover_to_a_replica_that_lags(side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory) -> None:
    """The promoted replica lacks an acknowledged write. Its holder is refused; the next one goes on from there."""
    pair = Pair(side, fresh_redis, proxy)
    guard = guard_of(side, pair.url)
    side.call(guard.write, MINE, SET_1, claim=True)
    pair.promote()
    side.call(guard.write, MINE, SET_2)
    pair.lead_to(1, side, guard)
    assert side.call(guard.mark, "orders:42").seq == 1, "on a new connection, to the replica"
    lost = side.expect(UnclaimedFence, guard.write, MINE, ("SET", "total", 3))
    assert lost.acknowledged == 2
    side.expect(UnclaimedFence, guard.claim, MINE)
    assert pair.second.get("total") == b"1", "mark and data have gone back together"
    side.call(guard.claim, NEWER)
    side.call(guard.write, NEWER, ("INCRBY", "total", 10))
    assert pair.second.get("total") == b"11"


def test_another_guard_knows_what_was_acknowledged_to_a_lease(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory
) -> None:
    """Its own first write under the lease is refused, if Redis has lost a write of the first guard."""
    pair = Pair(side, fresh_redis, proxy)
    client = side.client(pair.url)
    first, second = ((AsyncRedisGuard if side.asynchronous else RedisGuard)(client) for _ in range(2))
    holder = Holder(MINE)
    side.call(first.write, holder, SET_1, claim=True)
    pair.promote()
    side.call(first.write, holder, SET_2)
    pair.lead_to(1, side, first)
    assert side.expect(UnclaimedFence, second.write, holder, ("SET", "total", 3)).acknowledged == 2
    assert pair.second.get("total") == b"1"


@pytest.mark.parametrize("landed", [True, False])
def test_a_former_primary_does_not_say_that_a_write_never_lands(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory, landed: bool
) -> None:
    """It has the state that the write expects. Its successor may have accepted the write all the same."""
    pair = Pair(side, fresh_redis, proxy)
    guard = guard_of(side, pair.url)
    side.call(guard.write, MINE, SET_1, claim=True)
    pair.promote()
    pair.lead_to(1, side, guard)
    history = pair.second.info("replication")["master_replid"].encode()
    lose = pair.through.drop_reply_when if landed else pair.through.drop_request_when
    lose(lambda request: asks_for(WRITE, request) and history in request)
    unknown = side.expect(OutcomeUnknown, guard.write, MINE, SET_2)
    assert pair.second.get("total") == (b"2" if landed else b"1")
    pair.lead_to(0, side, guard)
    assert side.call(guard.landed, unknown) is None, "the former primary cannot know"
    pair.lead_to(1, side, guard)
    assert side.call(guard.landed, unknown) is landed


def test_a_promoted_replica_decides_about_a_write_to_its_primary(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory
) -> None:
    """It continues the primary's history. A write that it lacks is not in the data, and never will be."""
    pair = Pair(side, fresh_redis, proxy)
    guard = guard_of(side, pair.url)
    side.call(guard.write, MINE, SET_1, claim=True)
    pair.promote()
    pair.through.drop_request_when(lambda request: asks_for(WRITE, request))
    unknown = side.expect(OutcomeUnknown, guard.write, MINE, SET_2)
    pair.lead_to(1, side, guard)
    assert side.call(guard.landed, unknown) is False
    side.call(guard.write, MINE, SET_2)
    assert pair.second.get("total") == b"2"
