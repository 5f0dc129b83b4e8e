"""The interface of backends: their plans, and the values that plans return.

A backend decides without I/O. Each ``plan_…`` is a generator. It yields an effect (data of the backend's own, or one of
``kernel/effects.py``), is sent the result or thrown the error, and returns a value of this module. ``perform`` performs
one effect. Users do not see a backend: they call a coordinator, which has one. ``fencing/memory`` is the smallest
complete backend.

Not every service can do everything: see ``fencing/locks/capabilities.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable, FencingError, KeptBy, MarkImplausible
from fencing.kernel.fence import MAX_NUMBER, Fence
from fencing.kernel.retry import Answer, Backoff, NoReply, retry
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings

BACKOFF = Backoff(first=0.01, longest=0.25)

MOST_REFUSALS = 2
"""How often a call that tries once repeats a request that certainly did not run."""

GIVE_BACK_SECONDS = 1.0
"""How long after the caller's time-out a lock may still be given back. After that its ttl frees it."""

PLAUSIBLE_STEP = 2**50
"""The most that a floor may lie above counter and clock; as microseconds about 35 years."""


class Place(Protocol):
    """A place in a coordinator's queue. Its waiter either asks again with it, or leaves."""

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until it is time to ask again, at most this many seconds; infinity: no limit."""

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Leave the queue, and give the lock back if it is being granted at this moment."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A refusal of the lock: another holder has it, or an earlier waiter comes first.

    Attributes:
        remaining: seconds after which the lock frees itself; infinity: it does not, or it is not known.
        owner: the holder's label, or that of the earlier waiter; None: not known.
        place: the caller's place in the queue; None: there is no queue, and the caller must ask again.
        was_undone: whether a release of the token was sent, so that the caller must ask again with a new token.
        waiters: how many wait, so that the caller may not: ``max_waiters`` of the settings. None: it was not refused.
        kept_by: ``"waiter"``: an earlier waiter comes first. ``"foreign"``: another program's lock, or other data under
            that name. None: a holder, or that is not known.
    """

    remaining: float
    owner: str | None
    place: Place | None = None
    was_undone: bool = False
    waiters: int | None = None
    kept_by: KeptBy | None = None


@dataclass(frozen=True, slots=True)
class Undecided:
    """Neither a grant nor a refusal, and a release of the token was sent. The caller asks again with a new token.

    A token is never asked with again behind a release whose answer is missing: the release could arrive later, and free
    what the token was granted meanwhile.

    Attributes:
        error: what the caller raises if its time is up.
        pause: seconds after which it asks again.
    """

    error: CoordinatorUnavailable
    pause: float


@dataclass(frozen=True, slots=True)
class Holder:
    """A description of a lock's holder, for people. It never contains the token.

    Attributes:
        owner: the holder's label; None: the holder uses another library.
        number: its fencing number; None: the holder uses another library.
        held_for: seconds since the grant, by the server's clock; None: not known, as of another library's holder.
        remaining: seconds until the lock frees itself; None: it never does, or that is not known: ``expires``.
        digest: stands for the token, so that a forced release can name a grant that has no number; empty: the backend
            tells grants apart by their numbers.
        released: the holder has released the lock, which stays taken for ``remaining`` seconds all the same, because
            of ``hold(at_least=...)``.
        expires: whether the lock frees itself. True also if the service does not tell when, so that ``remaining`` is
            None. A backend passes it only then; else it is what ``remaining`` says.
        waiting: about how many wait in the lock's queue; None: not known, as where the service has no queue. A waiter
            that died counts until its place in the queue ends. A caller that polls without a place does not count, such
            as one that waits for any of several slots. Comparisons ignore this number.
    """

    __module__ = "fencing"

    owner: str | None
    number: int | None
    held_for: float | None
    remaining: float | None
    digest: str = field(default="", repr=False, compare=False)
    released: bool = False
    expires: bool = None  # type: ignore[assignment] # __post_init__ fills it in
    waiting: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.expires is None:
            object.__setattr__(self, "expires", self.remaining is not None)
        elif self.remaining is not None and not self.expires:
            raise ValueError(f"a lock that frees itself in {self.remaining:g} s expires; leave expires out")


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """The result of ``force_release``.

    Attributes:
        holder: the former holder; None: the lock was free.
        fence: the new fence that was minted, higher than the former holder's.
        fenced: whether guards have admitted the new fence, so that the former holder can no longer write. False without
            guards: the lock is free, but the former holder can still write until a newer holder claims.
    """

    __module__ = "fencing"

    holder: Holder | None
    fence: Fence
    fenced: bool


