# Made from hold_async.py by `make faces`: change that file, not this one.
"""The sync context manager of ``hold``: it acquires the lock, and releases it when the block ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from fencing.kernel.errors import NotAcquired
from fencing.locks import locked
from fencing.locks.lease import Lease
from fencing.locks.reentrant import Block, HeldLock, begun, blocks

F = TypeVar("F", bound=Callable[..., Any])

TWICE = "this hold() was used before; call hold() once for each block"


class Hold(Block):
    """The context manager that :meth:`fencing.FencedLock.hold` returns. Used as ``with``, once, or as a decorator."""

    __slots__ = ()

    _waiter = "thread"

    def __init__(self, lock: HeldLock, timeout: float | None, at_least: float | None = None) -> None:
        self._lock = lock
        self._timeout = timeout
        self._at_least = at_least
        self._used = False
        self._lease: Lease | None = None
        self._task = self._inside = self._outermost = None

    def __call__(self, function: F) -> F:
        """Decorate a function: each call holds the lock. ``locked`` does more: it names the lock by the arguments.

        Raises:
            TypeError: the function is async, or a generator. Change it as the message says.
        """
        self._used = True
        locked.check_function(function, "hold", asynchronous=False)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._lock, self._timeout, self._at_least):
                return locked.not_a_coroutine(function(*args, **kwargs), function)

        return cast(F, call)

    def __enter__(self) -> Lease:
        """Acquire the lock; inside a block of the same re-entrant lock, return the lease of that block.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            LeaseLost: the lease was lost or ended in the re-entrant block around this one. Stop, and leave that block.
            RuntimeError: the hold would wait for itself for ever, or for the code that started this thread. Pass the
                lease on.
            TypeError: this object was used before. Call ``hold`` for each block.
            ValueError, RecursionError: a block inside a block has other options, or is nested too deep.
        """
        if self._used:
            raise TypeError(TWICE)
        self._used = True
        outer, around = None, blocks.get()
        if len(around) == 1 and around[0]() is None:
            around = ()  # the common case of what begun() does: the last block of this context has ended
        if around:
            outer = self._surrounding(around)
            if outer is not None and (shared := self._reenter(outer)) is not None:
                lease: Lease = shared
                return lease
            around = begun(around)
        try:
            self._lease = lease = self._lock.acquire(self._timeout)
        except NotAcquired as error:
            if outer is None:
                raise
            raise self._explain(error, outer) from None
        if self._at_least is not None:
            lease._stay(self._at_least)
        self._begin(around)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock, if no block inside has yet to end. Raise LeaseLost if it was lost, but the block raised
        nothing."""
        lease = self._lease
        assert lease is not None
        if self._inside is None or self._leave():
            lease.__exit__(kind, error, trace)
            self._lease = None
        else:
            if self._outermost is not None:
                self._lease = None
            lease._leave_inner(error)

    if not TYPE_CHECKING:  # type checkers report a ``with`` of the other kind themselves

        async def __aenter__(self) -> NoReturn:
            self._used = True
            hint = "write `with lock.hold(...) as lease:`, or use AsyncFencedLock"
            raise TypeError(f"this is a sync lock: {hint}")

        async def __aexit__(self, *error: object) -> None: ...
