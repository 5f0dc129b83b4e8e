"""The parts of a benchmark run, and the figures that they add to it.

A part is a module with ``part(run: Run) -> None``, named here. It adds figures to the run, and notes failures. To add
one: write the module, name it in PARTS and, if it has targets, name them in rows.py.
"""

from __future__ import annotations

import importlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tests.benchmarks.children import Child, ChildFailed
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.measure import SEED, number, ratios, spread_of

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
    "etcd": "locks in etcd",
    "zookeeper": "locks in ZooKeeper",
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

COMPARED = ("pair", "tasks", "contended", "redlock", "sql", "sql_locks", "etcd", "zookeeper", "guards")
"""Parts that compare with another revision: by default the first three."""

PART_SECONDS = 420.0
PART_SECONDS_OF_ALL = 1200.0
"""The longest time of a part, in a run of everything. After that, its further measurements are given up."""

Found = Mapping[str, Mapping[str, Sequence[float]]]
"""The values of each contender, by measure, round by round. A measure ends in its unit: ``pair, µs``."""


_SECONDS = {"µs": 1e-6, "ms": 1e-3}


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tests.benchmarks.{name}")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``scenario`` becomes a table, ``of`` a row, ``what`` a column (which ends in its unit).

    ``again`` is the A/A comparison: median, 10th and 90th percentile of the ratio of the same measurement to itself.
    ``both`` are the two medians of a ratio, with their unit.
    """

    scenario: str
    of: str
    what: str
    median: float
    low: float
    high: float
    again: Sequence[float] | None = None
    both: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    scenario: str
    of: str
    said: str


class Other(NamedTuple):
    """The revision that this checkout is compared with, and the folder with its packages."""

    revision: str
    code: Path

    @property
    def suffix(self) -> str:
        """The end of the names of its contenders."""
        return f" @ {self.revision}"


@dataclass
class Run:
    """One part's run: its options and what it has found.

    Args:
        everything: also what has no headline row: other libraries, all cores, large numbers.
        quick: few rounds, which only show that everything works.
        other: the revision to compare with. Then other libraries are left out.
    """

    name: str
    quick: bool = False
    everything: bool = False
    other: Other | None = None
    figures: list[Figure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    values: dict[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def rounds(self, full: int) -> int:
        return max(1, full // 10) if self.quick else full

    def contenders(self, names: Sequence[str]) -> list[str]:
        """Return ours, twice, and redis-py's, which are the first of the names; or all of them, or only ours, twice."""
        ours, theirs, *others = names
        return [ours, ours + AGAIN, *([] if self.other else [theirs]), *(others if self.everything else ())]

    def add(
        self,
        scenario: str,
        of: str,
        what: str,
        values: Sequence[float],
        again: Sequence[float] = (),
        both: str = "",
    ) -> None:
        """Add a figure: the median and the spread of the values, if there are any."""
        if values:
            noise = spread_of(again) if again else None
            its = spread_of(values)
            aa = [noise.median, noise.low, noise.high] if noise else None
            self.figures.append(Figure(scenario, of, what, its.median, its.low, its.high, aa, both))

    def compare(self, scenario: str, found: Found, against: Mapping[str, Sequence[str]]) -> None:
        """Add each measure of each contender, and its ratio to the contenders that ``against`` names for the measure.

        A contender whose name ends in AGAIN is the A/A comparison of another one. It gets no figures of its own. Of the
        other revision's, there is the ratio of ours to it.
        """
        for name, measured in found.items():
            for what, values in measured.items():
                self.values[scenario, name, what] = values
                if name.endswith(AGAIN) or (self.other and name.endswith(self.other.suffix)):
                    continue
                again = _neighbours(found.get(name + AGAIN, {}).get(what, ()), values)
                self.add(scenario, name, what, values, again)
                same = {self.other.revision: name + self.other.suffix} if self.other else {}
                for other, key in {**{each: each for each in against.get(what, ())}, **same}.items():
                    theirs = found.get(key, {}).get(what, ())
                    if other != name and values and theirs:
                        medians = " / ".join(number(statistics.median(each)) for each in (values, theirs))
                        both = f"{medians} {what.rpartition(', ')[2] if ', ' in what else ''}".rstrip()
                        self.add(scenario, name, ratio_to(other, what), _neighbours(values, theirs), again, both)

    def duel(
        self, scenario: str, opened: str, against: Mapping[str, Sequence[str]], /, *, rounds: int, **options: Any
    ) -> dict[str, dict[str, list[float]]]:
        """Let the contenders that ``opened`` opens in a child take turns, and compare them; return what was found.

        A round is a turn of each, shuffled. The other revision has a child of its own, and ours a second one: the A/A
        comparison. The children take turns, too.

        Args:
            scenario: the name of the scenario.
            opened: "module.name" of a context manager of ``duel.Contenders``.
            against: what to compare with, by measure: time first, processor time second.
            rounds: the rounds of a full run.
            options: those of ``Child``, and the arguments of ``opened``.
        """
        self.say(scenario)
        order = random.Random(SEED)
        found: dict[str, dict[str, list[float]]] = {}
        with ExitStack() as stack:
            children: list[tuple[str, Child, list[str]]] = []
            for suffix in ("", AGAIN, self.other.suffix) if self.other else ("",):
                try:
                    child = stack.enter_context(self._child(opened, suffix, **options))
                    names, failures = child.answer()
                except ChildFailed as error:
                    self.failed(scenario, f"all{suffix}", error)
                    continue
                children.append((suffix, child, [name for name in names if not (self.other and name.endswith(AGAIN))]))
                for name, said in failures.items():
                    self.failed(scenario, name + suffix, said)
            for _ in range(self.rounds(rounds)):
                for each in order.sample(children, len(children)):
                    suffix, child, names = each
                    try:
                        child.ask(order.sample(names, len(names)))
                        turns = child.answer()
                    except ChildFailed as error:
                        self.failed(scenario, f"all{suffix}", error)
                        children.remove(each)
                        continue
                    for name, took in turns.items():
                        if isinstance(took, str):
                            self.failed(scenario, name + suffix, took)
                            names.remove(name)
                            found.pop(name + suffix, None)
                            continue
                        for what, value in zip(against, took, strict=True):
                            found.setdefault(name + suffix, {}).setdefault(what, []).append(value)
        self.compare(scenario, found, against)
        return found

    def _child(self, function: str, of: str, *, seconds: float, **options: Any) -> Child:
        """Return a child with the code that ``of`` needs, which ends with the time of this part at the latest."""
        longest = PART_SECONDS_OF_ALL if self.everything else PART_SECONDS
        left = self.started + longest - time.monotonic()
        if left < 1:
            raise ChildFailed(f"the {longest:.0f} s of this part are over")
        code = self.other.code if self.other and of.endswith(self.other.suffix) else None
        return Child(function, seconds=min(seconds, left), code=code, **options)

    def failed(self, scenario: str, of: str, said: object) -> None:
        self.failures.append(Failure(scenario, of, str(said)))
        self.say(f"  {scenario}: {of} failed: {str(said).splitlines()[-1] if str(said) else '?'}")

    def child(self, scenario: str, of: str, function: str, /, **options: Any) -> Any:
        """Return the result of ``function`` ("module.name" of this package) in a process of its own; see ``Child``.

        The result is None if it failed, which is noted. Its name is that of a contender, or "all".
        """
        try:
            with self._child(function, of, **options) as child:
                return child.answer()
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

    def times(self, suffix: str = "") -> dict[str, Sequence[float]]:
        """Return the values in seconds of the contenders whose names end so, by part, scenario, contender and measure.

        Without a suffix they are those of this checkout.
        """
        found: dict[str, Sequence[float]] = {}
        for (scenario, of, what), values in self.values.items():
            name, at, revision = of.partition(" @ ")
            measure, _, unit = what.rpartition(", ")
            if unit in _SECONDS and at + revision == suffix and not name.endswith(AGAIN):
                found[f"{self.name}, {scenario}: {name}: {measure}"] = [value * _SECONDS[unit] for value in values]
        return found


def figures_of(results: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Return the figures of each part of a run."""
    return {name: [Figure(**figure) for figure in part["figures"]] for name, part in results["parts"].items()}


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result of several runs of a part. Of each figure it has the one whose median is in the middle."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    for figure in itertools.chain(*(its["figures"] for its in results)):
        found.setdefault((figure["scenario"], figure["of"], figure["what"]), []).append(figure)
    figures = [sorted(its, key=lambda figure: figure["median"])[len(its) // 2] for its in found.values()]
    both = {kind: list(itertools.chain(*(its[kind] for its in results))) for kind in ("failures", "noise")}
    return {"seconds": sum(its["seconds"] for its in results), "figures": figures, **both}


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
