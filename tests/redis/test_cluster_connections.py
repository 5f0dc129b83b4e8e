"""The connections to the nodes of a Redis Cluster: nodes that do not answer, forks, permissions, other libraries."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisCluster, RedisServer
from fencing import AsyncFencedLock, CoordinatorUnavailable, FencedLock, NotAcquired, RedisCoordinator
from fencing.kernel import lending
from fencing.redis.connection_factory import MAX_CONNECTIONS
from tests.support import wait_until
from tests.support.bursts import MANY, burst_until
from tests.support.fixtures import RedisClusters, newest_local_series
from tests.support.forks import in_child
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "redis.md"


def names_of(cluster: RedisCluster, server: RedisServer, count: int, other: bool = False) -> list[str]:
    """Return names whose primary is this server; `other`: is another one."""
    found: list[str] = []
    slots = {name: cluster.primary_of(name) for name in (f"orders:{number}" for number in range(40))}
    for name, primary in slots.items():
        if (primary is server) is not other:
            found.append(name)
    assert len(found) >= count
    return found[:count]


def test_a_lock_is_made_of_a_clusters_client(side: Side, redis_cluster: RedisCluster) -> None:
    client = side.cluster_client(redis_cluster)
    lock = (AsyncFencedLock if side.asynchronous else FencedLock)(client, "r", ttl=5)
    lease = side.call(lock.acquire, timeout=5)
    assert side.call(lock.holder).number == lease.fence.number
    assert "the Cluster of 127.0.0.1:" in repr(lock.coordinator)
    assert side.call(lease.release) is True
    side.call(lock.coordinator.close)


@pytest.mark.thorough
def test_a_frozen_node_does_not_delay_the_renewals_of_others(side: Side) -> None:
    with ExitStack() as stack:
        cluster = RedisClusters.start(stack, node_timeout_ms=30_000)  # so that no replica takes over
        coordinator = side.coordinator(side.cluster_client(cluster), ttl=1.5)
        frozen = cluster.primaries()[0]
        lost = [side.call(coordinator.acquire, name) for name in names_of(cluster, frozen, 5)]
        kept = [side.call(coordinator.acquire, name) for name in names_of(cluster, frozen, 5, other=True)]
        frozen.freeze()
        wait_until(lambda: not any(lease.held for lease in lost))
        time.sleep(3.0)
        assert all(lease.held for lease in kept)
        for lease in kept:
            side.call(lease.renew)
            assert side.call(lease.release) is True
        frozen.thaw()


@pytest.mark.thorough
def test_every_way_to_read_and_write(side: Side, redis_cluster: RedisCluster, way_to_redis: str) -> None:
    coordinator = side.coordinator(side.cluster_client(redis_cluster), ttl=3)
    names = [f"orders:{number}" for number in range(6)]
    leases = [side.call(coordinator.acquire, name) for name in names]
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, coordinator, timeout=20)
    is_refused = way_to_redis == "a class without sockets" and not side.asynchronous
    if not is_refused:
        Queue(redis_cluster).has(1)
    time.sleep(3.1)  # all were renewed
    assert all(lease.held for lease in leases), way_to_redis
    released_at = time.monotonic()
    side.call(holder.release)
    error = waiter.join().error
    if is_refused:  # one thread waits for all nodes, on their sockets
        assert isinstance(error, CoordinatorUnavailable)
        assert "has no socket to wait for" in str(error)
    else:
        assert error is None
        assert waiter.granted_at - released_at < 5, "without a message it takes a second"
    for lease in leases:
        assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_forked_child_has_its_own_connections(redis_cluster: RedisCluster) -> None:
    side = Side(asynchronous=False)
    coordinator = RedisCoordinator(redis_cluster.client(), ttl=10)
    holder = coordinator.acquire("r")
    waiter = Waiter(side, coordinator, timeout=20)
    Queue(redis_cluster).has(1)

    def child() -> None:
        with coordinator.hold("orders:1", timeout=5):
            pass
        assert coordinator.try_acquire("r") is None

    in_child(child)
    holder.release()
    assert waiter.join().error is None
    with coordinator.hold("orders:1", timeout=5):
        pass
    coordinator.close()


@pytest.mark.thorough
def test_the_permissions_of_the_page_are_enough(side: Side, redis_clusters: RedisClusters) -> None:
    [rule] = re.findall(r"^ACL SETUSER worker (on .*\+ssubscribe.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    cluster = redis_clusters.get(newest_local_series())
    cluster.flush()
    for server in cluster.servers:
        admin: Any = server.client()
        admin.execute_command("ACL", "SETUSER", "worker", "reset", *rule.split())
    try:
        client = side.cluster_client(cluster, username="worker", password="secret")
        coordinator = side.coordinator(client, ttl=3)
        leases = [side.call(coordinator.acquire, f"orders:{number}") for number in range(4)]
        holder = side.call(coordinator.acquire, "orders:r")
        waiting = side.coordinator(client)
        with pytest.raises(NotAcquired, match=r"orders:r"):
            side.call(waiting.acquire, "orders:r", timeout=0.3)
        time.sleep(1.2)  # they were renewed
        for lease in [*leases, holder]:
            assert side.call(lease.release) is True
    finally:
        for server in cluster.servers:
            admin = server.client()
            admin.execute_command("ACL", "DELUSER", "worker")


def test_a_renewal_waits_for_no_calls_that_have_all_connections(redis_cluster: RedisCluster) -> None:
    with RedisCoordinator(redis_cluster.client(), ttl=60) as coordinator:
        lease = coordinator.acquire("r")
        pools = [node._pool for node in coordinator._backend._connections._nodes.values()]
        lent = [(pool, pool.take(10)) for pool in pools for _ in range(MAX_CONNECTIONS)]
        for server in redis_cluster.primaries():
            server.client().script_flush()  # so that it is asked twice, the second time beside the others
        lease.renew()
        assert lease.release() is True
        for pool, connection in lent:
            pool.give_back(connection)


@pytest.mark.deep
def test_the_connections_of_a_burst_are_given_up(redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.1)
    side = Side(False)
    coordinator = side.coordinator(side.cluster_client(redis_cluster, client_name="app"))
    admins = [server.client() for server in redis_cluster.primaries()]

    def connections() -> list[int]:
        return [sum(each["name"] == "app" for each in admin.client_list(_type="normal")) for admin in admins]

    burst_until(side, coordinator, MANY, lambda: min(connections()) > 2)
    wait_until(lambda: max(connections()) <= 1)
    assert coordinator.acquire("r", timeout=60).release() is True
    coordinator.close()
