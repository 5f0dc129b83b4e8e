"""The waiters of one listener: which message wakes which waiter, and which waiter rechecks when. No I/O.

A listener is one process, or one event loop, with one connection that receives offers. Waiters do not poll: a message
wakes a waiter when the lock is offered to it. No message comes when a holder dies. So the first waiter of each resource
*rechecks*: it asks again at the earliest moment that a reply has named to any of them. A later message may name another
moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from fencing.kernel.fence import new_token
from fencing.locks import waiting

LONGEST_RECHECK_SECONDS = 10.0
"""A recheck is repeated after this long if no request followed it, because its waiter was interrupted."""

SLACK_SECONDS = 0.005
"""How long after the believed end of a lease the recheck comes. A reply names the moment to the millisecond."""

BUNDLE_SECONDS = 0.05
"""How long after a recheck the next one comes at the earliest, if no request has named an earlier moment."""

MOST_CONTENDED = 1000
"""How many resources are remembered for which a waiter has waited lately."""

CallAt = Callable[[float, Callable[[], object], Callable[[], bool]], object]


class Waiter(waiting.Waiter):
    """A waiter for a lock.

    Attributes:
        listener: the name of its listener.
        must_recheck: a recheck has woken it, and it has not asked since.
        recheck_at: the moment that the last reply to it has named.
    """

    __slots__ = ("has_waited", "listener", "must_recheck", "recheck_at")

    def __init__(self, resource: str, token: str, waking: waiting.Waking, listener: str) -> None:
        super().__init__(resource, token, waking)
        self.listener = listener
        self.has_waited = self.must_recheck = False
        self.recheck_at = 0.0


class Waiters(waiting.WaiterList[Waiter]):
    """The waiters of one listener. Not thread-safe: the listener must hold its lock.

    Args:
        clock: returns seconds.
        call_at: as in :class:`fencing.kernel.timer.Timer`; it must call with the listener's lock held.
        prefix: of the listener's name.
    """

    def __init__(self, clock: Callable[[], float], call_at: CallAt, prefix: str = "") -> None:
        super().__init__(clock)
        self.name = prefix + new_token()
        self._call_at = call_at
        self._contended: set[str] = set()  # the last waiter that was granted the lock had to wait
        self._rechecks: dict[str, float] = {}
        self._timer_calls: dict[str, float] = {}  # the timer's next call; later calls, already set, still come

    @property
    def channel(self) -> str:
        """The channel on which the scripts publish this listener's messages."""
        return f"fencing:1:wake:{self.name}"

    def __contains__(self, resource: str) -> bool:
        """Return whether there is a waiter for the resource, or the last one had to wait."""
        return resource in self._waiters or resource in self._contended

    def schedule_recheck(self, waiter: Waiter, recheck: float) -> None:
        """Schedule the recheck of a waiter that must wait. The first one does it.

        An earlier moment stays in force: a message may be newer than the waiter's reply.

        Args:
            waiter: a waiter that was added.
            recheck: seconds from now.
        """
        waiter.has_waited = True
        waiter.must_recheck = False
        waiter.recheck_at = self._clock() + recheck
        self._recheck_by(waiter.resource, waiter.recheck_at)

    def remove(self, waiter: Waiter, free_at: float | None) -> None:
        """Remove a waiter that no longer waits.

        Args:
            waiter: a waiter that was added.
            free_at: when the lease that the waiter was granted is believed to end; None: it was granted none.
        """
        if free_at is None or not waiter.has_waited:
            self._contended.discard(waiter.resource)
        else:
            if len(self._contended) >= MOST_CONTENDED:
                self._contended.clear()
            self._contended.add(waiter.resource)
        if not self._take_out(waiter):
            return
        if waiter.resource not in self._waiters:
            self._rechecks.pop(waiter.resource, None)
        elif waiter.must_recheck and free_at is None:  # it gave up instead: the next one must ask
            self._recheck_first(waiter.resource)
        elif free_at is not None:
            self._recheck_by(waiter.resource, min(free_at + SLACK_SECONDS, self._clock() + LONGEST_RECHECK_SECONDS))

    def on_message(self, text: bytes) -> tuple[str, str] | None:
        """Handle a message. Return resource and token of an offer that must be declined, because its waiter is gone."""
        kind, argument, resource = text.decode().split(" ", 2)
        if kind == "recheck":
            if resource in self._waiters:
                self._recheck_at(resource, self._clock() + int(argument) / 1000)
            return None
        if kind == "passed":
            for waiter in self._of(resource):
                waiter.wake()
            return None
        waiters = self._waiters.get(resource)
        offered = waiters.get(argument) if waiters is not None else None
        if offered is not None:
            offered.wake()
            return None
        return resource, argument

    def wake_all(self) -> None:
        """Wake all waiters, so that they ask again: messages may have been lost."""
        for waiter in self._all():
            waiter.wake()

    def _recheck_by(self, resource: str, when: float) -> None:
        self._recheck_at(resource, min(when, self._rechecks.get(resource, math.inf)))

    def _recheck_at(self, resource: str, when: float) -> None:
        self._rechecks[resource] = when
        if when < self._timer_calls.get(resource, float("inf")):
            # The call first: a moment that is noted always has its call, even if this is interrupted.
            self._call_at(when, partial(self._on_due, resource, when), partial(self._waiters.__contains__, resource))
            self._timer_calls[resource] = when

    def _on_due(self, resource: str, when: float) -> None:
        if self._timer_calls.get(resource) == when:
            del self._timer_calls[resource]
        first = self.first(resource)
        recheck = self._rechecks.get(resource)
        if first is None:
            self._waiters.pop(resource, None)
            self._rechecks.pop(resource, None)
        elif recheck is None:
            pass  # a call for earlier waiters; the requests of the new ones are under way
        elif recheck > self._clock():
            self._recheck_at(resource, recheck)
        else:
            self._recheck_first(resource)

    def _recheck_first(self, resource: str) -> None:
        first = self.first(resource)
        if first is not None:
            now = self._clock()  # a reply to the first one says nothing of waiters that are new
            later = min([each.recheck_at for each in self._of(resource) if each.recheck_at > now], default=math.inf)
            self._recheck_at(resource, min(max(later, now + BUNDLE_SECONDS), now + LONGEST_RECHECK_SECONDS))
            first.must_recheck = True
            first.wake()
