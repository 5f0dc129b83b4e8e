"""What the figures are to be. Each row of the table is printed, met or not, measured or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.contenders import OURS, RAW, REDIS_PY
from tests.benchmarks.failures import SCENARIOS as HAPPENINGS
from tests.benchmarks.failures import WHAT as UNTIL_THE_NEXT
from tests.benchmarks.live import MEMORY
from tests.benchmarks.parts import Figure
from tests.benchmarks.renewal import AGAINST, THREADED

__all__ = ["TARGETS", "Target", "Verdict", "judge"]

ACCEPT_WINDOW_MS = 250.0
"""How long a waiter that was handed the lock has to say that it lives."""

Place = tuple[str, str, str, str]
"""Part, scenario, of, what: where a figure is found."""


@dataclass(frozen=True, slots=True)
class Target:
    """The worst of some figures is to be at most ``limit``, or at least.

    ``beside``: the same on all cores, for comparison; it decides nothing.
    """

    what: str
    limit: float
    places: tuple[Place, ...]
    unit: str = "x"
    at_least: bool = False
    beside: Place | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``figure`` is None where something was not measured; ``said`` then tells what."""

    target: Target
    figure: Figure | None
    beside: Figure | None
    met: bool
    said: str


def judge(target: Target, figures: Mapping[str, Sequence[Figure]]) -> Verdict:
    """A target held against a run's figures by part. The median decides."""
    found = [_find(place, figures) for place in target.places]
    beside = _find(target.beside, figures) if target.beside else None
    there = [figure for figure in found if figure is not None]
    if not there:
        return Verdict(target, None, beside, False, "not measured")
    worst = (min if target.at_least else max)(there, key=lambda figure: figure.median)
    met = worst.median >= target.limit if target.at_least else worst.median <= target.limit
    off = abs(worst.median / target.limit - 1)
    said = "met" if met else f"missed by {off:.0%}"
    if len(there) > 1 and not met:
        said += f" ({worst.scenario})"
    if len(there) < len(found):
        missing = f"{len(found) - len(there)} of {len(found)} not measured"
        met, said = False, missing if met else f"{said}; {missing}"
    return Verdict(target, worst, beside, met, said)


def _find(place: Place, figures: Mapping[str, Sequence[Figure]]) -> Figure | None:
    part, *rest = place
    for figure in figures.get(part, ()):
        if [figure.scenario, figure.of, figure.what] == rest:
            return figure
    return None


def _pair(text: str, limit: float, what: str, workers: str = "one thread", hiredis: str = "with") -> Target:
    places = [("pair", f"{workers}, {cores}, {hiredis} hiredis", OURS, what) for cores in ("one core", "all cores")]
    return Target(f"pair, {text}", limit, (places[0],), beside=places[1])


def _tasks(text: str, limit: float) -> Target:
    places = [("tasks", f"{text}, {cores}", OURS, f"x {REDIS_PY}") for cores in ("one core", "all cores")]
    return Target(f"asyncio, {text}: time, of redis.asyncio Lock's", limit, (places[0],), beside=places[1])


def _contended(text: str, limit: float, what: str, most: int = 128, unit: str = "x", at_least: bool = False) -> Target:
    counts = [count for count in (2, 8, 32, 128) if count <= most]
    places = tuple(("contended", f"{count} threads, one core", OURS, what) for count in counts)
    return Target(f"contended, 2 to {most} waiters: {text}", limit, places, unit, at_least)


def _failure(happening: str, limit: float) -> Target:
    place = ("failures", f"{happening}: {HAPPENINGS[happening]}", OURS, UNTIL_THE_NEXT)
    return Target(f"{happening}: until the next has it", limit, (place,), "ms")


def _renewal(text: str, limit: float, what: str, unit: str) -> Target:
    return Target(f"renewing 10,000 leases: {text}", limit, (("renewal", "10,000 leases", OURS, what),), unit)


def _sql(library: str, limit: float) -> Target:
    place = ("sql", f"PostgreSQL, {library}, synchronous_commit on", "guard.write", "x plain")
    return Target(f"PostgreSQL, guarded write, {library}: time, of its own BEGIN … COMMIT", limit, (place,))


TARGETS = (
    _pair("hiredis: time, of redis-py Lock's", 0.40, f"x {REDIS_PY}"),
    _pair("hiredis: time, of the raw socket's", 1.6, f"x {RAW}"),
    _pair("hiredis: client CPU, of redis-py Lock's", 0.30, f"CPU x {REDIS_PY}"),
    _pair("without hiredis: time, of redis-py Lock's", 0.45, f"x {REDIS_PY}", hiredis="without"),
    _pair("8 threads: time, of redis-py Lock's", 0.45, f"x {REDIS_PY}", workers="8 threads"),
    _tasks("one task", 0.40),
    _tasks("64 tasks", 0.25),
    _contended("fairness (Jain)", 0.98, "fairness (Jain)", unit="", at_least=True),
    _contended("grants/s, of redis-py Lock's", 1.0, f"grants/s, x {REDIS_PY}", at_least=True),
    _contended("hand-off p99, of redis-py Lock's", 0.05, f"hand-off p99, x {REDIS_PY}", most=32),
    _contended("hand-off p50, of an idle round trip", 4.0, "p50, x idle round trip"),
    _contended("client commands a grant", 3.2, "commands a grant", unit=""),
    _failure("head waiter killed", 50.0),
    _failure("head waiter frozen", 2 * ACCEPT_WINDOW_MS),
    _failure("holder killed", 20.0),
    Target("Redlock over 5: time, of redlock-py's", 0.6, (("redlock", "five servers", OURS, "x redlock-py"),)),
    Target("Redlock, two of 5 frozen: pair", 5.0, (("redlock", "two of five frozen", OURS, "pair, ms"),), "ms"),
    _renewal("threads", 1, "threads", ""),
    _renewal(f"CPU, of a thread a lock at {THREADED:,}", 0.02, f"CPU x {AGAINST}, at {THREADED:,}", "x"),
    _renewal("server time a call", 500.0, "server time a call, mean µs", "µs"),
    Target(
        "memory a name ever locked",
        1.0,
        (("live", MEMORY.format(1_000_000), OURS, "bytes a name ever locked"),),
        "bytes",
    ),
    Target(
        "pair with 1,000,000 live locks, of one with 10", 1.15, (("live", "1,000,000 live locks", OURS, "x with 10"),)
    ),
    _sql("psycopg", 1.35),
    _sql("SQLAlchemy", 1.4),
)
