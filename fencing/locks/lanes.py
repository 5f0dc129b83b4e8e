"""What waits to be renewed, in lanes. No I/O.

Leases with similar ttls share a lane. A few requests of a lane may be under way at the same time. Each has a time limit
that is right for all leases of the lane. So no lease waits for a request of another lane, which may have more time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable

from fencing.kernel.waking import safe_lock
from fencing.kernel.workers import Worker
from fencing.locks.holding import Grant
from fencing.locks.settings import TICKS_PER_TTL

MOST_AT_ONCE = 4
"""How many requests of a lane may be under way at the same time."""


class Lane:
    """The holdings of similar ttls whose renewal is due. Their ttls differ by less than a factor of two.

    An interruption of any of its steps loses no holding.

    Attributes:
        attempt_seconds: the time limit of one request: a third of the shortest ttl that belongs here.
    """

    def __init__(self, tick_seconds: float) -> None:
        self.attempt_seconds = tick_seconds * TICKS_PER_TTL / 3
        self._by_ttl: dict[float | None, deque[Grant]] = {}  # a request has one ttl

    def __bool__(self) -> bool:
        return bool(self._by_ttl)

    def add(self, holding: Grant) -> None:
        """Add a holding that is due."""
        self._by_ttl.setdefault(holding.settings.ttl, deque()).append(holding)

    def take(self, batch: list[Grant], most: int) -> None:
        """Move the most urgent ones that have not ended into an empty batch, as many as one request may have."""
        while self._by_ttl and not batch:
            ttl = min(self._by_ttl, key=self._deadline)
            group = self._by_ttl[ttl]
            while group and len(batch) < most:
                if group[0].ended is None:
                    batch.append(group[0])
                group.popleft()
            if not group:
                del self._by_ttl[ttl]

    def _deadline(self, ttl: float | None) -> float:
        group = self._by_ttl[ttl]
        return group[0].deadline if group else -math.inf  # the removal of an empty one was interrupted


class LoopLane(Lane):
    """A lane of one event loop, with the tasks that renew, and what each of them is to renew now."""

    def __init__(self, tick_seconds: float) -> None:
        super().__init__(tick_seconds)
        self.running: dict[asyncio.Task[None], list[Grant]] = {}


def by_lane(holdings: Iterable[Grant]) -> Iterable[tuple[float, list[Grant]]]:
    """Return the holdings that belong to the same lane, with its ``tick_seconds``."""
    lanes: dict[float, list[Grant]] = {}
    for holding in holdings:
        lanes.setdefault(holding.settings.tick_seconds, []).append(holding)
    return lanes.items()


class ThreadLane(Lane):
    """A lane for threads. Its lock is held for everything but the requests.

    Attributes:
        running: how many requests are under way.
        worker: performs them; ``others`` do so while one is under way.
    """

    def __init__(self, tick_seconds: float) -> None:
        super().__init__(tick_seconds)
        self.lock = safe_lock()
        self.running = 0
        self.worker = Worker("fencing-renewal")
        self.others = Worker("fencing-renewal", MOST_AT_ONCE - 1)
