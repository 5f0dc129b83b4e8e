"""Renewal of many leases: the client's processor time in a cycle, and the server's time.

Ours renew themselves. Beside them, for 1,000 locks, one thread for each calls ``extend`` of redis-py's lock, as users
do. python-redis-lock starts such threads itself (``auto_renewal``).

Our script stands beside a bare one, which compares the tokens and sets the ttls, turn about and at the same pace. And
the requests are counted of a process with leases that were granted at different moments.
"""

from __future__ import annotations

import importlib
import random
import threading
import time
from typing import Any

import redis

from fencing import RedisCoordinator
from fencing.kernel.fence import new_token
from fencing.redis.calls import record_start
from fencing.redis.keys import keys_of
from fencing.redis.scripts import RENEW
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

FEW, TTL_OF_FEW = 100, 10.0
SCRIPT = f"the script for {FEW} leases"
SPREAD = f"{FEW} leases that were granted one after the other, ttl {TTL_OF_FEW:.0f} s"
PAUSE, CALLS_A_ROUND = 0.02, 10
BARE = "bare script"
BARE_TEXT = """
for i = 1, #KEYS, 2 do
  if redis.call('GET', KEYS[i]) == ARGV[i + 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
    redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
  end
end
"""

PACED = f"server time of a call, {1 / PAUSE:.0f} a second, µs"
REQUESTS = "requests a second"

CPU, SERVER = "client CPU a cycle, ms", "server time of 100 renewals, µs"
CALLS, COUNT = "calls a cycle", "threads"


def part(run: Run) -> None:
    names = [THREAD_EACH, OURS, OURS + AGAIN, *([AUTO_RENEWAL] if run.everything else [])]
    _compared(run, LEASES, names)
    for leases in (1, 10_000) if run.everything else ():
        _compared(run, leases, [OURS])
    run.say(SCRIPT)
    result = run.child(SCRIPT, OURS, "renewal.measure_script", seconds=LIMIT, rounds=run.rounds(20))
    if result is not None:
        run.compare(SCRIPT, result, {PACED: (BARE,)})
    run.say(SPREAD)
    result = run.child(SPREAD, OURS, "renewal.measure_requests", seconds=LIMIT, cycles=run.rounds(3))
    if result is not None:
        run.compare(SPREAD, {OURS: result}, {})


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


def measure_script(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return Redis' own account of a call that renews leases, for ours, ours again and the bare one, turn about."""
    with redis_server() as server, server.client() as client:
        names = [f"orders:{number}" for number in range(FEW)]
        tokens = [new_token() for _ in names]
        keys = [key for name in names for key in keys_of(name)[:2]]
        ours, bare = list[Any](), list[Any]([60_000])
        for number, (name, token) in enumerate(zip(names, tokens, strict=True), 10**15):
            client.set(name, token, px=60_000)
            client.set(keys_of(name).holder, f"{record_start(number, token)}{10**15} host:1", px=60_000)
            ours += [60_000, token, record_start(number, token)]
            bare += [token, number]
        ways = {OURS: (RENEW.text, ours), OURS + AGAIN: (RENEW.text, ours), BARE: (BARE_TEXT, bare)}
        found: dict[str, dict[str, list[float]]] = {name: {PACED: []} for name in ways}
        for turn in range(rounds + 1):  # the first one does some things for the only time
            for name, (text, args) in random.sample(sorted(ways.items()), len(ways)):
                script = client.register_script(text)
                script(keys=keys, args=args)
                client.config_resetstat()
                for _ in range(CALLS_A_ROUND):
                    time.sleep(PAUSE)
                    reply = script(keys=keys, args=args)
                if name != BARE and reply != b"r" * FEW:
                    raise RuntimeError(f"not all were renewed: {reply!r}")
                stats: dict[str, Any] = client.info("commandstats")
                if turn:
                    found[name][PACED].append(stats["cmdstat_evalsha"]["usec"] / CALLS_A_ROUND)
        return found


def measure_requests(cycles: int) -> dict[str, list[float]]:
    """Return the requests a second in some cycles, in which each lease is renewed once. Runs in a child."""
    cycle = 0.4 * TTL_OF_FEW
    with redis_server() as server, server.client() as admin:
        coordinator = RedisCoordinator(redis.Redis.from_url(server.url), ttl=TTL_OF_FEW)
        leases = []
        for number in range(FEW):
            leases.append(coordinator.acquire(f"orders:{number}", timeout=5))
            time.sleep(cycle / FEW)
        time.sleep(cycle)
        found = []
        for _ in range(cycles):
            admin.config_resetstat()
            started = time.perf_counter()
            time.sleep(cycle)
            stats: dict[str, Any] = admin.info("commandstats")
            found.append(stats["cmdstat_evalsha"]["calls"] / (time.perf_counter() - started))
        if lost := [lease for lease in leases if not lease.held]:
            raise RuntimeError(f"{len(lost)} leases were lost: {lost[0]!r}")
        for lease in leases:
            lease.release()
        return {REQUESTS: found}


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
