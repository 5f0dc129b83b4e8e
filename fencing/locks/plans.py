"""The plans of locks, the same for all coordinators: wait, claim at the guards, repair a counter, give back.

Plans (``kernel/effects.py``) do no I/O, so sync code, async code and tests run the same generators.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence, Sized
from typing import Any, Literal, NamedTuple, TypeVar, cast, overload

from fencing.kernel import process
from fencing.kernel.effects import Claim, Plan, Shielded, Sleep
from fencing.kernel.errors import (
    CLOSED,
    CoordinatorUnavailable,
    FencingError,
    GuardUnavailable,
    KeptBy,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    StaleFence,
)
from fencing.kernel.fence import Fence, new_token
from fencing.locks.backend import Backend, ForcedRelease, Holder, Place, Taken, Undecided, wrong_reply
from fencing.locks.capabilities import ReleasesLater, RenewsGrants, RenewsSeveralTtls
from fencing.locks.causes import plan_why_gone
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.long_waits import WARNING_SECONDS, LongWait, begin_wait
from fencing.locks.settings import TRY_SECONDS, Settings
from fencing.locks.waiting import POLLING, poll_pause

T = TypeVar("T")

CLAIM_ROUNDS = 5
"""How many times a grant is claimed, each time under a new fence, before it is given back as superseded."""

MOST_CAUSES = 10
"""For how many leases that a batch of renewals finds gone the cause is asked. The others are lost at once."""

MOST_DOUBLINGS = 8  # of a pause between undecided rounds
MOST_ADOPTIONS = 1000
"""How many adoptions without an answer are remembered, so that each can be repeated with its token."""


class Superseded(NamedTuple):
    """The lock was lost before its claims were done. The next grant's number must exceed ``floor``."""

    floor: int


class Taking:
    """What a plan may have taken, and must give back unless it ends with a lease."""

    __slots__ = ("_pid", "grant", "token")

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.grant: Grant | None = None
        self.token: str | None = None  # a request under this token may have run

    @property
    def may_hold(self) -> bool:
        """Whether there is something to give back."""
        return self.grant is not None or self.token is not None

    def hold(self, backend: Backend, grant: Grant, settings: Settings) -> None:
        """Note a grant, and begin to renew it."""
        self.grant, self.token = grant, None
        grant.begin(settings, backend.clock())
        backend.track(grant)  # after the lines above: it is ended with this plan, however that ends

    def over(self) -> None:
        """Note that nothing was taken, or that it is gone."""
        if self.grant is not None:
            self.grant.end("abandoned")
        self.grant = self.token = None

    def end(self, resource: str) -> list[GrantOrFence]:
        """End the grant, and return what to release."""
        asked = [] if self.token is None else [Fence(resource, 1, self.token)]
        if self.grant is None:
            return [*asked]
        self.grant.end("abandoned")
        return [self.grant, *asked]

    def abandon(self, backend: Backend, resource: str, settings: Settings) -> None:
        """Give back in the background: the plan is closed, and can do nothing any more."""
        if process.pid() == self._pid:  # a forked child closes its copies of the parent's plans
            for grant in self.end(resource):
                backend.give_back_later(grant, settings)


