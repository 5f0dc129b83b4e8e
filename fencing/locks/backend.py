"""What every coordinator is: settings, the plans it must offer, and the values they end in.

A coordinator mints fences. A new backend implements :class:`CoordinatorPlans` (no I/O) and one ``perform`` that does
the effects those plans yield; locks, leases, waiting, claims and repair come from this library, and
``fencing.testing.coordinators`` has the contract it must pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from fencing.kernel.guard import AsyncGuard, Guard, check_guards

if TYPE_CHECKING:
    from fencing.locks.holding import Holding

__all__ = [
    "AsyncCoordinator",
    "Coordinator",
    "CoordinatorPlans",
    "ForcedRelease",
    "Grant",
    "Holder",
    "Place",
    "Settings",
    "Taken",
    "check_timeout",
]

MIN_TTL = 0.01
MAX_TTL = 365 * 24 * 3600.0
MAX_OWNER_CHARACTERS = 200

DRIFT_FACTOR = 0.01
DRIFT_SECONDS = 0.002
"""What clocks of different machines, and Redis' expiry in whole milliseconds, may take from a lease: the values of
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/ (the reference implementations' clock
drift)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a lock is taken.

    Args:
        ttl: seconds a grant lasts unless it is renewed. None never expires; it is for compatibility layers only.
        guards: the storages at which each grant is claimed before its holder goes on.
        renew: whether leases are renewed by themselves, from the grant until they end.
        max_lifetime: seconds after which a lease is not renewed by itself any more; None: no such cap.
        clock_floor: whether the server's clock is a floor for numbers, so that they keep growing after data loss.
        owner: the label that ``holder()`` shows; None: host name and process id.
    """

    ttl: float | None = 10.0
    guards: tuple[Guard | AsyncGuard, ...] = ()
    renew: bool = True
    max_lifetime: float | None = None
    clock_floor: bool = True
    owner: str | None = None

    @classmethod
    def checked(
        cls,
        *,
        ttl: float,
        guards: Iterable[Guard] | Iterable[AsyncGuard],
        renew: bool,
        max_lifetime: float | None,
        clock_floor: bool,
        owner: str | None,
        asynchronous: bool,
    ) -> Settings:
        """Settings from what a user passed; TypeError or ValueError says what is wrong with it."""
        for name, value in {"renew": renew, "clock_floor": clock_floor}.items():
            if not isinstance(value, bool):
                raise TypeError(f"{name} is True or False, not {value!r}")
        if owner is not None:
            if not isinstance(owner, str):
                raise TypeError(f"owner is a str, not {type(owner).__name__}")
            if not owner.isprintable() or not 1 <= len(owner) <= MAX_OWNER_CHARACTERS:
                raise ValueError(f"owner is 1 to {MAX_OWNER_CHARACTERS} printable characters, not {owner!r}")
        seconds = _check_seconds(ttl, "ttl")
        if not MIN_TTL <= seconds <= MAX_TTL:
            raise ValueError(
                f"ttl lies between {MIN_TTL} seconds and a year, not {ttl}; a crashed holder blocks others for as long"
            )
        if max_lifetime is not None:
            if not renew:
                raise ValueError(
                    "max_lifetime caps automatic renewal, which renew=False switches off; give one of them"
                )
            if _check_seconds(max_lifetime, "max_lifetime") < seconds:
                raise ValueError(f"max_lifetime is at least the ttl ({ttl} s), not {max_lifetime}")
        checked: tuple[Any, ...] = check_guards(guards, asynchronous=asynchronous)
        return cls(seconds, checked, renew, max_lifetime, clock_floor, owner)

    @property
    def attempt_seconds(self) -> float:
        """How long one request to a server may take: a third of the ttl, so that a lease survives one that is lost."""
        return (self.ttl or 10.0) / 3

    @property
    def request_seconds(self) -> float:
        """How long a request, its repetitions included, may take where the caller gave no deadline: two attempts."""
        return 2 * self.attempt_seconds

    def deadline(self, sent_at: float) -> float:
        """Until when a grant whose request was sent at ``sent_at`` is believed to last."""
        if self.ttl is None:
            return math.inf
        return sent_at + self.ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS


def _check_seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; every lock expires, so that a crashed holder cannot keep it for ever" if value is None else ""
        raise TypeError(f"{what} is a number of seconds, not {type(value).__name__}{hint}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is a finite number of seconds, not {value}")
    return float(value)


def check_timeout(timeout: object) -> float:
    """Seconds to wait for a lock, checked: 0 tries once, None waits for ever (infinity)."""
    if timeout is None:
        return math.inf
    seconds = _check_seconds(timeout, "timeout")
    if seconds < 0:
        raise ValueError(f"timeout is not negative, not {timeout}; 0 tries once, None waits for ever")
    return seconds


@dataclass(slots=True)
class Grant:
    """The lock is the fence's, until about ``deadline`` on the coordinator's clock.

    ``ready`` is the coordinator's own: what it keeps at hand to renew it again and again.
    """

    fence: Fence
    deadline: float
    ready: Any = field(default=None, compare=False, repr=False)


class Place(Protocol):
    """A place in a coordinator's queue. Who has one either asks again with it, or leaves."""

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Until it is time to ask again, at most so many seconds (infinity: as long as it takes)."""

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


class CoordinatorPlans(Protocol):
    """The decisions of a backend, without I/O. ``deadline`` is a moment of ``clock``; past it a plan raises
    ``CoordinatorUnavailable`` instead of trying again. Each plan is safe to repeat after a lost reply.
    """

    clock: Callable[[], float]
    max_renewals: int

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant, and renew it if its settings say so, until the holding ends. No plan, for it does no I/O."""

    def plan_acquire(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        wait: bool = False,
        place: Any = None,
    ) -> Plan[Grant | Taken]:
        """Take the lock if it is free, with a number above every earlier one and above ``floor``.

        Args:
            wait: whether the caller waits, if it is taken; where there is a queue, for a place in it.
            place: the one it has, with this token.
        """

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock its full ttl again, in one request.

        At most ``max_renewals`` grants are given.

        Returns:
            For each its new deadline; None: the lock is not the fence's any more.
        """

    def plan_release(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[bool]:
        """Free the lock if it is the fence's. False: it was not, for certain."""

    def plan_remint(
        self, fence: Fence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        """Replace the fence by one with this token and a number above ``floor``, atomically, without letting go of the
        lock; None: the lock is not the fence's any more."""

    def plan_force(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Grant]:
        """Take the lock, whoever holds it."""

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        """Who holds the lock."""


class Coordinator(CoordinatorPlans, Protocol):
    """What a ``FencedLock`` needs: plans, settings for its locks, and the doing of effects."""

    settings: Settings

    def perform(self, effect: Any) -> Any:
        """Do one effect that this coordinator's plans yielded, within the time it names."""


class AsyncCoordinator(CoordinatorPlans, Protocol):
    """:class:`Coordinator` for asyncio."""

    settings: Settings

    async def perform(self, effect: Any) -> Any:
        """See :meth:`Coordinator.perform`."""
