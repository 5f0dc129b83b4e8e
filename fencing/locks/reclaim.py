"""The plan of ``lease.reclaim()``: a new fence for a lease, so that a late request under the old one cannot write."""

from __future__ import annotations

import math
import weakref
from typing import Any

from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import CoordinatorUnavailable, GuardUnavailable, LeaseLost
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.causes import plan_why_gone
from fencing.locks.settings import TRY_SECONDS, check_timeout

Lease = Any
"""A ``Lease`` or ``AsyncLease``. Their module imports this one."""

_AGAIN = (
    "the fence is not replaced yet, and a late request under it may still write; neither lease writes, and the lock is "
    "kept: call reclaim() again, on the same lease"
)


def plan_reclaim(lease: Lease, timeout: float | None) -> Plan[Lease]:
    """Replace the lease's fence, and claim the new one at every guard. Return the lease that has it.

    What an earlier call left undone is continued: a fence that was asked for is asked for under the same token.
    """
    seconds = check_timeout(timeout)
    _check(lease)
    backend = lease._backend
    ends_at = backend.clock() + (seconds or TRY_SECONDS) if seconds < math.inf else None
    mine = _Turn()
    turn = weakref.ref(mine)
    turns = _turns_of(lease)
    try:
        turns.append(turn)
        if next(each for each in turns if each() is not None) is not turn:
            raise RuntimeError("another thread or task reclaims this lease; wait for its result")
        return (yield from _plan_rounds(lease, ends_at))
    except CoordinatorUnavailable as error:
        text = f"{error}; {_AGAIN}"
        raise CoordinatorUnavailable(
            text, resource=error.resource, address=error.address, refused=error.refused
        ) from error
    except GuardUnavailable as error:
        raise GuardUnavailable(f"{error}; {_AGAIN}", resource=error.resource) from error
    finally:
        turns[:] = [each for each in turns if each is not turn and each() is not None]


class _Turn:
    """A call of ``reclaim`` that is under way. It ends with its plan, however that is interrupted."""

    __slots__ = ("__weakref__",)


def _turns_of(lease: Lease) -> list[weakref.ref[Any]]:
    turns: list[weakref.ref[Any]] | None = lease._newest._turns
    if turns is None:
        turns = lease._newest._turns = lease._newest.__dict__.setdefault("_turns", [])
    return turns


def _check(lease: Lease) -> None:
    """Raise if the lease cannot be reclaimed."""
    if not lease._holding.settings.guards:
        raise TypeError(
            "reclaim() claims a new fence at the guards, which then refuse late requests; this lock has none: "
            "pass guards=[guard] to it"
        )
    if lease._inside is not None and len(lease._inside) > 1:
        raise RuntimeError(
            "a re-entrant block inside the block of this lease uses it, too, and would go on with a fence that has "
            "ended; reclaim it in the outermost block, after the blocks inside have ended"
        )
    newest = lease._newest
    if newest._ended not in (None, "reclaimed") or newest._holding.lost is not None:
        raise newest._lost()


def _plan_rounds(lease: Lease, ends_at: float | None) -> Plan[Lease]:
    newest = lease._newest
    settings, backend = newest._holding.settings, newest._backend
    floor = 0 if newest._is_claimed else None
    for _ in range(plans.CLAIM_ROUNDS):
        if newest._replacement is None and floor is not None:
            newest._begin_reclaim(floor)
        if newest._replacement is not None:
            newest = yield from _plan_replace(newest, ends_at)
        floor = yield from plans.claim_once(backend, newest._holding, settings, ends_at)
        if floor is None:
            newest._is_claimed = True
            newest.ensure_held()
            return newest
    newest._holding.lose("stale", f"the storage has admitted the newer fence {floor}")
    raise newest._lost("stale")


def _plan_replace(lease: Lease, ends_at: float | None) -> Plan[Lease]:
    """Mint the fence that replaces the lease's own. Return the lease that has it."""
    lease._holding.end("reclaimed")  # an interruption may have come before it
    token, floor = lease._replacement
    settings, backend = lease._holding.settings, lease._backend
    deadline = backend.clock() + settings.request_seconds
    if ends_at is not None:
        deadline = min(deadline, ends_at)
    _check_open(backend)
    grant = yield from backend.plan_remint(lease._holding, token, settings, floor=floor, deadline=deadline)
    if grant is None:
        cause = yield from plan_why_gone(backend, lease.fence, settings, backend.clock() + TRY_SECONDS)
        lease._holding.lose_reclaimed(cause)
        raise LeaseLost(fence=lease.fence, reason="gone", cause=cause)
    successor = None if backend.closed else lease._succeed(grant)
    if successor is not None and not backend.closed:  # read again: the closing releases each lease that there is
        return successor
    grant.end("abandoned")
    yield Shielded(backend.plan_give_back(grant, settings))
    _check_open(backend)
    raise LeaseLost(fence=lease.fence, reason="released")


def _check_open(backend: Backend) -> None:
    if backend.closed:
        raise RuntimeError("this coordinator was closed, and so are its leases; make a new one")
