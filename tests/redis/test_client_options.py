"""Clients with other protocols, replies and ways of connecting: the locks work the same."""

from __future__ import annotations

from typing import Any

import pytest

from examples.servers import RedisServer, SentinelServers
from tests.support.sentinels import master_for
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter


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
