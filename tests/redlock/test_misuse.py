"""What is wrong with the nodes or their settings is said in one sentence, at construction or at the first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from fencing import AsyncRedlockCoordinator, CoordinatorUnavailable, FencedLock, RedlockCoordinator
from fencing.redis.keys import keys_of
from tests.support.fixtures import RedisFactory
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.sides import Side
from tests.support.tls import Tls


def make(side: Side, *ports: int, **options: Any) -> Any:
    kind: Any = AsyncRedlockCoordinator if side.asynchronous else RedlockCoordinator
    return kind([side.client(f"redis://127.0.0.1:{port}") for port in ports], **options)


def test_the_number_of_nodes_is_odd_and_at_least_three(side: Side) -> None:
    for count in (0, 1, 2, 4):
        error = side.expect(ValueError, make, side, *range(7001, 7001 + count))
        assert f"an odd number of nodes, at least 3, not {count}" in str(error)
        assert ("with one server, use RedisCoordinator" in str(error)) is (count < 3)


def test_each_server_is_named_once(side: Side) -> None:
    error = side.expect(ValueError, make, side, 7001, 7002, 7001)
    assert "clients 1 and 3 are of the same server, 127.0.0.1:7001" in str(error)


def test_clients_are_of_single_servers_and_of_the_right_kind(side: Side) -> None:
    kind: Any = AsyncRedlockCoordinator if side.asynchronous else RedlockCoordinator
    clients = [side.client(f"redis://127.0.0.1:{port}") for port in (7001, 7002, 7003)]
    sentinel = (AsyncSentinel if side.asynchronous else Sentinel)([("127.0.0.1", 7004)]).master_for("orders")
    cluster = object.__new__(redis.asyncio.RedisCluster if side.asynchronous else redis.RedisCluster)
    other = Side(not side.asynchronous).client("redis://127.0.0.1:7005")
    for wrong, said in (
        (sentinel, "client 3 is of a Sentinel; each node must be a single server"),
        (other, f"; use {'' if side.asynchronous else 'Async'}RedlockCoordinator"),
        ("redis://127.0.0.1", "client 3 must be a redis."),
        ("redis://127.0.0.1", "; make it with from_url()"),
    ):
        assert said in str(side.expect(TypeError, kind, [*clients[:2], wrong]))
    if not side.asynchronous:  # redis-py's destructor of the async one needs the attributes
        assert "client 3 is of a Redis Cluster" in str(side.expect(TypeError, kind, [*clients[:2], cluster]))
    assert "a list of clients, one for each node, such as [redis." in str(side.expect(TypeError, kind, clients[0]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": 10, "longest_ttl": 5}, "ttl must be at most longest_ttl"),
        ({"ttl": 1, "node_timeout": 0.5}, "node_timeout must be above 0 and below a third of the ttl"),
        ({"node_timeout": 0}, "node_timeout must be above 0"),
        ({"ttl": 0.015}, "ttl must be above 0.015 s with Redlock, not 0.015"),
        ({"longest_ttl": 0}, "longest_ttl must be between 0.01 seconds and a year, not 0"),
        ({"longest_ttl": 4e8}, "longest_ttl must be between 0.01 seconds and a year, not 4"),
        ({"longest_ttl": None, "restart_wait": 1}, "restart_wait must be True or False"),
        ({"longest_ttl": "long"}, "longest_ttl must be a number of seconds"),
    ],
)
def test_times_fit_together(side: Side, options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make(side, 7001, 7002, 7003, **options)


def test_a_lock_has_no_longer_ttl_than_nodes_wait_for(side: Side) -> None:
    coordinator = make(side, 7001, 7002, 7003, ttl=5, longest_ttl=10)
    coordinator.lock("r", ttl=10)
    assert "at most longest_ttl" in str(side.expect(ValueError, coordinator.lock, "r", ttl=10.1))


def test_coordinators_of_one_installation_have_the_same_longest_ttl(side: Side, redlock_nodes: RedlockNodes) -> None:
    coordinator = redlock_nodes.coordinator(side, longest_ttl=30)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=5)
    assert "was admitted with longest_ttl=60 and restart_wait=True, but this coordinator has longest_ttl=30" in str(
        error
    )


def test_a_refusal_of_other_settings_leaves_no_lock_behind(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(side)
    for server in nodes.servers[1:]:
        with server.client() as client:
            run_id, _, wait = client.get("fencing:1:member").decode().split()
            client.set("fencing:1:member", f"{run_id} 30000 {wait}")
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=5)
    assert "was admitted with longest_ttl=30 and restart_wait=True, but this coordinator has longest_ttl=60" in str(
        error
    )
    with nodes.servers[0].client() as client:
        assert client.get("r") is None


def test_one_server_under_two_names_is_noticed_at_each_use(side: Side, redlock_nodes: RedlockNodes) -> None:
    urls = [server.url for server in redlock_nodes.servers]
    urls[4] = urls[0].replace("127.0.0.1", "localhost")
    coordinator = redlock_nodes.coordinator(side, urls, ttl=60)
    for _ in range(5):
        error = side.expect(CoordinatorUnavailable, coordinator.acquire, "alias", timeout=5)
        assert "nodes 1 and 5 are the same Redis server" in str(error)
    clients = [server.client() for server in redlock_nodes.servers]
    side.wait_until(lambda: not any(client.exists("alias") for client in clients), seconds=5)


@pytest.mark.thorough
def test_a_replica_is_noticed_at_the_first_use(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=10.0)
    with nodes.servers[2].client() as client:
        client.replicaof(nodes.servers[0].host, nodes.servers[0].port)
        coordinator = nodes.coordinator(side)
        for _ in range(3):
            error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=5)
            assert f":{nodes.servers[2].port} is a replica; name its primary" in str(error)
        client.replicaof("NO", "ONE")

    def works() -> bool:  # with asyncio, a server that has failed is tried again after a pause
        try:
            return bool(side.call(side.call(coordinator.acquire, "r", timeout=5).release))
        except CoordinatorUnavailable:
            return False

    side.wait_until(works, seconds=10)


def test_a_wrong_password_of_one_node_is_noticed_at_the_first_use(side: Side, redlock_nodes: RedlockNodes) -> None:
    urls = [server.url for server in redlock_nodes.servers]
    urls[4] = urls[4].replace("redis://", "redis://user:wrong@")
    error = side.expect(CoordinatorUnavailable, redlock_nodes.coordinator(side, urls).acquire, "r", timeout=5)
    assert "refused the credentials" in str(error)


@pytest.mark.parametrize("foreign", [["not ours"], "not a number", "1e99"])
def test_a_counter_of_somebody_else_is_never_overwritten(
    side: Side, redlock_nodes: RedlockNodes, foreign: list[str] | str
) -> None:
    counter = keys_of("theirs").counter
    clients = [server.client() for server in redlock_nodes.servers]
    for client in clients:
        client.delete(counter)
        client.rpush(counter, *foreign) if isinstance(foreign, list) else client.set(counter, foreign)
    before = [client.dump(counter) for client in clients]
    error = side.expect(CoordinatorUnavailable, redlock_nodes.coordinator(side).acquire, "theirs", timeout=5)
    assert ("WRONGTYPE" if isinstance(foreign, list) else "does not hold a number") in str(error)
    assert [client.dump(counter) for client in clients] == before
    assert not any(client.exists("theirs") for client in clients)
    for client in clients:
        client.delete(counter)


def test_what_a_minority_granted_is_freed_where_the_others_refuse(side: Side, redlock_nodes: RedlockNodes) -> None:
    counter = keys_of("half").counter
    clients = [server.client() for server in redlock_nodes.servers]
    for client in clients[:3]:
        client.set(counter, "not a number")
    error = side.expect(CoordinatorUnavailable, redlock_nodes.coordinator(side, ttl=60).acquire, "half", timeout=5)
    assert "does not hold a number" in str(error)
    side.wait_until(lambda: not any(client.exists("half") for client in clients), seconds=5)
    for client in clients[:3]:
        client.delete(counter)


def test_a_lock_is_made_from_the_coordinator(redlock_nodes: RedlockNodes) -> None:
    side = Side(False)
    coordinator = redlock_nodes.coordinator(side)
    with FencedLock(coordinator, "made").hold(timeout=5) as lease:
        assert lease.held
    assert "RedlockCoordinator at 127.0.0.1" in repr(coordinator)
    coordinator.close()


def test_several_locks_are_held_together(side: Side, redlock_nodes: RedlockNodes) -> None:
    coordinator = redlock_nodes.coordinator(side)
    if side.asynchronous:

        async def hold() -> list[str]:
            async with coordinator.hold_all(["a", "b", "c"], timeout=5) as leases:
                return [lease.fence.resource for lease in leases]

        names = side.call(hold)
    else:
        with coordinator.hold_all(["a", "b", "c"], timeout=5) as leases:
            names = [lease.fence.resource for lease in leases]
    assert names == ["a", "b", "c"]
    for name in names:
        assert side.call(coordinator.holder, name) is None


def test_a_server_of_a_cluster_is_noticed_at_the_first_use(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(admitted=False, extra_args=("--cluster-enabled", "yes"))
    error = side.expect(CoordinatorUnavailable, nodes.coordinator(side).acquire, "r", timeout=5)
    assert "belongs to a Redis Cluster; each node must be a single server" in str(error)


@pytest.mark.thorough
def test_nodes_behind_tls(side: Side, fresh_redis: RedisFactory, tmp_path: Path) -> None:
    """The sockets are read and written without redis-py, also under TLS, which reads ahead."""
    tls = Tls(tmp_path)
    servers = [fresh_redis(version="7", extra_args=tls.arguments) for _ in range(3)]
    nodes = RedlockNodes(servers, longest_ttl=10.0)
    coordinator = nodes.coordinator(side, [f"{server.url}?ssl_ca_certs={tls.certificate}" for server in servers])
    side.call(coordinator.initialise)
    for _ in range(3):
        lease = side.call(coordinator.acquire, "r", timeout=10)
        side.call(lease.renew)
        assert side.call(coordinator.holder, "r").number == lease.fence.number
        assert side.call(lease.release) is True
