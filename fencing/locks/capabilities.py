"""What not every service can do. Locks and the contract suite check for it.

A capability is a protocol. A backend has the capability if it has the protocol's members. A request for a missing one
raises TypeError when the lock is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import Fence
from fencing.locks.backend import Backend, Holder, Taken, Undecided
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import MAX_TTL, Settings, check_seconds


@runtime_checkable
class RenewsGrants(Protocol):
    """The capability to give grants their full ttl again, many grants in one request."""

    max_renewals: int
    """The maximum number of grants in one request."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Give each grant's lock its full ttl again, in one request. Never take a lock that is gone.

        Returns:
            The new deadline of each grant; None: its fence no longer holds the lock; an error: there was no answer for
            this one, for a service of several servers.
        """


@runtime_checkable
class RenewsSeveralTtls(Protocol):
    """The capability to renew grants of several ttls in one request. Without it, each ttl takes one of its own.

    Many ttls of one coordinator are then as cheap as one. It comes on top of ``RenewsGrants``.
    """

    def plan_renew_each(
        self, grants: Sequence[Grant], settings: Sequence[Settings], *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Do the same as ``plan_renew``, where each grant's lock gets the ttl of its own settings.

        Args:
            settings: of each grant, in their order.
        """


@runtime_checkable
class RenewsSession(Protocol):
    """The capability of a session that holds all grants of a coordinator. It comes on top of ``RenewsGrants``.

    ``plan_renew`` then returns until when the session of each grant is believed to last, and None for one whose session
    is over, or that lost its lock. It keeps the session alive by a request, or says what is known where a client does
    that by itself.

    All locks have one ttl, the session's, which lasts as long as the process: ``renew=False``, ``max_lifetime`` and a
    ttl of its own for a lock are refused. A backend that learns that a session is over ends its grants at once::

        for grant in self.held():
            if grant.kept == session:
                grant.lose("gone", "the session is over")
    """

    session_seconds: float
    """How long the session outlives its process. It is the ttl of every lock."""


@runtime_checkable
class TtlPerLock(Protocol):
    """The capability of different ttls for the locks of one coordinator."""

    ttl_per_lock: ClassVar[Literal[True]]


@runtime_checkable
class LimitsTtl(Protocol):
    """The capability to grant only ttls up to a limit, because all of the service's nodes wait for so long."""

    longest_ttl: float
    """Seconds."""


@runtime_checkable
class HoldsWithoutTtl(Protocol):
    """The capability of grants without a ttl, which last until they are released. For compatibility layers."""

    holds_without_ttl: ClassVar[Literal[True]]


@runtime_checkable
class OneOfManyWins(Protocol):
    """The capability that exactly one of many callers that try a free lock at once gets it. Without it, at most one."""

    one_of_many_wins: ClassVar[Literal[True]]


@runtime_checkable
class Queues(Protocol):
    """The capability of a queue, in which each waiter has a place and is woken. Without it, waiters poll."""

    def is_waited_for(self, resource: str) -> bool:
        """Return whether this process or event loop has waiters for the resource, or had one a moment ago.

        A new waiter then queues at once, without a try.
        """

    def plan_queue(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, place: Any
    ) -> Plan[Grant | Taken | Undecided]:
        """Do the same as ``plan_acquire`` for a caller that waits. ``Taken`` then has a place in the queue.

        Args:
            place: the place that the caller already has with this token; None: it has none.
        """


@runtime_checkable
class AcquiresAny(Protocol):
    """The capability to take any of several slots in one request. Without it, each slot is asked for by itself."""

    def plan_acquire_any(
        self, resources: Sequence[str], token: str, settings: Settings, *, first: int, deadline: float
    ) -> Plan[Grant | Taken | Undecided]:
        """Take the first slot that is free, unless the token holds one already.

        The token is looked for in all of them before any is taken: the same token again gets the same slot and number,
        and the full ttl again. So one caller never has two. If there is no answer, the token is given back in each.

        Args:
            resources: of the slots, 1 to 64.
            first: the place at which the search for a free one begins; it goes on behind the last with the first.

        Returns:
            The grant of one of them; or Taken, with the least remaining time of all.
        """


@runtime_checkable
class CountsWaiters(Protocol):
    """The capability to limit how many wait: ``max_waiters`` of the settings.

    ``plan_queue`` counts in the request that enlists the caller, so that no two pass the limit. Where so many wait, it
    enlists nobody, and returns ``Taken`` with their number in ``waiters``. A caller that asks again with its place is
    never refused, and the entries of those that died do not count for ever.
    """

    counts_waiters: ClassVar[Literal[True]]


@runtime_checkable
class ReleasesSeveral(Protocol):
    """The capability to free several locks in one request."""

    def plan_release_all(
        self, grants: Sequence[GrantOrFence], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[bool | None]]:
        """Free each lock if its grant holds it. False only for those that certainly did not hold it.

        None: there was no answer for this one, for a service of several servers.
        """


@runtime_checkable
class ReleasesLater(Protocol):
    """The capability to release a lock that stays taken for a while: ``hold(at_least=...)``."""

    def plan_release_later(
        self, grant: GrantOrFence, settings: Settings, *, free_at: float, deadline: float
    ) -> Plan[bool]:
        """Release the lock in one request, if the grant holds it, so that nobody gets it before ``free_at``.

        The request replaces the token by a new one, which nobody gets to know. So no late request under the old token
        renews, reclaims or frees the lock. The number and the owner stay, and ``plan_holder`` shows ``released``. The
        lock frees itself at ``free_at``, and a forced release frees it before.

        Args:
            grant: as of ``plan_release``.
            free_at: the moment of ``clock`` at which the lock frees itself, also later than its ttl would. It is not
                before that, and a few milliseconds later at most. A repeated request does not put it off.

        Returns:
            False only if the grant certainly did not hold the lock. A repeated request may say True.
        """


