"""Contention: many want one lock, hold it for a millisecond each, and want it again.

Each contender is alone with a new server, in short windows, shuffled in each round. A hand-off is the time from the
start of a release to the next grant, also to the same worker. It is short if the releaser takes the lock again at once.
Then the others wait long: see the longest wait, and the fairness.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contenders import ASYNC, OURS, REDIS_PY, THREADS
from tests.benchmarks.measure import jain, percentile, turns
from tests.benchmarks.pair import scenario_of
from tests.benchmarks.parts import Run

# Kind of worker, how many, one core, rounds.
HEADLINE = (
    ("threads", 2, True, 4),
    ("threads", 8, True, 4),
    ("threads", 32, True, 4),
    ("processes", 8, True, 3),
    ("processes", 32, True, 2),
    ("tasks", 100, True, 3),
    ("tasks", 1000, True, 2),
)
OTHERS = (
    ("threads", 128, True, 2),
    ("threads", 8, False, 2),
    ("processes", 8, False, 2),
)
LIMIT = 90.0

GRANTS, FAIRNESS, COMMANDS = "grants/s", "fairness (Jain)", "commands a grant"
WAIT, P50, P99, CPU = "longest wait, ms", "hand-off p50, µs", "hand-off p99, µs", "client CPU a grant, µs"
COMPARED = dict.fromkeys((GRANTS, P50, P99, WAIT, CPU), (REDIS_PY,))


def part(run: Run) -> None:
    for kind, workers, one_core, rounds in (*HEADLINE, *(OTHERS if run.everything else ())):
        scenario = scenario_of(kind, workers, one_core)
        run.say(scenario)
        names = run.contenders(ASYNC if kind == "tasks" else THREADS)
        if run.other:
            names.append(OURS + run.other.suffix)
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        failed: set[str] = set()
        options = {"kind": kind, "workers": workers, "window": window_of(workers) / (2 if run.quick else 1)}
        for name in turns(names, run.rounds(rounds), failed):
            base = name.partition(" @ ")[0]
            result = run.child(
                scenario, name, "closed_loop.measure", seconds=LIMIT, one_core=one_core, name=base, **options
            )
            if result is None or not result["grants"]:
                failed.add(name)
                if result is not None:
                    run.failed(scenario, name, next(iter(result["errors"]), "the lock was not granted in time"))
                continue
            for error in result["errors"][:1]:
                run.failed(scenario, name, f"{len(result['errors'])} of {workers} gave up: {error}")
            results[name].append(result)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in results}
        for name, its in results.items():
            for numbers in map(numbers_of, its):
                for what, value in numbers.items():
                    found[name].setdefault(what, []).append(value)
        run.compare(scenario, found, COMPARED)


def window_of(workers: int) -> float:
    """Return seconds in which each worker has many turns, and a worker that gets none has waited for long."""
    return min(4.0, max(0.8, workers * 0.06))


def numbers_of(result: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of one window."""
    grants = [Grant(*grant) for grant in result["grants"]]
    start, end = result["window"]
    inside = sorted((grant for grant in grants if start <= grant.acquired < end), key=lambda grant: grant.acquired)
    counted_start, counted_end = result["counted"]
    counted = sum(1 for grant in grants if counted_start <= grant.acquired < counted_end)
    numbers = {GRANTS: len(inside) / (end - start), FAIRNESS: fairness(inside, result["workers"])}
    if inside:
        numbers[CPU] = result["cpu"] / len(inside) * 1e6
    if counted:
        numbers[COMMANDS] = result["commands"] / counted
    numbers[WAIT] = longest_wait(inside, result["workers"], start, end) * 1e3
    times = hand_offs(inside)
    if times:
        numbers[P50] = percentile(times, 0.5) * 1e6
        numbers[P99] = percentile(times, 0.99) * 1e6
    return numbers


def fairness(grants: Sequence[Grant], workers: int) -> float:
    """Return Jain's index of the grants, which are in their order.

    The last ones, too few for a turn of each worker, are left out: the workers that have them are not favoured. If all
    are too few, it is 1 if each grant has a worker of its own.
    """
    if not grants:
        return 1.0
    counts = [0] * workers
    for grant in grants[: len(grants) // workers * workers] or grants:
        counts[grant.worker] += 1
    return jain(counts) * workers / min(workers, sum(counts))


def hand_offs(grants: Sequence[Grant]) -> list[float]:
    """Return the seconds from the start of each release to the next grant. The grants are in their order."""
    return [later.acquired - earlier.releasing for earlier, later in itertools.pairwise(grants)]


def longest_wait(grants: Sequence[Grant], workers: int, start: float, end: float) -> float:
    """Return the most seconds in the window that a worker went without the lock. The grants are in their order."""
    since = [start] * workers
    longest = 0.0
    for grant in grants:
        longest = max(longest, grant.acquired - since[grant.worker])
        since[grant.worker] = grant.releasing
    return max(longest, *(end - moment for moment in since))
