"""The guard on a small Redis Cluster: slots that move, a node that is silent, a slot that no node has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisCluster, RedisServer
from fencing import AlreadyDone, Fence, GuardNotEnforceable, GuardUnavailable, StaleFence
from fencing.redis.cluster import topology
from fencing.redis.keys import slot_of, tag_of
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.redis.commands import done_key, mark_key
from storage_guards.testing import GuardContract
from tests.support import wait_until
from tests.support.fixtures import RedisClusters
from tests.support.redis_guards import guard_of, in_block
from tests.support.sides import Side

# Clients of a Cluster complain where a test does not close them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

MINE, OTHER = Fence("orders:42", 5, "a" * 22), Fence("orders:43", 5, "c" * 22)
NEWER = Fence("orders:42", 6, "b" * 22)
SLOT = slot_of(b"orders:42")
KEY = f"{{{tag_of('orders:42')}}}total"


@pytest.fixture(scope="session")
def small_cluster() -> Iterator[RedisCluster]:
    with ExitStack() as stack:
        # A frozen node stays a member, and a slot that nobody has does not stop the others.
        options = ("--cluster-require-full-coverage", "no")
        yield RedisClusters.start(stack, primaries=2, replicas=0, node_timeout_ms=30_000, extra_args=options)


@pytest.fixture
def cluster(small_cluster: RedisCluster) -> RedisCluster:
    small_cluster.flush()
    return small_cluster


def other_primary(cluster: RedisCluster) -> RedisServer:
    mine = cluster.primary_of_slot(SLOT)
    return next(server for server in cluster.servers if server is not mine)


@pytest.mark.thorough
def test_keys_in_other_slots_are_refused(side: Side, cluster: RedisCluster) -> None:
    guard = guard_of(side, cluster.servers[0].url, cluster=True)
    side.call(guard.write, MINE, ("SET", KEY, 1), claim=True)
    refused = side.expect(ValueError, guard.write, MINE, ("SET", KEY, 2), ("SET", "total", 2))
    assert f"'{{{tag_of('orders:42')}}}'" in str(refused)
    side.expect(ValueError, guard.script, MINE, "return 1", keys=["total"])
    side.call(guard.claim, MINE, OTHER)  # resources in different slots: one after the other
    assert side.call(guard.mark, "orders:43").number == 5
    with pytest.raises(ValueError, match="one slot"):
        in_block(side, guard, MINE, OTHER, work=lambda *_: None)
    with redis.RedisCluster.from_url(cluster.servers[0].url) as direct:
        assert direct.get(KEY) == b"1"
        assert direct.get("total") is None


@pytest.mark.thorough
def test_what_was_done_once_is_in_the_slot(side: Side, cluster: RedisCluster) -> None:
    guard = guard_of(side, cluster.servers[0].url, cluster=True)
    side.call(guard.write, MINE, ("SET", KEY, 1), claim=True, once="a")
    side.expect(AlreadyDone, guard.write, MINE, ("SET", KEY, 2), once="a")
    in_block(side, guard, MINE, once="b", work=lambda transaction, _: transaction.write("SET", KEY, 3))
    with pytest.raises(AlreadyDone):
        in_block(side, guard, MINE, once="b", work=lambda *_: pytest.fail("the block has run"))
    assert cluster.primary_of_slot(SLOT).client().hlen(done_key("orders:42")) == 2


def test_a_mark_without_a_writer_refuses_a_claim_of_several_slots(cluster: RedisCluster) -> None:
    """They are checked first, and then claimed one after the other: nothing is claimed."""
    guard = guard_of(Side(False), cluster.servers[0].url, cluster=True)
    client: Any = cluster.primary_of_slot(slot_of(b"orders:43")).client()
    mark = {"number": 5, "token": "", "seq": 0, "writes": "w" * 12, "readers": 3}
    client.hset(mark_key("orders:43"), mapping=mark)
    with pytest.raises(StaleFence) as refused:
        guard.claim(MINE, OTHER)
    assert (refused.value.mark, refused.value.floor) == (None, 5)
    assert guard.mark("orders:42") is None
    guard.claim(MINE, Fence("orders:43", 6, "d" * 22))
    assert guard.mark("orders:43").readers == 3


def test_a_plain_client_of_a_node(side: Side, cluster: RedisCluster) -> None:
    """It works as long as the node has the slots; keys of other slots are refused by the node."""
    guard = guard_of(side, cluster.primary_of_slot(SLOT).url)
    side.call(guard.claim, MINE)
    side.expect(GuardNotEnforceable, guard.write, MINE, ("SET", "total", 1))
    side.call(guard.write, MINE, ("SET", KEY, 1))
    elsewhere = guard_of(side, other_primary(cluster).url)
    assert "pass a redis.RedisCluster" in str(side.expect(GuardNotEnforceable, elsewhere.claim, NEWER))


@pytest.mark.thorough
def test_a_slot_that_moves_takes_mark_and_data_along(side: Side, cluster: RedisCluster) -> None:
    """While it moves, a key that has moved is found by ASK. So the guard works before, during and after the move."""
    guard = guard_of(side, cluster.servers[0].url, cluster=True)
    side.call(guard.write, MINE, ("SET", KEY, 1), claim=True)
    source, target = cluster.primary_of_slot(SLOT), other_primary(cluster)
    asked = []

    def between() -> None:
        if not source.client().dbsize():  # all keys have moved, the slot has not: the source answers ASK
            asked.append(side.call(guard.write, MINE, ("INCR", KEY)))
            side.call(guard.claim, NEWER)

    cluster.move_slot(SLOT, target, between=between)
    assert asked == [[2]]
    side.call(guard.write, NEWER, ("INCR", KEY))
    side.expect(StaleFence, guard.write, MINE, ("INCR", KEY))
    direct: Any = target.client()
    assert direct.get(KEY) == b"3"


@pytest.mark.thorough
def test_no_wait_is_longer_than_the_time_out(side: Side, cluster: RedisCluster) -> None:
    """Also where the client itself would wait for ever: its socket_timeout is None."""
    guard = guard_of(side, cluster.servers[0].url, cluster=True, timeout=1.0, socket_timeout=None)
    side.call(guard.claim, MINE)
    silent = cluster.primary_of_slot(SLOT)
    silent.freeze()
    try:
        started = time.monotonic()
        side.expect(GuardUnavailable, guard.claim, NEWER)
        side.expect(GuardUnavailable, guard.mark, "orders:42")
        assert time.monotonic() - started < 20
    finally:
        silent.thaw()
    side.call(guard_of(side, cluster.servers[0].url, cluster=True).claim, NEWER)


@pytest.mark.thorough
def test_the_search_for_a_primary_is_part_of_the_time_out(side: Side, cluster: RedisCluster) -> None:
    guard = guard_of(side, cluster.servers[0].url, cluster=True, timeout=1.0)
    side.call(guard.write, MINE, ("SET", KEY, 1), claim=True)
    wait_until(lambda: time.monotonic() - guard._connections.topology._asked_at > 1)  # so that it asks again
    guard._connections.topology.is_stale = True
    for server in cluster.servers:
        server.freeze()
    try:
        # Were there time left after the search, the write would be sent, and its outcome unknown.
        side.expect(GuardUnavailable, guard.write, MINE, ("SET", KEY, 2))
    finally:
        for server in cluster.servers:
            server.thaw()
    assert cluster.client().get(KEY) == b"1"


@pytest.mark.parametrize("known", [pytest.param("to all", marks=pytest.mark.thorough), "to its owner alone"])
def test_a_slot_that_no_node_has(
    side: Side, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """A slot may be without a node for a moment, as it moves. If it stays so, an operator must mend it.

    Nodes may learn again from a late message that the former owner has it.
    """
    guard = guard_of(side, cluster.servers[0].url, cluster=True, timeout=2.0)
    patient = guard_of(side, cluster.servers[0].url, cluster=True, timeout=60.0)
    for each in (guard, patient):
        side.call(each.claim, MINE)
    owner: Any = cluster.primary_of_slot(SLOT).client()
    admins: list[Any] = [server.client() for server in cluster.servers]
    for admin in admins if known == "to all" else [owner]:
        admin.execute_command("CLUSTER", "DELSLOTS", SLOT)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(topology, "FAULT_SECONDS", 600.0)
            said = str(side.expect(GuardUnavailable, guard.claim, NEWER))
        assert "Hash slot not served" in said or f"no node has slot {SLOT}" in said
        assert "run redis-cli --cluster fix" in str(side.expect(GuardNotEnforceable, patient.claim, NEWER))
    finally:
        owner.execute_command("CLUSTER", "ADDSLOTS", SLOT)
        cluster.wait_until_ready()


@pytest.mark.thorough
class TestClusterGuard(GuardContract):
    @pytest.fixture(autouse=True)
    def _server(self, cluster: RedisCluster) -> None:
        self.url = cluster.servers[0].url
        self.direct: Any = redis.RedisCluster.from_url(self.url)

    @staticmethod
    def key(resource: str) -> str:
        return f"{{{tag_of(resource)}}}data:{resource}"

    def make(self) -> Any:
        return RedisGuard(redis.RedisCluster.from_url(self.url))

    def read(self, resource: str) -> int:
        return int(self.direct.get(self.key(resource)) or 0)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        return self.guard.write(fence, ("SET", self.key(resource), value), **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        self.direct.set(self.key(resource), value)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with self.guard.begin(fence, **options) as transaction:
            value = int(transaction.read("GET", self.key(resource)) or 0)
            between()
            transaction.write("SET", self.key(resource), value + 1)


@pytest.mark.thorough
class TestAsyncClusterGuard(TestClusterGuard):
    def make(self) -> Any:
        return AsyncRedisGuard(redis.asyncio.RedisCluster.from_url(self.url))

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as transaction:
            value = int(await transaction.read("GET", self.key(resource)) or 0)
            await asyncio.to_thread(between)
            transaction.write("SET", self.key(resource), value + 1)
