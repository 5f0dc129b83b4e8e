"""Locks in etcd, compared with etcd's own recipe over the same connections, its /v3/lock, and ``etcdctl lock``.

A pair is an acquire and a release, on one core with the server: once on a disk, which etcd waits for at each write, and
once with its data in memory. There the requests decide.

A hand-off is the time from the start of a release to the return of the next holder's acquire. Eight stand in the queue,
and each holds the lock for a millisecond. They have just come, or have waited for longer than a tenth of the ttl.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fencing import AsyncEtcdCoordinator, EtcdCoordinator
from fencing.etcd.calls import Call, encode, end_of
from fencing.etcd.layout import LOCKS
from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contenders import AGAIN, OURS
from tests.benchmarks.crowd import CROWD, HOLD, LONGEST_WAIT, all_at_once, hand_over, times_of, wait_until
from tests.benchmarks.duel import WARM_UP, Batch, Contenders
from tests.benchmarks.etcd_contenders import (
    ASYNC,
    ASYNC_RECIPE,
    ETCDCTL,
    KINDS,
    RECIPE,
    SERVICE,
    TTL,
    WAITERS,
    Installation,
    async_way,
    installation,
    installed,
    prefix_of,
    way,
)
from tests.benchmarks.measure import spread_of, turns
from tests.benchmarks.parts import Found, Run

PAIR, CLIENT, SERVER, BOTH = "pair, µs", "client CPU, µs", "server CPU, µs", "CPU of both, µs"
REQUESTS = "requests, n"
HAND_OFF, LONGEST, HAND_OFF_CPU = "hand-off, ms", "longest hand-off, ms", "CPU of both a hand-off, ms"
REQUESTS_A_SECOND = "requests a second, n"
CLIENT_A_SECOND, SERVER_A_SECOND = "client CPU a second, ms", "server CPU a second, ms"
SIZE_LEASE, SIZE_KEY, SIZE_PAIR, SIZE_LEFT = (
    "file in use a lease, bytes",
    "key and value, bytes",
    "file in use a pair, bytes",
    "the same after a compaction, bytes",
)

DURABLE, NO_WAIT = "etcd locks", "etcd locks, without waiting for the disk"
WAITING, WAITED = "etcd locks, 8 have just come", "etcd locks, 8 have waited for 1.2 s"
LEASES, KEPT = "etcd locks, renewal", "etcd locks, size"
ON_DISK = {DURABLE: True, NO_WAIT: False}
PATIENCE = {WAITING: 0.0, WAITED: 1.2}
"""Seconds that pass in the queue before the first release."""

COUNTS = (1_000, 10_000)
BATCH = 5
PAIRS = 60
"""Pairs of one turn where costs are measured."""
MANY_PAIRS = 2_000
LIMIT, LIMIT_OF_LEASES = 170.0, 300.0
CYCLES = 3
"""Cycles of renewal in one measurement: each third one reads the keys."""


def leases_of(count: int) -> str:
    return f"{count:,} leases"


def part(run: Run) -> None:
    kinds = installed(list(KINDS))
    against = {PAIR: (RECIPE, SERVICE, ETCDCTL, ASYNC_RECIPE), CLIENT: (RECIPE, ASYNC_RECIPE)}
    for scenario in ON_DISK:
        options = {"scenario": scenario, "kinds": kinds}
        run.duel(scenario, "etcd.opened", against, rounds=120, seconds=LIMIT, **options)
        if run.other:
            continue
        found = run.child(scenario, "all", "etcd.costs", seconds=LIMIT, rounds=run.rounds(10), **options)
        run.compare(scenario, found or {}, {BOTH: (RECIPE, SERVICE, ASYNC_RECIPE)})
    if run.other:
        return
    for scenario in PATIENCE:
        run.say(scenario)
        options = {"scenario": scenario, "kinds": list(WAITERS)}
        found = run.child(scenario, "all", "etcd.crowds", seconds=LIMIT, rounds=run.rounds(12), **options)
        run.compare(scenario, found or {}, {HAND_OFF: (SERVICE, RECIPE), HAND_OFF_CPU: (SERVICE, RECIPE)})
    for count in COUNTS[:1] if run.quick else COUNTS:
        run.say(f"{LEASES}: {count:,}")
        found = run.child(LEASES, leases_of(count), "etcd.renewals", seconds=LIMIT_OF_LEASES, count=count)
        run.compare(LEASES, {leases_of(count): found or {}}, {})
    run.say(KEPT)
    found = run.child(KEPT, OURS, "etcd.kept", seconds=LIMIT, pairs=MANY_PAIRS)
    run.compare(KEPT, {OURS: found or {}}, {})


# Pairs


@contextmanager
def opened(scenario: str, kinds: list[str]) -> Iterator[Contenders]:
    """Open the locks."""
    with installation(on_disk=ON_DISK[scenario]) as its:
        yield Contenders({kind: pairs.turn(BATCH) for kind, pairs in _pairs(its, kinds).items()}, BATCH)


def costs(scenario: str, rounds: int, kinds: list[str]) -> Found:
    """Return what each kind of pair costs the client and the server. Runs in a child."""
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    with installation(on_disk=ON_DISK[scenario]) as its:
        each = _pairs(its, kinds)
        for kind in turns(kinds, rounds):
            pairs = each[kind]
            count = 1 if kind == ETCDCTL else PAIRS
            requests, before = pairs.requests(), its.cpu()
            _, client = pairs.turn(count).run()
            spent = {SERVER: (its.cpu() - before) / count * 1e6, CLIENT: client * 1e6}
            spent[BOTH] = spent[SERVER] + spent[CLIENT]
            spent[REQUESTS] = (pairs.requests() - requests) / count if kind != ETCDCTL else 0
            for what, value in spent.items():
                if what != REQUESTS or value:
                    found[kind].setdefault(what, []).append(value)
    return found


class _Pairs:
    """One kind of pairs, of a lock of its own."""

    def __init__(self, its: Installation, kind: str) -> None:
        self._its, self._kind, self._counter = its, kind, _Counter()
        name = f"orders:{KINDS.index(kind)}"
        self._is_async = kind in (ASYNC, ASYNC_RECIPE)
        if self._is_async:
            coordinator = AsyncEtcdCoordinator([its.server.url], ttl=TTL)
            self._counter.of(coordinator)
            self._async = async_way(its, kind, name, coordinator)
        else:
            threads = its.coordinator()
            self._counter.of(threads)
            self._way = way(its, kind, name, threads)
        self.turn(WARM_UP if kind != ETCDCTL else 1).run()

    def requests(self) -> int:
        """Return how many requests there were so far."""
        return self._counter.count

    def turn(self, count: int) -> Batch:
        return Batch(partial(self._in_loop if self._is_async else self._in_thread, count))

    def _in_thread(self, count: int) -> tuple[float, float]:
        if self._kind == ETCDCTL:
            count = 1
        started, busy = time.perf_counter(), _busy()
        for _ in range(count):
            self._way.acquire()
            self._way.release()
        return (time.perf_counter() - started) / count, (_busy() - busy) / count

    def _in_loop(self, count: int) -> tuple[float, float]:
        async def pairs() -> tuple[float, float]:
            started, busy = time.perf_counter(), _busy()
            for _ in range(count):
                await self._async.acquire()
                await self._async.release()
            return (time.perf_counter() - started) / count, (_busy() - busy) / count

        return self._its.loop.run_until_complete(pairs())


class _Counter:
    """A count of the requests of a coordinator."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, coordinator: Any) -> None:
        """Count those of this coordinator, too."""
        backend = coordinator._backend
        perform = backend.perform

        def counted(effect: Any) -> Any:
            self.count += isinstance(effect, Call)
            return perform(effect)

        backend.perform = counted


