"""The targets of the figures. Each one is printed, met or not, measured or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.contenders import OURS, RAW, REDIS_PY
from tests.benchmarks.failures import SCENARIOS as HAPPENINGS
from tests.benchmarks.failures import WHAT as UNTIL_THE_NEXT
from tests.benchmarks.live import MEMORY
from tests.benchmarks.parts import Figure
from tests.benchmarks.renewal import AGAINST, THREADED

__all__ = ["TARGETS", "Target", "Verdict", "assess"]

ACCEPT_WINDOW_MS = 250.0
"""How long a waiter may take to accept the lock."""

Place = tuple[str, str, str, str]
"""Part, scenario, of, what: where a figure is found."""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for the worst of some figures: at most ``limit``, or at least.

    ``beside`` is the same figure on all cores, for comparison. It decides nothing.
    """

    what: str
    limit: float
    places: tuple[Place, ...]
    unit: str = "x"
    at_least: bool = False
    beside: Place | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a target. ``figure`` is None if nothing was measured; ``said`` is the result in words."""

    target: Target
    figure: Figure | None
    beside: Figure | None
    met: bool
    said: str


def assess(target: Target, figures: Mapping[str, Sequence[Figure]]) -> Verdict:
    """Compare a target with the figures of a run. The median decides."""
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
    return Target(f"acquire and release, {text}", limit, (places[0],), beside=places[1])


def _tasks(text: str, limit: float) -> Target:
    places = [("tasks", f"{text}, {cores}", OURS, f"x {REDIS_PY}") for cores in ("one core", "all cores")]
    return Target(f"asyncio, {text}: time, compared with redis.asyncio's Lock", limit, (places[0],), beside=places[1])


def _contended(text: str, limit: float, what: str, most: int = 128, unit: str = "x", at_least: bool = False) -> Target:
    counts = [count for count in (2, 8, 32, 128) if count <= most]
    places = tuple(("contended", f"{count} threads, one core", OURS, what) for count in counts)
    return Target(f"contention, 2 to {most} waiters: {text}", limit, places, unit, at_least)


def _failure(happening: str, limit: float) -> Target:
    place = ("failures", f"{happening}: {HAPPENINGS[happening]}", OURS, UNTIL_THE_NEXT)
    return Target(f"{happening}: until the next waiter has the lock", limit, (place,), "ms")


def _renewal(text: str, limit: float, what: str, unit: str) -> Target:
    return Target(f"renewing 10,000 leases: {text}", limit, (("renewal", "10,000 leases", OURS, what),), unit)


def _sql(library: str, limit: float) -> Target:
    place = ("sql", f"PostgreSQL, {library}, synchronous_commit on", "guard.write", "x plain")
    return Target(f"PostgreSQL, {library}, guarded write: time, compared with its own BEGIN … COMMIT", limit, (place,))


TARGETS = (
    _pair("one thread: time, compared with redis-py's Lock", 0.40, f"x {REDIS_PY}"),
    _pair("one thread: time, compared with a raw socket", 1.6, f"x {RAW}"),
    _pair("one thread: client CPU, compared with redis-py's Lock", 0.30, f"CPU x {REDIS_PY}"),
    _pair("one thread, without hiredis: time, compared with redis-py's Lock", 0.45, f"x {REDIS_PY}", hiredis="without"),
    _pair("8 threads: time, compared with redis-py's Lock", 0.45, f"x {REDIS_PY}", workers="8 threads"),
    _tasks("one task", 0.40),
    _tasks("64 tasks", 0.25),
    _contended("fairness (Jain)", 0.98, "fairness (Jain)", unit="", at_least=True),
    _contended("grants per second, compared with redis-py's Lock", 1.0, f"grants/s, x {REDIS_PY}", at_least=True),
    _contended(
        "hand-off, 99th percentile, compared with redis-py's Lock", 0.05, f"hand-off p99, x {REDIS_PY}", most=32
    ),
    _contended("hand-off, median, compared with an idle round trip", 4.0, "p50, x idle round trip"),
    _contended("commands per grant", 3.2, "commands a grant", unit=""),
    _failure("head waiter killed", 50.0),
    _failure("head waiter frozen", 2 * ACCEPT_WINDOW_MS),
    _failure("holder killed", 20.0),
    Target(
        "Redlock over 5 servers: time, compared with redlock-py",
        0.6,
        (("redlock", "five servers", OURS, "x redlock-py"),),
    ),
    Target(
        "Redlock, 2 of 5 servers frozen: acquire and release",
        5.0,
        (("redlock", "two of five frozen", OURS, "pair, ms"),),
        "ms",
    ),
    _renewal("threads, the timer of the process included", 1, "threads", ""),
    _renewal(
        f"CPU, compared with a thread for each lock at {THREADED:,}", 0.02, f"CPU x {AGAINST}, at {THREADED:,}", "x"
    ),
    _renewal("server time per call", 500.0, "server time a call, mean µs", "µs"),
    Target(
        "memory for a name that was ever locked",
        1.0,
        (("live", MEMORY.format(1_000_000), OURS, "bytes a name ever locked"),),
        "bytes",
    ),
    Target(
        "acquire and release with 1,000,000 live locks, compared with 10",
        1.15,
        (("live", "1,000,000 live locks", OURS, "x with 10"),),
    ),
    _sql("psycopg", 1.35),
    _sql("SQLAlchemy", 1.4),
)
