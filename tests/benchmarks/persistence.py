"""What persistence of Redis costs a lock: ``python -m tests.benchmarks.persistence [--rounds 30]``.

One server for each setting, on one disk. They are measured in turn, shuffled. So compare ratios, within one run alone.
It is no part of ``make bench``, because it measures the disk and the server, and hardly this library.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from examples.servers import start_redis
from fencing import RedisCoordinator
from tests.benchmarks.measure import SEED, number, ratios, spread_of

NONE = "none"
SETTINGS = {
    NONE: ("--appendonly", "no"),
    "appendfsync no": ("--appendonly", "yes", "--appendfsync", "no"),
    "appendfsync everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "appendfsync always": ("--appendonly", "yes", "--appendfsync", "always"),
}
PAIRS = 50
THREADS = 16


def fsync_seconds() -> float:
    """Return how long it takes to append a hundred bytes to a file and to sync it."""
    with tempfile.TemporaryFile(buffering=0) as file:
        began = time.perf_counter()
        for _ in range(PAIRS):
            file.write(b"x" * 100)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / PAIRS


def pairs_seconds(coordinator: RedisCoordinator, name: str) -> float:
    """Return how long a pair takes: to acquire a lock and to release it."""
    began = time.perf_counter()
    for _ in range(PAIRS):
        coordinator.acquire(name).release()
    return (time.perf_counter() - began) / PAIRS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    alone: dict[str, list[float]] = {name: [] for name in SETTINGS}
    together: dict[str, list[float]] = {name: [] for name in SETTINGS}
    synced, order = [], random.Random(SEED)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        coordinators = {}
        for name, arguments in SETTINGS.items():
            server = stack.enter_context(start_redis(own=True, extra_args=arguments))
            coordinators[name] = stack.enter_context(RedisCoordinator(server.client()))
        for number_of_round in range(rounds + 1):
            synced.append(fsync_seconds())
            for name, coordinator in order.sample(list(coordinators.items()), len(coordinators)):
                one = pairs_seconds(coordinator, "alone")
                began = time.perf_counter()
                names = [f"lock {worker}" for worker in range(THREADS)]
                list(pool.map(pairs_seconds, [coordinator] * THREADS, names))
                each = (time.perf_counter() - began) / PAIRS / THREADS
                if number_of_round:  # the first one opens connections
                    alone[name].append(one)
                    together[name].append(each)
        sys.stdout.write(f"{server.name}; a sync of 100 bytes takes {number(spread_of(synced).median * 1e3)} ms\n")
    for title, times in {"one client": alone, f"{THREADS} threads, a lock each": together}.items():
        for name in SETTINGS:
            ratio, own = spread_of(ratios(times[name], times[NONE])), spread_of(times[name])
            sys.stdout.write(
                f"{title}, {name}: {number(own.median * 1e3)} ms a pair, "
                f"x {number(ratio.median)} ({number(ratio.low)} … {number(ratio.high)})\n"
            )


if __name__ == "__main__":
    main()
