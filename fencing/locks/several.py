"""Several locks at once: all or none, always taken in one order, claimed when all are held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

from fencing.kernel.effects import Claim, Plan, Shielded, run, run_async
from fencing.kernel.errors import FencingError, NotAcquired, StaleFence
from fencing.locks import plans
from fencing.locks.backend import GIVE_BACK_SECONDS, Backend
from fencing.locks.capabilities import ReleasesSeveral
from fencing.locks.hold import AsyncHold, Hold
from fencing.locks.holding import Holding
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock import AsyncFencedLock, FencedLock
from fencing.locks.settings import TRY_SECONDS, Settings, check_timeout

MOST_LOCKS = 100
"""How many locks are taken at once, at most. Each takes a request while the others are held."""


class At(NamedTuple):
    """The effect: run a plan of one of the coordinators."""

    backend: Backend
    plan: Plan[Any]


def _perform(effect: At) -> Any:
    return run(effect.plan, effect.backend.perform)


async def _perform_async(effect: At) -> Any:
    return await run_async(effect.plan, effect.backend.perform)


@dataclass(slots=True)
class _Part:
    """One of the locks, and what may have been taken of it."""

    backend: Backend
    resource: str
    settings: Settings
    lease: Callable[[Holding], Any]
    taking: plans.Taking = field(default_factory=plans.Taking)

    @property
    def without_guards(self) -> Settings:
        return replace(self.settings, guards=())

    def take(self, holding: Holding) -> Holding:
        """Note the grant of the lock."""
        self.taking.fence, self.taking.token, self.taking.holding = holding.fence, None, holding
        return holding

    def forget(self) -> None:
        """Note that nothing is taken any more."""
        self.taking.over()
        self.taking.holding = None

    @property
    def holding(self) -> Holding:
        holding = self.taking.holding
        assert holding is not None
        return holding

    def plan_give_back(self) -> Plan[None]:
        return plans.give_back(self.backend, self.resource, self.taking, self.settings)


def check_names(resources: Iterable[str]) -> Iterable[str]:
    """Return the names if they are several; raise TypeError if it is one text."""
    if isinstance(resources, (str, bytes, Set, Mapping)) or not isinstance(resources, Iterable):
        raise TypeError(
            f"hold_all takes a list of names, not {type(resources).__name__}: the leases come in its order; "
            f"write hold_all([name, ...])"
        )
    return resources


def _check_locks(locks: Any) -> list[Any]:
    if isinstance(locks, (str, bytes, Set, Mapping)) or not isinstance(locks, Iterable):
        raise TypeError(f"hold_all takes a list of locks, not {type(locks).__name__}")
    given = list(locks)
    for each in given:
        if not isinstance(each, (FencedLock, AsyncFencedLock)):
            hint = "; coordinator.hold_all takes names" if isinstance(each, str) else ""
            raise TypeError(f"hold_all takes locks, such as coordinator.lock(name), not {type(each).__name__}{hint}")
    if not 1 <= len(given) <= MOST_LOCKS:
        raise ValueError(f"hold_all takes 1 to {MOST_LOCKS} locks, not {len(given)}")
    if len({type(each) for each in given}) > 1:
        raise TypeError("hold_all takes either sync or async locks, not both")
    names = [(id(each.coordinator), each.resource) for each in given]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name[1]!r} is given twice; name each lock once")
    return given


def parts_of(locks: Sequence[FencedLock | AsyncFencedLock]) -> list[_Part]:
    """Return the parts of an acquisition of all these locks."""
    return [_Part(each.coordinator, each.resource, each._settings, each._lease) for each in locks]


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
                return tuple(part.lease(part.holding) for part in parts)
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
            resource=error.resource, reason=error.reason, waited=waited, owner=error.owner
        ) from error.__cause__
    except BaseException:
        yield Shielded(_give_back_all(order))
        raise


def _take(part: _Part, timeout: float) -> Plan[Holding]:
    return plans.acquire(part.backend, part.resource, part.without_guards, timeout, part.take)


def _give_back_all(order: Sequence[_Part]) -> Plan[None]:
    """Give back what was taken, the last first. What takes too long is given back in the background."""
    clock = order[0].backend.clock
    ends_at = clock() + GIVE_BACK_SECONDS
    try:
        for part in reversed(order):
            if part.taking.may_hold and clock() < ends_at:
                yield At(part.backend, part.plan_give_back())
                part.forget()
    finally:
        for part in order:
            if part.taking.may_hold:
                part.taking.abandon(part.backend, part.resource, part.settings)
                part.forget()


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
                fences = tuple(part.holding.fence for part in parts)
                yield Claim(guard, fences, timeout=_claim_seconds(parts, timeout, gives_up_at))
        except StaleFence as stale:
            refused = stale.fence.resource
            if not (yield from _remint(order, stale, timeout, gives_up_at)):
                return False
        else:
            return all(part.holding.lost is None and part.backend.clock() < part.holding.deadline for part in order)
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
    ends = [part.holding.deadline - now for part in parts if not part.settings.renew]
    return max(min([seconds, *ends]), 0.001)


def _remint(order: Sequence[_Part], stale: StaleFence, timeout: float, gives_up_at: float) -> Plan[bool]:
    """Mint a fence above the guard's mark for the lock that was refused. Return False if the lock was lost."""
    part = next(each for each in order if each.holding.fence == stale.fence)
    holding, settings = part.holding, part.settings
    part.taking.token = plans.new_token()
    deadline = gives_up_at if 0 < timeout < math.inf else part.backend.clock() + settings.request_seconds
    reminted = yield At(
        part.backend,
        part.backend.plan_remint(
            holding.fence, part.taking.token, settings, floor=plans.number_to_exceed(stale), deadline=deadline
        ),
    )
    holding.end("abandoned")
    if reminted is None:
        part.taking.over()
        return False
    part.taking.hold(part.backend, reminted, settings)
    return True


