"""Acquire and release without contention: one thread, and 8 threads with a lock each.

A round is a batch of pairs of each contender. The contenders are shuffled in each round, and ratios are those of a
round.
"""

from __future__ import annotations

import contextvars
import functools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NoReturn

import redis

from fencing import RedisCoordinator
from fencing.compat import RedisPyLock
from tests.benchmarks.contenders import AGAIN, OURS, REDIS_PY, THREADS, contenders, open_threads
from tests.benchmarks.measure import shares_above, turns
from tests.benchmarks.parts import Run
from tests.benchmarks.raw import PINGS, RAW, Raw, recorded_pairs
from tests.benchmarks.servers import redis_server

TTL = 10
BATCH_LIMIT = 20.0
"""The seconds after which a contender is taken for hanging in a batch."""

TIME, CPU = "pair, µs", "client CPU, µs"
SHARE = f"above {RAW}, share of {REDIS_PY}"
HOLD = f"{OURS}, hold()"
COMPAT = f"{OURS}.compat"
"""redis-py's interface over our locks."""
LOCKED = f"{OURS}, locked()"
INNER = f"{OURS}, hold() inside its own hold()"

# Threads, hiredis, one core; rounds, pairs in a batch.
HEADLINE = ((1, True, True, 1500, 10), (1, False, True, 800, 10), (8, True, True, 150, 20))
OTHERS = ((1, True, False, 200, 10), (1, False, False, 200, 10), (8, True, False, 20, 20))

Pair = Callable[[], object]


def part(run: Run) -> None:
    for threads, hiredis, one_core, rounds, batch in (*HEADLINE, *(OTHERS if run.everything else ())):
        scenario = scenario_of("threads", threads, one_core, hiredis)
        run.say(scenario)
        names = contenders(THREADS, everything=run.everything)
        options = {"threads": threads, "rounds": run.rounds(rounds), "batch": batch, "names": names}
        result = run.child(scenario, "all", "pair.measure", seconds=180, one_core=one_core, hiredis=hiredis, **options)
        report(run, scenario, result)


def scenario_of(kind: str, workers: int, one_core: bool, hiredis: bool = True) -> str:
    """Return the name of a scenario. ``kind`` is a plural: threads, tasks, processes."""
    count = f"one {kind.removesuffix('s')}" if workers == 1 else f"{workers} {kind}"
    return f"{count}, {'one core' if one_core else 'all cores'}{'' if hiredis else ', without hiredis'}"


def report(run: Run, scenario: str, result: dict[str, Any] | None) -> None:
    """Add the times of each contender, and their ratios."""
    if result is None:
        return
    for name, said in result["failures"].items():
        run.failed(scenario, name, said)
    found = {name: its for name, its in result["found"].items() if name not in result["failures"]}
    run.compare(scenario, found, {TIME: (REDIS_PY, RAW, PINGS, HOLD), CPU: (REDIS_PY,)})
    if {RAW, REDIS_PY, OURS, OURS + AGAIN} <= found.keys():
        raw, ours, again, theirs = (found[name][TIME] for name in (RAW, OURS, OURS + AGAIN, REDIS_PY))
        run.add(scenario, OURS, SHARE, shares_above(raw, ours, theirs), shares_above(raw, again, ours))


