"""What waits to be renewed, in lanes. No I/O.

Leases with similar ttls share a lane. A few requests of a lane may be under way at the same time. Each has a time limit
that is right for all leases of the lane. So no lease waits for a request of another lane, which may have more time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from fencing.kernel.waking import safe_lock
from fencing.kernel.workers import Worker
from fencing.locks.holding import Grant

MOST_AT_ONCE = 4
"""How many requests of a lane may be under way at the same time."""


class Lane:
    """The holdings of similar ttls whose renewal is due. Their ttls differ by less than a factor of two.

    An interruption of any of its steps loses no holding.

    Args:
        lane_ttl: the shortest ttl that belongs here: see ``Settings``.
        mixes_ttls: whether one request may renew leases of several ttls: see ``RenewsSeveralTtls``.

    Attributes:
        attempt_seconds: the time limit of one request: a third of the shortest ttl that belongs here.
    """

    def __init__(self, lane_ttl: float, *, mixes_ttls: bool) -> None:
        self.attempt_seconds = lane_ttl / 3
        self._mixes_ttls = mixes_ttls
        self._groups: dict[float | None, list[tuple[float, int, Grant]]] = {}  # heaps, each for requests of its own
        self._added = count()  # of equal deadlines, the first that came goes first

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, holding: Grant) -> None:
        """Add a holding that is due."""
        group = self._groups.setdefault(None if self._mixes_ttls else holding.settings.ttl, [])
        heappush(group, (holding.deadline, next(self._added), holding))

    def take(self, batch: list[Grant], most: int) -> None:
        """Move the most urgent ones that have not ended into an empty batch, as many as one request may have."""
        while self._groups and not batch:
            key = min(self._groups, key=self._deadline)
            group = self._groups[key]
            while group and len(batch) < most:
                if group[0][2].ended is None:
                    batch.append(group[0][2])
                heappop(group)
            if not group:
                del self._groups[key]

    def _deadline(self, key: float | None) -> float:
        group = self._groups[key]
        return group[0][0] if group else -math.inf  # the removal of an empty one was interrupted


class LoopLane(Lane):
    """A lane of one event loop, with the tasks that renew, and what each of them is to renew now."""

    def __init__(self, lane_ttl: float, *, mixes_ttls: bool) -> None:
        super().__init__(lane_ttl, mixes_ttls=mixes_ttls)
        self.running: dict[asyncio.Task[None], list[Grant]] = {}


def by_lane(holdings: Iterable[Grant]) -> Iterable[tuple[float, list[Grant]]]:
    """Return the holdings that belong to the same lane, with its ``lane_ttl``."""
    lanes: dict[float, list[Grant]] = {}
    for holding in holdings:
        lanes.setdefault(holding.settings.lane_ttl, []).append(holding)
    return lanes.items()


class ThreadLane(Lane):
    """A lane for threads. Its lock is held for everything but the requests.

    Attributes:
        running: how many requests are under way.
        worker: performs them; ``others`` do so while one is under way.
    """

    def __init__(self, lane_ttl: float, *, mixes_ttls: bool) -> None:
        super().__init__(lane_ttl, mixes_ttls=mixes_ttls)
        self.lock = safe_lock()
        self.running = 0
        self.worker = Worker("fencing-renewal")
        self.others = Worker("fencing-renewal", MOST_AT_ONCE - 1)
