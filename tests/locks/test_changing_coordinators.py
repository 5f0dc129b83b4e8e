"""Moving the locks of a resource from one coordinator to another: first both, then the new one alone.

``docs/coordinators/choosing.md`` has the steps. To add a kind of coordinator, add its function to KINDS.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from fencing import (
    AsyncEtcdCoordinator,
    AsyncMemoryCoordinator,
    AsyncZooKeeperCoordinator,
    EtcdCoordinator,
    Fence,
    LockTable,
    MemoryCoordinator,
    StaleFence,
    ZooKeeperCoordinator,
    hold_all,
)
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.redlock import RedlockNodes, start_node
from tests.support.sides import Side
from tests.support.sql_locks import DRIVERS

RESOURCE = "orders:42"
SECTIONS = 3
"""Of each worker."""

PAUSE = 0.002
"""Seconds of each section: without the lock of both, two would be inside."""

AHEAD = 10**12
"""How far the old numbers are ahead of every clock: eleven days."""

Made = Callable[[], Any]
"""Makes another coordinator of the same service, as another process does."""


def on_redis(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    server = request.getfixturevalue("any_redis")
    return lambda: side.coordinator(server.url)


def on_cluster(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    cluster = request.getfixturevalue("redis_cluster")
    return lambda: side.coordinator(side.cluster_client(cluster))


def on_redlock(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    nodes = request.getfixturevalue("three_nodes")
    return lambda: nodes.coordinator(side)


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[RedlockNodes]:
    """Nodes of Redlock for these tests alone: their numbers are far ahead of the clock afterwards."""
    with ExitStack() as stack:
        nodes = RedlockNodes([stack.enter_context(start_node()) for _ in range(3)], longest_ttl=60.0)
        with nodes.coordinator(Side(False)) as coordinator:
            coordinator.initialise()
        yield nodes


def on_postgres(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    return on_sql(side, request.getfixturevalue("postgres_url"), "asyncpg" if side.asynchronous else "psycopg")


def on_mariadb(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    return on_sql(side, request.getfixturevalue("mariadb_url"), "aiomysql" if side.asynchronous else "pymysql")


def on_sqlite(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    return on_sql(side, f"sqlite:///{path}/locks.db", "aiosqlite" if side.asynchronous else "sqlite")


def on_sql(side: Side, url: str, driver: str) -> Made:
    def make() -> Any:
        coordinator = DRIVERS[driver].coordinator(url)
        side.made.append(coordinator)
        return coordinator

    side.call(make().create_tables)
    return make


def on_etcd(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    server = request.getfixturevalue("etcd_server")

    def make() -> Any:
        coordinator = (AsyncEtcdCoordinator if side.asynchronous else EtcdCoordinator)([server.url])
        side.made.append(coordinator)
        return coordinator

    return make


def on_zookeeper(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    server = request.getfixturevalue("zookeeper_server")

    def make() -> Any:
        kind = AsyncZooKeeperCoordinator if side.asynchronous else ZooKeeperCoordinator
        coordinator = kind(KazooClient(server.hosts))
        side.made.append(coordinator)
        return coordinator

    return make


def in_memory(request: pytest.FixtureRequest, side: Side, path: Path) -> Made:
    table = LockTable()

    def make() -> Any:
        coordinator = (AsyncMemoryCoordinator if side.asynchronous else MemoryCoordinator)(table)
        side.made.append(coordinator)
        return coordinator

    return make


KINDS = {
    "redis": on_redis,
    "cluster": on_cluster,
    "redlock": on_redlock,
    "postgres": on_postgres,
    "mariadb": on_mariadb,
    "sqlite": on_sqlite,
    "etcd": on_etcd,
    "zookeeper": on_zookeeper,
    "memory": in_memory,
}
OFTEN = {("redis", "postgres"), ("sqlite", "memory")}
PAIRS = [
    pytest.param(pair, id="-".join(pair), marks=[] if pair in OFTEN else [pytest.mark.thorough])
    for pair in itertools.permutations(KINDS, 2)
]


class CountingGuard(MemoryGuard):
    """A guard that counts the claims it refuses."""

    refusals = 0

    def claim(self, *holders: Any, timeout: float | None = None) -> None:
        try:
            super().claim(*holders, timeout=timeout)
        except StaleFence:
            self.refusals += 1
            raise


class AsyncCountingGuard(AsyncMemoryGuard):
    refusals = 0

    async def claim(self, *holders: Any, timeout: float | None = None) -> None:
        try:
            await super().claim(*holders, timeout=timeout)
        except StaleFence:
            self.refusals += 1
            raise


class Counter:
    """A guarded counter, and the sections that add to it. No two may be inside at once."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.guard: Any = AsyncCountingGuard() if side.asynchronous else CountingGuard()
        self._inside = threading.Lock()

    @property
    def total(self) -> int:
        return int(self.guard.data.get("total", 0))

    def worker(self, *coordinators: Any) -> Callable[[], None]:
        """A process that takes the lock of each coordinator; the last one has the guard."""
        *before, last = (each() for each in coordinators)
        locks = [*(each.lock(RESOURCE, guards=()) for each in before), last.lock(RESOURCE, guards=[self.guard])]

        def held() -> Any:
            return hold_all(locks, timeout=30) if before else locks[-1].hold(timeout=30)

        def run() -> None:
            for _ in range(SECTIONS):
                with held() as leases:
                    assert self._inside.acquire(blocking=False), "two are inside"
                    total = self.total
                    time.sleep(PAUSE)
                    self.guard.write(leases[-1] if before else leases, "total", total + 1)
                    self._inside.release()

        async def run_async() -> None:
            for _ in range(SECTIONS):
                async with held() as leases:
                    assert self._inside.acquire(blocking=False), "two are inside"
                    total = self.total
                    await asyncio.sleep(PAUSE)
                    await self.guard.write(leases[-1] if before else leases, "total", total + 1)
                    self._inside.release()

        return lambda: self.side.call(run_async if self.side.asynchronous else run)

    def run(self, *workers: Callable[[], None]) -> int:
        """Run the workers at the same time, and return how many claims were refused."""
        before, expected = self.guard.refusals, self.total + SECTIONS * len(workers)
        self.side.race(workers)
        assert self.total == expected, "an update was lost"
        return int(self.guard.refusals - before)


@pytest.mark.thorough
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_moving_there_and_back(
    request: pytest.FixtureRequest, tmp_path: Path, pair: tuple[str, str], asynchronous: bool
) -> None:
    side = Side(asynchronous)
    counter = Counter(side)
    old, new = (KINDS[kind](request, side, tmp_path) for kind in pair)
    try:
        # The storage has seen numbers that lie far above those of both.
        side.call(counter.guard.claim, Fence(RESOURCE, time.time_ns() // 1000 + AHEAD, "a" * 22))
        assert counter.run(counter.worker(old), counter.worker(old)) <= 1
        for source, target in ((old, new), (new, old)):
            counter.run(counter.worker(source), counter.worker(source, target))  # the old ones are being replaced
            both = counter.run(counter.worker(source, target), counter.worker(source, target))
            replaced = counter.run(counter.worker(source, target), counter.worker(target))
            alone = counter.run(counter.worker(target), counter.worker(target))
            assert both + replaced + alone <= 1
    finally:
        for coordinator in side.made:
            side.call(coordinator.close)