def _frees_several(backend: Backend, leases: Sequence[Any]) -> bool:
    return len(leases) > 1 and isinstance(backend, ReleasesSeveral)


def _leases_of(blocks: Sequence[Hold | AsyncHold]) -> list[Any]:
    """Return the leases that no block inside uses any more."""
    return [block._lease for block in blocks if block.is_last]


def _release_ahead(leases: Sequence[Lease | AsyncLease]) -> Plan[None]:
    """Release the locks of each coordinator in one request, the last first. What that leaves, each lease releases."""
    by_backend: dict[int, list[Any]] = {}
    for lease in reversed(leases):
        by_backend.setdefault(id(lease._backend), []).append(lease)
        lease.release_by = lease._backend.clock() + lease._holding.settings.request_seconds  # for all together
    for several in by_backend.values():
        backend: Any = several[0]._backend
        begun = [lease for lease in several if lease.begin_release_ahead()] if _frees_several(backend, several) else []
        if not begun:
            continue
        settings, deadline = begun[0]._holding.settings, begun[0].release_by
        try:
            fences = [lease.fence for lease in begun]
            freed = yield At(backend, backend.plan_release_all(fences, settings, deadline=deadline))
        except FencingError:
            continue
        for lease, is_freed in zip(begun, freed, strict=True):
            lease.end_release_ahead(is_freed)


