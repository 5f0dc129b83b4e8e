"""The smallest complete backend: locks in this process' memory. For tests without servers, and to copy from.

It has three parts, as every backend: the service (:class:`LockTable`), the plans, which decide without I/O, and the two
coordinators, which perform the plans' effects.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

from fencing.coordinator import Coordinator
from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from fencing.locks.backend import Backend, Holder, Taken, next_number, owner_label
from fencing.locks.holding import Grant
from fencing.locks.listing import Pattern
from fencing.locks.settings import AsyncLockOptions, LockOptions, Settings

FORCED_SECONDS = 60.0
"""How long a forced release is remembered. The former holder asks at its next renewal, or when it releases."""


@dataclass(slots=True)
class _Held:
    token: str
    number: int
    owner: str
    granted_at: float
    expires_at: float


class _Forced(NamedTuple):
    token: str  # the former holder's
    owner: str  # the label of whoever forced it
    forgotten_at: float


class LockTable:
    """A table of locks in memory. Coordinators in one process share it, as those of several processes share a server.

    Each method is one request: it is atomic, and may be repeated with the same token.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._forced: dict[str, _Forced] = {}
        self._last = time.time_ns() // 1000  # higher than the numbers of an earlier process
        self._remake_lock()
        process.after_fork(self._remake_lock)

    def _remake_lock(self) -> None:
        self._lock = threading.RLock()  # reentrant: a destructor may release a lease at any moment

    def __repr__(self) -> str:
        return f"<LockTable of {len(self._held)} locks>"

    def ask(self, request: _Request, now: float) -> Any:
        """Perform one request.

        Args:
            request: the operation and its arguments.
            now: the moment on the coordinator's clock, in seconds.
        """
        with self._lock:
            for resource in [name for name, held in self._held.items() if held.expires_at <= now]:
                del self._held[resource]
            return getattr(self, f"_{request.operation}")(now, *request.arguments)

    def _acquire(self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str) -> int | Taken:
        held = self._held.get(resource)
        if held is not None and held.token != token:
            return Taken(held.expires_at - now, held.owner)
        return self._mint(now, resource, token, ttl, floor, owner)

    def _remint(
        self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str, old: Fence
    ) -> int | None:
        held = self._held.get(resource)
        if held is None or (held.token != token and (held.token, held.number) != (old.token, old.number)):
            return None
        return self._mint(now, resource, token, ttl, floor, owner)

    def _mint(self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str) -> int:
        held = self._held.get(resource)
        if held is not None and held.token == token:  # the same request again
            held.expires_at = max(held.expires_at, now + ttl)
            return held.number
        self._last = next_number(resource, last=self._last, floor=floor, clock_us=0)
        self._held[resource] = _Held(token, self._last, owner, now, now + ttl)
        return self._last

    def _force(
        self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str, holder: Holder
    ) -> int | None:
        former = self._held.get(resource)
        if former is None or (former.token != token and former.number != holder.number):
            return None
        number = self._mint(now, resource, token, ttl, floor, owner)
        if former.token != token:
            for name in [name for name, forced in self._forced.items() if forced.forgotten_at <= now]:
                del self._forced[name]
            self._forced[resource] = _Forced(former.token, owner, now + FORCED_SECONDS)
        return number

    def _forced_by(self, now: float, resource: str, token: str) -> str | None:
        forced = self._forced.get(resource)
        return forced.owner if forced is not None and forced.token == token else None

    def _renew(self, now: float, ttl: float, fences: Sequence[Fence]) -> list[bool]:
        renewed = []
        for fence in fences:
            held = self._held.get(fence.resource)
            is_held = held is not None and (held.token, held.number) == (fence.token, fence.number)
            renewed.append(is_held)
            if held is not None and is_held:
                held.expires_at = max(held.expires_at, now + ttl)  # never earlier than another renewal has set it
        return renewed

    def _release(self, now: float, resource: str, token: str) -> bool:
        held = self._held.get(resource)
        if held is None or held.token != token:
            return False
        del self._held[resource]
        return True

    def _holder(self, now: float, resource: str) -> Holder | None:
        held = self._held.get(resource)
        if held is None:
            return None
        remaining = None if held.expires_at == math.inf else held.expires_at - now
        return Holder(held.owner, held.number, now - held.granted_at, remaining)

    def _holders(self, now: float, pattern: Pattern) -> list[tuple[str, Holder]]:
        found = [(resource, self._holder(now, resource)) for resource in self._held if pattern.matches(resource)]
        return [(resource, holder) for resource, holder in found if holder is not None]


