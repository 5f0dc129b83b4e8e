"""Threads that take a lock, hold it for a millisecond, free it, and want it again: ours, and another lock beside it."""

from __future__ import annotations

import base64
import http.client
import importlib
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
import redis.sentinel
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from examples.servers.sentinel import SERVICE
from tests.benchmarks.closed_loop import Grant, work
from tests.benchmarks.contended import fairness, longest_wait
from tests.benchmarks.contenders import OURS, REDIS_PY, Way, checked, way_of
from tests.outages.deployments import RESOURCE, TTL, Deployment, Running, open_coordinator

WARM_UP = 0.3
PATIENCE = 10.0
ROUNDS, PAIRS = 11, 30
OTHER = f"{RESOURCE}/other"

Maker = Callable[[], Way]
"""Makes a lock for a thread."""


class Load(NamedTuple):
    """What a number of threads has got.

    Args:
        grants: a second.
        median: of the waits, in milliseconds.
        longest: of the waits, in milliseconds.
        jain: Jain's index of the grants of each thread: 1 if all have as many, 1/n if one has all.
    """

    grants: float
    median: float
    longest: float
    jain: float


class Loads(NamedTuple):
    """The loads of one lock.

    Args:
        pair: the median time of acquire and release by one thread alone, in microseconds.
        crowds: by the number of threads.
    """

    pair: float
    crowds: dict[int, Load]


def measure(deployment: Deployment, crowds: Sequence[int], seconds: float) -> dict[str, Loads]:
    """Return the loads of our lock, and of the other one of this service if there is one."""
    with ExitStack() as stack:
        running = deployment.start(stack)
        opened = {OURS: _ours, **RIVALS.get(running.kind, {})}
        makers = {name: stack.enter_context(each(running)) for name, each in opened.items()}
        pairs = _pairs(makers)
        return {
            name: Loads(pairs[name], {crowd: _crowd(make, crowd, seconds) for crowd in crowds})
            for name, make in makers.items()
        }


def _pairs(makers: Mapping[str, Maker]) -> dict[str, float]:
    """Return the median time of acquire and release of each, in microseconds. They take turns."""
    ways = {name: make() for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            for _ in range(PAIRS):
                began = time.perf_counter()
                way.acquire()
                way.release()
                times[name].append(time.perf_counter() - began)
    # The first turn opens connections.
    return {name: statistics.median(its[PAIRS:]) * 1e6 for name, its in times.items()}


def _crowd(make: Maker, threads: int, seconds: float) -> Load:
    grants: list[Grant] = []
    errors: list[str] = []
    over = threading.Event()
    workers = [
        threading.Thread(target=work, args=(worker, make(), grants, errors, over.is_set), daemon=True)
        for worker in range(threads)
    ]
    for thread in workers:
        thread.start()
    time.sleep(WARM_UP)
    start = time.perf_counter()
    time.sleep(seconds)
    end = time.perf_counter()
    over.set()
    for thread in workers:  # each gets the lock once more
        thread.join(2 * PATIENCE)
    if errors:
        print(f"{len(errors)} of {threads} threads gave up: {errors[0]}", file=sys.stderr, flush=True)
    inside = sorted((each for each in grants if start <= each.acquired < end), key=lambda each: each.acquired)
    by_worker = [[each for each in inside if each.worker == worker] for worker in range(threads)]
    # A wait has the release before it in it.
    waits = [later.acquired - earlier.releasing for its in by_worker for earlier, later in itertools.pairwise(its)]
    longest = longest_wait(inside, threads, start, end)
    median = statistics.median(waits or [longest])
    return Load(len(inside) / (end - start), median * 1e3, longest * 1e3, fairness(inside, threads))


@contextmanager
def _ours(running: Running) -> Iterator[Maker]:
    with open_coordinator(running.kind, running.address, ttl=TTL) as coordinator:
        yield lambda: way_of(coordinator.lock(RESOURCE), PATIENCE)


@contextmanager
def _redis_py(running: Running) -> Iterator[Maker]:
    if running.kind == "sentinel":
        addresses = [each.split(":") for each in running.address.split(",")]
        watched: Any = redis.sentinel.Sentinel
        client: Any = watched([(host, int(port)) for host, port in addresses]).master_for(SERVICE)
    else:
        client = redis.Redis.from_url(running.address)
    with client:
        yield lambda: checked(client.lock(OTHER, timeout=TTL, blocking_timeout=PATIENCE))


@contextmanager
def _pottery(running: Running) -> Iterator[Maker]:
    kind = importlib.import_module("pottery").Redlock  # in the extra of the benchmarks
    with ExitStack() as stack:
        masters = {stack.enter_context(redis.Redis.from_url(url)) for url in running.address.split(",")}
        yield lambda: checked(kind(key=OTHER, masters=masters, auto_release_time=TTL), timeout=PATIENCE)


def _statements(take: str, free: str) -> Callable[[Running], AbstractContextManager[Maker]]:
    """Return what makes a lock of a database's own, on a connection for each thread."""

    @contextmanager
    def opened(running: Running) -> Iterator[Maker]:
        engine = create_engine(running.address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with ExitStack() as stack:

            def make() -> Way:
                connection = stack.enter_context(engine.connect())
                return Way(
                    lambda: connection.execute(text(take)).scalar(), lambda: connection.execute(text(free)).scalar()
                )

            yield make

    return opened


@contextmanager
def _etcd_lock(running: Running) -> Iterator[Maker]:
    """Yield what makes a lock of etcd's own service, at its first member."""
    address = urlsplit(running.address.partition(",")[0])
    with ExitStack() as stack:

        def make() -> Way:
            connection = http.client.HTTPConnection(address.hostname or "", address.port)
            stack.callback(connection.close)

            def ask(path: str, **body: Any) -> Any:
                connection.request("POST", path, json.dumps(body))
                return json.loads(connection.getresponse().read())

            lease = ask("/v3/lease/grant", TTL=60)["ID"]
            name = base64.b64encode(OTHER.encode()).decode()
            keys: list[str] = []
            return Way(
                lambda: keys.append(ask("/v3/lock/lock", name=name, lease=lease)["key"]),
                lambda: ask("/v3/lock/unlock", key=keys.pop()),
            )

        yield make


@contextmanager
def _kazoo(running: Running) -> Iterator[Maker]:
    from kazoo.client import KazooClient

    client = KazooClient(running.address)
    client.start(30)
    yield lambda: checked(client.Lock("/other/lock"), timeout=PATIENCE)
    client.stop()
    client.close()


RIVALS: Mapping[str, Mapping[str, Callable[[Running], AbstractContextManager[Maker]]]] = {
    "redis": {REDIS_PY: _redis_py},
    "sentinel": {REDIS_PY: _redis_py},
    "redlock": {"pottery": _pottery},
    "postgresql": {"pg_advisory_lock": _statements("SELECT pg_advisory_lock(42)", "SELECT pg_advisory_unlock(42)")},
    "mariadb": {"GET_LOCK": _statements(f"SELECT GET_LOCK('other', {PATIENCE:.0f})", "SELECT RELEASE_LOCK('other')")},
    "etcd": {"/v3/lock": _etcd_lock},
    "zookeeper": {"kazoo Lock": _kazoo},
}
"""Other locks of the same kind, by the kind of the service."""