class _Known:
    """What an acquire knows between its requests: nothing, before the first reply.

    Attributes:
        floor: the number that the next grant must exceed.
        remaining: how long the holder's lease lasts, by the last reply.
        owner: of the holder or the earlier waiter, by the last reply.
        kept_by: whether that is a waiter, by the last reply.
        place: in the queue, by the last reply.
        polls: how often it paused without a place.
        rounds: of requests that are undecided so far.
        decided_by: their deadline; None: the last request was decided.
        waiting: the wait, which is logged if it may never end; None: it has not begun, or is short.
    """

    # Defaults of the class, and no __init__: without contention it costs no call of Python's.
    floor = polls = rounds = 0
    remaining = 0.0
    owner: str | None = None
    kept_by: KeptBy | None = None
    place: Place | None = None
    decided_by: float | None = None
    waiting: LongWait | None = None

    def note(self, reply: Taken, backend: Backend, resource: str, timeout: float) -> None:
        """Note who else has the lock."""
        if self.waiting is None and timeout > WARNING_SECONDS:
            self.waiting = begin_wait(backend, resource)
        self.remaining, self.owner, self.kept_by = reply.remaining, reply.owner, reply.kept_by

    def as_last_reply(self) -> Taken:
        """Return the last known state in place of a reply."""
        return Taken(0.0, self.owner, self.place, kept_by=self.kept_by)

    def supersede(self, grant: Superseded) -> None:
        """Note that a grant is over. The next one is asked for at once, and outside the queue."""
        self.floor, self.remaining, self.owner, self.kept_by, self.place = grant.floor, 0.0, None, None, None

    def plan_next_round(self, backend: Backend, undecided: Undecided, deadline: float) -> Plan[None]:
        """Pause after a round that decided nothing. All rounds in a row have the deadline of the first."""
        self.decided_by, self.rounds = deadline, self.rounds + 1
        return _pause(backend, undecided, deadline, self.rounds)

    def plan_wait(self, left: float) -> Plan[None]:
        """Wait until it is time to ask again: in the queue, or by polling. ``left``: until the caller gives up."""
        if self.place is not None and left > 0:
            yield from self.place.plan_wait(left)
        elif left > 0:
            self.polls += 1
            yield poll_pause(self.polls, self.remaining, left)


def _same(grant: Grant) -> Grant:
    return grant


@overload
def acquire(backend: Backend, resource: str, settings: Settings, timeout: float) -> Plan[Grant]: ...
@overload
def acquire(
    backend: Backend, resource: str, settings: Settings, timeout: float, lease: Callable[[Grant], T]
) -> Plan[T]: ...
def acquire(
    backend: Backend, resource: str, settings: Settings, timeout: float, lease: Callable[[Grant], Any] = _same
) -> Plan[Any]:
    """Wait for the lock, take it, and claim its fence at every guard. An interruption gives the lock back.

    Args:
        timeout: seconds, claims included; 0 tries once, infinity waits for ever.
        lease: makes the lease, which is the result. It is made here, so that no grant is ever without its lease.

    Raises:
        NotAcquired: the lock was not free in time, or newer fences superseded each grant.
        CoordinatorUnavailable, GuardUnavailable, MarkImplausible: after the lock was given back.
    """
    started = now = backend.clock()
    gives_up_at = started + timeout
    caller_deadline = gives_up_at if 0 < timeout < math.inf else None
    requests = settings if timeout > 0 else settings.for_one_try()
    queue: Any = getattr(backend, "plan_queue", None) if timeout > 0 else None
    queues: bool = queue is not None and backend.is_waited_for(resource)  # type: ignore[attr-defined] # both: Queues
    token, known, taking = new_token(), _Known(), Taking()
    try:
        while True:
            if backend.closed:
                raise RuntimeError(CLOSED)
            deadline = known.decided_by
            if deadline is None:
                deadline = backend.clock() + requests.request_seconds if caller_deadline is None else caller_deadline
            taking.token = token
            try:
                if not queues:
                    reply = yield from backend.plan_acquire(
                        resource, token, requests, floor=known.floor, deadline=deadline
                    )
                else:
                    reply = yield from queue(
                        resource, token, requests, floor=known.floor, deadline=deadline, place=known.place
                    )
                if isinstance(reply, Undecided):
                    taking.over()
                    yield from known.plan_next_round(backend, reply, deadline)
                    token, known.place = new_token(), None
                    continue
            except CoordinatorUnavailable:
                taking.over()  # what may have run is given back in the background
                if now == started or backend.clock() < gives_up_at:
                    raise
                reply = known.as_last_reply()  # the time was up before there was a new one
            except MarkImplausible:
                taking.over()
                raise
            known.decided_by, known.rounds = None, 0
            if isinstance(reply, Taken):
                known.place = reply.place  # first: an interruption in between leaves it
                taking.over()
                if reply.waiters is not None:
                    raise NotAcquired(
                        resource=resource,
                        reason="full",
                        waited=0.0,
                        owner=reply.owner,
                        waiters=reply.waiters,
                        kept_by=reply.kept_by,
                    )
                known.note(reply, backend, resource, timeout)
                if reply.was_undone:
                    token = new_token()
                if queue is not None and not queues:
                    queues = True
                    continue
            elif not isinstance(reply, Grant):
                raise _wrong_grant(backend, "plan_queue" if queues else "plan_acquire", reply)
            else:
                taking.hold(backend, reply, settings)
                if not settings.guards and reply.granted_at < reply.deadline:
                    made = lease(reply)
                    if backend.closed:  # read after the line above: the closing releases each lease that there is
                        raise RuntimeError(CLOSED)
                    return made
                claims_end_at = backend.clock() + TRY_SECONDS if timeout == 0 else caller_deadline
                outcome = yield from _claim(backend, reply, settings, requests, claims_end_at, started, taking, lease)
                if not isinstance(outcome, Superseded):
                    return outcome
                known.supersede(outcome)
                token, queues = new_token(), False  # the grant to the old token is over
            yield from known.plan_wait(gives_up_at - backend.clock())
            now = backend.clock()
            if now >= gives_up_at:
                raise _not_free(backend, resource, now - started if timeout > 0 else 0.0, known)
    except GeneratorExit:
        _abandon(backend, resource, token, settings, known, taking)
        raise
    except BaseException as error:
        has_ended = False
        try:
            known.waiting = None  # the error's traceback refers to it
            if isinstance(error, NotAcquired):
                error.waited = backend.clock() - started
            if known.place is not None and taking.grant is None:
                is_open = taking.token is not None
                yield Shielded(_leave(backend, known.place, resource, token, settings, is_open=is_open))
            elif taking.may_hold:
                yield Shielded(give_back(backend, resource, taking, settings))
            has_ended = True
        finally:
            if not has_ended:  # an interruption came after the error, or the plan was closed
                _abandon(backend, resource, token, settings, known, taking)
        raise