class _Request(NamedTuple):
    """The effect: perform one request at the table."""

    operation: Literal["acquire", "remint", "force", "renew", "release", "holder", "holders", "forced_by"]
    arguments: tuple[Any, ...]


class MemoryPlans(Backend):
    """The plans of a table. No reply is ever lost, so there are no retries."""

    service = "this process' memory"
    address = "memory"
    max_renewals: int = 1000
    ttl_per_lock: ClassVar[Literal[True]] = True
    holds_without_ttl: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        sent_at = self.clock()
        reply = yield _Request("acquire", _mint_arguments(resource, token, settings, floor))
        return reply if isinstance(reply, Taken) else _grant(resource, reply, token, settings, sent_at)

    def plan_remint(
        self, fence: Fence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        sent_at = self.clock()
        number = yield _Request("remint", (*_mint_arguments(fence.resource, token, settings, floor), fence))
        return None if number is None else _grant(fence.resource, number, token, settings, sent_at)

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        sent_at = self.clock()
        number = yield _Request("force", (*_mint_arguments(resource, token, settings, floor), holder))
        return None if number is None else _grant(resource, number, token, settings, sent_at)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock its full ttl again: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        until = settings.deadline(self.clock())
        renewed = yield _Request("renew", (_seconds(settings), [grant.fence for grant in grants]))
        return [until if ok else None for ok in renewed]

    def plan_release(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[bool]:
        freed: bool = yield _Request("release", (fence.resource, fence.token))
        return freed

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        holder: Holder | None = yield _Request("holder", (resource,))
        return holder

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Tell who has forced a fence out: see ``RemembersForce`` in ``fencing/locks/capabilities.py``."""
        owner: str | None = yield _Request("forced_by", (fence.resource, fence.token))
        return owner

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return all holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        found: list[tuple[str, Holder]] = yield _Request("holders", (pattern,))
        return found, ""


def _seconds(settings: Settings) -> float:
    return math.inf if settings.ttl is None else settings.ttl


def _mint_arguments(resource: str, token: str, settings: Settings, floor: int) -> tuple[Any, ...]:
    return (resource, token, _seconds(settings), floor, owner_label(settings))


def _grant(resource: str, number: int, token: str, settings: Settings, sent_at: float) -> Grant:
    return Grant(Fence(resource, number, token), settings.deadline(sent_at))


def _check_arguments(table: object, clock: object) -> tuple[LockTable, Callable[[], float]]:
    if not callable(clock) or isinstance(clock, type):
        kind = type(clock).__name__
        raise TypeError(f"clock must be a function that returns seconds, such as ManualClock(), not {kind}")
    if table is None:
        return LockTable(), clock
    if not isinstance(table, LockTable):
        raise TypeError(f"table must be a LockTable, not {type(table).__name__}; pass guards and other options by name")
    return table, clock


class MemoryCoordinator(MemoryPlans, Coordinator):
    """A coordinator whose locks are in this process' memory, for threads of one process and for tests.

    It does not exclude other processes, and its locks end with this process. Numbers start from the wall clock in
    microseconds, so they are higher than those of an earlier process.

    Args:
        table: the table that several coordinators share; None: a table of its own.
        clock: returns seconds since any moment; a test moves a ``fencing.testing.ManualClock`` by hand.
        options: the options of its locks, as in :class:`fencing.Coordinator`.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        table: LockTable | None = None,
        *,
        clock: Callable[[], float] = process.now,
        **options: Unpack[LockOptions],
    ) -> None:
        self.table, self.clock = _check_arguments(table, clock)
        super().__init__(**options)

    def perform(self, effect: _Request) -> Any:
        """Perform one request at the table."""
        return self.table.ask(effect, self.clock())


class AsyncMemoryCoordinator(MemoryPlans, AsyncCoordinator):
    """A coordinator whose locks are in this process' memory, for asyncio and for tests.

    It does not exclude other processes, and its locks end with this process. It may share a table with a
    :class:`MemoryCoordinator`, which is for threads.

    Args:
        table: the table that several coordinators share; None: a table of its own.
        clock: returns seconds since any moment; a test moves a ``fencing.testing.ManualClock`` by hand.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        table: LockTable | None = None,
        *,
        clock: Callable[[], float] = process.now,
        **options: Unpack[AsyncLockOptions],
    ) -> None:
        self.table, self.clock = _check_arguments(table, clock)
        super().__init__(**options)

    async def perform(self, effect: _Request) -> Any:
        """Perform one request at the table."""
        return self.table.ask(effect, self.clock())
