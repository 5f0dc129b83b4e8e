"""Locks that are made from a client of kazoo, with the coordinator that all locks of the client share."""

from __future__ import annotations

from kazoo.client import KazooClient

from examples.servers import ZooKeeperServer
from fencing import AsyncFencedLock, FencedLock, ZooKeeperCoordinator
from fencing.kernel.fence import new_token
from tests.support.zookeeper import ZooKeeperSide


def test_a_lock_of_a_client(side: ZooKeeperSide, zookeeper_server: ZooKeeperServer) -> None:
    client, resource = KazooClient(zookeeper_server.hosts, timeout=7), f"clients/{new_token()}"
    kind = AsyncFencedLock if side.asynchronous else FencedLock
    lock = kind(client, resource)
    lease = side.call(lock.acquire, timeout=10)
    other = kind(client, resource)
    assert other.coordinator is lock.coordinator
    assert 0.5 * 7 < lease.remaining() <= 7
    assert not client.connected
    with ZooKeeperCoordinator(KazooClient(zookeeper_server.hosts)) as another:
        assert another.try_acquire(resource) is None
    assert side.call(other.try_acquire) is None
    assert side.call(lease.release)
    newer = side.call(other.acquire, timeout=10)
    assert newer.fence.number > lease.fence.number
    assert side.call(newer.release)
    side.call(lock.coordinator.close)
