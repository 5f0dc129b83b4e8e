"""The blocks that hold several locks at once. ``several.py`` decides how they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, overload

from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.errors import FencingError
from fencing.locks.backend import Backend
from fencing.locks.capabilities import ReleasesSeveral
from fencing.locks.hold import AsyncHold, Hold
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock import AsyncFencedLock, FencedLock
from fencing.locks.settings import check_timeout
from fencing.locks.several import At, acquire_all, check_locks, parts_of


def _perform(effect: At) -> Any:
    return run(effect.plan, effect.backend.perform)


async def _perform_async(effect: At) -> Any:
    return await run_async(effect.plan, effect.backend.perform)


def _frees_several(backend: Backend, leases: Sequence[Any]) -> bool:
    return len(leases) > 1 and isinstance(backend, ReleasesSeveral)


def _leases_of(blocks: Sequence[Hold | AsyncHold]) -> list[Any]:
    """Return the leases that no block inside uses any more."""
    return [block._lease.newest for block in blocks if block.is_last and block._lease is not None]


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
            if is_freed is not None:
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


def _text(block: object, locks: Sequence[FencedLock | AsyncFencedLock]) -> str:
    return f"<{type(block).__name__} of {', '.join(repr(lock.resource) for lock in locks)}>"


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

    def __repr__(self) -> str:
        return _text(self, self._locks)

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

    def __repr__(self) -> str:
        return _text(self, self._locks)

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
    given = check_locks(locks)
    return AsyncHoldAll(given, timeout) if isinstance(given[0], AsyncFencedLock) else HoldAll(given, timeout)
