"""What the library uses of redis-py beyond its documentation, checked with the installed version."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel
from redis.cluster import LoadBalancingStrategy

from examples.servers import RedisCluster, RedisServer
from fencing import AsyncRedisCoordinator, AsyncRedlockCoordinator, RedisCoordinator, RedlockCoordinator
from fencing.redis import quirks
from fencing.redis.asyncio_protocol import receive_replies
from fencing.redis.cluster.client import ClusterConnections
from fencing.redis.cluster.client_async import AsyncClusterConnections
from fencing.redis.connection_factory import ConnectionFactory
from storage_guards import AsyncRedisGuard, RedisGuard
from tests.support import wait_until
from tests.support.loops import until

Connection: Any = redis.Connection  # untyped
AsyncConnection: Any = redis.asyncio.Connection
SentinelPool: Any = redis.sentinel.SentinelConnectionPool


@pytest.fixture
def connection(any_redis: RedisServer) -> Any:
    connection = Connection(any_redis.host, any_redis.port)
    yield connection
    connection.disconnect()


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def test_the_installed_version_of_redis_py_is_known() -> None:
    """For a newer version: read what it does in these places, run these tests, then add it to `SEEN`."""
    assert release(quirks.SEEN[0]) <= release(redis.__version__) <= release(quirks.SEEN[-1])


def test_each_quirk_has_a_test() -> None:
    found = inspect.getmembers(quirks, inspect.isfunction)
    for name, _ in found:
        assert f"quirks.{name}(" in Path(__file__).read_text("utf-8"), name


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_redis_py_that_keeps_its_sockets_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """At once, when a coordinator or a guard is made: its client has no connection yet."""
    quirks.require_connections(asynchronous=asynchronous)
    package: Any = redis.asyncio if asynchronous else redis
    place = "_writer" if asynchronous else "_sock"
    clients = [package.Redis(port=port) for port in (1, 2, 3)]

    class Elsewhere(package.Connection):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            delattr(self, place)

        def __del__(self) -> None:
            pass

    monkeypatch.setattr(package, "Connection", Elsewhere)
    makes: list[Callable[[], Any]] = (
        [
            lambda: AsyncRedisCoordinator(clients[0]),
            lambda: AsyncRedlockCoordinator(clients),
            lambda: AsyncRedisGuard(clients[0]),
            lambda: AsyncClusterConnections(None),
        ]
        if asynchronous
        else [
            lambda: RedisCoordinator(clients[0]),
            lambda: RedlockCoordinator(clients),
            lambda: RedisGuard(clients[0]),
            lambda: ClusterConnections(None),
        ]
    )
    for make in makes:
        with pytest.raises(TypeError, match=f"{redis.__version__} have no {place}.*install redis-py {quirks.SEEN[-1]}"):
            make()


def test_socket_of_finds_the_socket(connection: Any) -> None:
    assert quirks.socket_of(connection) is None, "it is not open yet"
    connection.connect()
    sock = quirks.socket_of(connection)
    assert sock is not None
    assert sock.getpeername()[1] == connection.port


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_clusters_client_names_its_nodes_and_makes_clients_for_them(
    redis_cluster: RedisCluster, asynchronous: bool
) -> None:
    def remap(address: tuple[str, int]) -> tuple[str, int]:
        return address

    options: Any = {"client_name": "shop", "socket_timeout": 3.0, "address_remap": remap}
    options["load_balancing_strategy"] = LoadBalancingStrategy.ROUND_ROBIN
    cluster = redis_cluster.async_client(**options) if asynchronous else redis_cluster.client(**options)
    assert quirks.remap_of(cluster) is remap
    known = quirks.known_nodes(cluster)
    assert set(known) <= {(server.host, server.port) for server in redis_cluster.servers}
    assert {(server.host, server.port) for server in redis_cluster.primaries()} <= set(known)

    client = quirks.node_client(cluster, *known[-1])
    assert isinstance(client, redis.asyncio.Redis if asynchronous else redis.Redis)
    _, _, arguments = quirks.pool_of(client)
    assert (arguments["host"], arguments["port"]) == known[-1]
    assert (arguments["client_name"], arguments["socket_timeout"]) == ("shop", 3.0)
    assert arguments.get("redis_connect_func") is None, "it would let replicas answer"


def test_connecting_has_a_time_limit(connection: Any) -> None:
    quirks.limit_connecting(connection, 0.25, 0.5)
    connection.connect()
    sock = quirks.socket_of(connection)
    assert sock is not None
    assert sock.gettimeout() == 0.5


def test_connecting_to_a_silent_server_is_bounded() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connection = Connection(*silent.getsockname(), client_name="it waits for the reply to this")
        quirks.limit_connecting(connection, 1.0, 0.05)
        with pytest.raises(redis.TimeoutError):
            connection.connect()
        connection.disconnect()


def test_shutting_down_ends_a_handshake_of_another_thread() -> None:
    with socket.socket() as silent, ThreadPoolExecutor(1) as executor:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connection = Connection(*silent.getsockname(), client_name="it waits for the reply to this")
        quirks.limit_connecting(connection, 1.0, 60.0)
        quirks.shut_down(connection)  # it has no socket yet
        connecting = executor.submit(connection.connect)
        wait_until(lambda: quirks.socket_of(connection) is not None)
        quirks.shut_down(connection)
        with pytest.raises(redis.ConnectionError):
            connecting.result(30)
        connection.disconnect()
        quirks.shut_down(connection)


def test_was_ended_tells_an_end_that_came_with_a_reply() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"PING" not in (data := await reader.read(1000)):
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.write(b"+PONG\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        connection = AsyncConnection(host=host, port=port)
        assert not quirks.was_ended(connection), "it is not open yet"
        await connection.connect()
        assert not quirks.was_ended(connection)
        await connection.send_command("PING", check_health=False)
        assert await connection.read_response(disconnect_on_error=False) == b"PONG"
        await until(lambda: quirks.was_ended(connection))
        _, ended = receive_replies(connection, asyncio.get_running_loop(), lambda _: None)
        assert ended.done(), "who reads on from here is told"
        await connection.disconnect(nowait=True)
        server.close()

    asyncio.run(main())


def test_transport_of_finds_the_transport(any_redis: RedisServer) -> None:
    async def main() -> None:
        connection = AsyncConnection(host=any_redis.host, port=any_redis.port)
        assert quirks.transport_of(connection) is None, "it is not open yet"
        await connection.connect()
        transport = quirks.transport_of(connection)
        assert isinstance(transport, asyncio.Transport)
        assert transport.get_extra_info("peername")[1] == any_redis.port
        await connection.disconnect()
        assert transport.is_closing()

    asyncio.run(main())


@pytest.mark.parametrize("client", [redis.Redis, redis.asyncio.Redis])
def test_pool_of_finds_how_connections_are_made(client: Any) -> None:
    made = client(host="example.org", port=1, username="u", password="p", ssl=True)
    pool, kind, options = quirks.pool_of(made)
    assert pool is made.connection_pool
    assert "SSL" in kind.__name__
    assert (options["host"], options["port"], options["username"], options["password"]) == ("example.org", 1, "u", "p")
    options["host"] = "changed"
    assert made.connection_pool.connection_kwargs["host"] == "example.org", "it is a copy"


def test_a_sentinels_pool_names_its_service() -> None:
    assert quirks.sentinel_service(redis.Redis().connection_pool) is None
    pool = SentinelPool("orders", None)
    assert quirks.sentinel_service(pool) == "orders"


def test_the_host_that_replaces_the_primarys_is_found() -> None:
    make: Any = redis.sentinel.Sentinel
    assert quirks.forced_host(make([])) is None
    if "force_master_ip" in inspect.signature(make).parameters:
        assert quirks.forced_host(make([], force_master_ip="10.0.0.1")) == "10.0.0.1"


def test_maintenance_notices_are_refused(any_redis: RedisServer) -> None:
    client = redis.Redis(host=any_redis.host, port=any_redis.port, protocol=3)
    options = dict(client.connection_pool.connection_kwargs)
    names = {name for name in inspect.signature(redis.connection.AbstractConnection).parameters if "maint" in name}
    quirks.refuse_maintenance(options)
    assert "maint_notifications_pool_handler" not in options
    if names and "maint_notifications_config" in options:
        assert options["maint_notifications_config"].enabled is False
    connection = ConnectionFactory(client).make()
    connection.connect()
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
    connection.disconnect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_closing_the_copy_of_a_child_does_not_close_the_connection_of_its_parent(connection: Any) -> None:
    connection.connect()
    sock = quirks.socket_of(connection)
    assert sock is not None
    number = sock.fileno()
    child = os.fork()
    if child == 0:
        quirks.close_copy(connection)
        try:
            os.fstat(number)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the child has it open"
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
