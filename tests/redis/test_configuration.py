"""What is wrong with the set-up of Redis, or with the client's settings, is said at once and by its name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, NotAcquired
from tests.support.fixtures import RedisFactory
from tests.support.redis_requests import times_run
from tests.support.sides import Side


@pytest.fixture
def configured(any_redis: RedisServer) -> Iterator[RedisServer]:
    """A server whose configuration the test changes."""
    admin: Any = any_redis.client()
    before = {name: admin.config_get(name)[name] for name in ("requirepass", "maxmemory-policy")}
    yield any_redis
    for name, value in before.items():
        admin.config_set(name, value)


def test_a_missing_password(side: Side, configured: RedisServer) -> None:
    configured.client().config_set("requirepass", "secret")
    coordinator = side.coordinator(configured.url, ttl=600)
    began = time.monotonic()
    for call in (coordinator.acquire, coordinator.holder):
        with pytest.raises(CoordinatorUnavailable, match=r"refused the credentials.*username and password") as error:
            side.call(call, "r")
        assert error.value.refused
    with pytest.raises(CoordinatorUnavailable, match="refused the credentials"):
        side.call(side.coordinator(side.client(configured.url, password="wrong"), ttl=600).acquire, "r")
    assert time.monotonic() - began < 20


def test_a_replica_has_answered(side: Side, any_redis: RedisServer) -> None:
    """While it may be a failover, the call goes on; then it says what the server is, and not that it was silent."""
    admin: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url)
    admin.replicaof("127.0.0.1", 1)
    try:
        error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2)
    finally:
        admin.replicaof("NO", "ONE")
    assert side.call(side.call(coordinator.acquire, "r", timeout=30).release), "to retry helps, after a failover"
    assert not error.refused
    assert str(error).startswith(
        f"Redis at {any_redis.url.partition('://')[2].partition('/')[0]} cannot serve the request"
    )
    assert "for 'r' now: the server is a replica, which takes no locks; retry, and correct the address if" in str(error)


def test_a_wrong_database_number(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url.rsplit("/", 1)[0] + "/9999", ttl=600)
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match=r"DB index is out of range.*database number") as error:
        side.call(coordinator.acquire, "r")
    assert error.value.refused
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_policy_that_evicts_is_warned_about_once(
    side: Side, configured: RedisServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    configured.client().config_set("maxmemory-policy", policy)
    coordinator = side.coordinator(configured.url)
    for _ in range(3):
        side.call(side.call(coordinator.acquire, "r").release)
    [warning] = [record.getMessage() for record in caplog.records if "evict" in record.getMessage()]
    assert policy in warning
    assert "noeviction" in warning


def test_no_warning_where_nothing_is_evicted_or_told(
    side: Side, any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    admin: Any = any_redis.client()
    side.call(side.call(side.coordinator(any_redis.url).acquire, "r").release)
    admin.execute_command("ACL SETUSER silent on >secret ~* &* +@all -info")
    try:
        client = side.client(any_redis.url, username="silent", password="secret")
        side.call(side.call(side.coordinator(client).acquire, "r").release)
    finally:
        admin.execute_command("ACL DELUSER silent")
    assert not [record for record in caplog.records if "evict" in record.getMessage()]


@pytest.mark.parametrize("lacks", ["-eval -evalsha", "-set", "resetkeys"])
def test_a_missing_permission_says_where_to_look(side: Side, any_redis: RedisServer, lacks: str) -> None:
    admin: Any = any_redis.client()
    admin.execute_command(f"ACL SETUSER limited on >secret ~* &* +@all {lacks}")
    try:
        coordinator = side.coordinator(side.client(any_redis.url, username="limited", password="secret"))
        refused = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=20)
    finally:
        admin.execute_command("ACL DELUSER limited")
    assert "; give the client's user the permissions" in str(refused)
    assert refused.refused


def test_a_redis_without_memory_says_what_to_do(side: Side, configured: RedisServer) -> None:
    configured.client().config_set("maxmemory", "1b")
    try:
        refused = side.expect(CoordinatorUnavailable, side.coordinator(configured.url).acquire, "r", timeout=20)
    finally:
        configured.client().config_set("maxmemory", "0")
    assert "; free memory, or raise its maxmemory, then retry" in str(refused)
    assert not refused.refused


def test_the_policy_costs_no_round_trip_of_an_open_connection(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url)
    side.call(side.call(coordinator.acquire, "r").release)
    before = times_run(server, "info")
    for _ in range(5):
        side.call(side.call(coordinator.acquire, "r").release)
    assert times_run(server, "info") == before + 1, "the count itself asks once"


def test_data_of_the_application_under_the_locks_name_is_named(side: Side, any_redis: RedisServer) -> None:
    any_redis.client().set("r", "an application's string")
    coordinator = side.coordinator(any_redis.url)
    for timeout in (0, 0.1):
        with pytest.raises(NotAcquired, match="held by an unknown holder"):
            side.call(coordinator.acquire, "r", timeout=timeout)
