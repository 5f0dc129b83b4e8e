"""TLS: one Redis, a Redis Cluster, and a primary behind Sentinels. Only servers that have TLS: Redis 7 of Debian."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio.sentinel
import redis.sentinel

from examples.servers import RedisServer, ServerError, start_sentinels
from fencing import CoordinatorUnavailable
from tests.support import wait_until
from tests.support.fixtures import RedisClusters, RedisFactory, missing
from tests.support.sides import Side
from tests.support.tls import Tls
from tests.support.waiters import Queue, Waiter


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@pytest.fixture
def trusted(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> Tls:
    """The certificate, which clients with default settings trust: those of the servers' own set-up."""
    monkeypatch.setenv("SSL_CERT_FILE", tls.certificate)
    return tls


def use(side: Side, coordinator: Any) -> None:
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert lease.held
    side.call(lease.renew)
    assert side.call(lease.release) is True


def hand_over(side: Side, coordinator: Any, queue: Queue) -> None:
    holder = side.call(coordinator.acquire, "r", timeout=5)
    waiter = Waiter(side, coordinator, timeout=20)
    queue.has(1)
    side.call(holder.release)
    assert waiter.join().error is None


def is_replica(server: RedisServer) -> bool:
    try:
        return bool(server.client().role()[0] == b"slave")
    except redis.ConnectionError:  # a Sentinel ends all connections when it makes a replica of the server
        return False


@pytest.mark.thorough
def test_one_server(side: Side, fresh_redis: RedisFactory, tls: Tls) -> None:
    server = fresh_redis(version="7", extra_args=tls.arguments)
    use(side, side.coordinator(side.client(server.url, ssl_ca_certs=tls.certificate)))
    distrusting = side.coordinator(side.client(server.url), ttl=10)
    error = side.expect(CoordinatorUnavailable, distrusting.acquire, "r", timeout=1)
    assert "certificate verify failed" in str(error)


@pytest.mark.thorough
def test_a_cluster(side: Side, trusted: Tls) -> None:
    with ExitStack() as stack:
        arguments = (*trusted.arguments, "--tls-cluster", "yes", "--tls-replication", "yes")
        cluster = RedisClusters.start(stack, "7", replicas=0, extra_args=arguments)
        options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": trusted.certificate}
        coordinator = side.coordinator(side.cluster_client(cluster, **options), ttl=10)
        use(side, coordinator)
        leases = [side.call(coordinator.acquire, f"orders:{number}") for number in range(6)]
        assert len({cluster.primary_of(lease.fence.resource) for lease in leases}) > 1
        for lease in leases:
            assert side.call(lease.release) is True
        hand_over(side, coordinator, Queue(cluster, **options))


@pytest.mark.thorough
def test_a_primary_behind_sentinels(side: Side, trusted: Tls) -> None:
    arguments = (*trusted.arguments, "--tls-replication", "yes")
    try:
        servers = start_sentinels(version="7", replicas=1, extra_args=arguments, sentinel_args=arguments)
    except ServerError as error:
        if error.log:  # found, and did not start: that is a failure
            raise
        missing("redis-7", str(error))
    with servers:
        options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": trusted.certificate}
        module: Any = redis.asyncio.sentinel if side.asynchronous else redis.sentinel
        sentinel = module.Sentinel(servers.addresses, sentinel_kwargs=options, **options)
        coordinator = side.coordinator(sentinel.master_for(servers.service), ttl=30)
        former = servers.primary
        hand_over(side, coordinator, Queue(former))
        servers.fail_over()
        wait_until(lambda: is_replica(former))
        hand_over(side, coordinator, Queue(servers.primary))
        use(side, coordinator)
