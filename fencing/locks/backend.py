"""What a service must offer so that locks can be taken there: plans, the values they end in, and capabilities.

A backend decides without I/O. Each ``plan_…`` is a generator: it yields an effect (plain data of the backend's own, or
one of ``kernel/effects.py``), is sent the result, or thrown the error, and returns a value of this module. The class
that a user makes adds ``perform``, which does one effect: see ``fencing/coordinator.py``, and ``fencing/memory.py`` for
the smallest whole backend.

Not every service can do all. A capability is a protocol here: a backend has it by having its members. Locks and the
contract suite look for it; what a user asks of a backend without it is a TypeError when the lock is made.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, FencingError, MarkImplausible
from fencing.kernel.fence import MAX_NUMBER, Fence
from fencing.kernel.retry import Answer, Backoff, NoReply, retry
from fencing.locks.holding import Grant, Holding
from fencing.locks.settings import Settings

BACKOFF = Backoff(first=0.01, longest=0.25)

GIVE_BACK_SECONDS = 1.0
"""How long giving back a lock that was not acquired may take beyond the caller's time. Then its ttl frees it."""

PLAUSIBLE_STEP = 2**50
"""How far above counter and clock a floor may lie: as microseconds about 35 years."""


class Place(Protocol):
    """A place in a coordinator's queue. Who has one either asks again with it, or leaves."""

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until it is time to ask again, at most so many seconds (infinity: as long as it takes)."""

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Give up: leave the queue, and give the lock back if it is just being granted."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else has the lock, or comes first.

    Attributes:
        remaining: seconds after which the lock frees itself; infinity: not by itself, or it is not known.
        owner: the holder's label.
        place: in the queue, where there is one and the caller waits; None: the caller asks again now and then.
    """

    remaining: float
    owner: str | None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, for people to look at. Never the token.

    Attributes:
        owner: the holder's label; None where it is not of this library.
        number: its fencing number; None likewise.
        held_for: seconds since the grant, by the server's clock; None likewise.
        remaining: seconds until the lock frees itself; None: it never does.
    """

    owner: str | None
    number: int | None
    held_for: float | None
    remaining: float | None


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """What ``force_release`` did.

    Attributes:
        holder: who held the lock just before; None: nobody did.
        fence: the new fence that was minted, higher than the former holder's.
        fenced: whether guards have admitted it, so that the former holder can write no more. False without guards: then
            the lock is free, but the former holder may still write until a newer holder claims.
    """

    holder: Holder | None
    fence: Fence
    fenced: bool


class Backend(ABC):
    """The decisions of one kind of service, without I/O.

    In every plan ``deadline`` is a moment of ``clock``; past it the plan raises ``CoordinatorUnavailable`` instead of
    trying again: ``plan_until_answered`` does both. Each plan is safe to repeat after a lost reply, for the same token
    gets the same number.
    """

    service: ClassVar[str] = "the lock service"
    """What error messages call it."""

    address: str = "its address"
    """Where it is looked for, for error messages."""

    settings: Settings
    """Of its locks, unless a lock has its own."""

    perform: Callable[[Any], Any]
    """Does one effect of these plans: ``def``, or ``async def`` for asyncio. Coordinators have it."""

    close: Callable[[], Any]
    """Ends the connections, and the renewal. Coordinators have it."""

    clock: Callable[[], float] = staticmethod(process.now)
    """The clock of deadlines, in seconds. One with a ``call_at`` also drives the renewal: see ``fencing.testing``."""

    closed: bool = False
    """Whether it takes locks no more."""

    def track(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant until it ends. Coordinators renew it, too. No plan, for it does no I/O."""
        return Holding(grant, settings, self.clock())

    @abstractmethod
    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        """Take the lock if it is free, or is the token's already.

        The number of a new grant is above every earlier one of the resource, and above ``floor``. The same token again
        gets the same number, and the full ttl anew.

        Raises:
            MarkImplausible: the number would be implausibly high. Nothing was changed.
        """

    @abstractmethod
    def plan_release(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[bool]:
        """Free the lock if it is the fence's. False: it was not, for certain."""

    @abstractmethod
    def plan_remint(
        self, fence: Fence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        """Replace the fence by one with this token and a number above ``floor``, atomically, without letting go of the
        lock; None: the lock is not the fence's any more."""

    @abstractmethod
    def plan_force(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Grant]:
        """Take the lock, whoever holds it."""

    @abstractmethod
    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        """Say who holds the lock."""

    def plan_until_answered(
        self,
        attempt: Callable[[float, bool], Any],
        about: str,
        settings: Settings,
        deadline: float,
        *,
        may_take: str | None = None,
    ) -> Plan[Answer]:
        """Repeat an effect that ends in ``NoReply``, until the deadline: see :func:`fencing.kernel.retry.retry`.

        Args:
            attempt: makes the effect, of the seconds that it may take, and whether it is the last attempt.
            about: the resource, or what else the request is about, for the error.
            may_take: the token of a lock on ``about`` that the effect may take. If it is interrupted, or ends without
                an answer although it may have run, the lock is given back first, within a second.

        Raises:
            CoordinatorUnavailable: there was no answer in time.
        """

        def unavailable(failure: NoReply) -> CoordinatorUnavailable:
            return CoordinatorUnavailable(
                f"no answer from {self.service} at {self.address} for {about!r}: {str(failure).rstrip('.')}; "
                f"is it running, and is this its address?",
                resource=about,
                address=self.address,
            )

        return retry(
            attempt,
            clock=self.clock,
            attempt_seconds=settings.attempt_seconds,
            deadline=deadline,
            backoff=BACKOFF,
            give_up=unavailable,
            undo=None if may_take is None else partial(self.plan_give_back, Fence(about, 1, may_take), settings),
        )

    def plan_give_back(self, fence: Fence, settings: Settings) -> Plan[None]:
        """Release what will not be used, by its token. Where that fails within a second, the lock's ttl frees it."""
        try:
            yield from self.plan_release(fence, settings, deadline=self.give_back_deadline(settings))
        except FencingError:
            pass

    def give_back_deadline(self, settings: Settings) -> float:
        """Return until when something is given back that was not acquired."""
        return self.clock() + min(settings.request_seconds, GIVE_BACK_SECONDS)


# Capabilities


@runtime_checkable
class RenewsGrants(Protocol):
    """Each grant can be given its full ttl again, many in one request."""

    max_renewals: int
    """How many grants one request takes."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock its full ttl again, in one request; never take one that is gone.

        Returns:
            For each its new deadline; None: the lock is not the fence's any more.
        """


@runtime_checkable
class RenewsSession(Protocol):
    """A session holds all grants, and is kept alive by the backend itself. So ``renew=False`` makes no sense."""

    session_seconds: float
    """How long the session outlives its process: the ttl of every lock."""


@runtime_checkable
class TtlPerLock(Protocol):
    """Locks of one coordinator may have different ttls."""

    ttl_per_lock: ClassVar[Literal[True]]


@runtime_checkable
class HoldsWithoutTtl(Protocol):
    """A grant may have no ttl at all: it stays until it is released. For compatibility layers."""

    holds_without_ttl: ClassVar[Literal[True]]


@runtime_checkable
class OneOfManyWins(Protocol):
    """Of many who try a free lock at the same time exactly one gets it at the first try. Without it, at most one."""

    one_of_many_wins: ClassVar[Literal[True]]


@runtime_checkable
class Queues(Protocol):
    """There is a queue: who waits has a place in it, and is woken. Without it, who waits asks again and again."""

    def plan_queue(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, place: Any
    ) -> Plan[Grant | Taken]:
        """Do what ``plan_acquire`` does for a caller that waits: ``Taken`` brings a place in the queue.

        Args:
            place: the one that the caller has already, with this token; None: it has none.
        """


def check_capabilities(backend: Backend, settings: Settings, own_ttl: float | None) -> Settings:
    """Return the settings if the backend can do what they ask.

    Args:
        own_ttl: the coordinator's ttl.

    Raises:
        TypeError: it cannot; the message says what to give instead.
    """
    kind = type(backend).__name__
    session = isinstance(backend, RenewsSession)
    if settings.ttl is None and not isinstance(backend, HoldsWithoutTtl):
        raise TypeError(f"{kind} has no locks without a ttl; give a ttl in seconds")
    if settings.ttl != own_ttl and not isinstance(backend, TtlPerLock):
        raise TypeError(
            f"{kind} has one ttl for all its locks, {own_ttl} s; give the coordinator the ttl, not the lock"
        )
    if settings.renew and not session and not isinstance(backend, RenewsGrants):
        raise TypeError(f"{kind} cannot renew leases; give renew=False, and a ttl that outlasts the work")
    if not settings.renew and session:
        raise TypeError(f"{kind} renews the session of all its locks by itself; leave renew=False away")
    return settings


def next_number(resource: str, *, last: int, floor: int, clock_us: int) -> int:
    """Return the number of a new grant: one above the last one, the floor and the clock.

    Args:
        last: the highest number that was minted before; 0: none.
        floor: a number to exceed, from a storage's mark. It must be plausible: one poisoned mark must not lift a
            counter that other names share.
        clock_us: the service's clock in microseconds, so that numbers keep growing when the service loses its data; 0
            where numbers shall not follow a clock.

    Raises:
        MarkImplausible: the floor lies more than 2^50 above counter and clock, or the numbers are used up.
    """
    ceiling = min(max(last, clock_us) + PLAUSIBLE_STEP, MAX_NUMBER - 1)
    highest = max(last, floor, clock_us)
    if highest > ceiling:
        raise MarkImplausible(resource=resource, number=highest, ceiling=ceiling)
    return highest + 1


@lru_cache(maxsize=1)
def _label(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def owner_label(settings: Settings) -> str:
    """Return what ``holder()`` shows of a lock with these settings."""
    return settings.owner or _label(process.pid())