def _leave_to_ttl(*_: object) -> None:
    """Do nothing: without a coordinator, only the ttl frees a lock."""


class Backend(ABC):
    """What one kind of service can do: its plans, which decide without I/O, and ``perform``, which does the I/O.

    Its coordinator sets what is not of the service: the settings, and who renews and gives back. Locks and leases use
    the backend, never the coordinator: so that may be collected before them.

    In every plan ``deadline`` is a moment of ``clock``. After it the plan does not retry, but raises
    ``CoordinatorUnavailable``: ``plan_until_answered`` does both. Each plan can be repeated after a lost reply: the
    same token gets the same number.
    """

    service: ClassVar[str] = "the lock service"
    """The name of the service in error messages."""

    address: str = "its address"
    """The address of the service in error messages."""

    location: str = ""
    """The address with what it does not say, such as the database; for ``repr``."""

    @cached_property
    def kind(self) -> str:
        """The name of its coordinator's class, for people. Its coordinator sets it."""
        return type(self).__name__

    settings: Settings
    """The settings of its locks, unless a lock has its own. Its coordinator sets them."""

    prefix: str = ""
    """What the resources of all its locks begin with; empty: their names are their resources. Plans get resources. Its
    coordinator sets it."""

    perform: Callable[[Any], Any]
    """Performs one effect of these plans, within the effect's time limit: ``def``, or ``async def`` for asyncio."""

    asynchronous: bool | None = None
    """Whether ``perform`` is ``async def``; None: it has no coordinator yet. Its coordinator sets it."""

    def drop(self, grant: Grant) -> None:  # noqa: B027 - it need not be overridden
        """Note that a lease was collected without a release. Its ttl frees the lock, so there is nothing to do.

        A backend whose session keeps the lock for longer frees it here. Any thread may collect a lease, so this must
        not wait, and must not raise.
        """

    def close(self) -> Any:  # noqa: B027 - it need not be overridden
        """Close the connections: ``def``, or ``async def`` for asyncio. Its coordinator has released its locks.

        The end of a block may still perform a release, and wait for its answer.
        """

    clock: Callable[[], float] = staticmethod(process.now)
    """The clock of deadlines, in seconds. A clock with ``call_at`` also drives the renewal: see ``fencing.testing``."""

    @cached_property
    def adoptions(self) -> dict[tuple[int, Fence], str]:
        """The tokens of adoptions that got no answer, by process and adopted fence."""
        return {}

    closed: bool = False
    """Whether the coordinator was closed. It then takes no more locks."""

    track: Callable[[Grant], None] = staticmethod(_leave_to_ttl)
    """Watches a grant, and renews it, until it ends. Its coordinator sets it. It does no I/O, so it is not a plan."""

    held: Callable[[], list[Grant]] = staticmethod(list)
    """Returns the grants of this process that have not ended. Its coordinator sets it."""

    give_back_later: Callable[..., None] = staticmethod(_leave_to_ttl)
    """Releases a grant that will not be used in the background, for at most an hour. Its coordinator sets it.

    Its arguments are the grant or its fence, and the settings; and, if the lock stays taken for a while, ``free_at``.
    """

    @abstractmethod
    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken | Undecided]:
        """Take the lock if it is free, or if the token holds it already.

        The number of a new grant is higher than every earlier one of the resource, and higher than ``floor``. The same
        token again gets the same number, and the full ttl again. A token whose grant has ended gets a new number.

        Raises:
            MarkImplausible: the number would be implausibly high. Nothing was changed.
        """

    @abstractmethod
    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        """Free the lock if the grant holds it. Return False only if it certainly did not hold it.

        Of a bare fence only the resource and the token count: the number may not be known.
        """

    @abstractmethod
    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        """Replace the grant atomically, without freeing the lock, if its number and its token hold the lock.

        The new grant has the given token and a number above ``floor``. Return None if the old one certainly no longer
        holds the lock. Nothing is released if there is no answer: the caller repeats it with the same token, or gives
        back both.
        """

    @abstractmethod
    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        """Take the lock from this holder, which was read before.

        It takes the lock from no other grant, however late the request arrives. Return None if another one holds it, or
        if it is free.
        """

    @abstractmethod
    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        """Return a description of the lock's holder; None: the lock is free."""

    def check_open(self) -> None:
        """Refuse a request after the closing. ``perform`` calls it for all but releases: a block may end later.

        Raises:
            RuntimeError: the coordinator was closed.
        """
        if self.closed:
            raise RuntimeError(CLOSED)

    def __repr__(self) -> str:
        settings = self.settings
        options = ["no ttl" if settings.ttl is None else f"ttl {settings.ttl:g} s"]
        if self.prefix:
            options.insert(0, f"prefix {self.prefix!r}")
        if not settings.renew:
            options.append("renew=False")
        if settings.guards:
            options.append(f"guards {list(settings.guards)!r}")
        return f"<{self.kind} at {self.location or self.address}, {', '.join(options)}>"

    def locks_behind(self, resource: str) -> tuple[Backend, Sequence[str]]:
        """Return the locks of which a request for this one takes any: this one; or several slots, and their backend."""
        return self, (resource,)

    def plan_until_answered(
        self,
        attempt: Callable[[float, bool], Any],
        about: str,
        settings: Settings,
        deadline: float,
        *,
        may_take: str | None = None,
        failure: NoReply | None = None,
        resources: Sequence[str] = (),
    ) -> Plan[Answer]:
        """Perform an effect, and repeat it after each ``NoReply`` until the deadline, with
        :func:`fencing.kernel.retry.retry`.

        Args:
            attempt: makes the effect. Its arguments are the time limit in seconds, and whether this is the last
                attempt.
            about: the resource, or another subject of the request, for the error message.
            settings: the lock's.
            deadline: the moment of ``clock`` after which no attempt begins.
            may_take: the token of a lock on ``about`` that the effect may take. If there is no answer although it may
                have run, the lock is given back in the background.
            failure: of the first attempt, if it was made already.
            resources: those of which it may take one, instead of ``about``.

        Raises:
            CoordinatorUnavailable: there was no answer in time.
        """

        def give_back() -> None:
            assert may_take is not None
            for resource in resources or (about,):
                self.give_back_later(Fence(resource, 1, may_take), settings)

        return retry(
            attempt,
            clock=self.clock,
            attempt_seconds=settings.attempt_seconds,
            deadline=deadline,
            backoff=BACKOFF,
            give_up=lambda failure, _: self.unanswered(about, failure),
            most_refusals=MOST_REFUSALS if settings.one_try else math.inf,
            unanswered=None if may_take is None else give_back,
            failure=failure,
        )

    def unanswered(self, about: str, failure: NoReply) -> CoordinatorUnavailable:
        """Return the error of a request about a resource, or something else, that was not served in time."""
        reason = str(failure).rstrip(".")
        text = (
            f"no answer from {self.service} at {self.address} for {about!r}: {reason}; "
            f"check that it runs and that the address is right, then retry"
        )
        if failure.is_answer:
            text = (
                f"{self.service} at {self.address} cannot serve the request for {about!r} now: {reason}; "
                f"retry, and correct the address if that does not help"
            )
        error = CoordinatorUnavailable(text, resource=about, address=self.address)
        error._is_silence = not failure.is_answer
        return error

    def plan_give_back(self, grant: GrantOrFence, settings: Settings) -> Plan[None]:
        """Release a grant that will not be used, by its token, within a second. If that fails, continue later."""
        answered, requests = False, settings.for_one_try()
        try:
            yield from self.plan_release(grant, requests, deadline=self.give_back_deadline(settings))
            answered = True
        except FencingError:
            pass
        finally:
            if not answered:
                self.give_back_later(grant, settings)

    def give_back_deadline(self, settings: Settings) -> float:
        """Return the moment until which giving back a lock may take."""
        return self.clock() + min(settings.request_seconds, GIVE_BACK_SECONDS)


def wrong_reply(backend: object, method: str, reply: object, expected: str) -> TypeError:
    """Return the error of a plan that returned what no plan of its name may."""
    said = "nothing (None)" if reply is None else f"{reply!r:.100}"
    return TypeError(f"{method} of {type(backend).__name__} returned {said}; it must return {expected}")


def next_number(resource: str, *, last: int, floor: int, clock_us: int) -> int:
    """Return the number of a new grant: the highest of the last number, the floor and the clock, plus one.

    Args:
        resource: the resource, for the error.
        last: the highest number that was minted before; 0: none.
        floor: a number to exceed, from a storage's mark. It must be plausible: one poisoned mark must not raise a
            counter that other names share.
        clock_us: the service's clock in microseconds, so that numbers keep growing when the service loses its data; 0:
            numbers do not follow a clock.

    Raises:
        MarkImplausible: the floor lies more than 2^50 above counter and clock, or all numbers are used up.
    """
    ceiling = min(max(last, clock_us) + PLAUSIBLE_STEP, MAX_NUMBER - 1)
    highest = max(last, floor, clock_us)
    if highest > ceiling:
        raise MarkImplausible(resource=resource, number=highest, ceiling=ceiling)
    return highest + 1