def _abandon(backend: Backend, resource: str, token: str, settings: Settings, known: _Known, taking: Taking) -> None:
    """Give back in the background, also a place in the queue."""
    if known.place is not None and taking.grant is None:
        taking.token = token
    taking.abandon(backend, resource, settings)


def _wrong_grant(backend: Backend, method: str, reply: object) -> TypeError:
    return wrong_reply(backend, method, reply, "a Grant, Taken or Undecided")


def check_count(backend: object, method: str, replies: Any, asked: Sequence[Any]) -> None:
    """Check that there is a reply for each grant; before any is used, so that none is mistaken for another's."""
    if not isinstance(replies, Sized) or len(replies) != len(asked):
        raise wrong_reply(backend, method, replies, f"a sequence with one item for each of the {len(asked)} grants")


def _not_free(backend: Backend, resource: str, waited: float, known: _Known) -> NotAcquired:
    """Return the error of a lock that another has. After a wait it says whether this process has it."""
    is_here = waited > 0 and any(holding.fence.resource == resource for holding in backend.held())
    by: Literal["process"] | None = "process" if is_here else None
    return NotAcquired(
        resource=resource, reason="held", waited=waited, owner=known.owner, held_by_this=by, kept_by=known.kept_by
    )


def _pause(backend: Backend, undecided: Undecided, deadline: float, rounds: int) -> Plan[None]:
    """Pause before the next request, which has a new token. Raise the error of the last one if the time is up.

    The pause doubles with each round, so that callers that collided do not collide again.
    """
    longest = max(undecided.pause, POLLING.longest)
    seconds = min(undecided.pause * 2.0 ** min(rounds - 1, MOST_DOUBLINGS), longest)
    yield Sleep(max(min(seconds, deadline - backend.clock()), 0.0))
    if backend.clock() >= deadline:
        raise undecided.error


def _leave(
    backend: Backend, place: Place, resource: str, token: str, settings: Settings, *, is_open: bool
) -> Plan[None]:
    """Leave the queue. If that fails, the next waiter waits a little longer.

    Args:
        is_open: whether a request has no answer, and may run later.
    """
    left = False
    try:
        yield from place.plan_leave(deadline=backend.give_back_deadline(settings))
        left = True
    except FencingError:
        pass
    finally:
        if is_open or not left:
            backend.give_back_later(Fence(resource, 1, token), settings)


