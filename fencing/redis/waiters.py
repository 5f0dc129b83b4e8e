"""The waiters of one listener: which message wakes which of them, and which one rechecks when. No I/O.

A listener is one process, or one event loop, with one connection that hears of offers; the scripts call it a hub.
Nobody polls: a waiter is told when the lock is offered to it. Nobody can tell that a holder has died, so the first
waiter of each resource *rechecks*: it asks again at the moment that the server has named.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

LONGEST_RECHECK_SECONDS = 10.0
"""A recheck that is not followed by a request (its waiter was just leaving) is repeated after so long."""

SLACK_SECONDS = 0.005
"""How much later than the believed end of a lease it is rechecked; the reply names the moment to the millisecond."""

CallAt = Callable[[float, Callable[[], object], Callable[[], bool]], object]


class Waiter:
    """A waiter for a lock, as its listener knows it; ``listener`` is the name of that.

    Threads and asyncio each have a subclass that can be waited for.
    """

    __slots__ = ("__weakref__", "listener", "resource", "token")

    def __init__(self, listener: str, resource: str, token: str) -> None:
        self.listener = listener
        self.resource = resource
        self.token = token

    def wake(self) -> None:
        """Wake the waiter: it must ask again at once, or once more if a request is already under way."""
        raise AssertionError("threads and asyncio each have their own")


class Enlist(NamedTuple):
    """The effect: have the listener listen, and know of this waiter, before it asks. It returns a ``Waiter``.

    ``waiter`` is the one that was returned before, if it asks again. The failures are those of a ``Call``.
    """

    resource: str
    token: str
    timeout: float
    waiter: Waiter | None = None


class Wait(NamedTuple):
    """The effect: wait until it is time to ask again, at most so many seconds.

    The first waiter rechecks after ``recheck`` seconds.
    """

    waiter: Waiter
    seconds: float
    recheck: float


class Leave(NamedTuple):
    """The effect: wait no more. ``free_at``: when the lease it got is believed to end; None: it got none."""

    waiter: Waiter
    free_at: float | None = None


class Waiters:
    """Keeps the waiters of one listener. Not thread-safe: the listener sees to that.

    Args:
        clock: seconds.
        call_at: as of :class:`fencing.locks.timer.Timer`; it must call with the listener's lock held.
    """

    def __init__(self, clock: Callable[[], float], call_at: CallAt) -> None:
        self.name = secrets.token_urlsafe(16)
        self._clock = clock
        self._call_at = call_at
        # By resource and token. Weakly: the plan that waits owns the waiter, and nothing is told to one that is gone.
        self._waiters: dict[str, WeakValueDictionary[str, Waiter]] = {}
        self._rechecks: dict[str, float] = {}
        self._calls: dict[str, float] = {}  # when the timer calls next; calls that a recheck has outrun stay in it

    @property
    def channel(self) -> str:
        return f"fencing:1:wake:{self.name}"

    def __bool__(self) -> bool:
        """Return whether anybody waits."""
        return any(map(len, self._waiters.values()))

    def add(self, waiter: Waiter) -> None:
        """Add a waiter that is about to ask; it is told from now on."""
        self._waiters.setdefault(waiter.resource, WeakValueDictionary())[waiter.token] = waiter

    def waits(self, waiter: Waiter, recheck: float) -> None:
        """Note that a waiter was told to wait and, if it is the first, to recheck after so many seconds.

        A sooner moment that came in a message meanwhile counts: the message may be newer than the answer.
        """
        told = self._rechecks.get(waiter.resource)
        if told is None or self._first(waiter.resource) is waiter:
            self._recheck_at(waiter.resource, min(self._clock() + recheck, told or math.inf))

    def remove(self, waiter: Waiter, free_at: float | None) -> None:
        """Remove a waiter that waits no more.

        Args:
            free_at: when the lease is believed to end that the waiter was granted; None: it was granted none.
        """
        waiters = self._waiters.get(waiter.resource)
        if waiters is None or waiters.pop(waiter.token, None) is None:
            return
        if not waiters:
            del self._waiters[waiter.resource]
            self._rechecks.pop(waiter.resource, None)
        elif free_at is not None:
            self._recheck_at(waiter.resource, min(free_at + SLACK_SECONDS, self._clock() + LONGEST_RECHECK_SECONDS))

    def on_message(self, text: bytes) -> tuple[str, str] | None:
        """Take in a message. Return the resource and the token of an offer to decline: nobody waits with that token."""
        kind, what, resource = text.decode().split(" ", 2)
        if kind == "look":
            if resource in self._waiters:
                self._recheck_at(resource, self._clock() + int(what) / 1000)
            return None
        waiters = self._waiters.get(resource)
        waiter = waiters.get(what) if waiters is not None else None
        if waiter is not None:
            waiter.wake()
        elif kind == "grant":
            return resource, what
        return None

    def wake_all(self) -> None:
        """Have all ask again: what they were told meanwhile is lost."""
        for waiters in self._waiters.values():
            for waiter in list(waiters.values()):
                waiter.wake()

    def _first(self, resource: str) -> Waiter | None:
        waiters = self._waiters.get(resource)
        return None if waiters is None else next(waiters.values(), None)

    def _recheck_at(self, resource: str, when: float) -> None:
        self._rechecks[resource] = when
        if when < self._calls.get(resource, float("inf")):
            self._calls[resource] = when
            self._call_at(when, partial(self._due, resource, when), partial(self._waiters.__contains__, resource))

    def _due(self, resource: str, when: float) -> None:
        if self._calls.get(resource) == when:
            del self._calls[resource]
        first = self._first(resource)
        recheck = self._rechecks.get(resource)
        if first is None:
            self._waiters.pop(resource, None)
            self._rechecks.pop(resource, None)
        elif recheck is None:
            pass  # a call for earlier waiters; those that have come since are just asking
        elif recheck > self._clock():
            self._recheck_at(resource, recheck)
        else:
            self._recheck_at(resource, self._clock() + LONGEST_RECHECK_SECONDS)
            first.wake()