@runtime_checkable
class ListsHolders(Protocol):
    """The capability to list the holders of all locks, page by page."""

    def plan_holders(
        self, pattern: Any, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return the holders of a page, with their resources.

        Every lock that is held during the whole listing is on a page. One that changes hands may be on two.

        Args:
            pattern: a :class:`fencing.kernel.patterns.Pattern` that the resources match.
            page: empty: the first page; or what the page before returned.

        Returns:
            The holders, and the next page; empty: this was the last page.
        """


@runtime_checkable
class RemembersForce(Protocol):
    """The capability to tell for a while, at least a minute, that a fence has lost its lock by a forced release."""

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Return the owner label of the caller that forced the release; None: not known."""


_FLAGS = ("ttl_per_lock", "holds_without_ttl", "one_of_many_wins", "counts_waiters")


def check_members(backend: Backend) -> None:
    """Check what the capabilities of a backend say of it.

    Raises:
        TypeError, ValueError: a member has a wrong value. Correct it as the message says.
    """
    name = type(backend).__name__
    for flag in _FLAGS:
        if getattr(backend, flag, True) is not True:
            raise TypeError(f"{flag} of {name} must be True; leave it out where the service does not have it")
    if isinstance(backend, RenewsGrants):
        most = backend.max_renewals
        if type(most) is not int or most < 1:
            raise ValueError(
                f"max_renewals of {name} must be an int of at least 1, not {most!r}: leases in one request"
            )
    if isinstance(backend, RenewsSession):
        check_seconds(backend.session_seconds, f"session_seconds of {name}")
        if not isinstance(backend, RenewsGrants):
            raise TypeError(f"{name} with session_seconds needs plan_renew and max_renewals: see RenewsSession")
        if isinstance(backend, TtlPerLock):
            raise TypeError(f"{name} with session_seconds has one ttl for all locks; leave ttl_per_lock out")


def check_at_least(backend: Backend, settings: Settings, at_least: float) -> float:
    """Return the seconds of ``hold(at_least=...)`` if they are valid, and the backend can do it.

    Raises:
        TypeError, ValueError: they are not, or it cannot. Change them as the message says.
    """
    seconds = check_seconds(at_least, "at_least")
    if not 0 <= seconds <= MAX_TTL:
        raise ValueError(f"at_least must be between 0 seconds and a year, not {at_least}; leave it out to free at once")
    if settings.max_lifetime is not None and seconds > settings.max_lifetime:
        raise ValueError(
            f"at_least must be at most max_lifetime ({settings.max_lifetime:g} s), not {at_least}; raise max_lifetime, "
            f"or lower at_least"
        )
    if not isinstance(backend, ReleasesLater):
        raise TypeError(
            f"{backend.kind} cannot leave a lock taken after its release; leave at_least out, and let the job bear a "
            f"repetition, or take this lock at a coordinator that can"
        )
    if isinstance(backend, LimitsTtl) and seconds > backend.longest_ttl:
        raise ValueError(
            f"at_least must be at most longest_ttl of the {backend.kind} ({backend.longest_ttl:g} s), not {at_least}, "
            f"because a node that was restarted grants nothing for so long; raise longest_ttl for all coordinators of "
            f"its nodes, or lower at_least"
        )
    return seconds


def check_capabilities(backend: Backend, settings: Settings, own_ttl: float | None) -> Settings:
    """Return the settings if the backend has the capabilities that they need.

    Args:
        backend: the coordinator's.
        settings: the coordinator's or a lock's.
        own_ttl: the coordinator's ttl.

    Raises:
        TypeError, ValueError: a capability is missing. Change the options as the message says.
    """
    kind = backend.kind
    if settings.ttl is None and not isinstance(backend, HoldsWithoutTtl):
        raise TypeError(f"{kind} has no locks without a ttl; pass a ttl in seconds")
    if settings.ttl != own_ttl and not isinstance(backend, TtlPerLock):
        raise TypeError(
            f"{kind} has one ttl for all its locks, {own_ttl} s; pass the ttl to the coordinator, not to the lock"
        )
    if isinstance(backend, LimitsTtl) and settings.ttl is not None and settings.ttl > backend.longest_ttl:
        raise ValueError(
            f"ttl must be at most longest_ttl of the {kind} ({backend.longest_ttl:g} s), not {settings.ttl:g}; "
            f"raise longest_ttl for all coordinators of its nodes, or lower the ttl"
        )
    if settings.max_waiters is not None and not isinstance(backend, CountsWaiters):
        raise TypeError(f"{kind} cannot count those who wait; remove max_waiters")
    if settings.renew and not isinstance(backend, RenewsGrants):
        raise TypeError(f"{kind} cannot renew leases; pass renew=False, and a ttl that outlasts the work")
    if isinstance(backend, RenewsSession):
        if settings.ttl != backend.session_seconds:
            raise ValueError(
                f"the ttl of {kind} is that of its session, {backend.session_seconds:g} s, not {settings.ttl:g}; "
                f"leave it out, or make the session with another time-out"
            )
        for option in ("renew=False",) * (not settings.renew) + ("max_lifetime",) * (settings.max_lifetime is not None):
            raise TypeError(f"{kind} always renews the session of all its locks; remove {option}")
    return settings