def _deadline(backend: Backend, settings: Settings, caller_deadline: float | None = None) -> float:
    """Return the moment until which one request may be repeated: the caller's deadline, or else a limit of our own."""
    return backend.clock() + settings.request_seconds if caller_deadline is None else caller_deadline


def _claim(
    backend: Backend,
    grant: Grant,
    settings: Settings,
    requests: Settings,
    caller_deadline: float | None,
    started: float,
    taking: Taking,
    lease: Callable[[Grant], T],
) -> Plan[T | Superseded]:
    """Claim the fence at every guard. If a guard has admitted a newer one, mint a fence above it and claim again.

    The grant is renewed meanwhile, because claims take time. After any failure, the caller gives back what ``taking``
    says.
    """
    for _ in range(CLAIM_ROUNDS):
        newer = yield from claim_once(backend, grant, settings, caller_deadline)
        if newer is None:
            if grant.lost is None and backend.clock() < grant.deadline:
                made = lease(grant)
                if backend.closed:  # as in acquire
                    raise RuntimeError(CLOSED)
                return made
            break  # the claims outlasted the lease: give the lock back, if we still have it, and wait again
        deadline = _deadline(backend, requests, caller_deadline)
        taking.token = new_token()
        reminted = yield from backend.plan_remint(grant, taking.token, requests, floor=newer, deadline=deadline)
        grant.end("abandoned")
        if reminted is None:
            taking.over()
            return Superseded(newer)
        grant = reminted
        taking.hold(backend, grant, settings)
    else:
        waited = backend.clock() - started
        raise NotAcquired(resource=grant.resource, reason="superseded", waited=waited)
    yield Shielded(give_back(backend, grant.resource, taking, settings))
    taking.over()
    return Superseded(grant.number)


def number_to_exceed(stale: StaleFence) -> int:
    """Return the number that the next fence must exceed, so that the guard admits it."""
    if stale.mark is not None:
        return stale.mark.newest
    return stale.floor or stale.fence.number


def claim_once(backend: Backend, grant: Grant, settings: Settings, caller_deadline: float | None) -> Plan[int | None]:
    """Claim at every guard. Return None if all admitted it, or else the number that the next fence must exceed."""
    for guard in settings.guards:
        # Without a deadline from the caller, a claim may take a whole ttl, which renewal extends meanwhile.
        claim_deadline = (
            backend.clock() + (settings.ttl or settings.request_seconds) if caller_deadline is None else caller_deadline
        )
        if not settings.renew:
            claim_deadline = min(claim_deadline, grant.deadline)
        try:
            yield Claim(guard, (grant.fence,), timeout=max(claim_deadline - backend.clock(), 0.001))
        except StaleFence as stale:
            return number_to_exceed(stale)
    return None


def give_back(backend: Backend, resource: str, taking: Taking, settings: Settings) -> Plan[None]:
    """Release what a plan may have taken. A request that has no answer may run later, so it is released again."""
    grants = taking.end(resource)
    for grant in grants:
        yield from backend.plan_give_back(grant, settings)
    if taking.token is not None:
        backend.give_back_later(grants[-1], settings)


def release(
    backend: Backend,
    grant: GrantOrFence,
    settings: Settings,
    deadline: float | None = None,
    free_at: float | None = None,
) -> Plan[bool]:
    """Free the lock, until ``deadline`` if it is given. Return False if it was lost before.

    Args:
        free_at: the moment until which the lock stays taken, where the backend has ``ReleasesLater``; None: none.
    """
    if deadline is None:
        deadline = backend.clock() + settings.request_seconds
    if free_at is not None and free_at > backend.clock():
        later = cast(ReleasesLater, backend)
        return later.plan_release_later(grant, settings, free_at=free_at, deadline=deadline)
    return backend.plan_release(grant, settings, deadline=deadline)


