"""What a program pays once, and for each lease that it holds: the import after redis-py's, and memory.

The import is timed in fresh processes that have the bytecode. The memory of a lease is that of the process, beyond the
caches of names in use: it is counted from the leases that fill these.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import redis

from fencing import RedisCoordinator
from tests.benchmarks.contenders import AGAIN, OURS
from tests.benchmarks.parts import Found, Run
from tests.benchmarks.servers import redis_server

IMPORT, LEASE = "import", "leases"
REDIS = "import redis"
TIME, MEMORY = "CPU, ms", "bytes a lease"
FIRST, LEASES = 10_000, 30_000
LIMIT = 120.0

_IMPORTS = """
import time
began = time.process_time(); import redis
between = time.process_time(); from fencing import RedisCoordinator
print(between - began, time.process_time() - between)
"""


def part(run: Run) -> None:
    run.say(IMPORT)
    found = run.child(IMPORT, "all", "start.measure_import", seconds=LIMIT, rounds=run.rounds(20))
    if found is not None:
        run.compare(IMPORT, found, {TIME: (REDIS,)})
    run.say(LEASE)
    memory = run.child(LEASE, OURS, "start.measure_leases", seconds=LIMIT, more=run.rounds(LEASES - FIRST))
    if memory is not None:
        run.add(LEASE, OURS, MEMORY, [memory])


def measure_import(rounds: int) -> Found:
    """Return the CPU time of both imports, process by process. Runs in a child."""
    names = REDIS, OURS
    times: dict[str, list[float]] = {name + again: [] for name in names for again in ("", AGAIN)}
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for number in range(2 * rounds + 1):  # the first one writes the bytecode
        said = subprocess.run([sys.executable, "-c", _IMPORTS], env=environment, capture_output=True, check=True).stdout
        for name, seconds in zip(names, said.split(), strict=True):
            if number:
                times[name + (AGAIN if number % 2 else "")].append(float(seconds) * 1e3)
    return {name: {TIME: its} for name, its in times.items()}


def measure_leases(more: int) -> float:
    """Return the memory of a lease, beyond those that fill the caches. Runs in a child."""
    with redis_server() as server, RedisCoordinator(redis.Redis.from_url(server.url), ttl=600) as coordinator:
        kept = [coordinator.acquire(f"orders:{number}") for number in range(FIRST)]
        before = _resident()
        kept += [coordinator.acquire(f"orders:{FIRST + number}") for number in range(more)]
        used = (_resident() - before) / more
        for lease in kept:
            lease.detach()
        return used


def _resident() -> int:
    """Return the bytes of memory of this process: statm of proc(5)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
