"""Locks in ZooKeeper, compared with kazoo's own recipe of a lock, on the same server.

A pair is an acquire and a release, on one core with the server, which does not wait for its disk.

A hand-off is the time from the start of a release to the return of the next holder's acquire. Eight stand in the queue,
and each holds the lock for a millisecond. Ours share a coordinator, and kazoo's share a client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from kazoo.client import KazooClient

from examples.servers import ZooKeeperServer, start_zookeeper
from fencing import AsyncZooKeeperCoordinator, ZooKeeperCoordinator
from fencing.zookeeper.calls import Ask
from fencing.zookeeper.layout import LOCKS
from tests.benchmarks.contenders import AGAIN, OURS, Way, way_of
from tests.benchmarks.crowd import CROWD, all_at_once, hand_over
from tests.benchmarks.duel import WARM_UP, Batch, Contenders
from tests.benchmarks.measure import spread_of, turns
from tests.benchmarks.parts import Found, Run
from tests.benchmarks.servers import cpu_seconds

RECIPE = "kazoo's Lock"
ASYNC = f"{OURS}, asyncio"
KINDS = (OURS, OURS + AGAIN, RECIPE, ASYNC)
WAITERS = (OURS, OURS + AGAIN, RECIPE)

PAIR, CLIENT, SERVER = "pair, µs", "client CPU, µs", "server CPU, µs"
HAND_OFF, LONGEST = "hand-off, ms", "longest hand-off, ms"
REQUESTS_A_SECOND = "requests a second, n"
CLIENT_A_SECOND, SERVER_A_SECOND = "client CPU a second, ms", "server CPU a second, ms"

PAIRS, WAITING, LEASES = "ZooKeeper locks", "ZooKeeper locks, 8 wait", "ZooKeeper locks, renewal"

TTL = 10
SECONDS = 30.0
COUNTS = (1_000, 10_000)
BATCH = 5
PAIRS_OF_A_TURN = 60
LIMIT, LIMIT_OF_LEASES = 170.0, 300.0
CYCLES = 3
"""Cycles of renewal in one measurement."""


def leases_of(count: int) -> str:
    return f"{count:,} leases"


def part(run: Run) -> None:
    against = {PAIR: (RECIPE,), CLIENT: (RECIPE,)}
    run.duel(PAIRS, "zookeeper.opened", against, rounds=120, seconds=LIMIT)
    if run.other:
        return
    found = run.child(PAIRS, "all", "zookeeper.costs", seconds=LIMIT, rounds=run.rounds(10))
    run.compare(PAIRS, found or {}, {SERVER: (RECIPE,)})
    run.say(WAITING)
    found = run.child(WAITING, "all", "zookeeper.crowds", seconds=LIMIT, rounds=run.rounds(12))
    run.compare(WAITING, found or {}, {HAND_OFF: (RECIPE,)})
    for count in COUNTS[:1] if run.quick else COUNTS:
        run.say(f"{LEASES}: {count:,}")
        found = run.child(LEASES, leases_of(count), "zookeeper.renewals", seconds=LIMIT_OF_LEASES, count=count)
        run.compare(LEASES, {leases_of(count): found or {}}, {})


class Installation:
    """One server, and the clients that take turns on it."""

    def __init__(self, server: ZooKeeperServer, stack: ExitStack) -> None:
        self.server, self._stack = server, stack
        self.client = KazooClient(server.hosts, timeout=TTL)
        self.client.start(SECONDS)
        stack.callback(self.client.stop)
        self.loop = asyncio.new_event_loop()
        self.asynchronous = AsyncZooKeeperCoordinator(KazooClient(server.hosts), ttl=TTL)
        stack.callback(lambda: self.loop.run_until_complete(self.asynchronous.close()))

    def coordinator(self) -> ZooKeeperCoordinator:
        return self._stack.enter_context(ZooKeeperCoordinator(KazooClient(self.server.hosts), ttl=TTL))

    def cpu(self) -> float:
        """Return the processor time of the server so far."""
        assert self.server.pid is not None
        return cpu_seconds(self.server.pid)

    def queue(self, path: str) -> int:
        """Return how many hold the lock or wait for it."""
        return len(self.client.get_children(path))


@contextmanager
def installation() -> Iterator[Installation]:
    with start_zookeeper(own=True, settings={"tickTime": 2000}) as server, ExitStack() as stack:
        yield Installation(server, stack)


def path_of(kind: str, resource: str) -> str:
    return f"{LOCKS if kind.startswith(OURS) else '/bench'}/{resource}"


def way(its: Installation, kind: str, resource: str, coordinator: ZooKeeperCoordinator) -> Way:
    """Return how a worker takes and frees a lock."""
    if kind == RECIPE:
        theirs = its.client.Lock(path_of(kind, resource), "bench")
        return Way(lambda: theirs.acquire(timeout=SECONDS), theirs.release)
    return way_of(coordinator.lock(resource), SECONDS)


# Pairs


class _Pairs:
    """One kind of pairs, of a lock of its own."""

    def __init__(self, its: Installation, kind: str, coordinator: ZooKeeperCoordinator) -> None:
        self._its, self._kind = its, kind
        name = f"orders-{KINDS.index(kind)}"
        self._lock = its.asynchronous.lock(name)
        self._way = way(its, kind, name, coordinator)
        self.turn(WARM_UP).run()

    def turn(self, count: int) -> Batch:
        return Batch(partial(self._in_loop if self._kind == ASYNC else self._in_thread, count))

    def _in_thread(self, count: int) -> tuple[float, float]:
        started, busy = time.perf_counter(), time.process_time()
        for _ in range(count):
            self._way.acquire()
            self._way.release()
        return (time.perf_counter() - started) / count, (time.process_time() - busy) / count

    def _in_loop(self, count: int) -> tuple[float, float]:
        async def pairs() -> tuple[float, float]:
            started, busy = time.perf_counter(), time.process_time()
            for _ in range(count):
                await (await self._lock.acquire(timeout=SECONDS)).release()
            return (time.perf_counter() - started) / count, (time.process_time() - busy) / count

        return self._its.loop.run_until_complete(pairs())


def _pairs(its: Installation) -> dict[str, _Pairs]:
    coordinator = its.coordinator()
    found: dict[str, _Pairs] = {}
    for kind in KINDS:
        found[kind] = found.get(kind.removesuffix(AGAIN)) or _Pairs(its, kind, coordinator)
    return found


@contextmanager
def opened() -> Iterator[Contenders]:
    """Open the locks."""
    with installation() as its:
        yield Contenders({kind: pairs.turn(BATCH) for kind, pairs in _pairs(its).items()}, BATCH)


def costs(rounds: int) -> Found:
    """Return what each kind of pair costs the server. Runs in a child."""
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    with installation() as its:
        each = _pairs(its)
        for kind in turns(list(KINDS), rounds):
            before = its.cpu()
            each[kind].turn(PAIRS_OF_A_TURN).run()
            found[kind].setdefault(SERVER, []).append((its.cpu() - before) / PAIRS_OF_A_TURN * 1e6)
    return found


# Hand-offs


def crowds(rounds: int) -> Found:
    """Return the times of the hand-offs to waiters of each kind. Runs in a child.

    A value is the median of the hand-offs of a round, so that a slow moment of the machine is one value.
    """
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in WAITERS}
    with installation() as its:
        coordinator = its.coordinator()
        ways = {
            kind: [way(its, kind, f"crowd-{kind[:5]}", coordinator) for _ in range(CROWD + 1)]
            for kind in WAITERS
            if not kind.endswith(AGAIN)
        }
        for kind in [*ways, *turns(list(WAITERS), rounds)]:
            one = kind.removesuffix(AGAIN)
            path = path_of(one, f"crowd-{one[:5]}")
            times, _ = hand_over(ways[one], lambda path=path: its.queue(path) == CROWD + 1, 0.1, time.process_time)  # type: ignore[misc]
            found[kind].setdefault(HAND_OFF, []).append(spread_of(times).median * 1e3)
            found[kind].setdefault(LONGEST, []).append(max(times) * 1e3)
    return {kind: {what: values[1:] for what, values in its_.items()} for kind, its_ in found.items()}


# Leases that are held


def renewals(count: int) -> dict[str, list[float]]:
    """Return what it costs each second to keep so many leases. Runs in a child. An idle server's cost is left out."""
    found: dict[str, list[float]] = {}
    with installation() as its:
        before = its.cpu()
        time.sleep(0.4 * TTL)
        idle = (its.cpu() - before) / (0.4 * TTL)
        coordinator, asked = its.coordinator(), 0
        perform = coordinator._backend.perform

        def counted(effect: Any) -> Any:
            nonlocal asked
            asked += isinstance(effect, Ask)
            return perform(effect)

        coordinator._backend.perform = counted  # type: ignore[method-assign]
        leases: list[Any] = []

        def take(first: int) -> None:
            for number in range(first, count, CROWD):
                leases.append(coordinator.acquire(f"orders:{number}", timeout=60))

        all_at_once([partial(take, first) for first in range(CROWD)])
        if len(leases) != count:
            raise RuntimeError(f"only {len(leases)} of {count} locks were taken")
        time.sleep(TTL / 2)  # the first renewals do some things for the only time
        for _ in range(2):
            started = time.perf_counter()
            counts = asked, time.process_time(), its.cpu()
            time.sleep(CYCLES * 0.4 * TTL)
            seconds = time.perf_counter() - started
            found.setdefault(REQUESTS_A_SECOND, []).append((asked - counts[0]) / seconds)
            found.setdefault(CLIENT_A_SECOND, []).append((time.process_time() - counts[1]) / seconds * 1e3)
            found.setdefault(SERVER_A_SECOND, []).append(((its.cpu() - counts[2]) / seconds - idle) * 1e3)
        if lost := [lease for lease in leases if not lease.held]:
            raise RuntimeError(f"{len(lost)} leases were lost: {lost[0]!r}")
        coordinator._backend.held_nodes.clear()
        for lease in leases:
            lease.detach()  # else they would all be released at the end
    return found
