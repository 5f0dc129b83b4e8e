"""Waiting for a lock at a backend that wakes its waiters: the waiters, and the effects of the plans. No I/O.

A plan enlists a waiter before it asks for the lock, so that no message is missed. It waits until it is woken, asks
again, and leaves. A listener performs these effects: one for threads, or one for each event loop. Which message wakes
which waiter, and which waiter asks again by itself, is the backend's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.retry import Backoff
from fencing.locks.settings import Settings

POLLING = Backoff(first=0.01, longest=0.2)
LAST_POLL_SECONDS = 0.02  # before the time is up, so that the reply can still come


def poll_pause(polls: int, remaining: float, left: float) -> Sleep:
    """Return the pause of a waiter that nothing wakes.

    Args:
        polls: how many pauses there were, with this one.
        remaining: seconds until the lock frees itself.
        left: seconds until the waiter gives up.
    """
    last_pause = left - LAST_POLL_SECONDS if left > LAST_POLL_SECONDS else left
    return Sleep(min(POLLING.pause(polls), remaining, last_pause))


class Waking(Protocol):
    """What wakes a waiter: a ``Wake`` of threads, or a ``TaskWake`` (kernel/waking.py)."""

    def set(self) -> None:
        """Wake the one that waits, or the next one that will."""


class Waiter:
    """A waiter for a lock. Backends subclass it.

    Attributes:
        token: of its first request.
        waking: what it waits on. The listener that made it knows which kind it is.
    """

    __slots__ = ("__weakref__", "resource", "token", "waking")

    def __init__(self, resource: str, token: str, waking: Any) -> None:
        self.resource = resource
        self.token = token
        self.waking = waking

    def wake(self) -> None:
        """Wake the waiter: it must ask again at once, or once more if a request is already under way."""
        self.waking.set()

    def notify(self) -> None:
        """Have the waiter ask again, whatever else it waits for. What ends its wait from outside calls this."""
        self.wake()


W = TypeVar("W", bound=Waiter)


class Enlist(NamedTuple):
    """The effect: add a waiter to the listener before it asks. The result is the waiter; None: poll, nothing wakes it.

    ``waiter`` is the earlier result, if the waiter asks again. The listener may connect first, within ``timeout``
    seconds. The errors are those of a request.
    """

    resource: str
    token: str
    timeout: float
    waiter: Any = None


class Wait(NamedTuple):
    """The effect: wait until it is time to ask again, at most ``seconds``.

    After at most ``recheck`` seconds, the first waiter for the same resource asks again.
    """

    waiter: Any
    seconds: float
    recheck: float


class Leave(NamedTuple):
    """The effect: remove a waiter. ``free_at``: when the lease that it got is believed to end; None: it got none."""

    waiter: Any
    free_at: float | None = None


class LeavesPlaces(Protocol):
    """The plans of a backend whose waiters have places."""

    def plan_leave_place(self, place: WaiterPlace, *, deadline: float) -> Plan[None]:
        """Withdraw the request of a waiter that was removed, and give the lock back if it is being granted."""


class WaiterPlace(NamedTuple):
    """The place of a waiter: see ``Place`` in ``fencing/locks/backend.py``.

    Args:
        ticket: what the waiter names when it asks again, or leaves.
        recheck: seconds after which the first waiter asks again, at the latest.
    """

    plans: LeavesPlaces
    settings: Settings
    waiter: Any
    ticket: str
    recheck: float

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until it is time to ask again, at most so long."""
        yield Wait(self.waiter, seconds, self.recheck)

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Leave: no message wakes it any more."""
        yield Leave(self.waiter)
        yield from self.plans.plan_leave_place(self, deadline=deadline)


class WaiterList(Generic[W]):
    """The waiters of one listener, by resource, in the order in which they came. Not thread-safe.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By token. Weak: the plan that waits owns the waiter; a collected waiter gets no messages.
        self._waiters: dict[str, WeakValueDictionary[str, W]] = {}

    def __bool__(self) -> bool:
        """Return whether there is a waiter."""
        return any(map(len, self._waiters.values()))

    def __contains__(self, resource: str) -> bool:
        """Return whether there is a waiter for the resource."""
        return bool(self._waiters.get(resource))

    def add(self, waiter: W) -> None:
        """Add a waiter that is about to ask. From now on messages wake it."""
        self._waiters.setdefault(waiter.resource, WeakValueDictionary())[waiter.token] = waiter

    def first(self, resource: str) -> W | None:
        """Return the waiter that came first; None: there is none."""
        waiters = self._waiters.get(resource)
        return None if waiters is None else next(waiters.values(), None)

    def _all(self) -> Iterator[W]:
        for resource in list(self._waiters):
            yield from self._of(resource)

    def _of(self, resource: str) -> list[W]:
        return list(self._waiters.get(resource, {}).values())

    def _take_out(self, waiter: W) -> bool:
        """Remove a waiter. Return False if it was removed before."""
        waiters = self._waiters.get(waiter.resource)
        if waiters is None or waiters.pop(waiter.token, None) is None:
            return False
        if not waiters:
            del self._waiters[waiter.resource]
        return True
