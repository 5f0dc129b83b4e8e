"""Several locks at once: all or none, always taken in one order, claimed when all are held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fencing.kernel.effects import Claim, Plan, Shielded
from fencing.kernel.errors import CLOSED, FencingError, NotAcquired, StaleFence
from fencing.kernel.fence import new_token
from fencing.locks import plans
from fencing.locks.backend import GIVE_BACK_SECONDS, Backend
from fencing.locks.capabilities import ReleasesSeveral
from fencing.locks.holding import Grant
from fencing.locks.reentrant import Block
from fencing.locks.settings import TRY_SECONDS, Settings

if TYPE_CHECKING:  # each side loads its own
    from fencing.locks.lock import FencedLock
    from fencing.locks.lock_async import AsyncFencedLock

MOST_LOCKS = 100
"""How many locks are taken at once, at most. Each takes a request while the others are held."""


INSTEAD_OF_SLOTS = "; hold a slot in a block around this one, with a time-out"
"""What is said to a caller that passes slots."""


class At(NamedTuple):
    """The effect: run a plan of one of the coordinators."""

    backend: Backend
    plan: Plan[Any]


@dataclass(slots=True)
class _Part:
    """One of the locks, and what may have been taken of it."""

    backend: Backend
    resource: str
    settings: Settings
    lease: Callable[[Grant], Any]
    taking: plans.Taking = field(default_factory=plans.Taking)

    @property
    def without_guards(self) -> Settings:
        return replace(self.settings, guards=())

    def take(self, grant: Grant) -> Grant:
        """Note the grant of the lock."""
        grant.settings = self.settings  # with its guards, which the acquiring plan did without
        self.taking.grant, self.taking.token = grant, None
        return grant

    @property
    def grant(self) -> Grant:
        grant = self.taking.grant
        assert grant is not None
        return grant

    def plan_give_back(self) -> Plan[None]:
        return plans.give_back(self.backend, self.resource, self.taking, self.settings)


def check_names(resources: Iterable[str]) -> list[str]:
    """Return the names if they are several; raise TypeError if it is one text, or if one of them is a lock or slots."""
    if isinstance(resources, (str, bytes, Set, Mapping)) or not isinstance(resources, Iterable):
        raise TypeError(
            f"hold_all takes a list of names, not {type(resources).__name__}: the leases come in its order; "
            f"write hold_all([name, ...])"
        )
    names = list(resources)
    for each in names:
        if hasattr(each, "resources"):  # which slot it will be is not known before
            raise TypeError(f"hold_all takes names of locks, not {type(each).__name__}{INSTEAD_OF_SLOTS}")
        if hasattr(each, "resource"):
            raise TypeError(
                f"hold_all of a coordinator takes names, not {type(each).__name__}; pass its name, or write "
                f"fencing.hold_all([lock, ...])"
            )
    return names


def check_locks(given: list[Any]) -> list[Any]:
    """Return the locks if they can be held together; raise ValueError otherwise."""
    if not 1 <= len(given) <= MOST_LOCKS:
        raise ValueError(f"hold_all takes 1 to {MOST_LOCKS} locks, not {len(given)}")
    names = [(id(each._backend), each.resource) for each in given]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name[1]!r} is given twice; name each lock once")
    return given


def parts_of(locks: Sequence[FencedLock | AsyncFencedLock]) -> list[_Part]:
    """Return the parts of an acquisition of all these locks."""
    return [_Part(each._backend, each.resource, each._settings, each._lease) for each in locks]


def _in_order(parts: Sequence[_Part]) -> list[_Part]:
    """Return the order in which the locks are taken. It does not depend on the order in which they were given."""
    return sorted(parts, key=lambda part: (part.resource.encode(), part.backend.service, part.backend.location))


def acquire_all(parts: Sequence[_Part], timeout: float) -> Plan[tuple[Any, ...]]:
    """Take all locks, one after another, then claim their fences. An interruption gives all of them back.

    Args:
        timeout: seconds, claims included; 0 tries each lock once, infinity waits for ever.
    """
    clock = parts[0].backend.clock
    started = clock()
    gives_up_at = started + timeout
    order = _in_order(parts)
    try:
        while True:
            for part in order:
                left = gives_up_at - clock()
                if left <= 0 < timeout:
                    raise NotAcquired(resource=part.resource, reason="late", waited=timeout)
                yield At(part.backend, _take(part, max(left, 0.0)))
            if (yield from _claim_all(order, timeout, gives_up_at)):
                leases = tuple(part.lease(part.grant) for part in parts)
                if any(part.backend.closed for part in parts):  # as in plans.acquire
                    raise RuntimeError(CLOSED)
                return leases
            yield Shielded(_give_back_all(order))
            if clock() >= gives_up_at:
                raise NotAcquired(resource=order[0].resource, reason="superseded", waited=clock() - started)
    except GeneratorExit:
        for part in order:
            part.taking.abandon(part.backend, part.resource, part.settings)
        raise
    except NotAcquired as error:
        yield Shielded(_give_back_all(order))
        waited = clock() - started
        raise NotAcquired(
            resource=error.resource,
            reason=error.reason,
            waited=waited,
            owner=error.owner,
            held_by_this=error.held_by_this,
            replicas=error.replicas,
            waiters=error.waiters,
            kept_by=error.kept_by,
        ) from error.__cause__
    except BaseException:
        yield Shielded(_give_back_all(order))
        raise


def _take(part: _Part, timeout: float) -> Plan[Grant]:
    return plans.acquire(part.backend, part.resource, part.without_guards, timeout, part.take)


def _give_back_all(order: Sequence[_Part]) -> Plan[None]:
    """Give back what was taken, the last first. What takes too long is given back in the background."""
    clock = order[0].backend.clock
    ends_at = clock() + GIVE_BACK_SECONDS
    try:
        for part in reversed(order):
            if part.taking.may_hold and clock() < ends_at:
                yield At(part.backend, part.plan_give_back())
                part.taking.over()
    finally:
        for part in order:
            if part.taking.may_hold:
                part.taking.abandon(part.backend, part.resource, part.settings)
                part.taking.over()


def _claim_all(order: Sequence[_Part], timeout: float, gives_up_at: float) -> Plan[bool]:
    """Claim the fences of all locks at their guards. A fence that is refused is reminted, and all are claimed again.

    Returns:
        Whether all locks are still held, and claimed.
    """
    by_guard: dict[int, tuple[Any, list[_Part]]] = {}
    for part in order:
        for guard in part.settings.guards:
            by_guard.setdefault(id(guard), (guard, []))[1].append(part)
    refused = order[0].resource
    for _ in range(plans.CLAIM_ROUNDS):
        try:
            for guard, parts in by_guard.values():
                fences = tuple(part.grant.fence for part in parts)
                yield Claim(guard, fences, timeout=_claim_seconds(parts, timeout, gives_up_at))
        except StaleFence as stale:
            refused = stale.fence.resource
            if not (yield from _remint(order, stale, timeout, gives_up_at)):
                return False
        else:
            return all(part.grant.lost is None and part.backend.clock() < part.grant.deadline for part in order)
    raise NotAcquired(resource=refused, reason="superseded", waited=0.0)


def _claim_seconds(parts: Sequence[_Part], timeout: float, gives_up_at: float) -> float:
    """Return the time limit of a claim: what is left, or a whole ttl, which renewal extends meanwhile."""
    now = parts[0].backend.clock()
    if timeout == 0:
        seconds = TRY_SECONDS
    elif timeout < math.inf:
        seconds = gives_up_at - now
    else:
        seconds = min(part.settings.ttl or part.settings.request_seconds for part in parts)
    ends = [part.grant.deadline - now for part in parts if not part.settings.renew]
    return max(min([seconds, *ends]), 0.001)


def _remint(order: Sequence[_Part], stale: StaleFence, timeout: float, gives_up_at: float) -> Plan[bool]:
    """Mint a fence above the guard's mark for the lock that was refused. Return False if the lock was lost."""
    part = next(each for each in order if each.grant.fence == stale.fence)
    grant, settings = part.grant, part.settings
    part.taking.token = new_token()
    deadline = gives_up_at if 0 < timeout < math.inf else part.backend.clock() + settings.request_seconds
    reminted = yield At(
        part.backend,
        part.backend.plan_remint(
            grant, part.taking.token, settings, floor=plans.number_to_exceed(stale), deadline=deadline
        ),
    )
    grant.end("abandoned")
    if reminted is None:
        part.taking.over()
        return False
    part.taking.hold(part.backend, reminted, settings)
    return True


