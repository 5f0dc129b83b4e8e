"""Grants: the fence of a grant, its deadline, and how it ended. No I/O, no threads."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fencing.kernel import process
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import MAX_NUMBER, Fence, check_number, granted_fence
from fencing.kernel.waking import safe_lock
from fencing.locks.grid import shared_moment
from fencing.locks.settings import Settings

End = Literal["released", "detached", "abandoned", "reclaimed"]
Loss = Literal["expired", "gone", "stale"]

RENEWED_AFTER = (0.3, 0.4)
"""When a renewal is due, as shares of the ttl. At least one more attempt fits in before the lease is over."""

RETRIED_AFTER = (0.045, 0.07)
"""When a renewal that got no answer is tried again, as shares of the ttl."""

WATCHED_BEFORE = 1 / 30
"""How long before its deadline, at most, a lease that is not renewed is looked at, as a share of the ttl."""

_lock: Any
"""Of each deadline that is raised or lowered, and the requests that decide it: for a moment, without I/O."""


@dataclass(slots=True, eq=False)
class TtlRequest:
    """A request that sets the ttl of a lease's lock.

    Attributes:
        seconds: how long the lock is believed to last from its arrival on.
        noted_at: a moment before it was sent.
        answered_at: the moment of its answer. While an attempt has none, it may still arrive, so it is never.
        is_over: whether its call has ended.
    """

    seconds: float
    noted_at: float
    answered_at: float = math.inf
    is_over: bool = False


class Notified(Protocol):
    """A lease that is notified of its loss."""

    def _notify_lost(self) -> None: ...


def _no_lease() -> None:
    """Return no lease: none has been made yet."""


class Grant:
    """A lock that was taken, with the number that was minted for it. It ends only once.

    It has two halves. The backend's: it makes a grant for each answer that takes a lock or replaces a fence, and gets
    the same object for renewals, and mostly for the release. There it may keep what it needs then. All other attributes
    are the state that the lease, its renewal and the acquiring plan share. Any thread may use them.

    A grant is young until the calendar of renewals takes it over. Most locks are released before that.

    Args:
        resource: the lock's.
        number: the number that was minted, 1 … 2^53-1.
        token: the one that it was asked for with.
        deadline: the moment of the backend's clock until which it is believed to last: see ``Settings.deadline``.
        kept: the backend's own, such as the id of a lease at the service. Nobody else reads it.

    Raises:
        TypeError, ValueError: the number is none.
    """

    __slots__ = (
        "__weakref__",
        "_alive",
        "_ended",
        "_fence",
        "_ref",
        "deadline",
        "due",
        "due_together",
        "failure",
        "first_granted_at",
        "granted_at",
        "hindrance",
        "kept",
        "late",
        "lease",
        "loop",
        "number",
        "renewed_at",
        "resource",
        "settings",
        "token",
        "ttl_requests",
        "unanswered_since",
        "young",
    )

    settings: Settings
    granted_at: float
    first_granted_at: float
    """The moment of the first grant, from which ``max_lifetime`` counts; a lease that was reclaimed had others."""
    renewed_at: float
    _alive: set[weakref.ref[Grant]]

    def __init__(self, resource: str, number: int, token: str, deadline: float, kept: Any = None) -> None:
        if type(number) is not int or not 1 <= number <= MAX_NUMBER:
            check_number(number)
        self.resource = resource
        self.number = number
        self.token = token
        self.deadline = deadline
        self.kept = kept
        self.unanswered_since: float | None = None  # the first attempt to renew it since the last one that succeeded
        self.ttl_requests: Sequence[TtlRequest] = ()
        self.loop: Any = None  # the event loop of its lease; None: threads have it
        self.hindrance: Callable[[], str] | None = None  # says why its last renewal, which was due, did not begin
        self.failure: str | None = None  # why its last attempt to renew it failed, where something has answered
        self.late = 0.0  # by how many seconds this process has delayed its renewal
        self.due: float | None = None
        self.lease: Callable[[], Notified | None] = _no_lease
        self._ended: list[tuple[End | Loss, str | None]] = []  # only the first entry counts, and append is atomic
        self.young: set[Grant] | None = None  # all that are young, until the calendar takes them over
        self._fence: Fence | None = None
        self._ref: weakref.ref[Grant] | None = None
        self.due_together: set[weakref.ref[Grant]] | None = None  # all that are due at the same moment

    def begin(self, settings: Settings, now: float) -> None:
        """Note the settings of the lock, and the moment of the grant."""
        self.settings = settings
        self.granted_at = self.first_granted_at = self.renewed_at = now

    @property
    def fence(self) -> Fence:
        """Its fence, which is made when it is first asked for."""
        if self._fence is None:
            self._fence = granted_fence(self.resource, self.number, self.token)
        return self._fence

    def __repr__(self) -> str:
        return f"Grant({self.fence!r}, deadline={self.deadline:.3f})"

    @property
    def moment(self) -> float:
        """The next moment at which it must be checked: when its renewal is due, or shortly before its deadline."""
        if self.due is not None and self.due < self.deadline:
            return self.due
        assert self.settings.ttl is not None
        return shared_moment(self.deadline - self.settings.ttl * WATCHED_BEFORE, self.deadline)

    @property
    def due_at(self) -> float | None:
        """The moment at which its renewal is due, or at which it will be due at the latest; None: none is."""
        if self._ref is None and self.settings.renew and self.settings.ttl is not None:  # young
            return self.granted_at + self.settings.ttl * RENEWED_AFTER[1]
        return self.due

    @property
    def ended(self) -> End | Loss | None:
        """How it ended; None: it has not."""
        return self._ended[0][0] if self._ended else None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return bool(self._ended)

    @property
    def lost(self) -> Loss | None:
        """How it was lost; None: it was not."""
        how = self._ended[0][0] if self._ended else None
        return how if how == "expired" or how == "gone" or how == "stale" else None

    @property
    def cause(self) -> str | None:
        """What caused its loss, in words; None: it was not lost, or the cause is not known."""
        return self._ended[0][1] if self._ended else None

    def lose(self, how: Loss, cause: str | None = None) -> bool:
        """End it as lost, and notify its lease. Return False if it had ended before."""
        if not self.end(how, cause):
            return False
        lease = self.lease()
        if lease is not None:
            lease._notify_lost()
        return True

    def lose_reclaimed(self, cause: str | None) -> None:
        """Note that the lock is gone, after the grant was ended to be reclaimed. Notify its lease."""
        self._ended[0] = ("gone", cause)
        lease = self.lease()
        if lease is not None:
            lease._notify_lost()

    def end(self, how: End | Loss, cause: str | None = None) -> bool:
        """End it. Return False if it had ended before."""
        if self._ended:
            return False
        entry = (how, cause)
        self._ended.append(entry)
        if self.young is not None:
            self.young.discard(self)
        if self._ref is not None:
            self._leave_calendar(self._ref)
        return self._ended[0] is entry

    def join_calendar(self, alive: set[weakref.ref[Grant]]) -> None:
        """Join all grants of the calendar, weakly: only a lease, or a plan that claims, keeps a grant."""
        if self._ref is not None:
            return
        self._alive = alive
        if self.due is None and self.settings.renew:
            self.due = self._next_due(self.granted_at, RENEWED_AFTER)
        ref = weakref.ref(self, alive.discard)
        alive.add(ref)
        self._ref = ref  # last: if this is interrupted, the next call does all of it
        if self._ended:  # by another thread, which may have come too early to see the lines above
            self._leave_calendar(ref)

    def join_moment(self, together: set[weakref.ref[Grant]]) -> None:
        """Join the grants that are due at the same moment."""
        assert self._ref is not None
        self.due_together = together
        together.add(self._ref)

    def _leave_calendar(self, ref: weakref.ref[Grant]) -> None:
        together, self.due_together = self.due_together, None
        if together is not None:
            together.discard(ref)
        self._alive.discard(ref)

    def expect_ttl(self, seconds: float, now: float) -> TtlRequest:
        """Note a request that sets the ttl, before it is sent. If it shortens the lease, that is believed from now on.

        Args:
            seconds: how long the lock is believed to last from its arrival on.
        """
        request = TtlRequest(seconds, now)
        with _lock:
            self.ttl_requests = [*_merged(self.ttl_requests), request]
            self.deadline = min(self.deadline, now + seconds)
        return request

    def renewed(self, deadline: float, now: float, own: TtlRequest | None = None) -> None:
        """Note that a renewal succeeded. The next one is due after a third of the ttl, if the lifetime allows it.

        It does not raise the deadline if it was sent before a request of a shorter ttl had its answer: that may arrive
        after it.

        Args:
            own: the request that was noted for it; None: it gave the lock the ttl of its settings.
        """
        with _lock:
            if self.ttl_requests:
                seconds = self.settings.believed_seconds if own is None else own.seconds
                asked_at = deadline - seconds if own is None else own.noted_at
                shorter = [each for each in self.ttl_requests if each.seconds < seconds]
                if any(asked_at < each.answered_at for each in shorter):
                    deadline = self.deadline
            self.deadline = max(self.deadline, deadline)
        if now < self.deadline:
            self.renewed_at, self.unanswered_since, self.late = now, None, 0.0
            self.failure = None
        if self.settings.renew:
            self.due = self._next_due(now, RENEWED_AFTER)

    def ask(self, now: float) -> None:
        """Note that its renewal, which is due, begins."""
        if self.due is not None:
            self.late = max(self.late, now - self.due)
        if self.unanswered_since is None:
            self.unanswered_since = now
        self.due = self.hindrance = None

    def not_renewed(self, now: float, error: CoordinatorUnavailable | None = None) -> None:
        """Note that a renewal got no answer, or failed with this error. The next attempt is due soon."""
        self.due = self._next_due(now, RETRIED_AFTER)
        self.failure = None if error is None or error._is_silence else str(error)

    def _next_due(self, now: float, after: tuple[float, float]) -> float | None:
        settings = self.settings
        if settings.ttl is None:
            return None
        due = shared_moment(now + settings.ttl * after[0], now + settings.ttl * after[1])
        if settings.max_lifetime is not None and due > self.first_granted_at + settings.max_lifetime:
            return None
        return due


def _merged(requests: Sequence[TtlRequest]) -> list[TtlRequest]:
    """Return the requests, and of those whose calls have ended at most two: what was answered, and what was not."""
    merged = [each for each in requests if not each.is_over]
    for is_answered in (True, False):
        ended = [each for each in requests if each.is_over and (each.answered_at < math.inf) is is_answered]
        if ended:
            shortest = min(each.seconds for each in ended)
            merged.append(TtlRequest(shortest, -math.inf, max(each.answered_at for each in ended), is_over=True))
    return merged


def _remake_lock() -> None:
    global _lock
    _lock = safe_lock()  # reentrant: a signal handler that runs here may renew a lease


_remake_lock()
process.after_fork(_remake_lock)

GrantOrFence = Grant | Fence
"""What names a grant to the backend: the grant itself, or only its fence, such as that of another process."""
