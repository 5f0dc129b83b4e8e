"""The block that holds several async locks at once. ``several.py`` decides how they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from fencing.kernel.effects import run_async
from fencing.kernel.process import OfThisProcess
from fencing.locks.hold_async import AsyncHold
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock_async import AsyncFencedLock
from fencing.locks.reentrant import warn_of_unused
from fencing.locks.settings import check_timeout
from fencing.locks.several import At, acquire_all, leases_of, parts_of, release_ahead


async def _perform(effect: At) -> Any:
    return await run_async(effect.plan, effect.backend.perform)


async def _exit(
    blocks: Sequence[AsyncHold],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave the blocks, the last first. An ExitStack does the same, but makes reference cycles."""
    if blocks:
        try:
            await blocks[-1].__aexit__(kind, error, trace)
        except BaseException as raised:
            await _exit(blocks[:-1], type(raised), raised, raised.__traceback__)
            raise
        await _exit(blocks[:-1], kind, error, trace)


_TWICE = "this hold_all() was used before; call hold_all() once for each block"


class AsyncHoldAll(OfThisProcess):
    """The context manager of :func:`hold_all` for asyncio. Used as ``async with``, once."""

    # SYNC "The context manager of :func:`hold_all`": The context manager of :func:`hold_all` for threads

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
        blocks = [lock.hold().entered_with_others() for lock in self._locks]
        for block in blocks:
            block.require_not_held()
        self._leases = leases = await run_async(acquire_all(parts_of(self._locks), self._timeout), _perform)
        self._blocks = blocks
        for block, lease in zip(blocks, leases, strict=True):
            block.begin_with(lease)
        return leases

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(repr(lock.resource) for lock in self._locks)}>"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all locks, the last first. Raise LeaseLost if one was lost and the block raised nothing."""
        try:
            if error is None:
                await run_async(release_ahead(leases_of(self._blocks)), _perform)
        except BaseException as raised:
            await _exit(self._blocks, type(raised), raised, raised.__traceback__)
            raise
        await _exit(self._blocks, kind, error, trace)
        self._leases = ()
        self._blocks = []

    def __del__(self) -> None:
        for lease in getattr(self, "_leases", ()):  # an interruption skipped the end of the block
            lease._release_later()
        if not getattr(self, "_used", True):
            resources = ", ".join(lock.resource for lock in self._locks)
            # SYNC instead: warn_of_unused("hold_all()", resources, "thread")
            warn_of_unused("hold_all()", resources, "task")

    if not TYPE_CHECKING:  # type checkers report a ``with`` of the other kind themselves

        def __enter__(self) -> NoReturn:  # ASYNC
            self._used = True
            raise TypeError("these are async locks: write `async with hold_all(...) as leases:`, or use sync locks")

        def __exit__(self, *error: object) -> None: ...  # ASYNC

        # SYNC: async def __aenter__(self) -> NoReturn:
        # SYNC:     self._used = True
        # SYNC:     raise TypeError("these are sync locks: write `with hold_all(...) as leases:`, or use async locks")

        # SYNC: async def __aexit__(self, *error: object) -> None: ...
