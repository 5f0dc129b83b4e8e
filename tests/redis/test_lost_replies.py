"""The server carried a request out, and its reply never came. Each is repeated, and means what it meant at first."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, CoordinatorUnavailable, LeaseLost
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.redis import client as redis_connections
from fencing.redis import client_async
from fencing.redis.scripts import ACQUIRE, RELEASE, REMINT, RENEW
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_requests import asks_for
from tests.support.sides import Side


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_repeated_acquire_gets_the_same_number(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, lost: str
) -> None:
    through = proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), clock_floor=False)
    lose = through.drop_reply_when if lost == "reply" else through.drop_request_when
    loss = lose(lambda request: asks_for(ACQUIRE, request), times=2)
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert loss.fired == 2
    assert lease.fence.number == 1, "the repetition took the same number, not another one"
    assert side.call(lease.release) is True
    assert any_redis.client().get("r") is None


@pytest.mark.parametrize("socket_timeout", [None, 0.3])
def test_an_attempt_that_arrives_late_does_not_free_what_its_repetition_got(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, socket_timeout: float | None
) -> None:
    """The first attempt hangs. The second one, on another connection, is granted. Then the first one arrives."""
    slow, quick = proxy(any_redis), proxy(any_redis)
    client = side.client(slow.url(any_redis.url), socket_timeout=socket_timeout)
    coordinator = side.coordinator(client, ttl=2.4, renew=False)
    side.call(side.call(coordinator.acquire, "warm").release)  # a connection is open
    slow.silence()
    factory = coordinator._backend._connections.factory
    factory.options["port"] = quick.port  # the next connection goes the other way
    lease = side.call(coordinator.acquire, "r", timeout=10)
    slow.restore()
    side.wait_until(lambda: slow.connections == 0)  # what was held back has arrived
    direct = any_redis.client()
    for _ in range(50):
        assert direct.get("r") == lease.fence.token.encode()
    assert side.call(lease.release) is True


def test_a_repeated_renewal_keeps_the_fence(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    lease = side.call(side.coordinator(through.url(any_redis.url)).acquire, "r")
    loss = through.drop_reply_when(lambda request: asks_for(RENEW, request))
    fence = lease.fence
    side.call(lease.renew)
    assert loss.fired == 1
    assert lease.fence == fence
    assert side.call(lease.release) is True


def test_a_repeated_release_is_not_a_loss(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url))
    lease = side.call(coordinator.acquire, "r")
    loss = through.drop_reply_when(lambda request: asks_for(RELEASE, request))
    assert side.call(lease.release) is True, "the first attempt has freed it"
    assert loss.fired == 1
    assert side.call(coordinator.lock("r").holder) is None


def test_a_connection_that_died_while_idle_does_not_hide_a_loss(
    side: Side, fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_redis()
    monkeypatch.setattr(redis_connections, "IDLE_SECONDS", -1)  # every connection counts as long idle
    monkeypatch.setattr(client_async, "IDLE_SECONDS", -1)
    lease = side.call(side.coordinator(server.url).acquire, "r")
    client = server.client()
    client.delete("r")
    client.client_kill_filter(_type="normal", skipme=True)
    side.wait_until(lambda: len(client.client_list(_type="normal")) == 1)
    assert side.call(lease.release) is False, "the dead connection was noticed before it carried the only request"


def test_a_connection_whose_end_is_seen_as_a_call_is_made_does_not_hide_a_loss(
    fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_redis()
    monkeypatch.setattr(client_async, "IDLE_SECONDS", -1)
    loop = asyncio.new_event_loop()
    coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(server.url))
    lease = loop.run_until_complete(coordinator.acquire("r"))
    client = server.client()
    client.delete("r")
    client.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: len(client.client_list(_type="normal")) == 1)  # the event loop stands still meanwhile
    assert loop.run_until_complete(lease.release()) is False, "it was not sent on the connection that is closed"
    loop.run_until_complete(coordinator.close())
    loop.close()


def test_a_repeated_remint_gets_the_same_fence(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), clock_floor=False)
    lease = side.call(coordinator.acquire, "r")
    loss = through.drop_reply_when(lambda request: asks_for(REMINT, request))
    deadline = coordinator._backend.clock() + 5
    plan = coordinator._backend.plan_remint(
        lease.fence, new_token(), coordinator._backend.settings, floor=100, deadline=deadline
    )
    grant = side.call(run_async if side.asynchronous else run, plan, coordinator._backend.perform)
    assert loss.fired == 1
    assert grant.fence.number == 101
    assert any_redis.client().get("r") == grant.fence.token.encode()
    side.expect(LeaseLost, lease.renew)


def test_a_server_that_always_drops_the_connection_is_unavailable(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    through = proxy(any_redis)
    through.refuse()
    coordinator = side.coordinator(through.url(any_redis.url), ttl=1)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)
    assert error.address == f"127.0.0.1:{through.port}"
    assert error.__cause__ is not None
    through.restore()
    assert side.call(side.call(coordinator.acquire, "r", timeout=30).release) is True