def _exit(
    blocks: Sequence[Hold], kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Leave the blocks, the last first. An ExitStack does the same, but makes reference cycles."""
    if blocks:
        try:
            blocks[-1].__exit__(kind, error, trace)
        except BaseException as raised:
            _exit(blocks[:-1], type(raised), raised, raised.__traceback__)
            raise
        _exit(blocks[:-1], kind, error, trace)


async def _exit_async(
    blocks: Sequence[AsyncHold],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave the blocks, the last first."""
    if blocks:
        try:
            await blocks[-1].__aexit__(kind, error, trace)
        except BaseException as raised:
            await _exit_async(blocks[:-1], type(raised), raised, raised.__traceback__)
            raise
        await _exit_async(blocks[:-1], kind, error, trace)


_TWICE = "this hold_all() was used before; call hold_all() once for each block"


class HoldAll:
    """The context manager of :func:`hold_all` for threads. Used as ``with``, once."""

    def __init__(self, locks: Sequence[FencedLock], timeout: float | None) -> None:
        self._locks = locks
        self._timeout = check_timeout(timeout)
        self._used = False
        self._leases: tuple[Lease, ...] = ()
        self._blocks: list[Hold] = []

    def __enter__(self) -> tuple[Lease, ...]:
        """Acquire all locks. Return the leases in the order in which the locks were given.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``;
                all locks were given back.
            RuntimeError: a block around this one holds one of the locks. Hold all of them in that one.
            TypeError: this object was used before. Call ``hold_all`` for each block.
        """
        if self._used:
            raise TypeError(_TWICE)
        self._used = True
        blocks = [lock.hold() for lock in self._locks]
        for block in blocks:
            block.require_not_held()
        self._leases = leases = run(acquire_all(parts_of(self._locks), self._timeout), _perform)
        self._blocks = blocks
        for block, lease in zip(blocks, leases, strict=True):
            block.begin_with(lease)
        return leases

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all locks, the last first. Raise LeaseLost if one was lost and the block raised nothing."""
        try:
            if error is None:
                run(_release_ahead(_leases_of(self._blocks)), _perform)
        except BaseException as raised:
            _exit(self._blocks, type(raised), raised, raised.__traceback__)
            raise
        _exit(self._blocks, kind, error, trace)
        self._leases = ()
        self._blocks = []

    def __del__(self) -> None:
        for lease in getattr(self, "_leases", ()):  # an interruption skipped the end of the block
            lease.release_later()

    if not TYPE_CHECKING:  # type checkers report ``async with`` themselves

        async def __aenter__(self) -> NoReturn:
            raise TypeError("these are sync locks: write `with hold_all(...) as leases:`, or use async locks")

        async def __aexit__(self, *error: object) -> None: ...


class AsyncHoldAll:
    """The context manager of :func:`hold_all` for asyncio. Used as ``async with``, once."""

    def __init__(self, locks: Sequence[AsyncFencedLock], timeout: float | None) -> None:
        self._locks = locks
        self._timeout = check_timeout(timeout)
        self._used = False
        self._leases: tuple[AsyncLease, ...] = ()
        self._blocks: list[AsyncHold] = []

    async def __aenter__(self) -> tuple[AsyncLease, ...]:
        """Acquire all locks. Return the leases in the order in which the locks were given.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``;
                all locks were given back.
            RuntimeError: a block around this one holds one of the locks. Hold all of them in that one.
            TypeError: this object was used before. Call ``hold_all`` for each block.
        """
        if self._used:
            raise TypeError(_TWICE)
        self._used = True
        blocks = [lock.hold() for lock in self._locks]
        for block in blocks:
            block.require_not_held()
        self._leases = leases = await run_async(acquire_all(parts_of(self._locks), self._timeout), _perform_async)
        self._blocks = blocks
        for block, lease in zip(blocks, leases, strict=True):
            block.begin_with(lease)
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all locks, the last first. Raise LeaseLost if one was lost and the block raised nothing."""
        try:
            if error is None:
                await run_async(_release_ahead(_leases_of(self._blocks)), _perform_async)
        except BaseException as raised:
            await _exit_async(self._blocks, type(raised), raised, raised.__traceback__)
            raise
        await _exit_async(self._blocks, kind, error, trace)
        self._leases = ()
        self._blocks = []

    def __del__(self) -> None:
        for lease in getattr(self, "_leases", ()):  # an interruption skipped the end of the block
            lease.release_later()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError("these are async locks: write `async with hold_all(...) as leases:`, or use sync locks")

        def __exit__(self, *error: object) -> None: ...


@overload
def hold_all(locks: Iterable[FencedLock], timeout: float | None = None) -> HoldAll: ...
@overload
def hold_all(locks: Iterable[AsyncFencedLock], timeout: float | None = None) -> AsyncHoldAll: ...
def hold_all(locks: Iterable[Any], timeout: float | None = None) -> HoldAll | AsyncHoldAll:
    """Hold several locks for a ``with`` block: all of them or none. They may be of different coordinators.

    The locks are taken in one order, whatever order is given, so that two callers never wait for each other in a
    circle. This holds among callers of ``hold_all``. A ``hold`` inside another ``hold`` makes an order of its own: give
    it a time-out. Fences are claimed at the guards when all locks are held, so read after that.

    Args:
        locks: 1 to 100 locks, either all sync or all async, each with its own options. Each lock once.
        timeout: seconds to wait for all of them together, claims included; None waits for ever, 0 tries each once.

    Returns:
        A context manager: ``with`` for sync locks, ``async with`` for async ones. Its value is a tuple of the leases,
        in the order of ``locks``.

    Raises:
        LeaseLost: the block raised nothing, but one of the locks was lost; ``completed`` is True. Writes that guards
            acknowledged count, so do not simply repeat the block.
        NotAcquired: not all locks were free in time, or newer fences superseded a grant. None is held. Try later.
        CoordinatorUnavailable, GuardUnavailable: no answer in time; all locks were given back. Retry.
        MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    given = _check_locks(locks)
    return AsyncHoldAll(given, timeout) if isinstance(given[0], AsyncFencedLock) else HoldAll(given, timeout)
