"""One grant from the moment it was made: its fence, its deadline, and how it ended. No I/O, no thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, Protocol

from fencing.coordinator import Grant, Settings

__all__ = ["Handle", "Holding"]

End = Literal["released", "detached", "abandoned"]
Loss = Literal["expired", "gone", "stale"]

THIRD = 1 / 3
"""When a renewal is due, as a share of the ttl: two more attempts fit in before the lease is over."""

RETRY_SHARE = 1 / 20
JITTER = 0.1
TICKS_PER_TTL = 60
"""Renewals are due on a grid of moments, so that leases of the same ttl are renewed together."""


class Handle(Protocol):
    """A call that is to come, and can be called off."""

    def cancel(self) -> object: ...


class Holding:
    """What the lease, its renewal and the acquiring plan share. Any thread may use it; its end comes once.

    Args:
        grant: as the coordinator made it.
        settings: of the lock.
        now: the moment of the grant, on the coordinator's clock.
    """

    __slots__ = ("__weakref__", "_fate", "deadline", "due", "fence", "granted_at", "listener", "settings", "timer")

    def __init__(self, grant: Grant, settings: Settings, now: float) -> None:
        self.fence = grant.fence
        self.deadline = grant.deadline
        self.settings = settings
        self.granted_at = now
        self.due: float | None = self._next(now, THIRD) if settings.renew else None
        self.timer: Handle | None = None
        self.listener: Callable[[], Any] = lambda: None
        self._fate: dict[None, tuple[End | Loss]] = {}  # at most one entry, and setdefault is atomic

    @property
    def fate(self) -> End | Loss | None:
        """How it ended; None: it has not."""
        fate = self._fate.get(None)
        return None if fate is None else fate[0]

    @property
    def lost(self) -> Loss | None:
        """How it was lost; None: it was not."""
        fate = self.fate
        return fate if fate == "expired" or fate == "gone" or fate == "stale" else None

    def end(self, how: End) -> bool:
        """It ends on purpose. False: it had ended before."""
        return self._decide(how)

    def lose(self, how: Loss) -> bool:
        """It is lost; its lease is told. False: it had ended before."""
        if not self._decide(how):
            return False
        self.listener()
        return True

    def _decide(self, fate: End | Loss) -> bool:
        mine = (fate,)
        first = self._fate.setdefault(None, mine) is mine
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
        return first

    def renewed(self, grant: Grant, now: float) -> None:
        """A renewal has succeeded; the next is due in a third of the ttl, while the lifetime lasts."""
        self.deadline = max(self.deadline, grant.deadline)
        if self.settings.renew:
            self.due = self._next(now, THIRD)

    def not_renewed(self, now: float) -> None:
        """A renewal got no answer; the next attempt is due soon."""
        self.due = self._next(now, RETRY_SHARE)

    def _next(self, now: float, share: float) -> float | None:
        ttl, lifetime = self.settings.ttl, self.settings.max_lifetime
        if ttl is None:
            return None
        tick = ttl / TICKS_PER_TTL
        due = (now + ttl * share * random.uniform(1 - JITTER, 1 + JITTER)) // tick * tick + tick
        if lifetime is not None and due > self.granted_at + lifetime:
            return None
        return due
