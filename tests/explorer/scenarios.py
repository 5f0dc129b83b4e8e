"""What is explored with all rules on: nothing may be found, and everything within the bounds is visited."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from tests.explorer.clients import OfACluster, Program, Queues
from tests.explorer.search import Result, explore
from tests.explorer.simulated_redis import SPREAD_MS, Reply, SimulatedRedis
from tests.explorer.state import Bounds, Scenario

__all__ = ["DEEP", "LARGE", "SAFE", "NoLock", "explored"]


class NoLock(SimulatedRedis):
    """Everybody is granted at once: safety is the guard's, so it must hold without any lock."""

    excludes = False

    def _acquire(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        return self._mint(keys, args)


HOLDER = Program()
QUEUER = Program(plans=Queues)
HURRIED = Program(timeout=3.0)  # its first attempt is its last, unless that ends before its time
HURRIED_QUEUER = replace(HURRIED, plans=Queues)
ADOPTS = Program(adopts=2)
RECLAIMS = Program(reclaims=2)
RECLAIMS_ONCE = Program(reclaims=1)
BRIEF = Program(plans=Queues, claims=False)  # it reads, and then gives the lock on: nothing is written
HURRIED_BRIEF = replace(BRIEF, timeout=5.0)
BOTH = Program(both=True, claims=False)
BOTH_OF_A_CLUSTER = replace(BOTH, plans=OfACluster)
NO_BOUND = -100
SOON = 2 + SPREAD_MS
"""As late as the second of two waiters comes that a message tells to recheck."""

_QUICK = [
    Scenario(
        "2 clients, most faults",
        (HOLDER, HOLDER),
        Bounds(expiries=1, lost=1, late=1, crashes=1, resets=1),
    ),
    Scenario("2 clients, refused calls", (HOLDER, HOLDER), Bounds(refused=2, expiries=1, lost=1)),
    Scenario("2 clients, slow claims", (HOLDER, HOLDER), Bounds(expiries=1, slow=2, polls=1), earlier=4),
    Scenario("2 clients, new storage", (HOLDER, HOLDER), Bounds(expiries=2, lost=1), repair=2),
    Scenario("2 clients, twice refused", (HOLDER, HOLDER), Bounds(expiries=1, lost=1, resets=2), earlier=4),
    Scenario("2 clients, two rounds", (Program(rounds=2),) * 2, Bounds(expiries=1, resets=1), earlier=4),
    Scenario(
        "2 clients, server's clock as a floor",
        (Program(clock_floor=True),) * 2,
        Bounds(expiries=1, lost=1, resets=1),
    ),
    Scenario(
        "2 clients with a timeout",
        (Program(timeout=5.0),) * 2,
        Bounds(expiries=1, lost=2, late=1, gave_up=1),
    ),
    Scenario("2 clients that renew", (Program(renews=True),) * 2, Bounds(expiries=2, lost=1, resets=1)),
    Scenario(
        "2 clients, two writes each, in order by seq",
        (Program(writes=2, order=True),) * 2,
        Bounds(expiries=1, late_writes=1, lost=1),
    ),
    Scenario(
        "2 clients, and one that takes the lock away",
        (HOLDER, HOLDER, Program(forces=True)),
        Bounds(expiries=1, lost=1),
    ),
    Scenario(
        "2 clients, one that forgets to claim",
        (HOLDER, Program(claims=False)),
        Bounds(expiries=2, lost=1, late=1, resets=1),
    ),
    Scenario("3 clients, new storage", (HOLDER,) * 3, Bounds(expiries=2, resets=1), repair=2),
    Scenario("3 clients", (HOLDER,) * 3, Bounds(expiries=1, resets=1), earlier=4),
    Scenario("3 clients, lost and late", (HOLDER,) * 3, Bounds(expiries=1, lost=1, late=1)),
    Scenario("3 clients, crashes", (HOLDER,) * 3, Bounds(expiries=1, crashes=1, slow=1)),
    Scenario("2 that queue, lost and late", (QUEUER,) * 2, Bounds(lost=1, late=1, crashes=1)),
    Scenario("3 that queue", (QUEUER,) * 3, Bounds(crashes=1, freezes=1, cuts=1)),
    Scenario("3 that queue, refused calls", (QUEUER,) * 3, Bounds(refused=2, cuts=1)),
    Scenario("3 that queue, early rechecks", (QUEUER,) * 3, Bounds(early=1, cuts=1)),
    Scenario(
        "3 that queue, with a timeout",
        (Program(plans=Queues, timeout=5.0),) * 3,
        Bounds(lost=1, gave_up=1, cuts=1),
    ),
    Scenario("5 that queue, two stopped", (BRIEF,) * 5, Bounds(freezes=2), late_ms=SOON),
    Scenario("3 that queue, data loss", (QUEUER,) * 3, Bounds(expiries=1, resets=1), earlier=4),
    Scenario("3 clients without a lock", (HOLDER,) * 3, Bounds(resets=1), redis=NoLock, repair=NO_BOUND),
    Scenario("2 clients, kept requests", (HURRIED,) * 2, Bounds(kept=2, lost=1)),
    Scenario("2 clients, a kept remint", (HURRIED,) * 2, Bounds(kept=2, resets=1), earlier=4),
    Scenario("3 that queue, kept requests", (HURRIED_QUEUER,) * 3, Bounds(kept=1, lost=1)),
    Scenario("2 that adopt, kept requests", (ADOPTS,) * 2, Bounds(kept=1, lost=1)),
    Scenario("2 that hold both, kept requests", (BOTH,) * 2, Bounds(kept=2, lost=1)),
    Scenario("2 that hold both of a cluster, kept requests", (BOTH_OF_A_CLUSTER,) * 2, Bounds(kept=1, lost=1)),
    Scenario(
        "2 clients, and one that takes the lock away, kept requests",
        (HURRIED, HURRIED, Program(forces=True)),
        Bounds(kept=1, lost=1),
    ),
    Scenario("2 clients that renew, kept requests", (Program(renews=True),) * 2, Bounds(kept=2, expiries=1)),
    Scenario("2 that reclaim, lost and late", (RECLAIMS,) * 2, Bounds(late_writes=1, lost=1, late=1)),
    Scenario("2 that reclaim, kept requests", (RECLAIMS,) * 2, Bounds(late_writes=1, kept=1)),
    Scenario("2 that reclaim, an expiry", (RECLAIMS,) * 2, Bounds(late_writes=1, lost=1, expiries=1)),
    Scenario("2 that reclaim, data loss", (RECLAIMS,) * 2, Bounds(late_writes=1, lost=1, resets=1), earlier=4),
    Scenario("2 that reclaim once, or leave their block", (RECLAIMS_ONCE,) * 2, Bounds(late_writes=1, lost=1, late=1)),
]

_DEEP = [
    Scenario(
        "2 clients, server's clock as a floor, late requests",
        (Program(clock_floor=True),) * 2,
        Bounds(expiries=1, lost=1, late=1, resets=1),
    ),
    Scenario("3 clients, two expiries", (HOLDER,) * 3, Bounds(expiries=2, resets=1), earlier=4),
    Scenario(
        "2 clients, all faults but late requests",
        (HOLDER, HOLDER),
        Bounds(expiries=1, lost=1, slow=1, crashes=1, resets=1, polls=1),
    ),
    Scenario("2 clients, refused and late", (HOLDER, HOLDER), Bounds(refused=2, expiries=1, lost=1, late=1)),
    Scenario("2 clients, each fault twice", (HOLDER, HOLDER), Bounds(expiries=2, lost=2, resets=2), earlier=4),
    Scenario("2 clients, three rounds", (Program(rounds=3),) * 2, Bounds(expiries=2, resets=1), earlier=4),
    Scenario("3 clients, two rounds", (Program(rounds=2),) * 3, Bounds(expiries=1, resets=1), earlier=4),
    Scenario("3 clients, most faults", (HOLDER,) * 3, Bounds(expiries=1, lost=1, resets=1, crashes=1)),
    Scenario("2 that queue, most faults", (QUEUER,) * 2, Bounds(expiries=1, lost=1, late=1, crashes=1, resets=1)),
    Scenario("3 that queue, refused, lost and late", (QUEUER,) * 3, Bounds(refused=1, lost=1, late=1)),
    Scenario("4 that queue", (QUEUER,) * 4, Bounds(crashes=1, freezes=1, cuts=1)),
    Scenario("3 that queue, lost and late", (QUEUER,) * 3, Bounds(late=1, lost=1, crashes=1)),
    Scenario("3 that queue, two rounds", (Program(plans=Queues, rounds=2),) * 3, Bounds(freezes=1, cuts=1)),
    Scenario("6 that queue, three stopped", (BRIEF,) * 6, Bounds(freezes=3), late_ms=SOON),
    Scenario("4 that queue, two stopped, pauses", (BRIEF,) * 4, Bounds(freezes=2, pauses=3), late_ms=SOON),
    Scenario("5 that queue, pauses", (BRIEF,) * 5, Bounds(freezes=1, pauses=2), late_ms=SOON),
    Scenario("5 that queue, three stopped, pauses", (BRIEF,) * 5, Bounds(freezes=3, pauses=2), late_ms=SOON),
    Scenario("4 that queue, pauses, a cut", (BRIEF,) * 4, Bounds(freezes=1, cuts=1, pauses=2), late_ms=SOON),
    Scenario("4 that queue, pauses, a crash", (BRIEF,) * 4, Bounds(freezes=1, crashes=1, pauses=2), late_ms=SOON),
    Scenario(
        "4 that queue, pauses, a timeout", (HURRIED_BRIEF,) * 4, Bounds(freezes=1, gave_up=1, pauses=2), late_ms=SOON
    ),
    Scenario(
        "4 that queue, a pause, lost and early",
        (BRIEF,) * 4,
        Bounds(freezes=1, lost=1, early=1, pauses=1),
        late_ms=SOON,
    ),
    Scenario("4 clients", (HOLDER,) * 4, Bounds(expiries=2, resets=1)),
    Scenario("2 clients, kept, late and lost", (HOLDER,) * 2, Bounds(kept=2, late=1, lost=1, expiries=1)),
    Scenario("2 that queue, kept, late and lost", (QUEUER,) * 2, Bounds(kept=2, late=1, lost=1)),
    Scenario("2 that adopt, kept requests, an expiry", (ADOPTS,) * 2, Bounds(kept=1, lost=1, expiries=1)),
    Scenario("3 clients, kept requests", (HURRIED,) * 3, Bounds(kept=2, lost=1)),
    Scenario(
        "2 that hold both of a cluster, refused and kept", (BOTH_OF_A_CLUSTER,) * 2, Bounds(kept=1, lost=1, refused=1)
    ),
    Scenario("2 that reclaim, kept and late", (RECLAIMS,) * 2, Bounds(late_writes=1, kept=1, late=1, expiries=1)),
    Scenario(
        "2 that reclaim, two late writes, kept requests",
        (RECLAIMS,) * 2,
        Bounds(late_writes=2, kept=1, lost=1, expiries=1),
    ),
    Scenario("3 that reclaim, kept requests", (RECLAIMS,) * 3, Bounds(late_writes=1, kept=1, expiries=1)),
    Scenario(
        "2 that reclaim, and one that takes the lock away, kept requests",
        (RECLAIMS, RECLAIMS, Program(forces=True)),
        Bounds(late_writes=1, kept=1),
    ),
    Scenario(
        "2 that renew and reclaim, kept requests",
        (replace(RECLAIMS, renews=True),) * 2,
        Bounds(late_writes=1, kept=1, expiries=1),
    ),
    Scenario(
        "2 that queue and reclaim, kept requests",
        (replace(RECLAIMS, plans=Queues),) * 2,
        Bounds(late_writes=1, kept=1, lost=1),
    ),
]

_LARGE = [
    Scenario(
        "2 clients, all faults",
        (HOLDER, HOLDER),
        Bounds(expiries=1, lost=1, late=1, slow=1, crashes=1, resets=1, polls=1),
    ),
]

SAFE = {scenario.name: scenario for scenario in _QUICK}
"""Explored by ``make test``, in seconds."""

DEEP = {scenario.name: scenario for scenario in _DEEP}
"""Explored by ``make deep``: each takes at most 60 s on one core, and 1 GB."""

LARGE = {scenario.name: scenario for scenario in _LARGE}
"""Explored by ``make explore`` alone."""


@functools.cache
def explored(name: str) -> Result:
    """Explore one of ``SAFE``, once a process: its calls and operations are compared with real servers, too."""
    return explore(SAFE[name])
