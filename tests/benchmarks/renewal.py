"""Keeping leases alive: what a cycle of renewals costs the client, and how long Redis is busy with one call.

Ours renews by itself. Beside it, for 1,000 locks, a thread for each that calls ``extend`` of redis-py's lock, as people
do; and python-redis-lock, whose ``auto_renewal`` is such a thread.
"""

from __future__ import annotations

import importlib
import statistics
import threading
import time
from typing import Any

import redis

from fencing import RedisCoordinator
from tests.benchmarks.contenders import OURS, REDIS_PY
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

CYCLE = 2.0
"""Seconds between two renewals of a lock: a third of its ttl, for all of them."""
TTL = 3 * CYCLE
AGAINST = f"{REDIS_PY} + a thread each"
THREADED = 1_000
LIMIT = 90.0


def part(run: Run) -> None:
    cycles = 1 if run.quick else 3
    threads: list[float] = []
    for name in (AGAINST, "python-redis-lock, auto_renewal"):
        scenario = _scenario(THREADED)
        run.say(f"{scenario}, {name}")
        result = run.child(scenario, name, "renewal.measure", seconds=LIMIT, name=name, leases=THREADED, cycles=cycles)
        if result is not None:
            _report(run, scenario, name, result, None)
            if name == AGAINST:
                threads = result["cpu"]
    for leases in (1, 100, 1_000, 10_000):
        run.say(_scenario(leases))
        result = run.child(
            _scenario(leases), OURS, "renewal.measure", seconds=LIMIT, name=OURS, leases=leases, cycles=cycles
        )
        if result is not None:
            _report(run, _scenario(leases), OURS, result, statistics.median(threads) if threads else None)


def _scenario(leases: int) -> str:
    return f"{leases:,} lease{'s' if leases > 1 else ''}"


def _report(run: Run, scenario: str, name: str, result: dict[str, Any], threads: float | None) -> None:
    if result["errors"]:
        run.failed(scenario, name, f"{len(result['errors'])} locks lost or threads dead: {result['errors'][0]}")
    run.add(scenario, name, "client CPU a cycle, ms", [seconds * 1000 for seconds in result["cpu"]])
    if threads:
        run.add(scenario, name, f"CPU x {AGAINST}, at {THREADED:,}", [its / threads for its in result["cpu"]])
    run.add(scenario, name, "server time a call, mean µs", result["mean"])
    if result["p99"] is not None:
        run.add(scenario, name, "server time a call, p99 µs", result["p99"])
    run.add(scenario, name, "calls a cycle", result["calls"] / len(result["cpu"]))
    run.add(scenario, name, "threads", result["threads"])


def measure(name: str, leases: int, cycles: int) -> dict[str, Any]:
    """In a child: processor seconds of each cycle, and Redis' own account of its calls."""
    with redis_server() as server, server.client() as admin:
        errors: list[str] = []
        before = threading.active_count()
        held = _hold(name, server.url, leases, errors)
        # Until the first renewals are over, and with them what happens only once; the next ones lie within the windows.
        time.sleep(1.5 * CYCLE)
        threads = threading.active_count() - before
        admin.config_resetstat()
        cpu = []
        for _ in range(cycles):
            started = time.process_time()
            time.sleep(CYCLE)
            cpu.append(time.process_time() - started)
        stats: dict[str, Any] = admin.info("commandstats")
        calls = [its for command, its in stats.items() if command in ("cmdstat_evalsha", "cmdstat_eval")]
        count = sum(its["calls"] for its in calls)
        if not count:
            errors.append("nothing was renewed")
        if name == OURS:
            errors += [repr(lease) for lease in held if not lease.held]
        return {
            "cpu": cpu,
            "errors": list(errors),  # those of now: more come when the server goes
            "threads": threads,
            "calls": count,
            "mean": sum(its["usec"] for its in calls) / count if count else 0.0,
            "p99": _p99(admin),
        }


def _p99(admin: redis.Redis) -> float | None:
    """Of EVALSHA, by Redis' own histogram; none before Redis 7."""
    try:
        percentiles: Any = admin.info("latencystats").get("latency_percentiles_usec_evalsha")
    except redis.RedisError:
        return None
    return float(percentiles["p99"]) if percentiles else None


def _hold(name: str, url: str, leases: int, errors: list[str]) -> list[Any]:
    if name == OURS:
        coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=TTL)
        return [coordinator.acquire(f"orders:{number}", timeout=5) for number in range(leases)]
    client = redis.Redis.from_url(url, max_connections=leases + 10)
    threading.excepthook = lambda args: errors.append(f"{args.exc_type.__name__}: {args.exc_value}")
    if name == AGAINST:
        locks = [client.lock(f"orders:{number}", timeout=TTL, thread_local=False) for number in range(leases)]
        for number, lock in enumerate(locks):
            lock.acquire()
            delay = CYCLE * (1 + number / leases)  # spread out, as the acquisitions of an application are
            threading.Thread(target=_extend, args=(lock, delay), daemon=True).start()
        return locks
    lock_class = importlib.import_module("redis_lock").Lock
    expire = int(CYCLE * 3 / 2)  # it renews after two thirds of it
    ours = [lock_class(client, f"orders:{number}", expire=expire, auto_renewal=True) for number in range(leases)]
    for lock in ours:
        lock.acquire()
    return ours


def _extend(lock: Any, delay: float) -> None:
    while True:
        time.sleep(delay)
        lock.extend(TTL, replace_ttl=True)
        delay = CYCLE