def _frees_several(backend: Backend, leases: Sequence[Any]) -> bool:
    return len(leases) > 1 and isinstance(backend, ReleasesSeveral)


def leases_of(blocks: Sequence[Block]) -> list[Any]:
    """Return the leases that no block inside uses any more."""
    return [block._lease._newest for block in blocks if block.is_last and block._lease is not None]


def release_ahead(leases: Sequence[Any]) -> Plan[None]:
    """Release the locks of each coordinator in one request, the last first. What that leaves, each lease releases."""
    by_backend: dict[int, list[Any]] = {}
    for lease in reversed(leases):
        by_backend.setdefault(id(lease._backend), []).append(lease)
        lease._release_by = lease._backend.clock() + lease._holding.settings.request_seconds  # for all together
    for several in by_backend.values():
        backend: Any = several[0]._backend
        begun = [lease for lease in several if lease._begin_release_ahead()] if _frees_several(backend, several) else []
        if not begun:
            continue
        settings, deadline = begun[0]._holding.settings, begun[0]._release_by
        try:
            grants = [lease._holding for lease in begun]
            freed = yield At(backend, backend.plan_release_all(grants, settings, deadline=deadline))
        except FencingError:
            continue
        plans.check_count(backend, "plan_release_all", freed, begun)
        for lease, is_freed in zip(begun, freed, strict=True):
            if is_freed is not None:
                lease._end_release_ahead(is_freed)
