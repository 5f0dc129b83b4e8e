"""The service: a table of locks, which coordinators of one process share."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fencing.kernel import process
from fencing.kernel.patterns import Pattern
from fencing.kernel.waking import safe_lock
from fencing.locks.backend import Holder, Taken, next_number

WAITER_SECONDS = 5.0
"""How long a waiter counts that does not ask again. It does every 0.2 seconds."""

FORCED_SECONDS = 60.0
"""How long a forced release is remembered. The former holder asks at its next renewal, or when it releases."""


@dataclass(slots=True)
class _Held:
    token: str
    number: int
    owner: str
    granted_at: float
    expires_at: float
    is_released: bool = False  # it stays taken all the same


class _Forced(NamedTuple):
    token: str  # the former holder's
    owner: str  # the label of whoever forced it
    forgotten_at: float


class Waits(NamedTuple):
    """What a request says of a caller that waits.

    Args:
        limit: how many may wait; None: any number.
        is_enlisted: whether it was among them before, so that it is not refused.
    """

    limit: int | None
    is_enlisted: bool


class LockTable:
    """A table of locks in memory. Coordinators in one process share it, as those of several processes share a server.

    Each method is one request: it is atomic, and may be repeated with the same token.
    """

    __module__ = "fencing"

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._forced: dict[str, _Forced] = {}
        self._waiting: dict[str, dict[str, float]] = {}  # by resource and token: until when it counts
        self._last = time.time_ns() // 1000  # higher than the numbers of an earlier process
        self._remake_lock()
        process.after_fork(self._remake_lock)

    def _remake_lock(self) -> None:
        self._lock = safe_lock()  # reentrant: a destructor may release a lease at any moment

    def __repr__(self) -> str:
        return f"<LockTable of {len(self._held)} locks>"

    def ask(self, request: Request, now: float) -> Any:
        """Perform one request.

        Args:
            request: the operation and its arguments.
            now: the moment on the coordinator's clock, in seconds.
        """
        with self._lock:
            for resource in [name for name, held in self._held.items() if held.expires_at <= now]:
                del self._held[resource]
            return getattr(self, f"_{request.operation}")(now, *request.arguments)

    def _acquire(
        self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str, waits: Waits | None = None
    ) -> int | Taken:
        held = self._held.get(resource)
        if held is not None and held.token != token:
            waiters = None if waits is None else self._enlist(now, resource, token, waits)
            return Taken(held.expires_at - now, held.owner, waiters=waiters)
        number = self._mint(now, resource, token, ttl, floor, owner)
        self._leave(now, resource, token)
        return number

    def _acquire_any(
        self, now: float, resources: Sequence[str], token: str, ttl: float, owner: str, first: int
    ) -> tuple[int, int] | Taken:
        """Take a slot. Return which, and its number; a token that holds one already gets the same."""
        held = [self._held.get(each) for each in resources]
        own = [slot for slot, each in enumerate(held) if each is not None and each.token == token]
        order = [*range(first, len(resources)), *range(first)]
        for slot in own or [slot for slot in order if held[slot] is None]:
            return slot, self._mint(now, resources[slot], token, ttl, 0, owner)
        least = min((each for each in held if each is not None), key=lambda each: each.expires_at)
        return Taken(least.expires_at - now, least.owner)

    def _enlist(self, now: float, resource: str, token: str, waits: Waits) -> int | None:
        """Count a waiter. Return how many there are if it may not be one of them."""
        live = {each: until for each, until in self._waiting.pop(resource, {}).items() if until > now}
        is_refused = waits.limit is not None and not waits.is_enlisted and len(live) >= waits.limit
        if token in live or not is_refused:
            is_refused, live[token] = False, now + WAITER_SECONDS
        self._waiting[resource] = live
        return len(live) if is_refused else None

    def _leave(self, now: float, resource: str, token: str) -> None:
        waiting = self._waiting.get(resource)
        if waiting is not None:
            waiting.pop(token, None)
            if not waiting:
                del self._waiting[resource]

    def _remint(
        self, now: float, resource: str, token: str, ttl: float, floor: int, owner: str, old: tuple[str, int]
    ) -> int | None:
        held = self._held.get(resource)
        if held is None or (held.token != token and (held.token, held.number) != old):
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

    def _renew(self, now: float, grants: Sequence[tuple[str, str, int, float]]) -> list[bool]:
        renewed = []
        for resource, token, number, ttl in grants:
            held = self._held.get(resource)
            is_held = held is not None and (held.token, held.number) == (token, number)
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

    def _release_later(self, now: float, resource: str, token: str, new_token: str, free_at: float) -> bool:
        held = self._held.get(resource)
        if held is None or held.token != token:
            return False
        held.token, held.is_released, held.expires_at = new_token, True, free_at
        return True

    def _holder(self, now: float, resource: str) -> Holder | None:
        held = self._held.get(resource)
        if held is None:
            return None
        remaining = None if held.expires_at == math.inf else held.expires_at - now
        waiting = sum(until > now for until in self._waiting.get(resource, {}).values())
        held_for = now - held.granted_at
        return Holder(held.owner, held.number, held_for, remaining, released=held.is_released, waiting=waiting)

    def _holders(self, now: float, pattern: Pattern) -> list[tuple[str, Holder]]:
        found = [(resource, self._holder(now, resource)) for resource in self._held if pattern.matches(resource)]
        return [(resource, holder) for resource, holder in found if holder is not None]


class Request(NamedTuple):
    """The effect: perform one request at the table."""

    operation: Literal[
        "acquire",
        "acquire_any",
        "remint",
        "force",
        "renew",
        "release",
        "release_later",
        "holder",
        "holders",
        "forced_by",
        "leave",
    ]
    arguments: tuple[Any, ...]
