"""The parts of a benchmark run, and the figures that they add to it.

A part is a module with ``part(run: Run) -> None``, named here. It adds figures to the run, and notes failures. To add
one: write the module, name it in PARTS and, if it has targets, name them in rows.py.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from tests.benchmarks.children import ChildFailed, in_child
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.measure import ratios, spread_of

PARTS = {
    "pair": "acquire and release without contention",
    "tasks": "acquire and release with asyncio",
    "contended": "contention for one lock",
    "failures": "waiters and holders that die",
    "redlock": "locks that five servers grant",
    "renewal": "renewal of many leases",
    "cluster": "a Redis Cluster beside one server",
    "sql": "guarded writes to SQL databases",
    "sql_locks": "locks on PostgreSQL",
    "object_store": "guarded writes to object stores",
    "guards": "guarded writes to Redis, to files and through HTTP",
    "calls": "calls of an operation",
    "start": "the import, and the memory of a lease",
    "live": "many locks in Redis",
    "enforced_guard": "enforcement in the database",
}
"""Modules of this package, with what they measure."""

ALL_ONLY = ("live", "enforced_guard")
"""Parts that only a run of everything has."""

PART_SECONDS = 300.0
PART_SECONDS_OF_ALL = 1200.0
"""The longest time of a part, in a run of everything. After that, its further measurements are given up."""

Found = Mapping[str, Mapping[str, Sequence[float]]]
"""The values of each contender, by measure, round by round. A measure ends in its unit: ``pair, µs``."""


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tests.benchmarks.{name}")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``scenario`` becomes a table, ``of`` a row, ``what`` a column (which ends in its unit).

    ``again`` is the A/A comparison: median, 10th and 90th percentile of the ratio of the same measurement to itself.
    """

    scenario: str
    of: str
    what: str
    median: float
    low: float
    high: float
    again: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    scenario: str
    of: str
    said: str


@dataclass
class Run:
    """One part's run: its options and what it has found.

    Args:
        everything: also what has no headline row: other libraries, all cores, large numbers.
        quick: few rounds, which only show that everything works.
    """

    name: str
    quick: bool = False
    everything: bool = False
    figures: list[Figure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def rounds(self, full: int) -> int:
        return max(1, full // 10) if self.quick else full

    def add(self, scenario: str, of: str, what: str, values: Sequence[float], again: Sequence[float] = ()) -> None:
        """Add a figure: the median and the spread of the values, if there are any."""
        if values:
            noise = spread_of(again) if again else None
            its = spread_of(values)
            aa = [noise.median, noise.low, noise.high] if noise else None
            self.figures.append(Figure(scenario, of, what, its.median, its.low, its.high, aa))

    def compare(self, scenario: str, found: Found, against: Mapping[str, Sequence[str]]) -> None:
        """Add each measure of each contender, and its ratio to the contenders that ``against`` names for the measure.

        A contender whose name ends in AGAIN is the A/A comparison of another one. It gets no figures of its own.
        """
        for name, measured in found.items():
            if name.endswith(AGAIN):
                continue
            second = found.get(name + AGAIN, {})
            for what, values in measured.items():
                noise = _neighbours(second.get(what, ()), values)
                self.add(scenario, name, what, values, noise)
                for other in against.get(what, ()):
                    if other != name:
                        theirs = found.get(other, {}).get(what, ())
                        self.add(scenario, name, ratio_to(other, what), _neighbours(values, theirs), noise)

    def failed(self, scenario: str, of: str, said: object) -> None:
        self.failures.append(Failure(scenario, of, str(said)))
        self.say(f"  {scenario}: {of} failed: {str(said).splitlines()[-1] if str(said) else '?'}")

    def child(self, scenario: str, of: str, function: str, /, *, seconds: float, **options: Any) -> Any:
        """Return the result of ``function`` ("module.name" of this package) in a process of its own; see ``in_child``.

        The result is None if it failed, which is noted.
        """
        longest = PART_SECONDS_OF_ALL if self.everything else PART_SECONDS
        left = self.started + longest - time.monotonic()
        if left < 1:
            self.failed(scenario, of, f"the {longest:.0f} s of this part are over")
            return None
        try:
            return in_child(function, seconds=min(seconds, left), **options)
        except ChildFailed as error:
            self.failed(scenario, of, error)
            return None

    def say(self, text: str) -> None:
        print(f"[{self.name} {time.monotonic() - self.started:5.1f} s] {text}", file=sys.stderr, flush=True)

    def result(self) -> dict[str, Any]:
        return {
            "seconds": round(time.monotonic() - self.started, 1),
            "figures": [asdict(figure) for figure in self.figures],
            "failures": [asdict(failure) for failure in self.failures],
        }


def figures_of(results: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Return the figures of each part of a run."""
    return {name: [Figure(**figure) for figure in part["figures"]] for name, part in results["parts"].items()}


def ratio_to(other: str, what: str) -> str:
    """Return the name of the ratio of a measure to another contender's: ``pair x redis-py Lock``."""
    return f"{what.partition(',')[0]} x {other}"


def _neighbours(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ratios round by round, or the ratio of the medians if rounds are missing; nothing without values."""
    if not ours or not theirs:
        return []
    if len(ours) == len(theirs):
        return ratios(ours, theirs)
    return ratios([statistics.median(ours)], [statistics.median(theirs)])
