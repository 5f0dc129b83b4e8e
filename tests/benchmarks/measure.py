"""What is made of measured times: medians, spreads, ratios of neighbours, fairness. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Spread", "jain", "percentile", "ratios", "shares_above", "spread_of", "turns"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, with the 10th and the 90th percentile."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies, between neighbours in proportion."""
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
    """One to the other, round by round: what slows the machine down slows neighbours down alike."""
    return [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]


def shares_above(limit: Sequence[float], ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """What ours takes above the limit, as a share of what theirs takes above it, round by round.

    Rounds in which theirs was not above the limit say nothing, and are left out.
    """
    rounds = zip(limit, ours, theirs, strict=True)
    return [(mine - least) / (other - least) for least, mine, other in rounds if other > least]


def jain(counts: Sequence[float]) -> float:
    """Jain's fairness index (https://arxiv.org/abs/cs/9809099): 1.0 if all got the same, 1/n if one got everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0


def turns(names: Sequence[str], rounds: int, failed: Container[str] = ()) -> Iterator[str]:
    """Everybody's turn once a round, the order shifted by one each round; who has failed by then gets none."""
    for turn in range(rounds):
        shift = turn % len(names) if names else 0
        for name in (*names[shift:], *names[:shift]):
            if name not in failed:
                yield name
