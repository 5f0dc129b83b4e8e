"""A Redis Cluster beside one server: a pair, the renewal of leases in many slots, and waiters in many slots.

The nodes have no replicas, so that a node does the same work as the one server. With ten locks in turn, each pair wakes
another process: see the row of three single servers. The server's processor time is that of all nodes, less what they
use when nothing happens: they send one another messages all the time.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import redis.asyncio

from examples.servers import RedisCluster, RedisServer, start_cluster
from fencing import AsyncRedisCoordinator, RedisCoordinator
from fencing.redis.keys import slot_of
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.duel import Contenders
from tests.benchmarks.pair import CPU, TIME
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import cpu_seconds, redis_server

ONE, CLUSTER = "one server", "Cluster, {} nodes"
NODES = 3
NAMES = 10
SERVERS = f"{NODES} single servers"
PAIRS = "one lock, one core"
SPREAD_PAIRS = f"{NAMES} locks in turn, one core"
CYCLE = 2.0
TTL = 3 * CYCLE
CLIENT, SERVER, SPREAD = "client CPU a cycle, ms", "server CPU a cycle, ms", "server CPU, most / least of a node"
GRANT = "server CPU a grant, µs"
HAND_OFF = "hand-off, µs"
LIMIT = 120.0
MEMORY_ONLY = ("--appendonly", "no")


def part(run: Run) -> None:
    for scenario, names in ((PAIRS, 1), (SPREAD_PAIRS, NAMES)):
        nodes = (1, NODES, 6) if run.everything else (NODES,)
        against = {TIME: (ONE, SERVERS), CPU: (ONE,)}
        run.duel(scenario, "cluster.opened", against, rounds=500, seconds=LIMIT, names=names, nodes=nodes)
    for leases in (100, 1_000, 10_000) if run.everything else (10_000,):
        for kind in ("sync", "async"):
            _renewals(run, leases, kind)
    for slots in (1, 10, 100) if run.everything else ():
        scenario = f"hand-offs to waiters in {slots} slot{'s' if slots > 1 else ''}"
        run.say(scenario)
        options = {"slots": slots, "rounds": run.rounds(50)}
        result = run.child(scenario, "all", "cluster.measure_hand_offs", seconds=LIMIT, **options)
        if result is not None:
            run.compare(scenario, result, {HAND_OFF: (ONE,)})


def renewals_of(leases: int, kind: str) -> str:
    """Return the name of a scenario."""
    return f"renewing {leases:,} leases, {kind}"


def _renewals(run: Run, leases: int, kind: str) -> None:
    scenario = renewals_of(leases, kind)
    found = {}
    for name, nodes in ((ONE, 0), (CLUSTER.format(NODES), NODES)):
        run.say(f"{scenario}, {name}")
        options = {"nodes": nodes, "leases": leases, "kind": kind, "cycles": run.rounds(5)}
        result = run.child(scenario, name, "cluster.measure_renewals", seconds=LIMIT, **options)
        if result is not None:
            found[name] = result["found"]
            if result["lost"]:
                run.failed(scenario, name, f"{result['lost']} leases were lost")
    run.compare(scenario, found, {CLIENT: (ONE,), SERVER: (ONE,)})


def _started(nodes: int, stack: ExitStack) -> tuple[list[RedisServer], Callable[[str], Any]]:
    """Start a Cluster, or one server for 0 nodes. Return the servers, and what makes coordinators."""
    if nodes:
        cluster: RedisCluster = stack.enter_context(
            start_cluster(primaries=nodes, replicas=0, node_timeout_ms=15_000, extra_args=MEMORY_ONLY)
        )

        def of_cluster(kind: str) -> Any:
            if kind == "sync":
                return RedisCoordinator(cluster.client(), ttl=TTL)
            return AsyncRedisCoordinator(cluster.async_client(), ttl=TTL)

        return cluster.servers, of_cluster
    server = stack.enter_context(redis_server())

    def of_one(kind: str) -> Any:
        if kind == "sync":
            return RedisCoordinator(server.client(), ttl=TTL)
        return AsyncRedisCoordinator(redis.asyncio.Redis.from_url(server.url), ttl=TTL)

    return [server], of_one


def _cpu(servers: Sequence[RedisServer]) -> list[float]:
    return [cpu_seconds(server.pid) for server in servers if server.pid is not None]


@contextmanager
def opened(names: int, nodes: Sequence[int]) -> Iterator[Contenders]:
    """Open a lock that is taken again and again, or ten in turn, on one server and on each Cluster.

    Beside the Cluster are as many single servers, each with its own share of the locks.
    """
    with ExitStack() as stack:
        functions: dict[str, Callable[[], object]] = {}
        for name, count in ((ONE, 0), (ONE + AGAIN, 0), *((CLUSTER.format(each), each) for each in nodes)):
            functions[name] = _pairs(names, [_started(count, stack)[1]("sync")])
        if names > 1:
            functions[SERVERS] = _pairs(names, [_started(0, stack)[1]("sync") for _ in range(NODES)])
        yield Contenders(functions, NAMES)


def _pairs(names: int, coordinators: Sequence[Any]) -> Callable[[], object]:
    locks = [coordinators[number % len(coordinators)].lock(f"orders:{number % names}") for number in range(NAMES)]
    its = itertools.cycle(locks)
    return lambda: next(its).acquire(timeout=5).release()


def measure_renewals(nodes: int, leases: int, kind: str, cycles: int) -> dict[str, Any]:
    """Return the processor time of client and servers in each cycle. Runs in a child."""
    with ExitStack() as stack:
        servers, make = _started(nodes, stack)
        time.sleep(CYCLE)
        before = _cpu(servers)
        time.sleep(CYCLE)
        idle = [after - earlier for earlier, after in zip(before, _cpu(servers), strict=True)]
        found: dict[str, list[float]] = {CLIENT: [], SERVER: [], SPREAD: [], GRANT: []}

        def note(client: float, earlier: Sequence[float]) -> None:
            spent = [after - at - quiet for after, at, quiet in zip(_cpu(servers), earlier, idle, strict=True)]
            found[CLIENT].append((time.process_time() - client) * 1000)
            found[SERVER].append(sum(spent) * 1000)
            found[SPREAD].append(max(spent) / max(min(spent), 1e-6))

        async def main() -> list[Any]:
            coordinator = make(kind)
            before = _cpu(servers)
            held = []
            for number in range(leases):
                lease = coordinator.acquire(f"orders:{number}", timeout=5)
                held.append(await lease if kind == "async" else lease)
            found[GRANT].append((sum(_cpu(servers)) - sum(before)) / leases * 1e6)
            await asyncio.sleep(1.5 * CYCLE)
            for _ in range(cycles):
                client, earlier = time.process_time(), _cpu(servers)
                await asyncio.sleep(CYCLE)
                note(client, earlier)
            lost = [lease for lease in held if not lease.held]
            for lease in held:  # so that none is reported as never released
                lease.detach()
            return lost

        lost = asyncio.run(main())
        return {"found": found, "lost": len(lost)}


def measure_hand_offs(slots: int, rounds: int) -> dict[str, Any]:
    """Return the time from a release to the next grant, with one waiter in each of some slots. Runs in a child."""
    names: dict[int, str] = {}
    for number in range(10 * slots):
        names.setdefault(slot_of(b"orders:%d" % number), f"orders:{number}")
    resources = list(names.values())[:slots]
    with ExitStack() as stack:
        found: dict[str, dict[str, list[float]]] = {}
        for name, nodes in ((ONE, 0), (CLUSTER.format(NODES), NODES)):
            _, make = _started(nodes, stack)
            coordinator = make("sync")
            took = [_hand_off(coordinator, resources) for _ in range(rounds)]
            found[name] = {HAND_OFF: [seconds * 1e6 for seconds in took]}
        return found


def _hand_off(coordinator: Any, resources: Sequence[str]) -> float:
    """Return the seconds from a release until a waiter in another thread has the lock; the mean of all."""
    granted: dict[str, float] = {}
    leases = {resource: coordinator.acquire(resource, timeout=5) for resource in resources}

    def wait(resource: str) -> None:
        lease = coordinator.acquire(resource, timeout=30)
        granted[resource] = time.perf_counter()
        lease.release()

    threads = [threading.Thread(target=wait, args=(resource,)) for resource in resources]
    for thread in threads:
        thread.start()
    time.sleep(0.05 + 0.005 * len(resources))
    total = 0.0
    for resource, lease in leases.items():
        started = time.perf_counter()
        lease.release()
        while resource not in granted:
            time.sleep(0)
        total += granted[resource] - started
    for thread in threads:
        thread.join()
    return total / len(resources)
