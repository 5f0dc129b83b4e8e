"""One holding of a lock under asyncio, as its holder sees it; and the cancelling of a block whose lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from fencing.kernel.effects import finish, run_async
from fencing.kernel.errors import FencingError, LeaseLost
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.callbacks import failed
from fencing.locks.holding import Holding
from fencing.locks.lease import LeaseBase


class AsyncLease(LeaseBase):
    """:class:`Lease` for asyncio."""

    def __init__(self, backend: Backend, holding: Holding) -> None:
        self._backend = backend
        self._event: asyncio.Event | None = None
        self._callbacks: list[Callable[[LeaseLost], Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancel: Callable[[], None] | None = None
        super().__init__(backend.clock, holding)

    @property
    def lost(self) -> asyncio.Event:
        """See :attr:`Lease.lost`."""
        if self._event is None:
            self._event = asyncio.Event()
            if self._holding.lost is not None:
                self._event.set()
        return self._event

    def on_lost(self, callback: Callable[[LeaseLost], Awaitable[Any] | Any]) -> None:
        """Call ``callback`` (``async def`` or not) with the LeaseLost once the lease is lost; at once if it is already.

        It runs in a task of its own. What it raises is logged.
        """
        if not callable(callback):
            raise TypeError(f"on_lost takes a function, not {type(callback).__name__}; it is called with the LeaseLost")
        self._callbacks.append(callback)
        if self._holding.lost is not None:
            self._make_calls()

    def notify_lost(self) -> None:
        if self._event is not None:
            self._event.set()
        if self._cancel is not None:
            self._cancel()
        self._make_calls()

    def _make_calls(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            task = asyncio.get_running_loop().create_task(self._make(callback))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _make(self, callback: Callable[[LeaseLost], Awaitable[Any] | Any]) -> None:
        try:
            result = callback(LeaseLost(fence=self.fence, reason=self._holding.lost or "gone"))
            if isinstance(result, Awaitable):
                await result
        except Exception:  # noqa: BLE001 - whatever a user's function raises is logged
            failed(callback)

    async def renew(self) -> None:
        """See :meth:`Lease.renew`."""
        self._check_renewable()
        try:
            plan = plans.renew(self._backend, self.fence, self._holding.settings)
            deadline = await run_async(plan, self._backend.perform)
        except LeaseLost:
            self._holding.lose("gone")
            raise
        self._holding.renewed(deadline, self._clock())

    async def release(self) -> bool:
        """See :meth:`Lease.release`. Cancelling it, even twice, does not lose the release: it is finished first."""
        if self._begin_release():
            await finish(self._release())
        return bool(self._freed)

    async def _release(self) -> None:
        plan = plans.release(self._backend, self.fence, self._holding.settings)
        self._freed = await run_async(plan, self._backend.perform) or bool(self._freed)

    async def __aenter__(self) -> AsyncLease:
        """Return this lease. LeaseLost: it was released or detached already, or is the parent's."""
        self._check_not_ended()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See :meth:`Lease.__exit__`."""
        if error is not None:
            self._note(error)
        lost_before = self._loss()
        try:
            freed = await self.release()
        except Exception as failure:
            if error is None and not isinstance(failure, FencingError):
                raise
            self._log_unreleased(failure)
            freed = lost_before is None
        loss = self._loss_at_exit(freed)
        if loss is not None and error is None:
            raise loss


class CancelOnLoss:
    """Cancels the block of the task that enters it when the lease is lost; then LeaseLost leaves it."""

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._fired = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._before = self._task.cancelling()
        self._lease._cancel = self._cancel
        if self._lease._holding.lost is not None:
            self._cancel()

    def _cancel(self) -> None:
        # Where the task itself found the loss, by renew() say, LeaseLost is on its way there already.
        if self._task is not None and asyncio.current_task() is not self._task:
            self._fired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._lease._cancel = None
        if not self._fired or task is None:
            return
        others = task.uncancel() > self._before  # somebody else cancels it as well
        if isinstance(error, asyncio.CancelledError) and not others:
            raise LeaseLost(fence=self._lease.fence, reason=self._lease._holding.lost or "gone") from error
