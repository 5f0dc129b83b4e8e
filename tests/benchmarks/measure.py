"""Medians, spreads, ratios of neighbours and fairness of measured values. No I/O."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

SEED = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, with the 10th and the 90th percentile."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies, in proportion between neighbours."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread_of(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), percentile(values, 0.1), percentile(values, 0.9))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round: a slow moment of the machine slows neighbours down alike."""
    return [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]


def shares_above(limit: Sequence[float], ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return, for each round, our time above the limit as a share of their time above it.

    Rounds in which theirs was not above the limit are left out.
    """
    rounds = zip(limit, ours, theirs, strict=True)
    return [(mine - least) / (other - least) for least, mine, other in rounds if other > least]


def number(value: float) -> str:
    """Return three significant digits, or all digits before the point, with separators between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{min(max(0, 2 - math.floor(math.log10(abs(value)))), 4)}f}"


def jain(counts: Sequence[float]) -> float:
    """Return Jain's fairness index (https://arxiv.org/abs/cs/9809099): 1 if all got the same, 1/n if one got all."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def turns(names: Sequence[str], rounds: int, failed: Container[str] = ()) -> Iterator[str]:
    """Yield each name once a round, shuffled in each round. A name that has failed meanwhile is left out."""
    order = random.Random(SEED)
    for _ in range(rounds):
        for name in order.sample(names, len(names)):
            if name not in failed:
                yield name
