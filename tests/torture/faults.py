"""Which fault happens when: a plan that the seed alone decides, made before the run begins."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Fault", "kinds_for", "plan"]

OF_WORKERS = ("stop", "stop", "kill", "interrupt", "interrupt")
OF_SERVICES = {
    "redis": ("flush", "save", "older file", "freeze redis", "silence redis"),
    "postgresql": ("kill postgresql", "silence postgresql", "prune", "verify"),
    "objects": ("silence objects",),
    "sqlite": ("prune", "verify"),
}
OF_CONNECTIONS = ("cut", "drop request", "drop request", "drop reply", "drop reply", "drop reply")
WITHOUT_CONNECTIONS = ("sqlite", "files")
LONGEST_GAP = 1.0


class Fault(NamedTuple):
    """One fault.

    Args:
        at: seconds after the beginning of the run.
        kind: what, and where a blank follows, of which service.
        target: which worker, how many requests or signals.
        seconds: how long it lasts, where it lasts.
    """

    at: float
    kind: str
    target: int
    seconds: float


def kinds_for(services: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of faults on these services; a kind that occurs twice is twice as likely."""
    kinds = list(OF_WORKERS)
    for service in services:
        kinds += OF_SERVICES.get(service, ())
        if service not in WITHOUT_CONNECTIONS:
            kinds += (f"{kind} {service}" for kind in OF_CONNECTIONS)
    return tuple(kinds)


def plan(seed: int, seconds: float, kinds: Sequence[str], ttl: float) -> Iterator[Fault]:
    """Yield the faults of a run. The same arguments give the same faults."""
    chance = random.Random(f"{seed}/faults")
    at = chance.uniform(0.2, LONGEST_GAP)
    while at < seconds:
        lasts = chance.choice([0.05, 0.3, 0.3, 1.2 * ttl])
        yield Fault(at, chance.choice(kinds), chance.randrange(1000), lasts)
        at += chance.choice([0.0, chance.uniform(0.02, LONGEST_GAP)])  # several at once