def measure(threads: int, rounds: int, batch: int, names: Sequence[str]) -> dict[str, Any]:
    """Return wall and processor time a pair, batch by batch, of each contender. Runs in a child."""
    with redis_server() as server, ExitStack() as stack:
        resources = [f"orders:{number}" for number in range(threads)]
        failures: dict[str, str] = {}
        recorded = recorded_pairs(server.host, server.port, resources, TTL)
        pairs: dict[str, list[Pair]] = {
            PINGS: [Raw(server.host, server.port).pair for _ in resources],
            RAW: [Raw(server.host, server.port, commands).pair for commands in recorded],
            RAW + AGAIN: [Raw(server.host, server.port, commands).pair for commands in recorded],
            HOLD: _holds(server.url, [f"{resource}:hold" for resource in resources]),
            LOCKED: _lockeds(server.url, [f"{resource}:locked" for resource in resources]),
            COMPAT: _compats(server.url, [f"{resource}:compat" for resource in resources]),
        }
        if threads == 1:  # an inner block belongs to the thread of its outer one
            pairs[INNER] = [_inner_hold(server.url, stack)]
        for name in names:
            try:
                make = open_threads(name, server.url, ttl=TTL, connections=2 * threads)
                ways = [make(f"{resource}:{name}") for resource in resources]
                pairs[name] = [functools.partial(_one_pair, way.acquire, way.release) for way in ways]
            except Exception as error:  # noqa: BLE001 - it is reported, and the others go on
                failures[name] = _said(error)
        run_batch = _in_this_thread if threads == 1 else _in_threads
        for name in list(pairs):
            _try(name, failures, run_batch, pairs[name], batch)  # warm up
        found: dict[str, dict[str, list[float]]] = {name: {TIME: [], CPU: []} for name in pairs}
        for name in turns(list(pairs), rounds, failures):
            measured = _try(name, failures, run_batch, pairs[name], batch)
            if measured is not None:
                for what, seconds in zip((TIME, CPU), measured, strict=True):
                    found[name][what].append(seconds / (batch * threads) * 1e6)
        return {"found": found, "failures": failures}


def _one_pair(acquire: Pair, release: Pair) -> None:
    acquire()
    release()


def _holds(url: str, resources: Sequence[str]) -> list[Pair]:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=TTL)

    def make(resource: str) -> Pair:
        lock = coordinator.lock(resource)

        def pair() -> None:
            with lock.hold(timeout=5):
                pass

        return pair

    return [make(resource) for resource in resources]


def _lockeds(url: str, resources: Sequence[str]) -> list[Pair]:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=TTL)

    @coordinator.locked("{resource}", timeout=5)
    def call(resource: str) -> None:
        pass

    return [functools.partial(call, resource) for resource in resources]


def _compats(url: str, resources: Sequence[str]) -> list[Pair]:
    client = redis.Redis.from_url(url)
    locks = [client.lock(resource, timeout=TTL, blocking_timeout=5, lock_class=RedisPyLock) for resource in resources]
    return [functools.partial(_one_pair, lock.acquire, lock.release) for lock in locks]


def _inner_hold(url: str, stack: ExitStack) -> Pair:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=3600)  # so that nothing is renewed meanwhile
    lock = coordinator.lock("orders:inner", reentrant=True)
    context = contextvars.Context()  # of its own, so that the other blocks of this thread are not inside of this one
    context.run(stack.enter_context, lock.hold())

    def inner() -> None:
        with lock.hold(timeout=5):
            pass

    return functools.partial(context.run, inner)


def _try(name: str, failures: dict[str, str], run_batch: Any, pairs: Any, batch: int) -> tuple[float, float] | None:
    try:
        measured: tuple[float, float] = run_batch(pairs, batch)
        return measured
    except Exception as error:  # noqa: BLE001 - as above
        failures[name] = _said(error)
        return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _in_this_thread(pairs: list[Pair], batch: int) -> tuple[float, float]:
    (pair,) = pairs
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, BATCH_LIMIT)
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(batch):
            pair()
        return time.perf_counter() - wall, time.process_time() - cpu
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"a batch took more than {BATCH_LIMIT:.0f} s")


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
        worker.join(max(0.0, wall + BATCH_LIMIT - time.perf_counter()))
    took = time.perf_counter() - wall, time.process_time() - cpu
    if any(worker.is_alive() for worker in workers):
        raise TimeoutError(f"a batch took more than {BATCH_LIMIT:.0f} s")
    if errors:
        raise errors[0]
    return took
