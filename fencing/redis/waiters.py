"""Who waits at one hub, who of them is woken by what, and who looks when. No I/O.

A hub is one process, or one event loop, with one connection that listens. Nobody polls: a waiter is told when the lock
is offered to it. For what nobody can tell (the holder has died) the first waiter of each resource *looks*, that is,
asks again, at the moment the server has named.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

__all__ = ["CallAt", "Enlist", "Leave", "Wait", "Waiter", "Waiting"]

LONGEST_LOOK_SECONDS = 10.0
"""A look that is not followed by a question (its waiter was just leaving) is repeated after so long."""

SLACK_SECONDS = 0.005
"""How much later than the believed end of a lease it is looked at; the reply names the moment to the millisecond."""

CallAt = Callable[[float, Callable[[], object], Callable[[], bool]], object]


class Waiter:
    """One who waits for a lock, as the hub knows it. Each colour has a subclass that can be waited for.
    ``hub`` is the name of the hub it is told at.
    """

    __slots__ = ("__weakref__", "hub", "resource", "token")

    def __init__(self, hub: str, resource: str, token: str) -> None:
        self.hub = hub
        self.resource = resource
        self.token = token

    def ring(self) -> None:
        """It is to ask again, now; if it is just asking, then once more."""
        raise AssertionError("each colour has its own")


@dataclass(frozen=True, slots=True)
class Enlist:
    """The effect: have the hub listen, and know of this waiter, before it asks. Gives a ``Waiter``.

    ``waiter`` is the one that was given before, if it asks again. Its failures are those of a ``Call``.
    """

    resource: str
    token: str
    timeout: float
    waiter: Waiter | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The effect: until it is time to ask again, at most so many seconds; ``look`` many, if it is the first."""

    waiter: Waiter
    seconds: float
    look: float


@dataclass(frozen=True, slots=True)
class Leave:
    """The effect: it waits no more. ``free_at``: until when the lease is believed to last that it got; None: none."""

    waiter: Waiter
    free_at: float | None = None


class Waiting:
    """The waiters of one hub. Not thread-safe: the hub sees to that.

    Args:
        clock: seconds.
        call_at: as of :class:`fencing.locks.timer.Timer`; it must call with the hub's lock held.
    """

    def __init__(self, clock: Callable[[], float], call_at: CallAt) -> None:
        self.name = secrets.token_urlsafe(16)
        self._clock = clock
        self._call_at = call_at
        # By resource and token. Weakly: the plan that waits owns the waiter, and whoever is gone is told nothing.
        self._waiters: dict[str, WeakValueDictionary[str, Waiter]] = {}
        self._looks: dict[str, float] = {}
        self._calls: dict[str, float] = {}  # when the timer calls next; calls that a look has outrun stay in it

    @property
    def channel(self) -> str:
        return f"fencing:1:wake:{self.name}"

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return any(map(len, self._waiters.values()))

    def add(self, waiter: Waiter) -> None:
        """It is about to ask, and will be told from now on."""
        self._waiters.setdefault(waiter.resource, WeakValueDictionary())[waiter.token] = waiter

    def waits(self, waiter: Waiter, look: float) -> None:
        """It has been told to wait, and if it is the first, to look after so many seconds; or sooner, if the hub was
        told so meanwhile: the message may be newer than the answer.
        """
        told = self._looks.get(waiter.resource)
        if told is None or self._first(waiter.resource) is waiter:
            self._look_at(waiter.resource, min(self._clock() + look, told or math.inf))

    def remove(self, waiter: Waiter, free_at: float | None) -> None:
        """It waits no more.

        Args:
            free_at: when the lease ends that it was granted, as it is believed; None: it was granted none.
        """
        waiters = self._waiters.get(waiter.resource)
        if waiters is None or waiters.pop(waiter.token, None) is None:
            return
        if not waiters:
            del self._waiters[waiter.resource]
            self._looks.pop(waiter.resource, None)
        elif free_at is not None:
            self._look_at(waiter.resource, min(free_at + SLACK_SECONDS, self._clock() + LONGEST_LOOK_SECONDS))

    def heard(self, text: bytes) -> tuple[str, str] | None:
        """A message has come. Returns a resource and a token whose offer is to be declined: nobody waits with it."""
        kind, what, resource = text.decode().split(" ", 2)
        if kind == "look":
            if resource in self._waiters:
                self._look_at(resource, self._clock() + int(what) / 1000)
            return None
        waiters = self._waiters.get(resource)
        waiter = waiters.get(what) if waiters is not None else None
        if waiter is not None:
            waiter.ring()
        elif kind == "grant":
            return resource, what
        return None

    def stir(self) -> None:
        """All ask again: what they were told meanwhile is lost."""
        for waiters in self._waiters.values():
            for waiter in list(waiters.values()):
                waiter.ring()

    def _first(self, resource: str) -> Waiter | None:
        waiters = self._waiters.get(resource)
        return None if waiters is None else next(waiters.values(), None)

    def _look_at(self, resource: str, when: float) -> None:
        self._looks[resource] = when
        if when < self._calls.get(resource, float("inf")):
            self._calls[resource] = when
            self._call_at(when, partial(self._due, resource, when), partial(self._waiters.__contains__, resource))

    def _due(self, resource: str, when: float) -> None:
        if self._calls.get(resource) == when:
            del self._calls[resource]
        first = self._first(resource)
        look = self._looks.get(resource)
        if first is None:
            self._waiters.pop(resource, None)
            self._looks.pop(resource, None)
        elif look is None:
            pass  # a call of those who waited before; who has come since is just asking
        elif look > self._clock():
            self._look_at(resource, look)
        else:
            self._look_at(resource, self._clock() + LONGEST_LOOK_SECONDS)
            first.ring()
