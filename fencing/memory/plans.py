"""The plans of a table: what a coordinator asks it, and what the answers mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence, new_token
from fencing.kernel.patterns import Pattern
from fencing.locks.backend import Backend, Holder, Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.locks.waiting import poll_pause
from fencing.memory.table import LockTable, Request, Waits


class MemoryPlans(Backend):
    """The plans of a table. No reply is ever lost, so there are no retries."""

    service = "this process' memory"
    address = "memory"
    max_renewals: int = 1000
    ttl_per_lock: ClassVar[Literal[True]] = True
    holds_without_ttl: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True
    counts_waiters: ClassVar[Literal[True]] = True

    def __init__(self, table: LockTable | None = None, clock: Callable[[], float] = process.now) -> None:
        self.table, self.clock = _check_arguments(table, clock)

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        sent_at = self.clock()
        reply = yield Request("acquire", _mint_arguments(resource, token, settings, floor))
        return reply if isinstance(reply, Taken) else _grant(resource, reply, token, settings, sent_at)

    def plan_acquire_any(
        self, resources: Sequence[str], token: str, settings: Settings, *, first: int, deadline: float
    ) -> Plan[Grant | Taken]:
        """Take the first slot that is free: see ``AcquiresAny`` in ``fencing/locks/capabilities.py``."""
        sent_at = self.clock()
        arguments = (resources, token, _seconds(settings), settings.owner_label, first)
        reply = yield Request("acquire_any", arguments)
        if isinstance(reply, Taken):
            return reply
        slot, number = reply
        return _grant(resources[slot], number, token, settings, sent_at)

    def is_waited_for(self, resource: str) -> bool:
        """Return True: a waiter asks as one at once, because it polls, and its tries are all the same."""
        return True

    def plan_queue(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        place: CountedPlace | None = None,
    ) -> Plan[Grant | Taken]:
        """Do what ``plan_acquire`` does for a waiter, which is counted. There is no order.

        See ``Queues`` and ``CountsWaiters`` in ``fencing/locks/capabilities.py``.
        """
        sent_at, waits = self.clock(), Waits(settings.max_waiters, place is not None)
        reply = yield Request("acquire", (*_mint_arguments(resource, token, settings, floor), waits))
        if not isinstance(reply, Taken):
            return _grant(resource, reply, token, settings, sent_at)
        if reply.waiters is None:
            place = CountedPlace(resource, token, reply.remaining, 1 if place is None else place.polls + 1)
            return replace(reply, place=place)
        return reply

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        sent_at, old = self.clock(), (grant.token, grant.number)
        number = yield Request("remint", (*_mint_arguments(grant.resource, token, settings, floor), old))
        return None if number is None else _grant(grant.resource, number, token, settings, sent_at)

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        sent_at = self.clock()
        number = yield Request("force", (*_mint_arguments(resource, token, settings, floor), holder))
        return None if number is None else _grant(resource, number, token, settings, sent_at)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock its full ttl again: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        return self.plan_renew_each(grants, [settings] * len(grants), deadline=deadline)

    def plan_renew_each(
        self, grants: Sequence[Grant], settings: Sequence[Settings], *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock the ttl of its own settings: see ``RenewsSeveralTtls``."""
        sent_at = self.clock()
        asked = [
            (grant.resource, grant.token, grant.number, _seconds(its))
            for grant, its in zip(grants, settings, strict=True)
        ]
        renewed = yield Request("renew", (asked,))
        return [its.deadline(sent_at) if ok else None for its, ok in zip(settings, renewed, strict=True)]

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        freed: bool = yield Request("release", (grant.resource, grant.token))
        return freed

    def plan_release_later(
        self, grant: GrantOrFence, settings: Settings, *, free_at: float, deadline: float
    ) -> Plan[bool]:
        """Release a lock that stays taken until then: see ``ReleasesLater`` in ``fencing/locks/capabilities.py``."""
        released: bool = yield Request("release_later", (grant.resource, grant.token, new_token(), free_at))
        return released

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        holder: Holder | None = yield Request("holder", (resource,))
        return holder

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Tell who has forced a fence out: see ``RemembersForce`` in ``fencing/locks/capabilities.py``."""
        owner: str | None = yield Request("forced_by", (fence.resource, fence.token))
        return owner

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return all holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        found: list[tuple[str, Holder]] = yield Request("holders", (pattern,))
        return found, ""


class CountedPlace(NamedTuple):
    """The place of a waiter that nothing wakes. It only counts, until it leaves."""

    resource: str
    token: str
    remaining: float
    polls: int

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Wait until it is time to ask again, at most so long."""
        yield poll_pause(self.polls, self.remaining, seconds)

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Leave, and give the lock back if it was granted just now."""
        yield Request("leave", (self.resource, self.token))
        yield Request("release", (self.resource, self.token))


def _seconds(settings: Settings) -> float:
    return math.inf if settings.ttl is None else settings.ttl


def _mint_arguments(resource: str, token: str, settings: Settings, floor: int) -> tuple[Any, ...]:
    return (resource, token, _seconds(settings), floor, settings.owner_label)


def _grant(resource: str, number: int, token: str, settings: Settings, sent_at: float) -> Grant:
    return Grant(resource, number, token, settings.deadline(sent_at))


def _check_arguments(table: object, clock: object) -> tuple[LockTable, Callable[[], float]]:
    """Return the table and the clock of a coordinator; raise TypeError for anything else."""
    if not callable(clock) or isinstance(clock, type):
        kind = type(clock).__name__
        raise TypeError(f"clock must be a function that returns seconds, such as ManualClock(), not {kind}")
    if table is None:
        return LockTable(), clock
    if not isinstance(table, LockTable):
        raise TypeError(f"table must be a LockTable, not {type(table).__name__}; pass guards and other options by name")
    return table, clock
