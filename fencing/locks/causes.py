"""The causes of a loss, as far as they are known: the texts that ``LeaseLost`` has for people."""

from __future__ import annotations

from fencing.kernel.effects import Plan
from fencing.kernel.errors import FencingError, StaleFence
from fencing.kernel.fence import Fence
from fencing.locks.backend import Backend, Holder
from fencing.locks.capabilities import RemembersForce
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings

STANDSTILL = 1 / 2
"""A delay of a renewal of this share of the ttl or more, on this side, is the cause of the loss. A lease survives
shorter ones: its renewal is due before two fifths of the ttl are over."""


def why_expired(backend: Backend, holding: Grant, now: float) -> str | None:
    """Return why a lease has passed its deadline; None: not known."""
    settings = holding.settings
    if settings.ttl is None:
        return None
    if not settings.renew:
        return "renewal was off (renew=False)"
    if holding.hindrance is not None:
        return holding.hindrance()
    due = holding.due_at
    late = holding.late if due is None else max(holding.late, now - due)
    if late >= settings.ttl * STANDSTILL:
        return f"this process stood still for {late:.1f} s"
    if holding.failure is not None:
        return f"its renewal failed: {holding.failure}"
    if holding.unanswered_since is not None:
        return (
            f"no answer from {backend.service} at {backend.address} for {now - holding.unanswered_since:.1f} s; "
            f"the last renewal, or the grant, was {now - holding.renewed_at:.1f} s ago"
        )
    if settings.max_lifetime is not None and due is None:
        return f"its max_lifetime of {settings.max_lifetime:g} s was over"
    return None


def why_stale(error: StaleFence) -> str | None:
    """Return why a storage refused the lease's fence."""
    return None if error.mark is None else f"the storage has admitted the newer fence {error.mark.newest}"


def plan_why_gone(backend: Backend, fence: Fence, settings: Settings, deadline: float) -> Plan[str | None]:
    """Ask why a fence no longer holds its lock. Return None if it is not known, or if there is no answer in time."""
    if backend.clock() >= deadline:
        return None
    try:
        if isinstance(backend, RemembersForce):
            forced_by = yield from backend.plan_forced_by(fence, settings.for_one_try(), deadline=deadline)
            if forced_by is not None:
                return f"force-released by {forced_by}"
        holder = yield from backend.plan_holder(fence.resource, settings.for_one_try(), deadline=deadline)
    except FencingError:
        return None
    return _why_gone(fence, holder)


def _why_gone(fence: Fence, holder: Holder | None) -> str | None:
    if holder is None:
        return "the lock is free, nobody has it now"
    if holder.number is None:
        return "a holder that does not use this library has the lock"
    if holder.number < fence.number:
        return f"the coordinator has lost data: {holder.owner} has the lock, with the older fence {holder.number}"
    if holder.number == fence.number:
        return None
    return f"{holder.owner} has the lock, with the newer fence {holder.number}"
