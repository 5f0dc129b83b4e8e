"""Renewal of many leases: the client's processor time in a cycle, and the server's time.

Ours renew themselves. Beside them, for 1,000 locks, one thread for each calls ``extend`` of redis-py's lock, as users
do. python-redis-lock starts such threads itself (``auto_renewal``).
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

import redis

from fencing import RedisCoordinator
from tests.benchmarks.contenders import AGAIN, OURS
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

CYCLE = 2.0
"""Seconds between two renewals of a lock: a third of its ttl, for all of them."""
TTL = 3 * CYCLE
THREAD_EACH = "redis-py Lock, a thread each"
AUTO_RENEWAL = "python-redis-lock, auto_renewal"
LEASES = 1_000
LIMIT = 90.0

CPU, SERVER = "client CPU a cycle, ms", "server time of 100 renewals, µs"
CALLS, COUNT = "calls a cycle", "threads"


def part(run: Run) -> None:
    names = [THREAD_EACH, OURS, OURS + AGAIN, *([AUTO_RENEWAL] if run.everything else [])]
    _compared(run, LEASES, names)
    for leases in (1, 10_000) if run.everything else ():
        _compared(run, leases, [OURS])


def scenario_of(leases: int) -> str:
    return f"{leases:,} lease{'s' if leases > 1 else ''}"


def _compared(run: Run, leases: int, names: list[str]) -> None:
    scenario = scenario_of(leases)
    found = {}
    for name in names:
        run.say(f"{scenario}, {name}")
        result = run.child(
            scenario, name, "renewal.measure", seconds=LIMIT, name=name, leases=leases, cycles=run.rounds(3)
        )
        if result is not None:
            if result["errors"]:
                run.failed(scenario, name, f"{len(result['errors'])} locks or threads lost: {result['errors'][0]}")
            found[name] = result["found"]
    run.compare(scenario, found, {CPU: (THREAD_EACH,)})


def measure(name: str, leases: int, cycles: int) -> dict[str, Any]:
    """Return the processor time of each cycle, and Redis' own account of its calls. Runs in a child."""
    with redis_server() as server, server.client() as admin:
        errors: list[str] = []
        before = threading.active_count()
        held = _hold(name.removesuffix(AGAIN), server.url, leases, errors)
        # The first renewals do some things for the only time. The next ones are in the measured cycles.
        time.sleep(1.5 * CYCLE)
        found: dict[str, list[float]] = {CPU: [], SERVER: [], CALLS: []}
        for _ in range(cycles):
            admin.config_resetstat()
            started = time.process_time()
            time.sleep(CYCLE)
            found[CPU].append((time.process_time() - started) * 1000)
            stats: dict[str, Any] = admin.info("commandstats")
            calls = [its for command, its in stats.items() if command in ("cmdstat_evalsha", "cmdstat_eval")]
            found[CALLS].append(sum(its["calls"] for its in calls))
            found[SERVER].append(sum(its["usec"] for its in calls) / leases * 100)
        if not any(found[CALLS]):
            errors.append("nothing was renewed")
        if name.startswith(OURS):
            errors += [repr(lease) for lease in held if not lease.held]
        found[COUNT] = [threading.active_count() - before]
        return {"found": found, "errors": list(errors)}  # those of now: more come when the server ends


def _hold(name: str, url: str, leases: int, errors: list[str]) -> list[Any]:
    if name == OURS:
        coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=TTL)
        return [coordinator.acquire(f"orders:{number}", timeout=5) for number in range(leases)]
    client = redis.Redis.from_url(url, max_connections=leases + 10)
    threading.excepthook = lambda args: errors.append(f"{args.exc_type.__name__}: {args.exc_value}")
    if name == THREAD_EACH:
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
