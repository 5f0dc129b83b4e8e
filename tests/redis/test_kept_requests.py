"""Requests that are kept on their way to Redis, and arrive after the client went on over a new connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.servers import RedisCluster, RedisServer
from tests.support.kept_requests import EACH_CALL, TTL, Acquire, Call, ForceRelease, Late, Tale, is_waited_for, play
from tests.support.sentinels import started
from tests.support.servers import Proxy
from tests.support.sides import Side
from tests.support.waiters import Queue

SOCKET_SECONDS = 0.05
"""The ``socket_timeout`` of the client: an attempt ends before its own time limit."""

LATES = [Late(), pytest.param(Late(requests=3), marks=pytest.mark.deep), Late(cut=1)]


class OneRedis:
    """One Redis; ``options``: of its coordinators."""

    attempt_seconds = 0.1
    only_named = False

    def __init__(self, side: Side, server: RedisServer, proxy: Proxy, **options: Any) -> None:
        self.side, self._server = side, server
        self.proxies = [proxy]
        self._options: dict[str, Any] = {"ttl": TTL, "renew": False, **options}
        self.direct = side.coordinator(server.url, **self._options)

    def through(self) -> Any:
        client = self.side.client(self.proxies[0].url(self._server.url), socket_timeout=SOCKET_SECONDS)
        return self._coordinator(client)

    def _coordinator(self, client: Any) -> Any:
        self.side.coordinator(client, **self._options)
        return self.side.made.pop()  # the story closes it

    def is_waiting(self, coordinator: Any, name: str) -> bool:
        return is_waited_for(self.side, coordinator, name) and len(Queue(self._server, name)) > 0


class Cluster(OneRedis):
    """A Redis Cluster, with a proxy before each node."""

    def __init__(self, side: Side, cluster: RedisCluster, proxies: list[Proxy]) -> None:
        self.side, self._cluster, self.proxies = side, cluster, proxies
        self._options = {"ttl": TTL, "renew": False}
        self.direct = side.coordinator(side.cluster_client(cluster), **self._options)

    def through(self) -> Any:
        ways = {
            server.port: (proxy.host, proxy.port)
            for server, proxy in zip(self._cluster.servers, self.proxies, strict=True)
        }
        client = self.side.cluster_client(
            self._cluster,
            socket_timeout=SOCKET_SECONDS,
            address_remap=lambda address: ways.get(address[1], address),
        )
        return self._coordinator(client)

    def is_waiting(self, coordinator: Any, name: str) -> bool:
        return is_waited_for(self.side, coordinator, name) and len(Queue(self._cluster, name)) > 0


@pytest.fixture(scope="module")
def replicated() -> Iterator[RedisServer]:
    """A primary that has a replica."""
    with ExitStack() as stack:
        yield started(stack, replicas=1, sentinels=1, down_after=60.0).servers[0]


@pytest.fixture(params=["one", "cluster", "replicas"])
def bench(request: pytest.FixtureRequest, side: Side) -> Iterator[OneRedis]:
    with ExitStack() as stack:

        def before(server: RedisServer) -> Proxy:
            return stack.enter_context(Proxy(server.host, server.port))

        if request.param == "cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            yield Cluster(side, cluster, [before(server) for server in cluster.servers])
        else:
            server: RedisServer = request.getfixturevalue("any_redis" if request.param == "one" else "replicated")
            options = {"replicas": 1} if request.param == "replicas" else {}
            yield OneRedis(side, server, before(server), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("late", LATES, ids=str)
@pytest.mark.parametrize("call", EACH_CALL)
def test_no_late_request_breaks_a_promise(bench: OneRedis, call: type[Call], late: Late) -> None:
    play(bench, call, late)


@pytest.mark.thorough
@pytest.mark.parametrize("bench", ["one", "cluster"], indirect=True)
def test_an_acquire_that_arrives_behind_its_repetition(bench: OneRedis) -> None:
    """Its attempt had no time for another one, so a release was sent behind it."""
    play(bench, Acquire, Late(), [Tale("released", "returned")])


@pytest.mark.thorough
@pytest.mark.parametrize("bench", ["one"], indirect=True)
def test_a_forced_release_that_arrives_late(bench: OneRedis) -> None:
    play(bench, ForceRelease, Late(cut=1), [Tale("released", "taken")])
