"""What a benchmark run is made of, and what its parts are given.

A part is a module with ``part(run: Run) -> None``, named here; it adds figures to the run, and says what failed. To
add one: write the module, name it in PARTS and, if it has targets, in targets.py. A module without ``part`` is run as a
program (``python -m tests.benchmarks.name``), and what it prints is quoted.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from tests.benchmarks.children import ChildFailed, in_child
from tests.benchmarks.measure import Spread, spread_of

PARTS = {
    "pair": "acquire and release, nobody else wants the lock",
    "tasks": "the same with asyncio",
    "contended": "many want the lock, each holds it for 1 ms",
    "failures": "a waiter or a holder dies or stands still",
    "renewal": "keeping many leases alive",
    "processes": "pairs of several processes at once",
    "live": "many locks in Redis",
    "sql": "guarded writes to SQL databases",
    "enforced_guard": "guarded writes where the database enforces",
    "object_store": "guarded writes to object stores",
    "redlock": "five independent servers",
}
"""Module of this package: what it measures. One whose module is not there is reported as such."""

PART_SECONDS = 300.0
"""After which a part's further measurements are given up, whatever hung before."""
PROGRAM_SECONDS = 120.0


def load(name: str) -> ModuleType | None:
    module = f"tests.benchmarks.{name}"
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what was measured, of whom, and where. ``scenario`` becomes a table, ``of`` a row, ``what`` a column
    (which ends in its unit)."""

    scenario: str
    of: str
    what: str
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Failure:
    """What did not get as far as a figure, and why."""

    scenario: str
    of: str
    said: str


@dataclass
class Run:
    """One part's run: its options, what it has found, and how it says how far it is."""

    name: str
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, scenario: str, of: str, what: str, values: Sequence[float] | float | Spread) -> None:
        """Add a figure: several values become their median and spread."""
        if isinstance(values, (int, float)):
            values = [values]
        if not isinstance(values, Spread):
            if not values:
                return
            values = spread_of(values)
        self.figures.append(Figure(scenario, of, what, values.median, values.low, values.high))

    def failed(self, scenario: str, of: str, said: object) -> None:
        self.failures.append(Failure(scenario, of, str(said)))
        self.say(f"  {scenario}: {of} failed: {str(said).splitlines()[-1] if str(said) else '?'}")

    def child(self, scenario: str, of: str, function: str, /, *, seconds: float, **options: Any) -> Any:
        """What ``function`` ("module.name" of this package) returns in a process of its own; None: it failed, and that
        is noted. See ``in_child``."""
        left = self.started + PART_SECONDS - time.monotonic()
        if left < 1:
            self.failed(scenario, of, f"the {PART_SECONDS:.0f} s of this part are over")
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
