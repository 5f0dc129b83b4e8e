"""Connections that open slowly, or never: a peer that drips, a slow handshake, a function of the user's that hangs.

No call waits for longer than its own time, and no other call or lease has to wait with it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from examples.servers import RedisCluster, RedisServer, SentinelServers
from fencing import CoordinatorUnavailable
from fencing.kernel.opening import MOST_OVERDUE
from fencing.kernel.waking import RECHECK_SECONDS
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.loops import until
from tests.support.redis_requests import times_run
from tests.support.sentinels import master_for
from tests.support.servers import Proxy
from tests.support.sides import Side

DRIP_SECONDS = 0.9
"""After each byte. So each ``recv`` of a handshake returns in time, and each of its replies takes five seconds."""

SLACK = 12.0
"""Seconds that a busy machine may add."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + SLACK


@pytest.mark.thorough
def test_a_handshake_that_drips_costs_a_call_its_own_time(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    dripping = proxy(any_redis)
    client = side.client(dripping.url(any_redis.url), client_name="shop", socket_timeout=60)
    coordinator = side.coordinator(client, ttl=60)
    dripping.drip(replies=DRIP_SECONDS)
    with within(2):
        side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=2)
    dripping.restore()
    assert side.call(side.call(coordinator.acquire, "r", timeout=60).release) is True


class LateCredentials(redis.CredentialProvider):
    """They come when the test says so, first for those who asked first."""

    def __init__(self) -> None:
        self.asked = self.given = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked = number = self.asked + 1
        wait_until(lambda: number <= self.given)
        return "default", "none is needed"

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked = number = self.asked + 1
        await until(lambda: number <= self.given)
        return "default", "none is needed"


def test_a_connection_that_comes_too_late_for_one_call_is_the_next_ones(side: Side, any_redis: RedisServer) -> None:
    """So a server is reached whose handshake takes longer than an attempt."""
    credentials = LateCredentials()
    coordinator = side.coordinator(side.client(any_redis.url, credential_provider=credentials), ttl=60)
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)
    credentials.given = credentials.asked
    try:
        assert side.call(side.call(coordinator.acquire, "r", timeout=60).release) is True
    finally:
        credentials.given = 99


def test_a_connection_that_the_pool_gets_late_is_asked_for_its_role_and_policy(any_redis: RedisServer) -> None:
    side, credentials = Side(False), LateCredentials()
    coordinator = side.coordinator(side.client(any_redis.url, credential_provider=credentials), ttl=60)
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.1)
    connections = coordinator._backend._connections
    assert connections.factory.must_ask_info()
    credentials.given = credentials.asked
    wait_until(lambda: any(each.used for each in connections._pool.free))
    assert not connections.factory.must_ask_info()
    assert coordinator.acquire("r", timeout=60).release() is True
    coordinator.close()


@pytest.mark.thorough
def test_a_lease_lives_through_a_time_in_which_no_connection_opens(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    through = proxy(any_redis)
    client = side.client(through.url(any_redis.url), client_name="shop", socket_timeout=60)
    coordinator = side.coordinator(client, ttl=9)
    lease = side.call(coordinator.acquire, "held")
    through.drip(replies=DRIP_SECONDS)
    through.cut()
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=2)
    through.restore()
    granted = time.monotonic()
    side.wait_until(lambda: lease.held is False or lease.remaining() > 8)
    assert lease.held is True
    assert time.monotonic() - granted < 9
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_function_that_gives_no_credentials_is_named_and_counts_against_its_server_alone(
    any_redis: RedisServer,
) -> None:
    side, answers, asked = Side(False), threading.Event(), list[int]()

    class Credentials(redis.CredentialProvider):
        def get_credentials(self) -> Any:
            asked.append(1)
            answers.wait(120)
            raise redis.AuthenticationError("too late")

    client = redis.Redis.from_url(any_redis.url, credential_provider=Credentials())
    coordinator, other = side.coordinator(client, ttl=60), side.coordinator(any_redis.url)
    try:
        with within(MOST_OVERDUE + 1):
            for _ in range(MOST_OVERDUE + 1):
                error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)
        assert f"{MOST_OVERDUE} attempts to connect to {any_redis.host}:{any_redis.port} hang" in str(error)
        assert "a function of yours, such as one that gives credentials" in str(error)
        assert len(asked) == MOST_OVERDUE
        assert other.acquire("r", timeout=60).release() is True
    finally:
        answers.set()
        coordinator.close()
        other.close()


