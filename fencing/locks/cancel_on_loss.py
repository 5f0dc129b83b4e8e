"""The cancelling of a block under asyncio whose lease is lost."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from fencing.kernel.errors import LeaseLost
from fencing.locks.lease import AsyncLease

__all__ = ["CancelOnLoss"]


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