def _pairs(its: Installation, kinds: list[str]) -> dict[str, _Pairs]:
    """Return the kinds of pairs. The A/A comparison shares that of what it is compared with."""
    found: dict[str, _Pairs] = {}
    for kind in kinds:
        found[kind] = found.get(kind.removesuffix(AGAIN)) or _Pairs(its, kind)
    return found


def _busy() -> float:
    """Return the processor time of this process, and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


# Hand-offs


def crowds(scenario: str, rounds: int, kinds: list[str]) -> Found:
    """Return the times of the hand-offs to waiters of each kind. Runs in a child.

    A value is the median of the hand-offs of a round, so that a slow moment of the machine is one value.
    """
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    with installation(on_disk=True) as its:
        queues = {kind: _crowd_of(its, kind) for kind in kinds if not kind.endswith(AGAIN)}
        for crowd in queues.values():
            crowd.run(0.0)
        for kind in turns(kinds, rounds):
            times, spent = queues[kind.removesuffix(AGAIN)].run(PATIENCE[scenario])
            for what, value in (
                (HAND_OFF, spread_of(times).median * 1e3),
                (LONGEST, max(times) * 1e3),
                (HAND_OFF_CPU, spent / len(times) * 1e3),
            ):
                found[kind].setdefault(what, []).append(value)
    return found


def _crowd_of(its: Installation, kind: str) -> _Threads | _Tasks:
    return _Tasks(its, kind) if kind == ASYNC else _Threads(its, kind)


class _Threads:
    """A holder and its waiters, which are threads. Ours share a coordinator; the others have a session each."""

    def __init__(self, its: Installation, kind: str) -> None:
        self._its, name = its, f"crowd-{kind.encode().hex()}"
        self._queue = prefix_of(kind, name)
        coordinator = its.coordinator()
        self._ways = [way(its, kind, name, coordinator) for _ in range(CROWD + 1)]

    def run(self, patience: float) -> tuple[list[float], float]:
        """Return the seconds of each hand-off, and the processor time of all."""
        return hand_over(
            self._ways,
            lambda: self._its.queue(self._queue) == CROWD + 1,
            patience,
            lambda: time.process_time() + self._its.cpu(),
        )


class _Tasks:
    """The same with tasks."""

    def __init__(self, its: Installation, kind: str) -> None:
        self._its, name = its, f"crowd-{kind.encode().hex()}"
        self._queue = prefix_of(kind, name)
        coordinator = AsyncEtcdCoordinator([its.server.url], ttl=TTL)
        self._ways = [async_way(its, kind, name, coordinator) for _ in range(CROWD + 1)]

    def run(self, patience: float) -> tuple[list[float], float]:
        return self._its.loop.run_until_complete(self._run(patience))

    async def _run(self, patience: float) -> tuple[list[float], float]:
        first, *waiting = self._ways
        grants: list[Grant] = []
        await first.acquire()

        async def wait(worker: int) -> None:
            await waiting[worker].acquire()
            acquired = time.perf_counter()
            await asyncio.sleep(HOLD)
            grants.append(Grant(worker, acquired, time.perf_counter()))
            await waiting[worker].release()

        tasks = [asyncio.create_task(wait(worker)) for worker in range(CROWD)]
        enlisted = lambda: wait_until(lambda: self._its.queue(self._queue) == CROWD + 1)  # noqa: E731
        await asyncio.to_thread(enlisted)
        await asyncio.sleep(patience)
        busy = time.process_time() + self._its.cpu()
        began = time.perf_counter()
        grants.append(Grant(CROWD, began, began))
        await first.release()
        await asyncio.wait_for(asyncio.gather(*tasks), LONGEST_WAIT)
        return times_of(grants, CROWD), time.process_time() + self._its.cpu() - busy


# Leases that are held


def renewals(count: int) -> dict[str, list[float]]:
    """Return what it costs each second to keep so many leases. Runs in a child.

    Each lease is renewed once in a cycle: 0.4 of the ttl. What an idle server takes is left out.
    """
    found: dict[str, list[float]] = {}
    with installation(on_disk=True) as its:
        idle = _server_a_second(its, 0.4 * TTL)
        coordinator, counter = its.coordinator(), _Counter()
        counter.of(coordinator)
        before = its.size()["dbSizeInUse"]
        leases = _held(coordinator, count)
        its.compact()
        time.sleep(1)
        found[SIZE_LEASE] = [(its.size()["dbSizeInUse"] - before) / count]
        time.sleep(TTL / 2)  # the first renewals do some things for the only time
        for _ in range(2):
            started = time.perf_counter()
            counted = counter.count, time.process_time(), its.cpu()
            time.sleep(CYCLES * 0.4 * TTL)
            seconds = time.perf_counter() - started
            spent = counter.count - counted[0], time.process_time() - counted[1], its.cpu() - counted[2]
            found.setdefault(REQUESTS_A_SECOND, []).append(spent[0] / seconds)
            found.setdefault(CLIENT_A_SECOND, []).append(spent[1] / seconds * 1e3)
            found.setdefault(SERVER_A_SECOND, []).append((spent[2] / seconds - idle) * 1e3)
        if lost := [lease for lease in leases if not lease.held]:
            raise RuntimeError(f"{len(lost)} leases were lost: {lost[0]!r}")
        for lease in leases:
            lease.detach()  # else they would all be released at the end
    return found


def _held(coordinator: EtcdCoordinator, count: int) -> list[Any]:
    """Return so many leases. Eight threads take them: each grant waits for the disk."""
    leases: list[Any] = []

    def take(first: int) -> None:
        for number in range(first, count, CROWD):
            leases.append(coordinator.acquire(f"orders:{number}", timeout=60))

    all_at_once([partial(take, first) for first in range(CROWD)])
    if len(leases) != count:
        raise RuntimeError(f"only {len(leases)} of {count} locks were taken")
    return leases


def _server_a_second(its: Installation, seconds: float) -> float:
    before = its.cpu()
    time.sleep(seconds)
    return (its.cpu() - before) / seconds


def kept(pairs: int) -> dict[str, list[float]]:
    """Return what a pair leaves in the file, and the size of a holder's key. Runs in a child."""
    with installation(on_disk=False) as its:
        coordinator = its.coordinator()
        before = _compacted(its, coordinator)
        for number in range(pairs):
            coordinator.acquire(f"orders:{number}").release()
        left = its.size()["dbSizeInUse"] - before
        after = _compacted(its, coordinator) - before
        with coordinator.hold("orders:42"):
            [found] = its.server.call("kv/range", {"key": encode(LOCKS), "range_end": encode(end_of(LOCKS))})["kvs"]
        sizes = (_length(found["key"]) + _length(found["value"]), left / pairs, after / pairs)
        return {what: [float(size)] for what, size in zip((SIZE_KEY, SIZE_PAIR, SIZE_LEFT), sizes, strict=True)}


def _compacted(its: Installation, coordinator: EtcdCoordinator) -> int:
    """Compact, and return the bytes in use. The commits that follow free the pages."""
    its.compact()
    sizes = []
    for _ in range(20):
        coordinator.acquire("orders:42").release()
        time.sleep(0.1)
        sizes.append(its.size()["dbSizeInUse"])
    return min(sizes)


def _length(encoded: str) -> int:
    """Return how many bytes a text in base64 stands for."""
    return len(encoded) * 3 // 4 - encoded.count("=")