@pytest.mark.thorough
def test_a_sentinel_that_drips_costs_what_a_silent_one_does(
    side: Side, sentinels: SentinelServers, proxy: ProxyFactory
) -> None:
    first, *others = sentinels.sentinels
    dripping = proxy(first)
    dripping.drip(replies=0.2)
    addresses = [(dripping.host, dripping.port), *((each.host, each.port) for each in others)]
    coordinator = side.coordinator(master_for(side, addresses), ttl=60)
    with within(2):
        lease = side.call(coordinator.acquire, "r", timeout=5)
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_one_node_of_a_cluster_that_drips_costs_the_others_no_lease(
    side: Side, redis_cluster: RedisCluster, proxy: ProxyFactory
) -> None:
    proxies: dict[tuple[str, int], Proxy] = {}

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        return (proxies[address].host, proxies[address].port) if address in proxies else address

    bad, good = redis_cluster.primaries()[:2]
    dripping = proxies[bad.host, bad.port] = proxy(bad)
    client = side.cluster_client(redis_cluster, address_remap=remap)
    coordinator = side.coordinator(client, ttl=9)
    names = [next(n for n in map(str, range(999)) if redis_cluster.primary_of(n) is server) for server in (bad, good)]
    lost, kept = (side.call(coordinator.acquire, name) for name in names)
    dripping.drip(replies=DRIP_SECONDS)
    dripping.cut()
    with within(2):
        side.expect(CoordinatorUnavailable, coordinator.acquire, names[0], timeout=2)
    renewed = kept.fence, time.monotonic()
    side.wait_until(lambda: not kept.held or (time.monotonic() - renewed[1] > 0.5 and kept.remaining() > 7))
    assert kept.held is True
    dripping.restore()
    side.call(kept.release)
    side.call(lost.release)


@pytest.mark.thorough
def test_a_listening_connection_waits_for_a_late_reply(fresh_redis: RedisFactory, proxy: ProxyFactory) -> None:
    side, server = Side(False), fresh_redis()
    far = proxy(server)
    coordinator = side.coordinator(side.client(far.url(server.url), socket_timeout=60), ttl=60)
    held = side.coordinator(server.url, ttl=60).acquire("r")
    before = times_run(server, "subscribe")
    late = far.hold_reply_when(lambda request: b"SUBSCRIBE" in request)
    waiter = threading.Thread(target=lambda: coordinator.acquire("r", timeout=60).release())
    waiter.start()
    assert late.wait(60)
    time.sleep(3 * RECHECK_SECONDS)
    far.restore()
    wait_until(lambda: coordinator._backend._listener._connection is not None)
    assert times_run(server, "subscribe") == before + 1
    assert held.release() is True
    waiter.join(30)
    assert not waiter.is_alive()
    coordinator.close()


class FailingCredentials(redis.CredentialProvider):
    """They fail, as those that belong to another event loop."""

    def get_credentials(self) -> tuple[str, str]:
        raise LookupError("no credentials today")

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.mark.thorough
def test_the_error_of_a_function_of_the_users_is_named(
    side: Side, any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = side.client(any_redis.url, credential_provider=FailingCredentials())
    coordinator = side.coordinator(client, ttl=60)
    kind = CoordinatorUnavailable if side.asynchronous else LookupError
    for _ in range(2):
        error = side.expect(kind, coordinator.acquire, "r", timeout=0.5)
        assert "no credentials today" in str(error)
    gc.collect()
    assert "never retrieved" not in caplog.text
