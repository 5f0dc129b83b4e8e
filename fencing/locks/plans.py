"""The plans of locks, the same for all coordinators: wait, claim at the guards, repair a counter, give back.

Plans (``kernel/effects.py``) do no I/O, so sync code, async code and tests run the same generators.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from fencing.kernel.effects import Claim, Plan, Shielded, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, FencingError, LeaseLost, NotAcquired, StaleFence
from fencing.kernel.fence import Fence
from fencing.kernel.retry import Backoff
from fencing.locks.backend import Backend, ForcedRelease, Holder, Place, RenewsGrants, Taken
from fencing.locks.holding import Grant, Holding
from fencing.locks.settings import Settings

CLAIM_ROUNDS = 5
"""How many times a grant is claimed, each time under a new fence, before it is given back as superseded."""

POLLING = Backoff(first=0.01, longest=0.2)
LAST_POLL_SECONDS = 0.02  # before the time is up, so that the reply can still come


def new_token() -> str:
    """Return a unique token: 128 random bits, 22 characters."""
    return secrets.token_urlsafe(16)


class Superseded(NamedTuple):
    """The lock was lost before its claims were done. The next grant's number must exceed ``floor``."""

    floor: int


def acquire(backend: Backend, resource: str, settings: Settings, timeout: float) -> Plan[Holding]:
    """Wait for the lock, take it, and claim its fence at every guard.

    Args:
        timeout: seconds, claims included; 0 tries once, infinity waits for ever.

    Raises:
        NotAcquired: the lock was not free in time, or newer fences superseded each grant.
        CoordinatorUnavailable, GuardUnavailable, MarkImplausible: after the lock was given back.
    """
    started = now = backend.clock()
    gives_up_at = started + timeout
    caller_deadline = gives_up_at if 0 < timeout < math.inf else None
    token, floor = new_token(), 0
    polls = 0
    queue = getattr(backend, "plan_queue", None) if timeout > 0 else None
    owner: str | None = None
    place: Place | None = None
    try:
        while True:
            if backend.closed:
                raise RuntimeError("this coordinator was closed; make a new one")
            deadline = _deadline(backend, settings, caller_deadline)
            try:
                if queue is None:
                    reply = yield from backend.plan_acquire(resource, token, settings, floor=floor, deadline=deadline)
                else:
                    reply = yield from queue(resource, token, settings, floor=floor, deadline=deadline, place=place)
            except CoordinatorUnavailable:
                if now == started or backend.clock() < gives_up_at:
                    raise
                reply = Taken(0.0, owner, place)  # the last known state: the time was up before there was a new answer
            if isinstance(reply, Taken):
                remaining, owner, place = reply.remaining, reply.owner, reply.place
            else:
                place = None
                outcome = yield from _claim(backend, reply, settings, caller_deadline, started)
                if isinstance(outcome, Holding):
                    return outcome
                token, floor = new_token(), outcome.floor  # the grant to the old token is over
                remaining, owner = 0.0, None
            left = gives_up_at - backend.clock()
            if place is not None and left > 0:
                yield from place.plan_wait(left)
            elif left > 0:
                last_pause = left - LAST_POLL_SECONDS if left > LAST_POLL_SECONDS else left
                polls += 1
                yield Sleep(min(POLLING.pause(polls), remaining, last_pause))
            now = backend.clock()
            if now >= gives_up_at:
                raise NotAcquired(resource=resource, reason="held", waited=now - started, owner=owner)
    except GeneratorExit:
        raise
    except BaseException:
        if place is not None:
            yield Shielded(_leave(backend, place, settings))
        raise


def _leave(backend: Backend, place: Place, settings: Settings) -> Plan[None]:
    """Leave the queue. If that fails, the next waiter waits a little longer."""
    try:
        yield from place.plan_leave(deadline=backend.give_back_deadline(settings))
    except FencingError:
        pass


def _deadline(backend: Backend, settings: Settings, caller_deadline: float | None = None) -> float:
    """Return the moment until which one request may be repeated: the caller's deadline, or else a limit of our own."""
    return backend.clock() + settings.request_seconds if caller_deadline is None else caller_deadline


def _claim(
    backend: Backend, grant: Grant, settings: Settings, caller_deadline: float | None, started: float
) -> Plan[Holding | Superseded]:
    """Claim the fence at every guard. If a guard has admitted a newer one, mint a fence above it and claim again.

    Renewal begins here, because claims take time. After any failure, a cancellation included, the lock is given back.
    """
    fence, holding = grant.fence, None
    try:
        holding = backend.track(grant, settings)
        for _ in range(CLAIM_ROUNDS):
            newer = yield from _claim_once(backend, holding, settings, caller_deadline)
            if newer is None:
                if holding.lost is None and backend.clock() < holding.deadline:
                    return holding
                break  # the claims outlasted the lease: give the lock back, if we still have it, and wait again
            reminted = yield from backend.plan_remint(
                fence, new_token(), settings, floor=newer, deadline=_deadline(backend, settings, caller_deadline)
            )
            holding.end("abandoned")
            if reminted is None:
                return Superseded(newer)
            fence = reminted.fence  # the fence to give back if tracking it fails
            holding = backend.track(reminted, settings)
        else:
            waited = backend.clock() - started
            raise NotAcquired(resource=fence.resource, reason="superseded", waited=waited)
    except GeneratorExit:
        if holding is not None:
            holding.end("abandoned")
        raise
    except BaseException:
        yield Shielded(_give_back(backend, fence, holding, settings))
        raise
    yield Shielded(_give_back(backend, fence, holding, settings))
    return Superseded(fence.number)


