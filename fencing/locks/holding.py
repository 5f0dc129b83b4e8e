"""Grants and holdings: the fence of a grant, its deadline, and how it ended. No I/O, no threads."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from fencing.kernel.fence import Fence
from fencing.locks.settings import Settings

End = Literal["released", "detached", "abandoned"]
Loss = Literal["expired", "gone", "stale"]

THIRD = 1 / 3
"""When a renewal is due, as a share of the ttl. Two more attempts fit in before the lease is over."""

RETRY_SHARE = 1 / 20
JITTER = 0.1
TICKS_PER_TTL = 60
"""The minimum number of moments per ttl; at most twice as many. Renewals are due on this grid, so that leases are
renewed together."""


@dataclass(slots=True)
class Grant:
    """A grant: the fence holds the lock until about ``deadline`` on the coordinator's clock.

    ``packed`` belongs to the backend: data that it needs for each renewal.
    """

    fence: Fence
    deadline: float
    packed: Any = field(default=None, compare=False, repr=False)


class Notified(Protocol):
    """A lease that is notified of its loss."""

    def notify_lost(self) -> None: ...


def _no_lease() -> None:
    """Return no lease: none has been made yet."""


class Holding:
    """The state that a lease, its renewal and the acquiring plan share. Any thread may use it; it ends only once.

    Args:
        grant: the coordinator's grant.
        settings: the lock's settings.
        now: the moment of the grant, on the coordinator's clock.
        alive: all holdings of a coordinator that have not ended. It joins them.
    """

    __slots__ = (
        "__weakref__",
        "_alive",
        "_ended",
        "_ref",
        "_tick",
        "deadline",
        "due",
        "due_together",
        "fence",
        "grant",
        "granted_at",
        "late",
        "lease",
        "renewed_at",
        "settings",
        "unanswered_since",
    )

    def __init__(
        self, grant: Grant, settings: Settings, now: float, alive: set[weakref.ref[Holding]] | None = None
    ) -> None:
        self.fence = grant.fence
        self.grant = grant
        self.deadline = grant.deadline
        self.settings = settings
        self.granted_at = self.renewed_at = now
        self.unanswered_since: float | None = None  # the first attempt to renew it since the last one that succeeded
        self.late = 0.0  # by how many seconds this process has delayed its renewal
        self._tick = _tick(settings.ttl)
        self.due: float | None = self._next_due(now, THIRD) if settings.renew else None
        self.due_together: set[weakref.ref[Holding]] | None = None  # all that are due at the same moment
        self._ref: weakref.ref[Holding] = weakref.ref(self, None if alive is None else alive.discard)
        self.lease: Callable[[], Notified | None] = _no_lease
        self._ended: dict[None, tuple[End | Loss, str | None]] = {}  # at most one entry, and setdefault is atomic
        self._alive = alive
        if alive is not None:
            alive.add(self._ref)

    @property
    def moment(self) -> float:
        """The next moment at which it must be checked: when its renewal is due, or shortly before its deadline."""
        if self.due is not None and self.due < self.deadline:
            return self.due
        return self.deadline // self._tick * self._tick

    @property
    def ended(self) -> End | Loss | None:
        """How it ended; None: it has not."""
        ended = self._ended.get(None)
        return None if ended is None else ended[0]

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return bool(self._ended)

    @property
    def lost(self) -> Loss | None:
        """How it was lost; None: it was not."""
        how = self.ended
        return how if how == "expired" or how == "gone" or how == "stale" else None

    @property
    def cause(self) -> str | None:
        """What caused its loss, in words; None: it was not lost, or the cause is not known."""
        ended = self._ended.get(None)
        return None if ended is None else ended[1]

    def lose(self, how: Loss, cause: str | None = None) -> bool:
        """End it as lost, and notify its lease. Return False if it had ended before."""
        if not self.end(how, cause):
            return False
        lease = self.lease()
        if lease is not None:
            lease.notify_lost()
        return True

    def end(self, how: End | Loss, cause: str | None = None) -> bool:
        """End it. Return False if it had ended before."""
        entry = (how, cause)
        first = self._ended.setdefault(None, entry) is entry
        together, self.due_together = self.due_together, None
        if together is not None:
            together.discard(self._ref)
        if self._alive is not None:
            self._alive.discard(self._ref)
        return first

    def join(self, together: set[weakref.ref[Holding]]) -> None:
        """Join the holdings of one moment, weakly: only a lease, or a plan that claims, keeps a holding."""
        self.due_together = together
        together.add(self._ref)

    def renewed(self, deadline: float, now: float) -> None:
        """Note that a renewal succeeded. The next one is due after a third of the ttl, if the lifetime allows it."""
        self.deadline = max(self.deadline, deadline)
        if now < self.deadline:
            self.renewed_at, self.unanswered_since, self.late = now, None, 0.0
        if self.settings.renew:
            self.due = self._next_due(now, THIRD)

    def ask(self, now: float) -> None:
        """Note that its renewal, which is due, begins."""
        if self.due is not None:
            self.late = max(self.late, now - self.due)
        if self.unanswered_since is None:
            self.unanswered_since = now
        self.due = None

    def not_renewed(self, now: float) -> None:
        """Note that a renewal got no answer. The next attempt is due soon."""
        self.due = self._next_due(now, RETRY_SHARE)

    def _next_due(self, now: float, share: float) -> float | None:
        ttl, lifetime = self.settings.ttl, self.settings.max_lifetime
        if ttl is None:
            return None
        tick = self._tick
        due = (now + ttl * share * (1 - JITTER + 2 * JITTER * random.random())) // tick * tick + tick
        if lifetime is not None and due > self.granted_at + lifetime:
            return None
        return due


@lru_cache(maxsize=64)
def _tick(ttl: float | None) -> float:
    """Return the distance of the grid's moments: a power of two, so that locks with similar ttls share the grid."""
    return math.ldexp(0.5, math.frexp((ttl or 1.0) / TICKS_PER_TTL)[1])
