"""Clients with other protocols, replies and ways of connecting: the locks work the same."""

from __future__ import annotations

import socket
from typing import Any, ClassVar

import fakeredis
import pytest
import redis
import redis.asyncio

from examples.servers import RedisServer, SentinelServers
from fencing import CoordinatorUnavailable
from fencing.redis.keys import keys_of
from tests.support.sentinels import master_for
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter


class Recorded(redis.Connection):
    """A user's connection class, which connects in its own way."""

    connected: ClassVar[list[str]] = []

    def _connect(self) -> socket.socket:
        self.connected.append(f"{self.host}:{self.port}")
        return socket.create_connection((self.host, self.port))


class AsyncRecorded(redis.asyncio.Connection):
    """The same for asyncio."""

    connected: ClassVar[list[str]] = []

    async def _connect(self) -> None:
        self.connected.append(f"{self.host}:{self.port}")
        await super()._connect()  # type: ignore[no-untyped-call]


def check_locks(side: Side, client: Any, server: RedisServer) -> None:
    """Take a lock, renew it, hand it over to a waiter, and see who holds it."""
    coordinator = side.coordinator(client, ttl=30)
    lease = side.call(coordinator.acquire, "r", timeout=10)
    waiter = Waiter(side, coordinator)
    Queue(server).has(1)
    side.call(lease.renew)
    assert side.call(coordinator.holder, "r").number == lease.fence.number
    assert side.call(lease.release) is True
    assert waiter.join().error is None
    assert waiter.lease.fence.number > lease.fence.number


OPTIONS = [
    {"protocol": 3},
    {"protocol": 3, "decode_responses": True},
    {"decode_responses": True, "encoding": "latin-1"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_protocols_and_decoded_responses(side: Side, any_redis: RedisServer, options: dict[str, Any]) -> None:
    check_locks(side, side.client(any_redis.url, **options), any_redis)


@pytest.mark.thorough
@pytest.mark.parametrize("options", OPTIONS)
def test_protocols_on_each_version(side: Side, redis_server: RedisServer, options: dict[str, Any]) -> None:
    check_locks(side, side.client(redis_server.url, **options), redis_server)


@pytest.mark.parametrize("options", OPTIONS[1:2])
def test_they_go_through_sentinel(side: Side, sentinels: SentinelServers, options: dict[str, Any]) -> None:
    check_locks(side, master_for(side, sentinels.addresses, **options), sentinels.servers[0])


@pytest.mark.thorough
@pytest.mark.usefixtures("way_to_redis")
def test_each_way_of_reading_goes_through_sentinel(side: Side, sentinels: SentinelServers) -> None:
    check_locks(side, master_for(side, sentinels.addresses), sentinels.servers[0])


def test_a_connection_class_of_the_users(side: Side, any_redis: RedisServer) -> None:
    kind: Any = AsyncRecorded if side.asynchronous else Recorded
    kind.connected.clear()
    pools: Any = redis.asyncio if side.asynchronous else redis
    pool = pools.ConnectionPool(connection_class=kind, host=any_redis.host, port=any_redis.port)
    check_locks(side, pools.Redis(connection_pool=pool), any_redis)
    assert set(kind.connected) == {f"{any_redis.host}:{any_redis.port}"}
    assert len(kind.connected) >= 2, "for calls, and for messages"


def test_a_connection_class_without_sockets(side: Side) -> None:
    """It is fakeredis': its replies are objects, not bytes."""
    pytest.importorskip("lupa")  # for its scripts
    server = fakeredis.FakeServer()
    client: Any = (fakeredis.FakeAsyncRedis if side.asynchronous else fakeredis.FakeRedis)(server=server)
    coordinator = side.coordinator(client, ttl=30)
    lease = side.call(coordinator.acquire, "r", timeout=10)
    waiter = Waiter(side, coordinator)
    queue = Queue.__new__(Queue)
    queue.client, queue._key = fakeredis.FakeRedis(server=server), keys_of("r").queue
    queue.has(1)
    side.call(lease.renew)
    assert side.call(coordinator.try_acquire, "r") is None
    assert side.call(lease.release) is True
    assert waiter.join().error is None
    assert waiter.lease.fence.number > lease.fence.number
    queue.client.set("other", "x")
    queue.client.rpush("list", "x")
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "list", timeout=5)
    assert "WRONGTYPE" in str(error)