def renew(backend: Backend, grant: Grant, settings: Settings) -> Plan[float]:
    """Give the lock its full ttl again, and return its new deadline. Raise LeaseLost if the lock is gone."""
    if not isinstance(backend, RenewsGrants):
        raise TypeError(f"{backend.kind} cannot renew single leases; use a ttl that outlasts the work")
    deadline = _deadline(backend, settings)
    replies = yield from backend.plan_renew([grant], settings, deadline=deadline)
    check_count(backend, "plan_renew", replies, [grant])
    [renewed] = replies
    if isinstance(renewed, CoordinatorUnavailable):
        raise renewed
    if renewed is None:
        cause = yield from plan_why_gone(backend, grant.fence, settings, _deadline(backend, settings.for_one_try()))
        raise LeaseLost(fence=grant.fence, reason="gone", cause=cause)
    return renewed


def renew_together(backend: RenewsGrants, batch: Sequence[Grant], attempt_seconds: float) -> Plan[None]:
    """Renew leases in one request. Each is then renewed, lost, or due again soon.

    Args:
        batch: at most ``max_renewals`` of the backend, of one ttl unless it has ``RenewsSeveralTtls``.
        attempt_seconds: the time limit, so that a lost request does not use up the time of others.
    """
    settings = batch[0].settings
    attempt_deadline = backend.clock() + min(settings.attempt_seconds, attempt_seconds)
    method = "plan_renew_each" if isinstance(backend, RenewsSeveralTtls) else "plan_renew"
    try:
        if isinstance(backend, RenewsSeveralTtls):
            each_settings = [each.settings for each in batch]
            deadlines = yield from backend.plan_renew_each(batch, each_settings, deadline=attempt_deadline)
        else:
            deadlines = yield from backend.plan_renew(batch, settings, deadline=attempt_deadline)
    except CoordinatorUnavailable as error:
        now = backend.clock()
        for each in batch:
            each.late = max(each.late, now - attempt_deadline)
            each.not_renewed(now, error)
        return
    check_count(backend, method, deadlines, batch)
    now = backend.clock()
    gone: list[Grant] = []
    for each, deadline in zip(batch, deadlines, strict=True):
        if deadline is None:
            gone.append(each)
            continue
        each.late = max(each.late, now - attempt_deadline)
        if isinstance(deadline, CoordinatorUnavailable):
            each.not_renewed(now, deadline)
        else:
            each.renewed(deadline, now)
    for each in gone[MOST_CAUSES:]:
        each.lose("gone")
    for each in gone[:MOST_CAUSES]:
        cause = yield from plan_why_gone(cast(Backend, backend), each.fence, settings, attempt_deadline)
        each.lose("gone", cause)


@overload
def adopt(backend: Backend, fence: Fence, settings: Settings) -> Plan[Grant]: ...
@overload
def adopt(backend: Backend, fence: Fence, settings: Settings, lease: Callable[[Grant], T]) -> Plan[T]: ...
def adopt(backend: Backend, fence: Fence, settings: Settings, lease: Callable[[Grant], Any] = _same) -> Plan[Any]:
    """Take over a lock from a detached fence: mint a new fence, and claim it.

    The new token prevents a second adoption of the same fence. Without an answer nothing is released: an adoption that
    is repeated has the same token.
    """
    taking = Taking()
    adopted = process.pid(), fence
    try:
        deadline = _deadline(backend, settings)
        taking.token = token = backend.adoptions.get(adopted) or new_token()
        try:
            grant = yield from backend.plan_remint(fence, token, settings, floor=0, deadline=deadline)
        except CoordinatorUnavailable as error:
            taking.over()
            remember_adoption(backend, adopted, token)
            text = f"{error}; nothing was freed: adopt the same fence again with this coordinator, within its ttl"
            raise CoordinatorUnavailable(
                text, resource=error.resource, address=error.address, refused=error.refused
            ) from error
        backend.adoptions.pop(adopted, None)
        if grant is None:
            taking.over()
            raise LeaseLost(fence=fence, reason="gone")
        taking.hold(backend, grant, settings)
        outcome = yield from _claim(backend, grant, settings, settings, None, backend.clock(), taking, lease)
        if isinstance(outcome, Superseded):
            raise LeaseLost(fence=fence, reason="gone")
        return outcome
    except GeneratorExit:
        taking.abandon(backend, fence.resource, settings)
        raise
    except GuardUnavailable as error:
        assert taking.grant is not None
        remember_adoption(backend, adopted, taking.grant.token)
        taking.over()  # nothing is released: the same request will be made again
        text = f"{error}; the lock is kept: adopt the same fence again with this coordinator, within its ttl"
        raise GuardUnavailable(text, resource=error.resource) from error
    except BaseException:
        if taking.may_hold:
            yield Shielded(give_back(backend, fence.resource, taking, settings))
        raise


