"""The guard on a small Redis Cluster: one node with all slots, and two nodes between which a slot moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer, ServerError, start_redis
from fencing import Fence, GuardNotEnforceable, StaleFence
from fencing.redis.keys import slot_of, tag_of
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.testing import GuardContract
from tests.support import wait_until
from tests.support.redis_guards import guard_of, in_block
from tests.support.sides import Side

# Clients of a Cluster complain where a test does not close them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

MINE, OTHER = Fence("orders:42", 5, "a" * 22), Fence("orders:43", 5, "c" * 22)
KEY = f"{{{tag_of('orders:42')}}}total"
ENABLED = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")


def node() -> RedisServer:
    try:
        return start_redis(extra_args=ENABLED, own=True)
    except ServerError as error:
        if error.log:
            raise
        pytest.skip(f"redis: {error}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisServer]:
    with node() as server:
        client: Any = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        yield server


@pytest.fixture
def empty_cluster(cluster: RedisServer) -> RedisServer:
    cluster.client().flushall()
    return cluster


def test_keys_in_other_slots_are_refused(side: Side, empty_cluster: RedisServer) -> None:
    guard = guard_of(side, empty_cluster.url, cluster=True)
    side.call(guard.write, MINE, ("SET", KEY, 1), claim=True)
    refused = side.expect(ValueError, guard.write, MINE, ("SET", KEY, 2), ("SET", "total", 2))
    assert f"'{{{tag_of('orders:42')}}}'" in str(refused)
    side.expect(ValueError, guard.script, MINE, "return 1", keys=["total"])
    side.call(guard.claim, MINE, OTHER)  # resources in different slots: one after the other
    assert side.call(guard.mark, "orders:43").number == 5
    with pytest.raises(ValueError, match="one slot"):
        in_block(side, guard, MINE, OTHER, work=lambda *_: None)
    with redis.RedisCluster.from_url(empty_cluster.url) as direct:
        assert direct.get(KEY) == b"1"
        assert direct.get("total") is None


def test_a_plain_client_of_a_node(side: Side, empty_cluster: RedisServer) -> None:
    """It works as long as the node has the slots; keys of several slots are refused by the node."""
    guard = guard_of(side, empty_cluster.url)
    side.call(guard.claim, MINE)
    side.expect(GuardNotEnforceable, guard.write, MINE, ("SET", "total", 1))
    side.call(guard.write, MINE, ("SET", KEY, 1))


@pytest.mark.thorough
def test_a_slot_that_moves_takes_mark_and_data_along(side: Side) -> None:
    with node() as first, node() as second:
        a: Any = first.client()
        b: Any = second.client()
        port = b.connection_pool.connection_kwargs["port"]
        a.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        b.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        a.execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        for client in (a, b):
            wait_until(lambda client=client: client.cluster("INFO")["cluster_known_nodes"] == "2")  # type: ignore[misc]
            wait_until(lambda client=client: client.cluster("INFO")["cluster_state"] == "ok")  # type: ignore[misc]
        guard = guard_of(side, first.url, cluster=True)
        side.call(guard.write, MINE, ("SET", KEY, 1), claim=True)
        slot, of_a, of_b = slot_of(b"orders:42"), a.cluster("MYID").decode(), b.cluster("MYID").decode()
        b.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", of_a)
        a.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", of_b)
        for key in a.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            a.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
        for client in (b, a):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", of_b)
        side.call(guard.write, MINE, ("INCR", KEY))
        assert b.get(KEY) == b"2"
        side.call(guard.claim, Fence("orders:42", 6, "b" * 22))
        side.expect(StaleFence, guard.write, MINE, ("INCR", KEY))


@pytest.mark.thorough
class TestClusterGuard(GuardContract):
    @pytest.fixture(autouse=True)
    def _server(self, empty_cluster: RedisServer) -> None:
        self.url = empty_cluster.url
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
