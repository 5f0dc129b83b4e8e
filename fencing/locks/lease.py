"""One holding of a lock, as its holder sees it."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from fencing.kernel import process
from fencing.kernel.effects import run
from fencing.kernel.errors import FencingError, LeaseLost, LossReason, StaleFence
from fencing.kernel.fence import Fence
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.callbacks import call_in_thread
from fencing.locks.holding import Holding

logger = logging.getLogger("fencing")


class LeaseBase:
    """What sync and async share: all that needs no I/O."""

    def __init__(self, clock: Callable[[], float], holding: Holding) -> None:
        self._clock = clock
        self._holding = holding
        self._pid = process.pid()
        self._freed: bool | None = None
        holding.lease = weakref.ref(self)  # so that a forgotten lease is collected, and its renewal ends

    @property
    def fence(self) -> Fence:
        """This grant's identity. It stays readable after the end, for logs; guards refuse a lease that has ended."""
        return self._holding.fence

    def remaining(self) -> float:
        """Seconds until the lease is believed to expire, 0.0 at the least; counted from before the request was sent.

        A hint, never a guarantee: it may be wrong the moment it is read, and a pause may follow. Guards are what is
        safe.
        """
        return max(0.0, self._holding.deadline - self._clock())

    @property
    def ended(self) -> Literal["released", "detached", "forked"] | None:
        """How it ended here, on purpose; None: it did not. In a forked child ``"forked"``, for it is the parent's."""
        if process.pid() != self._pid:
            return "forked"
        how = self._holding.ended
        if how == "detached":
            return "detached"
        return "released" if how == "released" or self._freed is not None else None

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
            raise LeaseLost(fence=self.fence, reason=reason)

    def detach(self) -> Fence:
        """End the lease here without freeing the lock, so that another process can go on with it.

        Send the fence (``str(fence)``) to that process; it calls ``lock.adopt(fence)`` before the ttl is over.

        Raises:
            LeaseLost: there is nothing left to hand over.
        """
        self.ensure_held()
        if not self._holding.end("detached"):
            self.ensure_held()
        return self.fence

    def notify_lost(self) -> None:
        """It was just lost: set the event, and make the calls. For its holding to call."""
        raise AssertionError("sync and async have their own")

    def _loss(self) -> LossReason | None:
        return self.ended or self._holding.lost or ("expired" if self.remaining() <= 0 else None)

    def _check_renewable(self) -> None:
        reason = self.ended or self._holding.lost
        if reason is not None:
            raise LeaseLost(fence=self.fence, reason=reason)

    def _check_not_ended(self) -> None:
        if self.ended is not None:
            raise LeaseLost(fence=self.fence, reason=self.ended)

    def _begin_release(self) -> bool:
        """Whether there is something to release. From here on nothing renews it."""
        if self.ended in ("detached", "forked") or self._freed is not None:
            return False
        self._holding.end("released")
        return True

    def _note(self, error: BaseException) -> None:
        """What an error that leaves the holder's block says of the lease."""
        if isinstance(error, StaleFence) and error.fence == self.fence:
            self._holding.lose("stale")
        for inner in getattr(error, "exceptions", ()):  # an exception group's
            self._note(inner)

    def _loss_at_exit(self, freed: bool) -> LeaseLost | None:
        if freed or self.ended in ("detached", "forked"):
            return None
        reason: LossReason = self._holding.lost or ("expired" if self.remaining() <= 0 else "gone")
        return LeaseLost(fence=self.fence, reason=reason, completed=True)

    def _log_unreleased(self, error: Exception) -> None:
        logger.warning(
            "the lock on %r could not be released; if it is still held, it frees itself within %.3g s: %s",
            self.fence.resource,
            self.remaining(),
            error,
        )

    def __repr__(self) -> str:
        state = self._loss() or f"{self.remaining():.3g} s left"
        return f"<{type(self).__name__} of {self.fence.resource!r}, fence {self.fence.number}, {state}>"

    def __del__(self) -> None:
        if getattr(self, "_freed", self) is not None or process.pid() != self._pid:
            return  # it was released, never finished, or is the parent's
        if self._holding.end("abandoned"):
            warnings.warn(
                f"the lease on {self.fence.resource!r} (fence {self.fence.number}) was never released; "
                f"use hold(), or release() in a finally; the lock frees itself within {self.remaining():.3g} s",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class Lease(LeaseBase):
    """One holding of a lock: a fence, a deadline, renewal, loss, release. Made by ``acquire``, ``hold`` and ``adopt``.

    As a context manager it is released at the end of the block, as :meth:`FencedLock.hold` describes.
    Any thread may use it. Threads that share one must put each read-modify-write into one ``guard.begin``.
    """

    def __init__(self, backend: Backend, holding: Holding) -> None:
        self._backend = backend
        self._callbacks: list[Callable[[LeaseLost], Any]] = []
        super().__init__(backend.clock, holding)

    @property
    def lost(self) -> threading.Event:
        """Set as soon as the lease is known to be lost: gone at the coordinator, past its deadline, left by StaleFence.

        Not set by a release. It is set late after a pause, like all that happens on this side; a guard is not late.
        """
        event: threading.Event = self.__dict__.setdefault("_event", threading.Event())  # atomic: one for all threads
        if self._holding.lost is not None:
            event.set()
        return event

    def on_lost(self, callback: Callable[[LeaseLost], Any]) -> None:
        """Call ``callback`` with the LeaseLost once the lease is lost; at once if it is already.

        It runs on a thread of its own, and may block; at most a few run at a time. What it raises is logged.
        """
        given: Any = callback
        if not callable(given) or inspect.iscoroutinefunction(given):
            kind = "an async function" if callable(given) else type(given).__name__
            raise TypeError(f"on_lost takes a function, not {kind}; it is called with the LeaseLost, on a thread")
        self._callbacks.append(callback)
        if self._holding.lost is not None:
            self._make_calls()

    def notify_lost(self) -> None:
        event = self.__dict__.get("_event")
        if event is not None:
            event.set()
        self._make_calls()

    def _make_calls(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread was quicker
                return
            call_in_thread(callback, LeaseLost(fence=self.fence, reason=self._holding.lost or "gone"))

    def renew(self) -> None:
        """Give the lock its full ttl again, now. The fence stays. Needed with ``renew=False`` only.

        Raises:
            LeaseLost: the lock is gone, or the lease was released. Stop.
            CoordinatorUnavailable: no answer; the lease lasts until its old deadline at least. Try again before that.
        """
        self._check_renewable()
        try:
            plan = plans.renew(self._backend, self.fence, self._holding.settings)
            deadline = run(plan, self._backend.perform)
        except LeaseLost:
            self._holding.lose("gone")
            raise
        self._holding.renewed(deadline, self._clock())

    def release(self) -> bool:
        """Free the lock. Idempotent: a second call does nothing and says the same.

        Returns:
            True: the lock was still this lease's. False: it had been lost before (expired, taken over), or there was
            nothing to release here (detached; the parent's, after a fork). What guards acknowledged counts in any case.

        Raises:
            CoordinatorUnavailable: no answer; the lock frees itself within the ttl, or call again.
        """
        if self._begin_release():
            plan = plans.release(self._backend, self.fence, self._holding.settings)
            self._freed = run(plan, self._backend.perform) or bool(self._freed)
        return bool(self._freed)

    def __enter__(self) -> Lease:
        """Return this lease. LeaseLost: it was released or detached already, or is the parent's."""
        self._check_not_ended()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release, and raise LeaseLost if the lease was lost; never mask an error of the block."""
        if error is not None:
            self._note(error)
        lost_before = self._loss()
        try:
            freed = self.release()
        except Exception as failure:
            if error is None and not isinstance(failure, FencingError):
                raise
            self._log_unreleased(failure)
            freed = lost_before is None
        loss = self._loss_at_exit(freed)
        if loss is not None and error is None:
            raise loss
