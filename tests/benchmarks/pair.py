"""Acquire and release without contention: one thread, and 8 threads with a lock each.

A round is a batch of pairs of each contender. The contenders are shuffled in each round, and ratios are those of a
round. The judge is the ratio to our own bytes, sent raw: redis-py gets faster and slower from hour to hour.
"""

from __future__ import annotations

import contextvars
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import redis

from fencing import FencedLock, RedisCoordinator
from tests.benchmarks.contenders import AGAIN, OURS, REDIS_PY, THREADS, open_threads
from tests.benchmarks.duel import BATCH_LIMIT, Batch, Contenders
from tests.benchmarks.measure import shares_above
from tests.benchmarks.parts import Run
from tests.benchmarks.raw import PINGS, RAW, Raw, recorded_pairs
from tests.benchmarks.servers import redis_server

TTL = 10
LIMIT = 180.0

TIME, CPU = "pair, µs", "client CPU, µs"
SHARE = f"above {RAW}, share of {REDIS_PY}"
HOLD, COORDINATOR_HOLD = f"{OURS}, hold()", f"{OURS}, coordinator.hold()"
COMPAT = f"{OURS}.compat"
"""redis-py's interface over our locks."""
LOCKED = f"{OURS}, locked()"
INNER = f"{OURS}, hold() inside its own hold()"
AGAINST = {TIME: (REDIS_PY, RAW, PINGS, OURS, HOLD), CPU: (REDIS_PY,)}

# Threads, hiredis, one core; rounds, pairs in a batch.
HEADLINE = ((1, True, True, 1500, 10), (1, False, True, 800, 10), (8, True, True, 150, 20))
OTHERS = ((1, True, False, 200, 10), (1, False, False, 200, 10), (8, True, False, 20, 20))

Pair = Callable[[], object]


def part(run: Run) -> None:
    for threads, hiredis, one_core, rounds, batch in (*HEADLINE, *(OTHERS if run.everything else ())):
        scenario = scenario_of("threads", threads, one_core, hiredis)
        options = {"threads": threads, "batch": batch, "names": run.contenders(THREADS)[2:]}
        where: dict[str, Any] = {"one_core": one_core, "hiredis": hiredis, "seconds": LIMIT}
        found = run.duel(scenario, "pair.opened", AGAINST, rounds=rounds, **where, **options)
        if {RAW, REDIS_PY, OURS, OURS + AGAIN} <= found.keys():
            raw, ours, again, theirs = (found[name][TIME] for name in (RAW, OURS, OURS + AGAIN, REDIS_PY))
            run.add(scenario, OURS, SHARE, shares_above(raw, ours, theirs), shares_above(raw, again, ours))


def scenario_of(kind: str, workers: int, one_core: bool, hiredis: bool = True) -> str:
    """Return the name of a scenario. ``kind`` is a plural: threads, tasks, processes."""
    count = f"one {kind.removesuffix('s')}" if workers == 1 else f"{workers} {kind}"
    return f"{count}, {'one core' if one_core else 'all cores'}{'' if hiredis else ', without hiredis'}"


@contextmanager
def opened(threads: int, batch: int, names: Sequence[str]) -> Iterator[Contenders]:
    """Open the contenders, each with a lock for each thread. Another revision may lack some."""
    with redis_server() as server, ExitStack() as stack:
        resources = [f"orders:{number}" for number in range(threads)]
        recorded = recorded_pairs(server.host, server.port, resources, TTL)
        coordinator = RedisCoordinator(redis.Redis.from_url(server.url), ttl=TTL)

        def of_others(name: str) -> list[Pair]:
            make = open_threads(name, server.url, ttl=TTL, connections=2 * threads)
            return [partial(_one_pair, *make(f"{resource}:{name}")) for resource in resources]

        openers: dict[str, Callable[[], list[Pair]]] = {
            PINGS: lambda: [Raw(server.host, server.port).pair for _ in resources],
            RAW: lambda: [Raw(server.host, server.port, commands).pair for commands in recorded],
            OURS: lambda: [_at_once(coordinator.lock(f"{each}:ours")) for each in resources],
            HOLD: lambda: [_block(coordinator.lock(f"{each}:hold").hold) for each in resources],
            COORDINATOR_HOLD: lambda: [_block(partial(coordinator.hold, f"{each}:block")) for each in resources],
            LOCKED: lambda: _lockeds(coordinator, [f"{each}:locked" for each in resources]),
            COMPAT: lambda: _compats(server.url, [f"{each}:compat" for each in resources]),
            **{name: partial(of_others, name) for name in names},
        }
        if threads == 1:  # an inner block belongs to the thread of its outer one
            openers[INNER] = lambda: [_inner_hold(server.url, stack)]
        functions: dict[str, Pair | Batch] = {}
        failures: dict[str, str] = {}
        for name, opener in openers.items():
            try:
                its = opener()
            except Exception as error:  # noqa: BLE001 - it is reported, and the others go on
                failures[name] = f"{type(error).__name__}: {error}"
                continue
            function = its[0] if threads == 1 else Batch(partial(_in_threads, its, batch))
            functions |= dict.fromkeys([name] if name in names else [name, name + AGAIN], function)
        yield Contenders(functions, batch, failures)


def _one_pair(acquire: Pair, release: Pair) -> None:
    acquire()
    release()


def _at_once(lock: FencedLock) -> Pair:
    return lambda: lock.acquire(timeout=5).release()


def _block(hold: Callable[..., AbstractContextManager[object]]) -> Pair:
    def pair() -> None:
        with hold(timeout=5):
            pass

    return pair


def _lockeds(coordinator: RedisCoordinator, resources: Sequence[str]) -> list[Pair]:
    @coordinator.locked("{resource}", timeout=5)
    def call(resource: str) -> None:
        pass

    return [partial(call, resource) for resource in resources]


def _compats(url: str, resources: Sequence[str]) -> list[Pair]:
    client, lock_class = redis.Redis.from_url(url), importlib.import_module("fencing.compat").RedisPyLock
    locks = [client.lock(resource, timeout=TTL, blocking_timeout=5, lock_class=lock_class) for resource in resources]
    return [partial(_one_pair, lock.acquire, lock.release) for lock in locks]


def _inner_hold(url: str, stack: ExitStack) -> Pair:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=3600)  # so that nothing is renewed meanwhile
    lock = coordinator.lock("orders:inner", reentrant=True)
    context = contextvars.Context()  # of its own, so that the other blocks of this thread are not inside of this one
    context.run(stack.enter_context, lock.hold())
    return partial(context.run, _block(lock.hold))


def _in_threads(pairs: list[Pair], batch: int) -> tuple[float, float]:
    """Start all threads together. The time ends when the last one has done its batch."""
    errors: list[Exception] = []
    ready = threading.Barrier(len(pairs) + 1)

    def work(pair: Pair) -> None:
        try:
            ready.wait(BATCH_LIMIT)
            for _ in range(batch):
                pair()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    workers = [threading.Thread(target=work, args=(pair,), daemon=True) for pair in pairs]
    for worker in workers:
        worker.start()
    ready.wait(BATCH_LIMIT)
    cpu, wall = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.join()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if errors:
        raise errors[0]
    return wall / (batch * len(pairs)), cpu / (batch * len(pairs))
