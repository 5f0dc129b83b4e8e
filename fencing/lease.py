"""One holding of a lock."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Literal

from fencing import plans
from fencing.coordinator import AsyncCoordinator, Coordinator, CoordinatorPlans, Grant, Settings
from fencing.effects import finish, run, run_async
from fencing.errors import FencingError, LeaseLost, LossReason, StaleFence
from fencing.fence import Fence

__all__ = ["AsyncLease", "Lease"]

logger = logging.getLogger("fencing")


class _Lease:
    """What both colours share: all that needs no I/O."""

    def __init__(self, coordinator: CoordinatorPlans, settings: Settings, grant: Grant) -> None:
        self._plans = coordinator
        self._settings = settings
        self._deadline = grant.deadline
        self._pid = os.getpid()
        self._ended: Literal["released", "detached"] | None = None
        self._freed: bool | None = None
        self._lost: Literal["gone", "stale"] | None = None
        self._fence = grant.fence

    @property
    def fence(self) -> Fence:
        """This grant's identity. It stays readable after the end, for logs; guards refuse a lease that has ended."""
        return self._fence

    def remaining(self) -> float:
        """Seconds until the lease is believed to expire, 0.0 at the least; counted from before the request was sent.

        A hint, never a guarantee: it may be wrong the moment it is read, and a pause may follow. Guards are what is
        safe.
        """
        return max(0.0, self._deadline - self._plans.clock())

    @property
    def ended(self) -> Literal["released", "detached", "forked"] | None:
        """How the lease ended here, on purpose; None: it did not. In a forked child: ``"forked"``, it is the
        parent's."""
        return "forked" if os.getpid() != self._pid else self._ended

    @property
    def held(self) -> bool:
        """Whether the lease is believed to be held; a hint, like :meth:`remaining`."""
        return self._loss() is None

    def ensure_held(self) -> None:
        """Return if the lease is believed to be held; a hint, like :meth:`remaining`.

        Raises:
            LeaseLost: it is not; its ``reason`` says why. Stop the work, and acquire again.
        """
        reason = self._loss()
        if reason is not None:
            raise LeaseLost(fence=self._fence, reason=reason)

    def detach(self) -> Fence:
        """End the lease here without freeing the lock, so that another process can go on with it.

        Send the fence (``str(fence)``) to that process; it calls ``lock.adopt(fence)`` before the ttl is over.

        Raises:
            LeaseLost: there is nothing left to hand over.
        """
        self.ensure_held()
        self._ended = "detached"
        return self._fence

    def _loss(self) -> LossReason | None:
        return self.ended or self._lost or ("expired" if self.remaining() <= 0 else None)

    def _check_renewable(self) -> None:
        reason = self.ended or self._lost
        if reason is not None:
            raise LeaseLost(fence=self._fence, reason=reason)

    def _renewed(self, grant: Grant) -> None:
        self._deadline = max(self._deadline, grant.deadline)

    def _begin_release(self) -> bool:
        """Whether there is something to release."""
        if self.ended in ("detached", "forked") or self._freed is not None:
            return False
        self._ended = "released"
        return True

    def _note(self, error: BaseException) -> None:
        """What an error that leaves the holder's block says of the lease."""
        if isinstance(error, StaleFence) and error.fence == self._fence:
            self._lost = "stale"

    def _loss_at_exit(self, freed: bool) -> LeaseLost | None:
        if freed or self.ended in ("detached", "forked"):
            return None
        return LeaseLost(fence=self._fence, reason=self._lost or "gone")

    def _log_unreleased(self, error: FencingError) -> None:
        logger.warning(
            "the lock on %r could not be released and frees itself within %.3g s: %s",
            self._fence.resource,
            self._settings.ttl or float("inf"),
            error,
        )

    def __repr__(self) -> str:
        state = self._loss() or f"{self.remaining():.3g} s left"
        return f"<{type(self).__name__} of {self._fence.resource!r}, fence {self._fence.number}, {state}>"

    def __del__(self) -> None:
        if getattr(self, "_fence", None) is not None and self.ended is None and self._lost is None:
            warnings.warn(
                f"the lease on {self._fence.resource!r} (fence {self._fence.number}) was never released; "
                f"use hold(), or release() in a finally; the lock frees itself within {self.remaining():.3g} s",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class Lease(_Lease):
    """One holding of a lock: a fence, a deadline, renewal, release. Made by ``acquire``, ``hold`` and ``adopt``.

    Any thread may use it. Threads that share one must put each read-modify-write into one ``guard.begin``.
    """

    def __init__(self, coordinator: Coordinator, settings: Settings, grant: Grant) -> None:
        super().__init__(coordinator, settings, grant)
        self._coordinator = coordinator

    def renew(self) -> None:
        """Give the lock its full ttl again. The fence stays.

        Raises:
            LeaseLost: the lock is gone, or the lease was released. Stop.
            CoordinatorUnavailable: no answer; the lease lasts until its old deadline at least. Try again before that.
        """
        self._check_renewable()
        try:
            grant = run(plans.renew(self._coordinator, self._fence, self._settings), self._coordinator.perform)
        except LeaseLost:
            self._lost = "gone"
            raise
        self._renewed(grant)

    def release(self) -> bool:
        """Free the lock. Idempotent: a second call does nothing and says the same.

        Returns:
            True: the lock was still this lease's. False: it had been lost before (expired, taken over), or there was
            nothing to release here (detached; the parent's, after a fork). What guards acknowledged counts in any case.

        Raises:
            CoordinatorUnavailable: no answer; the lock frees itself within the ttl, or call again.
        """
        if self._begin_release():
            plan = plans.release(self._coordinator, self._fence, self._settings)
            self._freed = run(plan, self._coordinator.perform) or bool(self._freed)
        return bool(self._freed)

    def leave(self, error: BaseException | None) -> None:
        """What ``hold`` does at the end of its block: release, and say if the lease was lost; never mask ``error``."""
        if error is not None:
            self._note(error)
        try:
            freed = self.release()
        except FencingError as failure:
            self._log_unreleased(failure)
            return
        loss = self._loss_at_exit(freed)
        if loss is not None and error is None:
            raise loss


class AsyncLease(_Lease):
    """:class:`Lease` for asyncio."""

    def __init__(self, coordinator: AsyncCoordinator, settings: Settings, grant: Grant) -> None:
        super().__init__(coordinator, settings, grant)
        self._coordinator = coordinator

    async def renew(self) -> None:
        """See :meth:`Lease.renew`."""
        self._check_renewable()
        try:
            plan = plans.renew(self._coordinator, self._fence, self._settings)
            grant = await run_async(plan, self._coordinator.perform)
        except LeaseLost:
            self._lost = "gone"
            raise
        self._renewed(grant)

    async def release(self) -> bool:
        """See :meth:`Lease.release`. Cancelling it, even twice, does not lose the release: it is finished first."""
        if self._begin_release():
            await finish(self._release())
        return bool(self._freed)

    async def _release(self) -> None:
        plan = plans.release(self._coordinator, self._fence, self._settings)
        self._freed = await run_async(plan, self._coordinator.perform) or bool(self._freed)

    async def leave(self, error: BaseException | None) -> None:
        """See :meth:`Lease.leave`."""
        if error is not None:
            self._note(error)
        try:
            freed = await self.release()
        except FencingError as failure:
            self._log_unreleased(failure)
            return
        loss = self._loss_at_exit(freed)
        if loss is not None and error is None:
            raise loss
