"""Threads that take a lock, hold it for a millisecond, free it, and want it again: ours, and another lock beside it."""

from __future__ import annotations

import base64
import http.client
import importlib
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
import redis.sentinel
from redis.lock import Lock

from examples.servers.sentinel import SERVICE
from fencing import FencingError
from tests.benchmarks.measure import jain
from tests.outages.deployments import RESOURCE, TTL, Deployment, Running, open_coordinator

HOLD = 0.001
PATIENCE = 10.0
ROUNDS, PAIRS = 11, 30

Contender = Callable[[], tuple[Callable[[], object], Callable[[], object]]]
"""Makes a lock for a thread, and returns how to take it and how to free it."""


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
        opened = {"fencing": _ours, **_rivals(running)}
        contenders: dict[str, Contender] = {name: stack.enter_context(each(running)) for name, each in opened.items()}
        pairs = _pairs(contenders)
        return {
            name: Loads(pairs[name], {crowd: _crowd(contender, crowd, seconds) for crowd in crowds})
            for name, contender in contenders.items()
        }


def _pairs(contenders: Mapping[str, Contender]) -> dict[str, float]:
    """Return the median time of acquire and release of each, in microseconds. They take turns."""
    made = {name: contender() for name, contender in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, (acquire, release) in made.items():
            for _ in range(PAIRS):
                began = time.perf_counter()
                acquire()
                release()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(its[PAIRS:]) * 1e6 for name, its in times.items()}


def _crowd(contender: Contender, threads: int, seconds: float) -> Load:
    waits: list[list[float]] = [[] for _ in range(threads)]
    barrier, over = threading.Barrier(threads + 1), threading.Event()

    def work(mine: list[float]) -> None:
        acquire, release = contender()
        barrier.wait(PATIENCE)
        while not over.is_set():
            began = time.perf_counter()
            try:
                acquire()
            except FencingError:
                continue
            finally:
                mine.append(time.perf_counter() - began)
            time.sleep(HOLD)
            release()

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in waits]
    for worker in workers:
        worker.start()
    barrier.wait(PATIENCE)
    began = time.perf_counter()
    time.sleep(seconds)
    over.set()
    took = time.perf_counter() - began
    counts = [len(mine) for mine in waits]  # those that wait still get the lock once more, which counts as a wait
    for worker in workers:
        worker.join(2 * PATIENCE)
    every = list(itertools.chain(*waits))
    return Load(sum(counts) / took, statistics.median(every) * 1e3, max(every) * 1e3, jain(counts))


@contextmanager
def _ours(running: Running) -> Iterator[Contender]:
    with open_coordinator(running.kind, running.address, ttl=TTL) as coordinator:

        def make() -> Any:
            lock, held = coordinator.lock(RESOURCE), []
            return lambda: held.append(lock.acquire(timeout=PATIENCE)), lambda: held.pop().release()

        yield make


def _rivals(running: Running) -> dict[str, Callable[[Running], Any]]:
    rivals: dict[str, dict[str, Callable[[Running], Any]]] = {
        "redis": {"redis-py Lock": _redis_py},
        "sentinel": {"redis-py Lock": _redis_py},
        "redlock": {"pottery": _pottery},
        "postgresql": {"pg_advisory_lock": _advisory},
        "mariadb": {"GET_LOCK": _get_lock},
        "etcd": {"/v3/lock": _etcd_lock},
        "zookeeper": {"kazoo Lock": _kazoo},
    }
    return rivals.get(running.kind, {})


@contextmanager
def _redis_py(running: Running) -> Iterator[Contender]:
    if running.kind == "sentinel":
        addresses = [tuple(each.split(":")) for each in running.address.split(",")]
        watched: Any = redis.sentinel.Sentinel
        client: Any = watched([(host, int(port)) for host, port in addresses]).master_for(SERVICE)
    else:
        client = redis.Redis.from_url(running.address)

    def make() -> Any:
        lock = Lock(client, f"{RESOURCE}/other", timeout=TTL)
        return lock.acquire, lock.release

    with client:
        yield make


@contextmanager
def _pottery(running: Running) -> Iterator[Contender]:
    pottery: Any = importlib.import_module("pottery")  # in the extra of the benchmarks

    masters = {redis.Redis.from_url(url) for url in running.address.split(",")}

    def make() -> Any:
        lock = pottery.Redlock(key=f"{RESOURCE}/other", masters=masters, auto_release_time=TTL)
        return lambda: lock.acquire(timeout=PATIENCE), lock.release

    yield make
    for client in masters:
        client.close()


@contextmanager
def _advisory(running: Running) -> Iterator[Contender]:
    import psycopg

    with ExitStack() as stack:

        def make() -> Any:
            url = running.address.replace("+psycopg", "")
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            return (
                lambda: connection.execute("SELECT pg_advisory_lock(42)"),
                lambda: connection.execute("SELECT pg_advisory_unlock(42)"),
            )

        yield make


@contextmanager
def _get_lock(running: Running) -> Iterator[Contender]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    engine = create_engine(running.address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with ExitStack() as stack:

        def make() -> Any:
            connection = stack.enter_context(engine.connect())
            take, free = text(f"SELECT GET_LOCK('other', {PATIENCE:.0f})"), text("SELECT RELEASE_LOCK('other')")
            return lambda: connection.execute(take).scalar(), lambda: connection.execute(free).scalar()

        yield make


@contextmanager
def _etcd_lock(running: Running) -> Iterator[Contender]:
    address = urlsplit(running.address.partition(",")[0])

    with ExitStack() as stack:

        def make() -> Any:
            connection = http.client.HTTPConnection(address.hostname or "", address.port)
            stack.callback(connection.close)

            def ask(path: str, **body: Any) -> Any:
                connection.request("POST", path, json.dumps(body))
                return json.loads(connection.getresponse().read())

            lease = ask("/v3/lease/grant", TTL=60)["ID"]
            name = base64.b64encode(f"{RESOURCE}/other".encode()).decode()
            keys: list[str] = []
            return (
                lambda: keys.append(ask("/v3/lock/lock", name=name, lease=lease)["key"]),
                lambda: ask("/v3/lock/unlock", key=keys.pop()),
            )

        yield make


@contextmanager
def _kazoo(running: Running) -> Iterator[Contender]:
    from kazoo.client import KazooClient

    client = KazooClient(running.address)
    client.start(30)

    def make() -> Any:
        lock = client.Lock("/other/lock")
        return lambda: lock.acquire(timeout=PATIENCE), lock.release

    yield make
    client.stop()
    client.close()
