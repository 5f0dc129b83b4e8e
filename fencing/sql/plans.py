"""The plans of a SQL coordinator: its requests, the meaning of the replies, and the retries. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal

from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import Fence, new_token
from fencing.kernel.patterns import Pattern
from fencing.kernel.retry import Answer, NoReply
from fencing.locks.backend import BACKOFF, Backend, Holder, Taken, next_number
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.locks.waiting import Enlist, Leave, Wait, WaiterPlace, poll_pause
from fencing.sql.table import PAGE_ROWS, TABLE, LockRow, Operation, Renewals, Request, is_place, places_of
from fencing.sql.waiters import LONGEST_WAIT_SECONDS, Waiter

PLACE_SECONDS = 3 * LONGEST_WAIT_SECONDS
"""How long the place of a waiter that died is taken. One that waits asks again, and renews it, in a third of that."""

LEAST_AGE_SECONDS, MOST_AGE_SECONDS = 60, 10**9

_KEPT = NoReply(TimeoutError("another session keeps its row"), may_have_run=False, is_answer=True)


class SQLPlans(Backend):
    """The plans of locks in a table of a SQL database."""

    listener: Any
    """Performs the effects of waiting: of threads, or of asyncio."""

    service = "the database"
    max_renewals: int = 100
    """Leases in one request: all their rows stay locked until its end."""

    ttl_per_lock: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True
    counts_waiters: ClassVar[Literal[True]] = True

    @staticmethod
    def shared_by_clients(client: Any) -> Any:
        """Return the engine itself for one with other execution options: a coordinator does not use those.

        It is ``_proxied`` (SQLAlchemy 2.0 and 2.1), without documentation. Without it, each has its own coordinator.
        """
        engine = getattr(client, "sync_engine", client)
        while (parent := getattr(engine, "_proxied", None)) is not None:
            engine = parent
        return engine

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        answer = yield from self._plan_mint("acquire", resource, token, settings, floor, deadline, token)
        return self._outcome(resource, token, answer, settings, floor)

    def is_waited_for(self, resource: str) -> bool:
        """Return whether a waiter asks as one at once: also where it polls, because its tries are all the same."""
        return bool(self.listener.is_waited_for(resource))

    def plan_queue(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        place: Any = None,
    ) -> Plan[Grant | Taken]:
        """Do what ``plan_acquire`` does for a waiter, which is then notified where that is possible. There is no order.

        See ``Queues`` and ``CountsWaiters`` in ``fencing/locks/capabilities.py``. Only waiters whose locks have
        ``max_waiters`` are counted.
        """
        if settings.max_waiters is not None:
            place = place or CountedPlace(self, settings, resource, token)
            return (yield from self._plan_queue_counted(resource, token, settings, floor, deadline, place))
        waiter: Waiter | None = yield Enlist(resource, token, 0.0, None if place is None else place.waiter)
        if waiter is None:
            return (yield from self.plan_acquire(resource, token, settings, floor=floor, deadline=deadline))
        try:
            waiter.is_asking = True
            answer = yield from self._plan_mint("queue", resource, token, settings, floor, deadline, token)
            outcome = self._outcome(resource, token, answer, settings, floor)
            waiter.is_asking = isinstance(outcome, Grant)
        except GeneratorExit:
            raise
        except BaseException:
            yield Leave(waiter)
            raise
        if isinstance(outcome, Grant):
            yield Leave(waiter, outcome.deadline)
        elif outcome.owner is None:  # it has become free since: ask again soon
            yield Leave(waiter)
        else:
            return Taken(math.inf, outcome.owner, WaiterPlace(self, settings, waiter, token, outcome.remaining))
        return outcome

    def _plan_queue_counted(
        self, resource: str, token: str, settings: Settings, floor: int, deadline: float, place: CountedPlace
    ) -> Plan[Grant | Taken]:
        place.waiter = waiter = yield Enlist(resource, token, 0.0, place.waiter)
        try:
            place.is_asking = True
            operation: Operation = "acquire" if waiter is None else "queue"
            answer = yield from self._plan_mint(operation, resource, token, settings, floor, deadline, token)
            outcome = self._outcome(resource, token, answer, settings, floor)
            if isinstance(outcome, Taken):
                place.is_asking = False
                if outcome.owner is not None:  # or else it has become free since
                    outcome = replace(outcome, waiters=(yield from place.plan_enlist(deadline)))
        except GeneratorExit:
            raise
        except BaseException:
            if waiter is not None:
                yield Leave(waiter)
            yield Shielded(place.plan_withdraw(self.give_back_deadline(settings)))  # the request may have taken one
            raise
        if isinstance(outcome, Grant):
            if waiter is not None:
                yield Leave(waiter, outcome.deadline)
            yield from place.plan_withdraw(self.give_back_deadline(settings))
            return outcome
        if waiter is not None and (outcome.waiters is not None or outcome.owner is None):
            yield Leave(waiter)
            place.waiter = None
        if outcome.waiters is not None:
            return outcome
        place.remaining = outcome.remaining
        return Taken(math.inf, outcome.owner, place)

    def plan_leave_place(self, place: WaiterPlace, *, deadline: float) -> Plan[None]:
        """Give the lock back if a request is under way that may take it."""
        waiter: Waiter = place.waiter
        if waiter.is_asking:
            yield from self.plan_release(Fence(waiter.resource, 1, place.ticket), place.settings, deadline=deadline)

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        old = {"old": grant.token, "number": grant.number}
        # Without an answer nothing is released: the caller may repeat it with the same token.
        answer = yield from self._plan_mint("remint", grant.resource, token, settings, floor, deadline, None, **old)
        return self._replaced(grant.resource, token, answer, settings, floor, grant.number)

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        number = holder.number
        answer = yield from self._plan_mint("force", resource, token, settings, floor, deadline, token, number=number)
        return self._replaced(resource, token, answer, settings, floor, number)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Give each grant's lock its full ttl again: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        values: dict[str, Any] = {"count": len(grants), "ttl": _microseconds(settings)}
        for i, grant in enumerate(grants):
            values[f"r{i}"], values[f"t{i}"], values[f"n{i}"] = grant.resource, grant.token, grant.number
        about = grants[0].resource if len(grants) == 1 else f"{len(grants)} leases"
        answer = yield from self._plan_request("renew", values, about, settings, deadline)
        renewals: Renewals = answer.value
        until = settings.deadline(answer.sent_at)
        results: list[float | CoordinatorUnavailable | None] = []
        for grant in grants:
            asked = grant.resource, grant.token, grant.number
            if asked in renewals.kept:
                results.append(self.unanswered(grant.resource, _KEPT))
            else:
                results.append(until if asked in renewals.renewed else None)
        return results

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        values = {"resource": grant.resource, "token": grant.token}
        answer = yield from self._plan_request("release", values, grant.resource, settings, deadline)
        return answer.value or answer.repeated  # an earlier attempt may have freed it

    def plan_release_later(
        self, grant: GrantOrFence, settings: Settings, *, free_at: float, deadline: float
    ) -> Plan[bool]:
        """Release a lock that stays taken until then: see ``ReleasesLater`` in ``fencing/locks/capabilities.py``."""
        values = {"resource": grant.resource, "token": grant.token, "new": new_token()}

        def attempt(timeout: float, last_attempt: bool) -> Request:
            left = max(math.ceil((free_at - self.clock()) * 1e6), 1)
            return Request("release_later", {**values, "left": left}, timeout)

        answer = yield from self.plan_until_answered(attempt, grant.resource, settings, deadline)
        return answer.value or answer.repeated  # an earlier attempt may have released it

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        row = yield from self._plan_read(resource, settings, deadline)
        return _holder(row) if row.is_held else None

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return a page of holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        answer = yield from self._plan_request("list", {"resource": page}, pattern.text, settings, deadline)
        rows: list[tuple[str, LockRow]] = answer.value
        held = [(resource, row) for resource, row in rows if row.is_held and not is_place(resource)]
        found = [(resource, _holder(row)) for resource, row in held if pattern.matches(resource)]
        return found, rows[-1][0] if len(rows) == PAGE_ROWS else ""

    def plan_create(self) -> Plan[None]:
        """Create the table where it is missing."""
        deadline = self.clock() + self.settings.request_seconds
        yield from self._plan_request("create", {}, TABLE, self.settings, deadline)

    def plan_prune(self, older_than: float) -> Plan[int]:
        """Delete the rows of locks that were not granted for so many seconds, and are free."""
        age = _check_age(older_than)
        pruned: int = 0
        while True:
            deadline = self.clock() + self.settings.request_seconds
            answer = yield from self._plan_request("prune", {"age": age}, TABLE, self.settings, deadline)
            pruned += answer.value
            if answer.value < PAGE_ROWS:
                return pruned

    def plan_place(
        self, operation: Operation, resource: str, settings: Settings, deadline: float, **values: Any
    ) -> Plan[int | None]:
        """Take, keep or leave a waiter's place."""
        first, last = places_of(resource)
        answer = yield from self._plan_request(
            operation, {"r0": first, "r1": last, **values}, resource, settings, deadline
        )
        waiters: int | None = answer.value
        return waiters

    def _plan_mint(
        self,
        operation: Operation,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        deadline: float,
        may_take: str | None,
        **more: Any,
    ) -> Plan[Answer]:
        if floor:  # it must be plausible; the number and the clock that it is compared with only grow
            _check_number(resource, (yield from self._plan_read(resource, settings, deadline)), floor)
        values = {
            "resource": resource,
            "token": token,
            "ttl": _microseconds(settings),
            "floor": floor,
            "owner": settings.owner_label,
            **more,
        }
        return (yield from self._plan_request(operation, values, resource, settings, deadline, may_take))

    def _plan_read(self, resource: str, settings: Settings, deadline: float) -> Plan[LockRow]:
        answer = yield from self._plan_request("read", {"resource": resource}, resource, settings, deadline)
        row: LockRow = answer.value
        return row

    def _plan_request(
        self,
        operation: Operation,
        values: Mapping[str, Any],
        about: str,
        settings: Settings,
        deadline: float,
        may_take: str | None = None,
    ) -> Plan[Answer]:
        def attempt(timeout: float, last_attempt: bool) -> Request:
            return Request(operation, values, timeout)

        return self.plan_until_answered(attempt, about, settings, deadline, may_take=may_take)

    def _outcome(self, resource: str, token: str, answer: Answer, settings: Settings, floor: int) -> Grant | Taken:
        row: LockRow = answer.value
        if row.token == token:
            return self._grant(resource, answer, settings)
        if row.is_held:
            return Taken((row.expires_at - row.now) / 1e6, row.owner)
        _check_number(resource, row, floor)
        return Taken(BACKOFF.first, None)  # it has become free since, or changes hands

    def _replaced(
        self, resource: str, token: str, answer: Answer, settings: Settings, floor: int, number: int | None
    ) -> Grant | None:
        """Return the grant in the place of the one with this number; None: that one does not hold the lock."""
        row: LockRow = answer.value
        if not row.is_held:  # also the own one: only a grant that lives is given its ttl again
            return None
        if row.token == token:
            return self._grant(resource, answer, settings)
        if row.number == number:
            _check_number(resource, row, floor)
        return None

    def _grant(self, resource: str, answer: Answer, settings: Settings) -> Grant:
        row: LockRow = answer.value
        assert row.number is not None
        return Grant(resource, row.number, row.token, settings.deadline(answer.sent_at))


