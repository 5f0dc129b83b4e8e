"""Which faults there are, and which happens when: a plan that the seed alone decides, made before the run begins.

Each fault is one function, with ``fault`` before it, in a module of this package.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.torture.faults import (  # noqa: F401 - they register
    connections,
    databases,
    etcd,
    failovers,
    redis,
    space,
    workers,
    zookeeper,
)
from tests.torture.faults.base import FAULTS, Fault, Strike
from tests.torture.services import Services

__all__ = ["FAULTS", "Fault", "Planned", "Strike", "kinds", "kinds_for", "named", "plan"]

LONGEST_GAP = 1.0


class Planned(NamedTuple):
    """One fault to come.

    Args:
        at: seconds after the beginning of the run.
        kind: the fault's name, and after a blank that of the service, where it is not one of workers.
        target: which worker, how many requests or signals.
        seconds: how long it lasts, where it lasts.
    """

    at: float
    kind: str
    target: int
    seconds: float


def kinds_for(services: Services) -> tuple[str, ...]:
    """Return the kinds of faults on these services; a kind that occurs twice is twice as likely."""
    found: list[str] = []
    for fault in FAULTS:
        able = [each.name for each in services if each.name in fault.services and each.is_able(fault.name)]
        for name in able or ([""] if not fault.services else []):
            found += [f"{fault.name} {name}".rstrip()] * fault.weight
    return tuple(found)


def named(kind: str) -> tuple[Fault, str]:
    """Return the fault of a kind, and the name of its service; empty: it is one of workers."""
    for fault in FAULTS:
        if not fault.services and kind == fault.name:
            return fault, ""
        for service in fault.services:
            if kind == f"{fault.name} {service}":
                return fault, service
    raise ValueError(f"there is no fault {kind!r}; choose among {', '.join(kinds())}")


def kinds() -> list[str]:
    """Return every kind of fault, on every service."""
    return sorted(f"{fault.name} {service}".rstrip() for fault in FAULTS for service in fault.services or [""])


def plan(seed: int, seconds: float, kinds: Sequence[str], ttl: float) -> Iterator[Planned]:
    """Yield the faults of a run. The same arguments give the same faults."""
    chance = random.Random(f"{seed}/faults")
    at = chance.uniform(0.2, LONGEST_GAP)
    while at < seconds:
        lasts = chance.choice([0.05, 0.3, 0.3, 1.2 * ttl])
        yield Planned(at, chance.choice(kinds), chance.randrange(1000), lasts)
        at += chance.choice([0.0, chance.uniform(0.02, LONGEST_GAP)])  # several at once
