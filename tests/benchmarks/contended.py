"""Many want one lock, and hold it for a millisecond each, again and again: how fast, how fair, and how dear it is.

Each contender is alone with a new server, in short windows turn about with the others. The hand-off is what lies
between the moment the holder begins to release and that at which the next one has the lock, be it the same. A lock
whose releaser takes it again at once has short ones, and the others wait long: see the longest wait, and the fairness.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contenders import ASYNC, OURS, REDIS_PY, THREADS
from tests.benchmarks.measure import jain, percentile, turns
from tests.benchmarks.parts import Run

# Kind of worker, how many, on one core, rounds.
SCENARIOS = (
    ("threads", 2, True, 2),
    ("threads", 8, True, 2),
    ("threads", 32, True, 2),
    ("threads", 128, True, 2),
    ("threads", 8, False, 2),
    ("threads", 128, False, 1),
    ("processes", 2, False, 1),
    ("processes", 8, False, 1),
    ("tasks", 100, True, 1),
    ("tasks", 1000, True, 1),
)
LONG = {("threads", 128, False), ("processes", 2, False), ("processes", 8, False), ("tasks", 1000, True)}
"""Left out of a quick run."""
WINDOW = 0.8
LIMIT = 40.0

# What is compared with redis-py's, round by round.
COMPARED = ("grants/s", "hand-off p99, µs", "longest wait, ms", "CPU a grant, µs")


def part(run: Run) -> None:
    for kind, workers, one_core, rounds in SCENARIOS:
        if run.quick and (kind, workers, one_core) in LONG:
            continue
        scenario = name_of(kind, workers, one_core)
        run.say(scenario)
        names = ASYNC if kind == "tasks" else THREADS
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        failed: set[str] = set()
        for name in turns(names, 1 if run.quick else rounds, failed):
            result = run.child(
                scenario,
                name,
                "closed_loop.measure",
                seconds=LIMIT,
                one_core=one_core,
                name=name,
                kind=kind,
                workers=workers,
                window=window_of(workers) / (2 if run.quick else 1),
            )
            if result is None or not result["grants"]:
                failed.add(name)
                if result is not None:
                    said = result["errors"][0] if result["errors"] else "nobody got the lock in time"
                    run.failed(scenario, name, said)
                continue
            for error in result["errors"][:1]:
                run.failed(scenario, name, f"{len(result['errors'])} of {workers} gave up: {error}")
            found[name].append(numbers_of(result))
        _report(run, scenario, found)


def name_of(kind: str, workers: int, one_core: bool) -> str:
    return f"{workers} {kind}, {'one core' if one_core else 'all cores'}"


def window_of(workers: int) -> float:
    """Long enough for everybody to have a few turns, if they are fairly given."""
    return max(WINDOW, workers * 0.004)


def numbers_of(result: dict[str, Any]) -> dict[str, float]:
    """What one window says."""
    grants = [Grant(*grant) for grant in result["grants"]]
    start, end = result["window"]
    inside = sorted((grant for grant in grants if start <= grant.acquired < end), key=lambda grant: grant.acquired)
    counted_start, counted_end = result["counted"]
    counted = sum(1 for grant in grants if counted_start <= grant.acquired < counted_end)
    numbers = {"grants/s": len(inside) / (end - start), "fairness (Jain)": fairness(inside, result["workers"])}
    if inside:
        numbers["CPU a grant, µs"] = result["cpu"] / len(inside) * 1e6
    if counted:
        numbers["commands a grant"] = result["commands"] / counted
    numbers["longest wait, ms"] = longest_wait(inside, result["workers"], start, end) * 1e3
    times = hand_offs(inside)
    if times:
        numbers["hand-off p50, µs"] = percentile(times, 0.5) * 1e6
        numbers["hand-off p99, µs"] = percentile(times, 0.99) * 1e6
        numbers["p50, x idle round trip"] = percentile(times, 0.5) / result["idle_round_trip"]
    return numbers


def fairness(grants: Sequence[Grant], workers: int) -> float:
    """Jain's index of the grants, which are in their order. The last ones, too few for everybody to have a turn, are
    left out: who is among them is not favoured."""
    counts = [0] * workers
    for grant in grants[: len(grants) // workers * workers] or grants:
        counts[grant.worker] += 1
    return jain(counts)


def hand_offs(grants: Sequence[Grant]) -> list[float]:
    """Seconds from the beginning of each release to the next grant; grants in their order."""
    return [later.acquired - earlier.releasing for earlier, later in itertools.pairwise(grants)]


def longest_wait(grants: Sequence[Grant], workers: int, start: float, end: float) -> float:
    """Seconds that a worker, who always wants the lock, went without it in the window; grants in their order."""
    since = [start] * workers
    longest = 0.0
    for grant in grants:
        longest = max(longest, grant.acquired - since[grant.worker])
        since[grant.worker] = grant.releasing
    return max(longest, *(end - moment for moment in since))


def _report(run: Run, scenario: str, found: dict[str, list[dict[str, float]]]) -> None:
    for name, rounds in found.items():
        for what in dict.fromkeys(what for numbers in rounds for what in numbers):
            run.add(scenario, name, what, [numbers[what] for numbers in rounds if what in numbers])
    for what in COMPARED:
        # A contender that failed has fewer rounds; the others go on without a neighbour.
        both = [
            (ours[what], theirs[what])
            for ours, theirs in zip(found[OURS], found[REDIS_PY], strict=False)
            if what in ours and what in theirs
        ]
        run.add(scenario, OURS, f"{what.split(',')[0]}, x {REDIS_PY}", [ours / theirs for ours, theirs in both])
