"""The async context manager of ``hold``: it acquires the lock, and releases it when the block ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from fencing.kernel.errors import NotAcquired
from fencing.locks import locked
from fencing.locks.lease_async import AsyncLease, CancelOnLoss
from fencing.locks.reentrant import Block, HeldLock, begun, blocks

F = TypeVar("F", bound=Callable[..., Any])

TWICE = "this hold() was used before; call hold() once for each block"


class AsyncHold(Block):
    """The context manager that :meth:`fencing.AsyncFencedLock.hold` returns. Used as ``async with``, once, or as a
    decorator."""

    # SYNC instead: __slots__ = ()
    __slots__ = ("_cancel", "_cancel_on_loss")

    # SYNC instead: _waiter = "thread"
    _waiter = "task"

    # SYNC instead: def __init__(self, lock: HeldLock, timeout: float | None, at_least: float | None = None) -> None:
    def __init__(
        self, lock: HeldLock, timeout: float | None, cancel_on_loss: bool, at_least: float | None = None
    ) -> None:
        self._lock = lock
        self._timeout = timeout
        self._at_least = at_least
        self._cancel_on_loss = cancel_on_loss  # ASYNC
        self._cancel: CancelOnLoss | None = None  # ASYNC
        self._used = False
        self._lease: AsyncLease | None = None
        self._task = self._inside = self._outermost = None

    def __call__(self, function: F) -> F:
        """Decorate a function: each call holds the lock. ``locked`` does more: it names the lock by the arguments.

        Raises:
            TypeError: the function is not async, or a generator. Change it as the message says.
        """
        # SYNC "not async": async
        self._used = True
        # SYNC instead: locked.check_function(function, "hold", asynchronous=False)
        locked.check_function(function, "hold", asynchronous=True)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            # SYNC instead: with type(self)(self._lock, self._timeout, self._at_least):
            async with type(self)(self._lock, self._timeout, self._cancel_on_loss, self._at_least):
                # SYNC instead: return locked.not_a_coroutine(function(*args, **kwargs), function)
                return locked.noting_stream(await function(*args, **kwargs), function)

        return cast(F, call)

    async def __aenter__(self) -> AsyncLease:
        """Acquire the lock; inside a block of the same re-entrant lock, return the lease of that block.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            LeaseLost: the lease was lost or ended in the re-entrant block around this one. Stop, and leave that block.
            RuntimeError: the hold would wait for itself for ever, or for the task that started this one. Pass the lease
                on.
            TypeError: this object was used before. Call ``hold`` for each block.
            ValueError, RecursionError: a block inside a block has other options, or is nested too deep.
        """
        # SYNC "the task that started this one": the code that started this thread
        if self._used:
            raise TypeError(TWICE)
        self._used = True
        outer, around = None, blocks.get()
        if len(around) == 1 and around[0]() is None:
            around = ()  # the common case of what begun() does: the last block of this context has ended
        if around:
            outer = self._surrounding(around)
            if outer is not None and (shared := self._reenter(outer)) is not None:
                # SYNC instead: lease: Lease = shared
                lease: AsyncLease = self._watched(shared) if self._cancel_on_loss else shared
                return lease
            around = begun(around)
        try:
            self._lease = lease = await self._lock.acquire(self._timeout)
        except NotAcquired as error:
            if outer is None:
                raise
            raise self._explain(error, outer) from None
        if self._at_least is not None:
            lease._stay(self._at_least)
        self._begin(around)
        # SYNC instead: return lease
        return self._watched(lease) if self._cancel_on_loss else lease

    def _watched(self, lease: AsyncLease) -> AsyncLease:  # ASYNC
        """Return the lease, whose loss cancels the block from now on."""
        self._cancel = CancelOnLoss(lease)
        self._cancel.begin()
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock, if no block inside has yet to end. Raise LeaseLost if it was lost, but the block raised
        nothing."""
        lease = self._lease
        assert lease is not None
        loss = None if self._cancel is None else self._cancel.end(error)  # ASYNC
        if self._inside is None or self._leave():
            # SYNC instead: lease.__exit__(kind, error, trace)
            await lease.__aexit__(kind, loss or error, trace)
            self._lease = None
        else:
            if self._outermost is not None:
                self._lease = None
            # SYNC instead: lease._leave_inner(error)
            lease._leave_inner(loss or error)
        if loss is not None:  # ASYNC
            raise loss from error

    if not TYPE_CHECKING:  # type checkers report a ``with`` of the other kind themselves

        def __enter__(self) -> NoReturn:  # ASYNC
            self._used = True
            raise TypeError("this is an async lock: write `async with lock.hold(...) as lease:`, or use FencedLock")

        def __exit__(self, *error: object) -> None: ...  # ASYNC

        # SYNC: async def __aenter__(self) -> NoReturn:
        # SYNC:     self._used = True
        # SYNC:     hint = "write `with lock.hold(...) as lease:`, or use AsyncFencedLock"
        # SYNC:     raise TypeError(f"this is a sync lock: {hint}")

        # SYNC: async def __aexit__(self, *error: object) -> None: ...