def remember_adoption(backend: Backend, adopted: tuple[int, Fence], token: str) -> None:
    """Remember the token of an adoption that got no answer."""
    while len(backend.adoptions) >= MOST_ADOPTIONS:
        backend.adoptions.pop(next(iter(backend.adoptions)), None)
    backend.adoptions.setdefault(adopted, token)


def holder(backend: Backend, resource: str, settings: Settings) -> Plan[Holder | None]:
    """Return a description of the lock's holder; None: the lock is free."""
    settings = settings.for_one_try()
    return (yield from backend.plan_holder(resource, settings, deadline=_deadline(backend, settings)))


def force_release(
    backend: Backend, resource: str, settings: Settings, only: int | Holder | None = None
) -> Plan[ForcedRelease | None]:
    """Take the lock from its holder, shut the holder out at every guard, and free the lock.

    Each request names the holder that was read before, so that a late one takes the lock from nobody else.

    Args:
        only: only from the grant with this number, or from this holder without one. The result is None if another one
            holds the lock. If it is free, that grant is still shut out at the guards: an earlier attempt may have freed
            the lock, and got no further.
    """
    taking = Taking()
    try:
        grant, former = yield from _plan_force(backend, resource, settings, only, taking)
        if grant is None:
            return None
        taking.hold(backend, grant, settings)
        outcome = yield from _claim(backend, grant, settings, settings, None, backend.clock(), taking, _same)
        if isinstance(outcome, Superseded):
            raise LeaseLost(fence=grant.fence, reason="gone")
        outcome.end("released")
        yield from release(backend, outcome, settings)
        return ForcedRelease(holder=former, fence=outcome.fence, fenced=bool(settings.guards))
    except GeneratorExit:
        taking.abandon(backend, resource, settings)
        raise
    except BaseException as error:
        if taking.may_hold:
            yield Shielded(give_back(backend, resource, taking, settings))
        if isinstance(error, GuardUnavailable):
            text = f"{error}; the lock was given back, but its former holder may still write: force the release again"
            raise GuardUnavailable(text, resource=error.resource) from error
        raise


def _is(former: Holder, only: int | Holder) -> bool:
    """Return whether this grant is meant: by its number, or, where it has none, by what stands for its token."""
    if isinstance(only, int):
        return former.number == only
    return (former.number, former.digest) == (None, only.digest)


def _plan_force(
    backend: Backend, resource: str, settings: Settings, only: int | Holder | None, taking: Taking
) -> Plan[tuple[Grant | None, Holder | None]]:
    """Take the lock from its holder, or take it if it is free. Return the grant, and the former holder."""
    deadline = _deadline(backend, settings)
    reply: Grant | Taken | Undecided | None
    for tries in itertools.count(1):
        former = yield from backend.plan_holder(resource, settings, deadline=deadline)
        if only is not None and (not settings.guards if former is None else not _is(former, only)):
            return None, former
        taking.token = token = new_token()
        try:
            if former is None:
                reply = yield from backend.plan_acquire(resource, token, settings, floor=0, deadline=deadline)
            else:
                reply = yield from backend.plan_force(
                    resource, token, settings, floor=0, deadline=deadline, holder=former
                )
        except CoordinatorUnavailable:
            taking.over()  # what may have run is given back in the background
            raise
        if isinstance(reply, Grant):
            return reply, former
        taking.over()
        if former is None and not isinstance(reply, (Taken, Undecided)):
            raise _wrong_grant(backend, "plan_acquire", reply)
        if not isinstance(reply, Undecided):
            text = f"{resource!r} keeps changing hands; retry"
            reply = Undecided(CoordinatorUnavailable(text, resource=resource), POLLING.pause(1))
        yield from _pause(backend, reply, deadline, tries)
    raise AssertionError("the loop ends at its deadline")
