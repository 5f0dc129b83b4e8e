"""A place in the queue of a lock. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import Fence
from fencing.kernel.retry import NoReply
from fencing.locks.backend import BACKOFF
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import Leave, Wait
from fencing.zookeeper.waiters import Watch

LONGEST_SECONDS = 30.0
"""How long a place waits before it looks at its queue again. A watch tells of each change before that."""


class KeepsPlaces(Protocol):
    """The plans whose waiters have places."""

    @property
    def clock(self) -> Callable[[], float]: ...

    @property
    def tokens_in_use(self) -> MutableMapping[str, Any]: ...

    @property
    def held_nodes(self) -> Mapping[str, Any]: ...

    sweep_in: Callable[[float], None]

    def plan_release(self, grant: Fence, settings: Settings, *, deadline: float) -> Plan[bool]: ...


class ZooKeeperPlace:
    """A place in the queue: see ``Place`` in ``fencing/locks/backend.py``. The session keeps it.

    Attributes:
        path: of its node; empty: it has none.
        session: the one that has created it.
        ahead: the node whose end lets it ask again.
        is_next: that was the first of the queue.
        is_woken: that has just ended, so the lock is mostly free for it.
    """

    def __init__(self, plans: KeepsPlaces, resource: str, token: str, settings: Settings) -> None:
        self._plans = plans
        self.resource, self.token, self.settings = resource, token, settings
        self.path, self.session, self.ahead = "", 0, ""
        self.is_woken = self.is_next = False
        self.watch: Any = Watch()
        plans.tokens_in_use[token] = self
        self._failures = 0

    def lose(self) -> None:
        """Note that its node is gone."""
        self.path, self.is_woken = "", False

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until whoever is next before this one has left."""
        until = self._plans.clock() + seconds
        try:
            self.is_woken = yield Wait(self.watch, self.ahead, min(seconds, LONGEST_SECONDS))
            self._failures = 0
        except (NoReply, CoordinatorUnavailable):
            self._failures += 1
            left = until - self._plans.clock()
            yield Sleep(max(0.0, min(BACKOFF.pause(self._failures), left)))

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Delete the node: this ends the place, and a grant too."""
        yield Leave(self.watch)
        yield from self._plans.plan_release(Fence(self.resource, 1, self.token), self.settings, deadline=deadline)
        self.lose()

    def __del__(self) -> None:
        """Have its node deleted, if it has left none but that: its event loop has ended before it could."""
        if getattr(self, "path", "") and self.token not in self._plans.held_nodes:
            self._plans.sweep_in(0.0)