class CountedPlace:
    """The place of a waiter that is one of ``max_waiters``: a row of the table, which it renews while it waits."""

    def __init__(self, plans: SQLPlans, settings: Settings, resource: str, token: str) -> None:
        self._plans, self._settings, self._resource, self.token = plans, settings, resource, token
        self._enlisted_at: float | None = None
        self._may_be_enlisted = False
        self._polls = 0
        self.waiter: Waiter | None = None  # None: nothing wakes it
        self.remaining = 0.0
        self.is_asking = False

    def plan_enlist(self, deadline: float) -> Plan[int | None]:
        """Take a place, or keep it. Return how many wait if no place is free."""
        now = self._plans.clock()
        if self._enlisted_at is not None and now - self._enlisted_at < PLACE_SECONDS / 3:
            return None
        values = {
            "token": self.token,
            "owner": self._settings.owner_label,
            "ttl": int(PLACE_SECONDS * 1e6),
            "floor": 0,
            "limit": self._settings.max_waiters,
            "is_enlisted": self._enlisted_at is not None,
        }
        self._may_be_enlisted = True
        waiters = yield from self._plans.plan_place("enlist", self._resource, self._settings, deadline, **values)
        if waiters is None:
            self._enlisted_at = now
        else:
            self._may_be_enlisted = False
        return waiters

    def plan_withdraw(self, deadline: float) -> Plan[None]:
        """Give the place to others. If that fails, it is free after PLACE_SECONDS."""
        if self._may_be_enlisted:
            settings = self._settings.for_one_try()
            with suppress(CoordinatorUnavailable):
                yield from self._plans.plan_place("leave", self._resource, settings, deadline, token=self.token)

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until it is time to ask again, at most so long."""
        if self.waiter is not None:
            yield Wait(self.waiter, seconds, self.remaining)
        else:
            self._polls += 1
            yield poll_pause(self._polls, self.remaining, seconds)

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Leave the place, and give the lock back if a request is under way that may take it."""
        if self.waiter is not None:
            yield Leave(self.waiter)
        if self.is_asking:
            fence = Fence(self._resource, 1, self.token)
            yield from self._plans.plan_release(fence, self._settings, deadline=deadline)
        yield from self.plan_withdraw(deadline)


def _check_number(resource: str, row: LockRow, floor: int) -> None:
    """Raise MarkImplausible if no number can be minted."""
    next_number(resource, last=row.number or 0, floor=floor, clock_us=row.now)


def _check_age(older_than: object) -> int:
    """Return the age in microseconds."""
    if isinstance(older_than, bool) or not isinstance(older_than, (int, float)):
        raise TypeError(f"older_than is a number of seconds, not {type(older_than).__name__}")
    if not LEAST_AGE_SECONDS <= older_than <= MOST_AGE_SECONDS:
        raise ValueError(
            f"older_than is a number of seconds from {LEAST_AGE_SECONDS} to {MOST_AGE_SECONDS}, not {older_than}"
        )
    return math.ceil(older_than * 1e6)


def _holder(row: LockRow) -> Holder:
    held_for, remaining = (row.now - row.granted_at) / 1e6, (row.expires_at - row.now) / 1e6
    return Holder(row.owner, row.number, held_for, remaining, released=row.released_at > 0)


def _microseconds(settings: Settings) -> int:
    assert settings.ttl is not None
    return math.ceil(settings.ttl * 1e6)
