"""What both sides of an election need, and no I/O: the leader, the end of a term, the checks of arguments."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fencing.kernel import process
from fencing.kernel.errors import CoordinatorUnavailable, GuardUnavailable, LeaseLost, NotAcquired, StaleFence
from fencing.locks.backend import Holder
from fencing.locks.settings import Settings, check_seconds

SHORTEST_PAUSE, LONGEST_PAUSE = 1 / 10, 1 / 3
"""Between which shares of the ttl a replica pauses before it campaigns again. A term that fails at once does not spin,
and another replica is mostly first."""

LEAST_EVERY = 0.01

MAY_RECOVER = (CoordinatorUnavailable, GuardUnavailable, NotAcquired)
"""The errors of a campaign after which another one may succeed."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the coordinator tells it: for people, and for routing requests. Never a basis for a write.

    Attributes:
        value: the one of its election; None: a program without this library has the lock.
        number: the fencing number of its term; None: as ``value``.
        held_for: seconds since it was elected, by the server's clock; None: not known.
    """

    __module__ = "fencing"

    value: str | None
    number: int | None
    held_for: float | None


WARN_EVERY = 60.0
"""Seconds between two warnings of campaigns that fail, one after the other."""


class Failures:
    """Campaigns that fail, one after the other: while a service is away, that is one each few seconds."""

    def __init__(self) -> None:
        self._warned_at = -math.inf

    def should_warn(self) -> bool:
        """Return whether this failure is told: the first one, and then one a minute."""
        now = process.now()
        if now - self._warned_at < WARN_EVERY:
            return False
        self._warned_at = now
        return True

    def end(self) -> None:
        """Note that a campaign has succeeded."""
        self._warned_at = -math.inf


def leader_of(holder: Holder | None) -> Leader | None:
    """Return the leader that the holder of the lock is."""
    if holder is None or holder.released:
        return None
    return Leader(holder.owner, holder.number, holder.held_for)


def term_of(leader: Leader | None) -> tuple[str | None, int | None] | None:
    """Return what tells two leaders apart."""
    return None if leader is None else (leader.value, leader.number)


def is_loss(error: BaseException, resource: str) -> bool:
    """Return whether the error only says that the term is over: the lock was lost, or a guard has refused its fence."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_loss(each, resource) for each in error.exceptions)
    return isinstance(error, (LeaseLost, StaleFence)) and error.fence.resource == resource


def pause_after(settings: Settings) -> float:
    """Return the seconds until the next campaign."""
    assert settings.ttl is not None
    return settings.ttl * random.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)


def check_every(every: object) -> float:
    """Return the seconds between two looks; raise TypeError or ValueError if they are none."""
    seconds = check_seconds(every, "every")
    if seconds < LEAST_EVERY:
        raise ValueError(f"every must be at least {LEAST_EVERY} seconds, not {every}: each look is a request")
    return seconds


def options_with(value: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the lock, with ``value`` as its owner; raise TypeError if they cannot be those."""
    if "owner" in options:
        raise TypeError("an election has no owner: pass value=, which leader() shows")
    if "reentrant" in options:
        raise TypeError("an election is not re-entrant: pass the lease of the term on")
    if value is None:
        return dict(options)
    if not isinstance(value, str):
        raise TypeError(f"value must be a str, such as this replica's address, not {type(value).__name__}")
    return {**options, "owner": value}
