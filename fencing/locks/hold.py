"""The context managers of ``hold``: they acquire the lock, and release it when the block ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease, CancelOnLoss

_TWICE = "this hold() was used before; call hold() once for each block"


class Hold(ContextDecorator):
    """The context manager that :meth:`fencing.FencedLock.hold` returns. Used as ``with``, once, or as a decorator."""

    __slots__ = ("_acquire", "_lease", "_timeout", "_used")

    def __init__(self, acquire: Callable[[float | None], Lease], timeout: float | None) -> None:
        self._acquire = acquire
        self._timeout = timeout
        self._used = False
        self._lease: Lease | None = None

    def _recreate_cm(self) -> Self:
        return type(self)(self._acquire, self._timeout)  # for each call of the decorated function

    def __enter__(self) -> Lease:
        """Acquire the lock.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            TypeError: this object was used before. Call ``hold`` for each block.
        """
        if self._used:
            raise TypeError(_TWICE)
        self._used = True
        self._lease = lease = self._acquire(self._timeout)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Raise LeaseLost if the lease was lost and the block raised nothing."""
        assert self._lease is not None
        self._lease.__exit__(kind, error, trace)
        self._lease = None

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None:  # an interruption skipped the end of the block
            lease.release_later()

    if not TYPE_CHECKING:  # type checkers report ``async with`` themselves

        async def __aenter__(self) -> NoReturn:
            raise TypeError("this is a sync lock: write `with lock.hold(...) as lease:`, or use AsyncFencedLock")

        async def __aexit__(self, *error: object) -> None: ...


class AsyncHold:
    """The context manager that :meth:`fencing.AsyncFencedLock.hold` returns. Used as ``async with``, once."""

    __slots__ = ("_acquire", "_cancel", "_cancel_on_loss", "_lease", "_timeout", "_used")

    def __init__(
        self, acquire: Callable[[float | None], Awaitable[AsyncLease]], timeout: float | None, cancel_on_loss: bool
    ) -> None:
        self._acquire = acquire
        self._timeout = timeout
        self._cancel_on_loss = cancel_on_loss
        self._cancel: CancelOnLoss | None = None
        self._used = False
        self._lease: AsyncLease | None = None

    async def __aenter__(self) -> AsyncLease:
        """Acquire the lock.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            TypeError: this object was used before. Call ``hold`` for each block.
        """
        if self._used:
            raise TypeError(_TWICE)
        self._used = True
        self._lease = lease = await self._acquire(self._timeout)
        if self._cancel_on_loss:
            self._cancel = CancelOnLoss(lease)
            self._cancel.begin()
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Raise LeaseLost if the lease was lost and the block raised nothing."""
        assert self._lease is not None
        loss = None if self._cancel is None else self._cancel.end(error)
        await self._lease.__aexit__(kind, loss or error, trace)
        self._lease = None
        if loss is not None:
            raise loss from error

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None:  # an interruption skipped the end of the block
            lease.release_later()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError("this is an async lock: write `async with lock.hold(...) as lease:`, or use FencedLock")

        def __exit__(self, *error: object) -> None: ...
