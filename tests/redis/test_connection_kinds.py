"""All ways to write to a connection and to read it: without redis-py, with and without hiredis, and by redis-py."""

from __future__ import annotations

import time

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable
from tests.support.fixtures import RedisFactory
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter

pytestmark = pytest.mark.usefixtures("way_to_redis")


def test_a_lock_is_taken_renewed_and_released(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    client = any_redis.client()
    for timeout in (5, 0, None):  # each has its own time-outs of the socket
        lease = side.call(coordinator.acquire, "r", timeout=timeout)
        assert client.get("r") == lease.fence.token.encode()
        client.script_flush()
        side.call(lease.renew)
        assert side.call(coordinator.lock("r").holder).number == lease.fence.number
        assert side.call(lease.release) is True
        client.client_kill_filter(_type="normal", skipme=True)


def test_the_first_call_opens_one_connection(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    client = server.client()
    coordinator = side.coordinator(server.url)
    before = client.info("stats")["total_connections_received"]
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert client.info("stats")["total_connections_received"] == before + 1
    side.call(lease.release)


def test_an_error_of_redis_is_in_the_message(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    client.rpush("r", "somebody's list")
    coordinator = side.coordinator(any_redis.url)
    with pytest.raises(CoordinatorUnavailable, match="WRONGTYPE"):
        side.call(coordinator.acquire, "r", timeout=5)
    lease = side.call(coordinator.acquire, "other", timeout=5)
    assert side.call(lease.release) is True, "the connection is in order"


def test_waiters_get_the_lock_in_turn(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=30)) for _ in range(2)]
    Queue(any_redis).has(2)
    side.call(holder.release)
    assert [waiter.join().error for waiter in waiters] == [None, None]


@pytest.mark.thorough
def test_a_call_to_a_silent_server_ends(side: Side, freezable_redis: RedisServer) -> None:
    coordinator = side.coordinator(freezable_redis.url, ttl=1.5)
    lease = side.call(coordinator.acquire, "r")
    freezable_redis.freeze()
    started = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match="no answer"):
        side.call(lease.release)
    assert time.monotonic() - started < 10, "its time is 1 s; without a time-out it does not end"
    freezable_redis.thaw()
    assert side.call(side.call(coordinator.acquire, "r", timeout=30).release) is True
