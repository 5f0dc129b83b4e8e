"""The contract of coordinators on Redis: sync and async, on each version there is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisCluster, RedisServer
from fencing import AsyncRedisCoordinator, RedisCoordinator
from fencing.testing import CoordinatorContract
from tests.support.fixtures import REDIS_SERIES, RedisClusters, newest_found, redis_params
from tests.support.sentinels import SharedSentinels, master_for
from tests.support.sides import Side


@dataclass(frozen=True)
class Way:
    """One way to use Redis, which becomes a test class.

    Args:
        coordinator: its class.
        client: the class of the client that it is given.
        client_options: of the client.
        options: of the coordinator.
        each_version: whether it runs on each version of Redis, or on the newest one only.
        always: of these versions, those that it has in each run.
        thorough: whether the thorough run alone has it.
    """

    coordinator: type[RedisCoordinator] | type[AsyncRedisCoordinator]
    client: Any
    client_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    each_version: bool = False
    always: tuple[str, ...] = ()
    thorough: bool = False


WAYS = {
    "TestRedisCoordinator": Way(RedisCoordinator, redis.Redis, each_version=True, always=("valkey-9",)),
    "TestAsyncRedisCoordinator": Way(AsyncRedisCoordinator, redis.asyncio.Redis, each_version=True),
    "TestRedisCoordinatorDecodingResponses": Way(
        RedisCoordinator,
        redis.Redis,
        client_options={"decode_responses": True, "encoding": "latin-1"},
    ),
    "TestAsyncRedisCoordinatorWithoutClockFloor": Way(
        AsyncRedisCoordinator,
        redis.asyncio.Redis,
        client_options={"decode_responses": True},
        options={"clock_floor": False},
    ),
    "TestRedisCoordinatorOnCluster": Way(RedisCoordinator, redis.Redis),
    "TestAsyncRedisCoordinatorOnCluster": Way(AsyncRedisCoordinator, redis.asyncio.Redis, thorough=True),
    "TestRedisCoordinatorOnOlderCluster": Way(RedisCoordinator, redis.Redis, client_options={"decode_responses": True}),
    "TestAsyncRedisCoordinatorOnOlderCluster": Way(
        AsyncRedisCoordinator, redis.asyncio.Redis, client_options={"decode_responses": True}
    ),
}


class _OnRedis(CoordinatorContract):
    short_ttl = 0.15
    way: Way
    url: str

    def connect(self, url: str, **options: Any) -> Any:
        client = self.way.client.from_url(url, **self.way.client_options)
        return self.way.coordinator(client, **(self.way.options | options))

    def make(self, **options: Any) -> Any:
        return self.connect(self.url, **options)

    def make_unreachable(self, **options: Any) -> Any:
        return self.connect(self.silent_url, **options)

    def foreign_client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def take_as_another_program(self, name: str) -> Callable[[], object]:
        """As redis-py's own lock does."""
        client = self.foreign_client()
        assert client.set(name, "another", nx=True, px=60_000)

        def free() -> None:
            client.delete(name)
            client.close()

        return free

    @pytest.fixture(autouse=True)
    def _silent_server(self) -> Iterator[None]:
        """A port that accepts connections, and never answers."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            self.silent_url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            yield


class _OnCluster(_OnRedis):
    """On a Redis Cluster of 3 primaries and 3 replicas."""

    @pytest.fixture(autouse=True)
    def _cluster(self, redis_cluster: RedisCluster) -> None:
        self.cluster = redis_cluster

    def foreign_client(self) -> Any:
        return self.cluster.client()

    def make(self, **options: Any) -> Any:
        make_client: Any = (
            self.cluster.client if self.way.coordinator is RedisCoordinator else self.cluster.async_client
        )
        return self.way.coordinator(make_client(**self.way.client_options), **(self.way.options | options))


class _OnOlderCluster(_OnCluster):
    pytestmark = pytest.mark.thorough

    @pytest.fixture(autouse=True, params=REDIS_SERIES[1:])
    def _cluster(self, request: pytest.FixtureRequest, redis_clusters: RedisClusters) -> None:
        self.cluster = redis_clusters.get(request.param)
        self.cluster.flush()


class _OnEachVersion(_OnRedis):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url


class _OnTheNewestVersion(_OnRedis):
    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> None:
        self.url = any_redis.url


class _BehindSentinel(_OnRedis):
    """A coordinator with the client that redis-py's Sentinel makes."""

    @pytest.fixture(autouse=True, params=[newest_found(), "valkey-9"])
    def _server(self, request: pytest.FixtureRequest, shared_sentinels: SharedSentinels) -> None:
        self.sentinels = shared_sentinels.get(request.param)
        self.side = Side(self.way.coordinator is AsyncRedisCoordinator)
        self.url = self.sentinels.servers[0].url

    def make(self, **options: Any) -> Any:
        client = master_for(self.side, self.sentinels.addresses, **self.way.client_options)
        return self.way.coordinator(client, **(self.way.options | options))

    def make_unreachable(self, **options: Any) -> Any:
        host, port = self.silent_url.removeprefix("redis://").split(":")
        return self.way.coordinator(master_for(self.side, [(host, int(port))]), **(self.way.options | options))


@pytest.mark.thorough
class TestRedisCoordinatorBehindSentinel(_BehindSentinel):
    way = Way(RedisCoordinator, redis.Redis)


@pytest.mark.thorough
class TestAsyncRedisCoordinatorBehindSentinel(_BehindSentinel):
    way = Way(AsyncRedisCoordinator, redis.asyncio.Redis)


def _base_of(name: str, way: Way) -> type[_OnRedis]:
    if "Cluster" in name:
        return _OnOlderCluster if "Older" in name else _OnCluster
    return _OnEachVersion if way.each_version else _OnTheNewestVersion


for _name, _way in WAYS.items():
    _made = type(_name, (_base_of(_name, _way),), {"way": _way, "__module__": __name__})
    if _way.each_version:
        _made = pytest.mark.parametrize("redis_server", redis_params(*_way.always), indirect=True)(_made)
    globals()[_name] = pytest.mark.thorough(_made) if _way.thorough else _made