def _claim_once(
    backend: Backend, holding: Holding, settings: Settings, caller_deadline: float | None
) -> Plan[int | None]:
    """Claim at every guard. Return None if all admitted it, or else the number that the next fence must exceed."""
    for guard in settings.guards:
        # Without a deadline from the caller, a claim may take a whole ttl, which renewal extends meanwhile.
        claim_deadline = (
            backend.clock() + (settings.ttl or settings.request_seconds) if caller_deadline is None else caller_deadline
        )
        if not settings.renew:
            claim_deadline = min(claim_deadline, holding.deadline)
        try:
            yield Claim(guard, holding.fence, timeout=max(claim_deadline - backend.clock(), 0.001))
        except StaleFence as stale:
            if stale.mark is not None:
                return stale.mark.number
            return stale.floor or holding.fence.number
    return None


def _give_back(backend: Backend, fence: Fence, holding: Holding | None, settings: Settings) -> Plan[None]:
    if holding is not None:
        holding.end("abandoned")
    yield from backend.plan_give_back(fence, settings)


def release(backend: Backend, fence: Fence, settings: Settings) -> Plan[bool]:
    """Free the lock. Return False if it was lost before."""
    return (yield from backend.plan_release(fence, settings, deadline=_deadline(backend, settings)))


def renew(backend: Backend, fence: Fence, settings: Settings) -> Plan[float]:
    """Give the lock its full ttl again, and return its new deadline. Raise LeaseLost if the lock is gone."""
    if not isinstance(backend, RenewsGrants):
        raise TypeError(f"{type(backend).__name__} cannot renew single leases; use a ttl that outlasts the work")
    deadline = _deadline(backend, settings)
    [renewed] = yield from backend.plan_renew([Grant(fence, deadline)], settings, deadline=deadline)
    if renewed is None:
        raise LeaseLost(fence=fence, reason="gone")
    return renewed


def renew_all(backend: RenewsGrants, holdings: Sequence[Holding], attempt_seconds: float) -> Plan[None]:
    """Renew the leases that are due, in as few requests as possible. Each is then renewed, lost, or due again soon.

    Args:
        attempt_seconds: the time limit of one request, so that a lost one does not use up the time of the others.
    """
    by_ttl: dict[float | None, list[Holding]] = {}
    for holding in holdings:
        by_ttl.setdefault(holding.settings.ttl, []).append(holding)
    for group in sorted(by_ttl.values(), key=lambda group: group[0].deadline):
        alive = (each for each in group if each.ended is None)  # lazy: checked when the request is made
        while batch := list(itertools.islice(alive, backend.max_renewals)):
            yield from _renew_batch(backend, batch, attempt_seconds)


def _renew_batch(backend: RenewsGrants, batch: Sequence[Holding], attempt_seconds: float) -> Plan[None]:
    settings = batch[0].settings  # a renewal uses only the ttl, which is the same for the batch
    attempt_deadline = backend.clock() + min(settings.attempt_seconds, attempt_seconds)
    try:
        deadlines = yield from backend.plan_renew([each.grant for each in batch], settings, deadline=attempt_deadline)
    except CoordinatorUnavailable:
        for each in batch:
            each.not_renewed(backend.clock())
        return
    now = backend.clock()
    for each, deadline in zip(batch, deadlines, strict=True):
        if deadline is None:
            each.lose("gone")
        else:
            each.renewed(deadline, now)


def adopt(backend: Backend, fence: Fence, settings: Settings) -> Plan[Holding]:
    """Take over a lock from a detached fence: mint a new fence, and claim it.

    The new token prevents a second adoption of the same fence.
    """
    deadline = _deadline(backend, settings)
    grant = yield from backend.plan_remint(fence, new_token(), settings, floor=0, deadline=deadline)
    if grant is None:
        raise LeaseLost(fence=fence, reason="gone")
    outcome = yield from _claim(backend, grant, settings, None, backend.clock())
    if isinstance(outcome, Superseded):
        raise LeaseLost(fence=fence, reason="gone")
    return outcome


def holder(backend: Backend, resource: str, settings: Settings) -> Plan[Holder | None]:
    """Return a description of the lock's holder; None: the lock is free."""
    return (yield from backend.plan_holder(resource, settings, deadline=_deadline(backend, settings)))


def force_release(backend: Backend, resource: str, settings: Settings) -> Plan[ForcedRelease]:
    """Take the lock from its holder, shut the holder out at every guard, and free the lock."""
    former = yield from backend.plan_holder(resource, settings, deadline=_deadline(backend, settings))
    grant = yield from backend.plan_force(
        resource, new_token(), settings, floor=0, deadline=_deadline(backend, settings)
    )
    outcome = yield from _claim(backend, grant, settings, None, backend.clock())
    if isinstance(outcome, Superseded):
        raise LeaseLost(fence=grant.fence, reason="gone")
    outcome.end("released")
    yield from release(backend, outcome.fence, settings)
    return ForcedRelease(holder=former, fence=outcome.fence, fenced=bool(settings.guards))
