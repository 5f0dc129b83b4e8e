"""The smallest whole backend: locks in this process' memory. For tests without servers, and to be copied from.

Three parts, as in every backend: the service (:class:`LockTable`), the plans, which decide without I/O, and the two
coordinators, which do what the plans ask for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

from fencing.coordinator import AsyncCoordinator, Coordinator
from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from fencing.locks.backend import Backend, Holder, Taken, next_number, owner_label
from fencing.locks.holding import Grant
from fencing.locks.settings import AsyncLockOptions, LockOptions, Settings


@dataclass(slots=True)
class _Held:
    token: str
    number: int
    owner: str
    since: float
    until: float


class LockTable:
    """Locks in memory: what the coordinators of one process share, as those of several processes share a server.

    Each method is one request: it runs alone, and may be repeated with the same token.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._last = time.time_ns() // 1000  # above the numbers of an earlier process
        self._remake_lock()
        process.after_fork(self._remake_lock)

    def _remake_lock(self) -> None:
        self._alone = threading.Lock()

    def ask(self, request: _Request, now: float) -> Any:
        """Do one request at that moment of the coordinator's clock."""
        with self._alone:
            for resource in [name for name, held in self._held.items() if held.until <= now]:
                del self._held[resource]
            return getattr(self, f"_{request.operation}")(now, *request.arguments)

    def _acquire(self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str) -> int | Taken:
        held = self._held.get(resource)
        if held is not None and held.token != token:
            return Taken(held.until - now, held.owner)
        return self._mint(now, resource, token, ttl, floor, owner)

    def _remint(
        self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str, old: str
    ) -> int | None:
        held = self._held.get(resource)
        if held is None or held.token not in (old, token):
            return None
        return self._mint(now, resource, token, ttl, floor, owner)

    def _mint(self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str) -> int:
        held = self._held.get(resource)
        if held is not None and held.token == token:  # the same request again
            held.until = max(held.until, now + ttl)
            return held.number
        self._last = next_number(resource, last=self._last, floor=floor, clock_us=0)
        self._held[resource] = _Held(token, self._last, owner, now, now + ttl)
        return self._last

    def _renew(self, now: float, ttl: float, names: Sequence[tuple[str, str]]) -> list[bool]:
        renewed = []
        for resource, token in names:
            held = self._held.get(resource)
            renewed.append(held is not None and held.token == token)
            if held is not None and held.token == token:
                held.until = max(held.until, now + ttl)  # of two renewals the later moment counts
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
        remaining = None if held.until == math.inf else held.until - now
        return Holder(held.owner, held.number, now - held.since, remaining)


class _Request(NamedTuple):
    """The effect: one request to the table, as data."""

    operation: Literal["acquire", "remint", "mint", "renew", "release", "holder"]
    arguments: tuple[Any, ...]


class MemoryPlans(Backend):
    """What is asked of a table, and what its replies mean. No reply is ever lost, so none is asked for again."""

    service = "this process' memory"
    max_renewals: int = 1000
    ttl_per_lock: ClassVar[Literal[True]] = True
    holds_without_ttl: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        sent_at = self.clock()
        reply = yield _Request("acquire", _minting(resource, token, settings, floor))
        return reply if isinstance(reply, Taken) else _grant(resource, reply, token, settings, sent_at)

    def plan_remint(
        self, fence: Fence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        sent_at = self.clock()
        number = yield _Request("remint", (*_minting(fence.resource, token, settings, floor), fence.token))
        return None if number is None else _grant(fence.resource, number, token, settings, sent_at)

    def plan_force(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Grant]:
        sent_at = self.clock()
        number = yield _Request("mint", _minting(resource, token, settings, floor))
        return _grant(resource, number, token, settings, sent_at)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        until = settings.deadline(self.clock())
        names = [(grant.fence.resource, grant.fence.token) for grant in grants]
        renewed = yield _Request("renew", (_seconds(settings), names))
        return [until if ok else None for ok in renewed]

    def plan_release(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[bool]:
        freed: bool = yield _Request("release", (fence.resource, fence.token))
        return freed

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        holder: Holder | None = yield _Request("holder", (resource,))
        return holder


def _seconds(settings: Settings) -> float:
    return math.inf if settings.ttl is None else settings.ttl


def _minting(resource: str, token: str, settings: Settings, floor: int) -> tuple[Any, ...]:
    return (resource, token, _seconds(settings), floor, owner_label(settings))


def _grant(resource: str, number: int, token: str, settings: Settings, sent_at: float) -> Grant:
    return Grant(Fence(resource, number, token), settings.deadline(sent_at))


def _checked(table: object, clock: object) -> tuple[LockTable, Callable[[], float]]:
    if not callable(clock) or isinstance(clock, type):
        raise TypeError(f"clock is a function that returns seconds, not {clock!r}; such as ManualClock()")
    if table is None:
        return LockTable(), clock
    if not isinstance(table, LockTable):
        raise TypeError(f"table is a LockTable, not {type(table).__name__}; guards and other options go by their names")
    return table, clock


class MemoryCoordinator(MemoryPlans, Coordinator):
    """Mints fences in this process' memory, for threads of one process and for tests.

    It excludes nobody in another process, and all is gone with this one. Numbers start from the wall clock in
    microseconds, so they go on above those of an earlier process.

    Args:
        table: what several coordinators share; None: a table of its own.
        clock: seconds, from any moment on; ``fencing.testing.ManualClock`` is one that a test moves by hand.
        options: of its locks, as of :class:`fencing.Coordinator`.
    """

    def __init__(
        self,
        table: LockTable | None = None,
        *,
        clock: Callable[[], float] = process.now,
        **options: Unpack[LockOptions],
    ) -> None:
        self.table, self.clock = _checked(table, clock)
        super().__init__(**options)

    def perform(self, effect: _Request) -> Any:
        """Do one request."""
        return self.table.ask(effect, self.clock())


class AsyncMemoryCoordinator(MemoryPlans, AsyncCoordinator):
    """:class:`MemoryCoordinator` for asyncio; it may share a table with one for threads."""

    def __init__(
        self,
        table: LockTable | None = None,
        *,
        clock: Callable[[], float] = process.now,
        **options: Unpack[AsyncLockOptions],
    ) -> None:
        self.table, self.clock = _checked(table, clock)
        super().__init__(**options)

    async def perform(self, effect: _Request) -> Any:
        """Do one request."""
        return self.table.ask(effect, self.clock())
