"""A place in the queue of a lock. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from fencing.etcd.leases import Lease
from fencing.etcd.waiters import Leave, Wait, Waiter
from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import Fence
from fencing.kernel.retry import NoReply
from fencing.locks.backend import BACKOFF
from fencing.locks.settings import Settings
from fencing.locks.waiting import poll_pause

ALIVE_SHARE = 0.3
"""After which share of its ttl the lease of a waiter is kept alive."""

LAST_SECONDS = 0.002
"""A wait that is shorter than this is over."""


class KeepsPlaces(Protocol):
    """The plans whose waiters have places."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def credentials(self) -> str: ...

    def plan_keep_alive(
        self, lease: Lease, resource: str, settings: Settings, deadline: float
    ) -> Plan[float | None]: ...

    def plan_release(self, grant: Fence, settings: Settings, *, deadline: float) -> Plan[bool]: ...


class EtcdPlace:
    """A place in the queue: see ``Place`` in ``fencing/locks/backend.py``.

    Attributes:
        lease: of its key; None: it has none.
        created: the revision that created its key; 0: it has none.
        ahead: the key whose end lets it ask again.
        is_woken: that has just ended, so the lock is mostly free for it.
    """

    def __init__(self, plans: KeepsPlaces, resource: str, token: str, settings: Settings) -> None:
        self._plans = plans
        self.resource, self.token, self.settings = resource, token, settings
        self.lease: Lease | None = None
        self.created = 0
        self.ahead, self._revision, self._polls = "", 0, 0
        self.is_woken = False
        self.waiter = Waiter()

    def lose(self) -> None:
        """Note that its lease is over, and with it its key."""
        self.lease, self.created = None, 0

    def saw(self, ahead: str, revision: int) -> None:
        """Note who is next before it, at a revision."""
        self.ahead, self._revision = ahead, revision

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Watch the key of whoever is next before this one, and keep the own lease alive."""
        plans, settings, clock = self._plans, self.settings, self._plans.clock
        until = clock() + seconds
        try:
            while self.lease is not None and (left := until - clock()) > LAST_SECONDS:
                pause = self.lease.alive_at + ALIVE_SHARE * self.lease.ttl - clock()
                if pause <= 0:
                    deadline = clock() + settings.attempt_seconds
                    alive = yield from plans.plan_keep_alive(self.lease, self.resource, settings, deadline)
                    if alive is None:
                        return  # the place is lost: ask again for another
                    continue
                credentials = plans.credentials()
                woken = yield Wait(self.waiter, self.ahead, self._revision + 1, min(left, pause), credentials)
                if woken is None:
                    self._polls += 1
                    yield poll_pause(self._polls, math.inf, left)
                if woken is not False:
                    self.is_woken = woken is True
                    return
        except (NoReply, CoordinatorUnavailable):
            self._polls += 1
            yield Sleep(max(0.0, min(BACKOFF.pause(self._polls), until - clock())))

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Revoke the lease: this ends the place, and a grant too."""
        yield Leave(self.waiter)
        fence = Fence(self.resource, 1, self.token)
        yield from self._plans.plan_release(fence, self.settings, deadline=deadline)
