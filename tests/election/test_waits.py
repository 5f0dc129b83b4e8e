"""Stopping a thread's campaign while it waits for the lock: at each kind of wait, long before the wait would end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine

from examples.servers import EtcdServer, ZooKeeperServer
from fencing import EtcdCoordinator, MemoryCoordinator, RedisCoordinator, SQLCoordinator, ZooKeeperCoordinator
from fencing.election.candidates import Candidate
from fencing.locks.waiting import Wait
from tests.support import wait_until
from tests.support.fixtures import RedisServers

LONG = 120.0  # the ttl of the holder
SOON = 5.0  # by themselves the waits at etcd and ZooKeeper would end with the ttl, the others at their next recheck

Make = Callable[[], Any]


def _redis(request: pytest.FixtureRequest) -> Make:
    servers: RedisServers = request.getfixturevalue("redis_servers")
    url = servers.newest().url
    return lambda: RedisCoordinator(redis.Redis.from_url(url), ttl=LONG)


def _cluster(request: pytest.FixtureRequest) -> Make:
    cluster = request.getfixturevalue("redis_cluster")
    return lambda: RedisCoordinator(cluster.client(), ttl=LONG)


def _postgresql(request: pytest.FixtureRequest) -> Make:
    url = request.getfixturevalue("postgres_url")
    SQLCoordinator(create_engine(url)).create_tables()
    return lambda: SQLCoordinator(create_engine(url), ttl=LONG)


def _etcd(request: pytest.FixtureRequest) -> Make:
    server: EtcdServer = request.getfixturevalue("etcd_server")
    return lambda: EtcdCoordinator([server.url], ttl=LONG)


def _zookeeper(request: pytest.FixtureRequest) -> Make:
    from kazoo.client import KazooClient

    server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    return lambda: ZooKeeperCoordinator(KazooClient(server.hosts))


_thorough = pytest.mark.thorough


@pytest.fixture(
    params=[
        _redis,
        pytest.param(_cluster, marks=_thorough),
        _postgresql,
        pytest.param(_etcd, marks=_thorough),
        pytest.param(_zookeeper, marks=_thorough),
    ],
    ids=lambda param: param.__name__[1:],
)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    coordinators: list[Any] = []
    make_one: Make = request.param(request)

    def make_and_track() -> Any:
        coordinators.append(make_one())
        return coordinators[-1]

    yield make_and_track
    for coordinator in coordinators:
        coordinator.close()


def test_a_campaign_that_waits_in_the_queue_is_stopped(make: Make, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    lease = make().acquire(name)
    election = make().election(name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(election.run, lambda lease: None)
        wait_until(lambda: election._candidates and election._candidates[0]._waiter is not None)
        began = time.monotonic()
        election.stop()
        try:
            assert running.result(SOON) is None
        finally:
            lease.release()  # ends the wait in any case
    assert time.monotonic() - began < SOON


def test_the_waiter_of_the_wait_that_is_under_way_is_notified() -> None:
    """Some waits also end soon by themselves, so their tests would not notice."""
    notified: list[str] = []

    class Waiter:
        def notify(self) -> None:
            notified.append("notified")

    candidate = Candidate(MemoryCoordinator().lock("r"))
    candidate._backend.perform = lambda effect: candidate.stop()
    candidate._perform(Wait(Waiter(), 1.0, 1.0))
    assert notified == ["notified"]
