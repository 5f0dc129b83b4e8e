"""Acquire and release of a lock nobody else wants: one thread, and 8 threads with a lock each.

A round is a batch of pairs of each contender, one after the other; what counts are ratios within a round.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from tests.benchmarks.contenders import OURS, RAW, REDIS_PY, THREADS, open_threads
from tests.benchmarks.measure import ratios, shares_above, turns
from tests.benchmarks.parts import Run
from tests.benchmarks.raw import Raw, recorded_pairs
from tests.benchmarks.servers import redis_server

TTL = 10
BATCH_LIMIT = 20.0
"""Seconds a batch may take before its contender is taken for hanging."""

Times = dict[str, dict[str, list[float]]]


def part(run: Run) -> None:
    rounds = 10 if run.quick else 100
    for hiredis in (True, False):
        for one_core in (True, False):
            for threads in (1, 8):
                if threads > 1 and not hiredis:
                    continue
                scenario = (
                    f"{'one thread' if threads == 1 else f'{threads} threads'}, {_cores(one_core)}, "
                    f"{'with' if hiredis else 'without'} hiredis"
                )
                run.say(scenario)
                result = run.child(
                    scenario,
                    "all",
                    "pair.measure",
                    seconds=180,
                    one_core=one_core,
                    hiredis=hiredis,
                    threads=threads,
                    rounds=rounds if threads == 1 else rounds // 5,
                    batch=20 if threads == 1 else 25,
                )
                if result is not None:
                    report(run, scenario, result)


def _cores(one_core: bool) -> str:
    return "one core" if one_core else "all cores"


def report(run: Run, scenario: str, result: dict[str, Any]) -> None:
    """Figures of interleaved batches; used for threads and for asyncio."""
    times: Times = result["times"]
    for name, said in result["failures"].items():
        run.failed(scenario, name, said)
    whole = {name: its for name, its in times.items() if name not in result["failures"]}
    for name, its in whole.items():
        run.add(scenario, name, "pair, µs", [seconds * 1e6 for seconds in its["wall"]])
        for other in (REDIS_PY, RAW):
            if other in whole and name != other:
                run.add(scenario, name, f"x {other}", ratios(its["wall"], whole[other]["wall"]))
        run.add(scenario, name, "CPU, µs", [seconds * 1e6 for seconds in its["cpu"]])
        if REDIS_PY in whole and name != REDIS_PY:
            run.add(scenario, name, f"CPU x {REDIS_PY}", ratios(its["cpu"], whole[REDIS_PY]["cpu"]))
        if {REDIS_PY, RAW} <= whole.keys() and name not in (REDIS_PY, RAW):
            shares = shares_above(whole[RAW]["wall"], its["wall"], whole[REDIS_PY]["wall"])
            run.add(scenario, name, f"above raw, share of {REDIS_PY}'s", shares)


def measure(threads: int, rounds: int, batch: int) -> dict[str, Any]:
    """In a child: wall and processor seconds a pair, batch by batch, of each contender."""
    with redis_server() as server:
        resources = [f"orders:{number}" for number in range(threads)]
        failures: dict[str, str] = {}
        pairs: dict[str, list[Callable[[], object]]] = {}
        recorded = recorded_pairs(server.host, server.port, resources, TTL)
        pairs[RAW] = [Raw(server.host, server.port, commands).pair for commands in recorded]
        for name in THREADS:
            try:
                make = open_threads(name, server.url, ttl=TTL, connections=2 * threads)
                ways = [make(f"{resource}:{name}") for resource in resources]
                pairs[name] = [functools.partial(_one_pair, way.acquire, way.release) for way in ways]
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and the others go on
                failures[name] = _said(error)
        run_batch = _in_this_thread if threads == 1 else _in_threads
        for name in list(pairs):
            _try(name, failures, run_batch, pairs[name], batch)  # warm up
        times: Times = {name: {"wall": [], "cpu": []} for name in (RAW, OURS, *pairs)}
        for name in turns(list(pairs), rounds, failures):
            measured = _try(name, failures, run_batch, pairs[name], batch)
            if measured is not None:
                for kind, seconds in zip(("wall", "cpu"), measured, strict=True):
                    times[name][kind].append(seconds / (batch * threads))
        return {"times": times, "failures": failures}


def _one_pair(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    acquire()
    release()


def _try(name: str, failures: dict[str, str], run_batch: Any, pairs: Any, batch: int) -> tuple[float, float] | None:
    try:
        measured: tuple[float, float] = run_batch(pairs, batch)
        return measured
    except Exception as error:  # noqa: BLE001 - as above
        failures[name] = _said(error)
        return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _in_this_thread(pairs: list[Callable[[], object]], batch: int) -> tuple[float, float]:
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


def _in_threads(pairs: list[Callable[[], object]], batch: int) -> tuple[float, float]:
    """All threads start together; the time is that until the last one has done its batch."""
    errors: list[Exception] = []
    ready = threading.Barrier(len(pairs) + 1)

    def work(pair: Callable[[], object]) -> None:
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
