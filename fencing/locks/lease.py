"""Leases: one holding of a lock, as its holder sees it."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, cast

from fencing.kernel import process, quirks
from fencing.kernel.effects import Plan, run
from fencing.kernel.errors import FencingError, LeaseLost, LossReason, OutcomeUnknown, StaleFence
from fencing.kernel.fence import Fence, new_token
from fencing.kernel.waking import SafeEvent, SafeLock
from fencing.locks import plans
from fencing.locks.any_slot import slot_of
from fencing.locks.backend import Backend, wrong_reply
from fencing.locks.callbacks import call_in_thread
from fencing.locks.causes import plan_why_gone, why_expired, why_stale
from fencing.locks.holding import Grant
from fencing.locks.reclaim import plan_reclaim
from fencing.locks.ttl import set_ttl

logger = logging.getLogger("fencing")

_exceptions_of = BaseExceptionGroup.exceptions.__get__  # a subclass may override the attribute


class LeaseBase:
    """The part of sync and async leases that needs no I/O."""

    _inside: set[int] | None = None
    """The ids of the re-entrant blocks that use the lease, and have not ended; None: it is not shared."""

    _block: Callable[[], Any] | None = None
    """Returns the block that was begun with the lease; None: no block was."""

    _is_claimed = True
    """Whether all guards have admitted its fence. A lease that reclaims another one begins without."""

    _successor: LeaseBase | None = None
    """The lease that has taken its place."""

    _turns: list[weakref.ref[Any]] | None = None
    """The calls of ``reclaim`` that are under way, of all leases of the same lock."""

    _replacement: tuple[str, int] | None = None
    """The token of the fence that replaces its own, and the number to exceed, once it is being reclaimed."""

    _earlier_numbers: tuple[int, ...] = ()
    """The numbers of the fences before this one, where it has reclaimed another lease. Guards read them."""

    _freed: bool | None = None
    _release_by: float | None = (
        None  # the moment until which the end of its block may try to release it; None: no other
    )
    _free_at: float | None = None
    """The moment until which its lock stays taken if its block ends before; None: it is freed at once."""

    _freed_by: str | None = None
    """What released it in the place of its user, in words; None: nothing did."""

    _asked = False  # True: a release without an answer may have freed the lock

    def __init__(self, backend: Backend, holding: Grant) -> None:
        self._backend = backend
        self._holding = holding
        self._callbacks: list[Callable[[LeaseLost], Any]] = []
        self._pid = os.getpid()
        holding.lease = weakref.ref(self)  # weak: a lease without references is collected, and its renewal ends

    @property
    def fence(self) -> Fence:
        """The fence of this grant. It stays readable after the end, for logs; guards refuse a lease that has ended."""
        return self._holding.fence

    @property
    def slot(self) -> int:
        """Which slot it holds, from 0 on, if its resource is one: see :meth:`fencing.Coordinator.slots`.

        Raises:
            AttributeError: its resource is no slot.
        """
        return slot_of(self._holding.resource)

    def remaining(self) -> float:
        """Return the seconds until the lease is believed to expire, at least 0.0, counted from before the request.

        It is 0.0 as soon as the lease has ended: before its release is sent, when it is detached or lost, and in a
        forked child. A hint, not a guarantee: it may already be wrong, and a pause may follow. Only guards make data
        safe.
        """
        return 0.0 if self._holding.has_ended or process.pid() != self._pid else self._until_deadline()

    @property
    def _newest(self) -> Self:
        """The lease that holds the lock now: this one, or the one that has reclaimed it."""
        lease = self
        while lease._successor is not None:
            lease = cast(Self, lease._successor)
        return lease

    @property
    def _ended(self) -> Literal["released", "detached", "forked", "reclaimed"] | None:
        """How the lease was ended here on purpose; None: it was not. ``"forked"``: this child process inherited it."""
        if process.pid() != self._pid:
            return "forked"
        how = self._holding.ended
        if how == "detached":
            return "detached"
        if how == "released" or self._freed is not None or self._asked:
            return "released"
        return None if self._replacement is None else "reclaimed"

    @property
    def _keeps_lock(self) -> bool:
        """Whether the lock is believed to be kept: while it is held, and while its fence is being replaced."""
        return self._ended in (None, "reclaimed") and self._holding.lost is None and self._until_deadline() > 0

    @property
    def held(self) -> bool:
        """Whether the lease is believed to be held. A hint, as :meth:`remaining`."""
        return self._loss() is None

    def ensure_held(self) -> None:
        """Raise LeaseLost unless the lease is believed to be held. A hint, as :meth:`remaining`.

        Raises:
            LeaseLost: it is not held; ``reason`` says why. Stop the work, and acquire again.
        """
        reason = self._loss()
        if reason is not None:
            raise self._lost(reason)

    def detach(self) -> Fence:
        """End the lease here without freeing the lock, so that another process can continue.

        Send ``str(fence)`` to that process. It calls ``lock.adopt(fence)`` before the ttl is over.

        Raises:
            LeaseLost: there is nothing to hand over. Stop the work, and acquire again.
        """
        self.ensure_held()
        if not self._holding.end("detached"):  # another thread was faster
            raise self._lost()
        return self.fence

    def _notify_lost(self) -> None:
        """Set the ``lost`` event, and call the callbacks. The holding calls this once, when the lease is lost."""
        raise AssertionError("subclasses override this")

    def _until_deadline(self) -> float:
        """Return the seconds until the lock frees itself, if nobody has freed it."""
        return max(0.0, self._holding.deadline - self._backend.clock())

    def _loss(self) -> LossReason | None:
        if not self._is_claimed:
            return self._ended or self._holding.lost or "reclaimed"
        return self._ended or self._holding.lost or ("expired" if self._until_deadline() <= 0 else None)

    def _lost(self, reason: LossReason | None = None, *, completed: bool = False) -> LeaseLost:
        """Return the error for a loss, with its cause if that is known."""
        holding = self._holding
        reason = reason or self._loss() or "gone"
        cause = None
        if reason == "released":
            cause = self._freed_by
        elif reason == holding.lost:
            cause = holding.cause
        elif reason == "expired":  # the timer has not noticed it yet
            cause = why_expired(self._backend, holding, self._backend.clock())
        return LeaseLost(fence=self.fence, reason=reason, completed=completed, cause=cause)

    def _check_renewable(self) -> None:
        reason = self._ended or self._holding.lost
        if reason is not None:
            raise self._lost(reason)

    def _check_not_ended(self) -> None:
        if self._ended is not None:
            raise self._lost(self._ended)

    def _begin_reclaim(self, floor: int) -> None:
        """End its fence, and its renewal, before a fence above ``floor`` is minted. Raise LeaseLost if it has ended."""
        self._check_renewable()
        self._replacement = new_token(), floor
        if not self._holding.end("reclaimed"):  # another thread was faster
            self._replacement = None
            raise self._lost()

    def _succeed(self, grant: Grant) -> Self | None:
        """Return the lease of the fence that replaces its own. What watches this lease watches that one from now on.

        None: this lease was released meanwhile.
        """
        if self._asked or self._freed is not None:
            return None
        backend, before = self._backend, self._holding
        grant.begin(before.settings, backend.clock())
        grant.first_granted_at = before.first_granted_at
        lease = type(self)(backend, grant)
        lease._is_claimed = False
        lease._earlier_numbers = (*self._earlier_numbers, self.fence.number)
        lease._inside, lease._block, lease._release_by, lease._turns = (
            self._inside,
            self._block,
            self._release_by,
            self._turns,
        )
        lease._free_at = self._free_at
        self._hand_over(lease)
        backend.track(grant)
        self._successor = lease  # last: an interruption before it leaves this lease to be continued
        if self._asked:  # a signal handler has just released it
            grant.end("released")
            return None
        return lease

    def _hand_over(self, lease: Self) -> None:
        """Give the successor what watches this lease."""
        lease._callbacks = self._callbacks  # the same list: another thread may be adding to it

    def _plan_release(self, deadline: float | None, free_at: float | None = None) -> Plan[bool]:
        """Free the lock; also from a fence that replaces its own, but whose answer is missing."""
        backend, settings = self._backend, self._holding.settings
        freed = yield from plans.release(backend, self._holding, settings, deadline, free_at)
        for fence in self._unanswered():  # behind the fence that it replaces: it can take the lock only from that
            freed = (yield from plans.release(backend, fence, settings, deadline, free_at)) or freed
        return freed

    def _stay(self, seconds: float) -> None:
        """Note that the lock stays taken for so long from its grant on, also if the block ends before.

        That counts from before the request of the grant, so that the next tick of a timer finds the lock free. Where
        the lease was renewed before its block began, it counts from the answer.
        """
        holding = self._holding
        asked_at = holding.deadline - holding.settings.believed_seconds
        self._free_at = min(holding.first_granted_at, asked_at) + seconds

    def _unanswered(self) -> list[Fence]:
        return [] if self._replacement is None else [Fence(self.fence.resource, 1, self._replacement[0])]

    def _begin_release(self) -> bool:
        """End the lease, and its renewal. Return whether there is something to release."""
        return self._freed is None and (self._holding.end("released") or self._holding.ended != "detached")

    def _begin_release_ahead(self) -> bool:
        """End the lease, because its lock will be released together with others. Return False if that cannot be."""
        if self._ended is not None or self._asked or not self._holding.end("released"):
            return False
        self._asked = True
        return True

    def _end_release_ahead(self, freed: bool) -> None:
        """Note the answer to the release that was begun. If the lock was not held, its own release says so."""
        if freed:
            self._freed = True
        else:
            self._asked = False

    def _must_release_later(self) -> bool:
        """Return whether the release was interrupted or got no answer."""
        return self._freed is None and self._ended not in ("detached", "forked")

    def _lose_if_stale(self, error: BaseException) -> None:
        """Mark the lease as lost if an error that left its block is, or groups, a StaleFence of this fence."""
        errors, seen = [error], {id(error)}
        while errors:
            error = errors.pop()
            if isinstance(error, StaleFence) and getattr(error, "fence", None) == self.fence:
                self._holding.lose("stale", why_stale(error))
            if isinstance(error, BaseExceptionGroup):  # other errors may have an attribute of that name, of any kind
                inner = [each for each in _exceptions_of(error) if id(each) not in seen]
                seen.update(map(id, inner))
                errors += inner

    def _leave_inner(self, error: BaseException | None) -> None:
        """Leave a block inside the lease's own block. Raise LeaseLost if it was lost, but the block raised nothing."""
        if error is not None:
            self._lose_if_stale(error)
        elif (reason := self._loss()) is not None and self._ended is None:
            raise self._lost(reason, completed=True)

    def _loss_at_exit(self) -> LeaseLost | None:
        """Return the error of a block whose lock could not be freed; None: it had nothing to free."""
        if self._ended in ("detached", "forked"):
            return None
        reason: LossReason = self._holding.lost or ("expired" if self._until_deadline() <= 0 else "gone")
        return self._lost(reason, completed=True)

    def _plan_loss_at_exit(self) -> Plan[LeaseLost | None]:
        """Do the same as :meth:`_loss_at_exit`, and ask for the cause if the release has found the lock gone."""
        loss = self._loss_at_exit()
        if loss is None or loss.reason != "gone" or loss.cause is not None:
            return loss
        settings = self._holding.settings
        deadline = self._backend.give_back_deadline(settings)
        cause = yield from plan_why_gone(self._backend, self.fence, settings, deadline)
        return LeaseLost(fence=self.fence, reason="gone", completed=True, cause=cause)

    def _log_unreleased(self, error: Exception) -> None:
        seconds = self._until_deadline()
        if self._free_at is not None:  # the request may have got through, and then the lock stays taken until then
            seconds = max(seconds, self._free_at - self._backend.clock())
        logger.warning(
            "the lock on %r could not be released; if it is still held, it frees itself within %.3g s: %s",
            self.fence.resource,
            seconds,
            error,
        )

    def __repr__(self) -> str:
        state = self._loss() or f"{self.remaining():.3g} s left"
        return f"<{type(self).__name__} of {self.fence.resource!r}, fence {self.fence.number}, {state}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a lease belongs to this process, and is neither pickled nor copied; for another process send "
            "str(lease.detach()), and adopt it there"
        )

    def __del__(self) -> None:
        if self._freed is not None or self._successor is not None or getattr(self, "_pid", None) != process.pid():
            return  # it was released, its constructor failed, or it is the parent's
        is_dropped = self._holding.end("abandoned")
        if is_dropped or self._holding.lost is not None:
            self._backend.drop(self._holding)
        if is_dropped and self._is_claimed:  # or else nobody was given it
            warnings.warn(
                f"the lease on {self.fence.resource!r} (fence {self.fence.number}) was never released; "
                f"use hold(), or release() in a finally; the lock frees itself within {self._until_deadline():.3g} s",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def keep_outcome(interruption: BaseException, error: BaseException | None) -> None:
    """Keep what the error of a block says of a write whose outcome is unknown, in an interruption that replaces it."""
    unknown = error if isinstance(error, OutcomeUnknown) else getattr(error, "__cause__", None)
    if interruption is not error and isinstance(unknown, OutcomeUnknown):
        interruption.__cause__ = unknown


class Lease(LeaseBase):
    """One holding of a lock, with its fence and deadline. ``acquire``, ``hold`` and ``adopt`` return it.

    ``with lease:`` releases it when the block ends, as :meth:`FencedLock.hold` does. Any thread may use it. Threads
    that share one must put each read-modify-write into one ``guard.begin``.
    """

    __module__ = "fencing"

    def __init__(self, backend: Backend, holding: Grant) -> None:
        # Reentrant: a signal handler may release the lease. safe_lock() would be a call more for each lease.
        self._releasing = SafeLock() if quirks.SKIPS_EXIT else threading.RLock()
        LeaseBase.__init__(self, backend, holding)  # super() would take longer

    @property
    def lost(self) -> threading.Event:
        """An event that is set as soon as the lease is known to be lost. A release or a reclaim does not set it.

        A lease is lost when the coordinator no longer has it, when its deadline has passed, or when a StaleFence of its
        fence leaves its block. After a pause the event is set late; a guard is never late.
        """
        event: threading.Event = self.__dict__.setdefault("_event", SafeEvent())  # atomic: one for all threads
        if self._holding.lost is not None:
            event.set()
        return event

    def on_lost(self, callback: Callable[[LeaseLost], Any]) -> None:
        """Call ``callback`` with a LeaseLost when the lease is lost; at once if it is lost already.

        The callback runs on a thread of its own, and may block; at most 16 run at a time. Its exceptions are logged.

        Raises:
            TypeError: ``callback`` is not a function, or is an async one. Pass a plain function.
        """
        given: Any = callback
        if not callable(given) or inspect.iscoroutinefunction(given):
            kind = "an async function" if callable(given) else type(given).__name__
            raise TypeError(f"on_lost takes a function, not {kind}; it is called with the LeaseLost, on a thread")
        self._newest._callbacks.append(callback)
        lease = self._newest  # now, after the line above
        if lease._holding.lost is not None:
            lease._call_callbacks()

    def _hand_over(self, lease: Self) -> None:
        lease.__dict__["_event"] = self.lost
        super()._hand_over(lease)

    def _succeed(self, grant: Grant) -> Self | None:
        with self._releasing:  # another thread's release is over, or comes to the successor
            return super()._succeed(grant)

    def _notify_lost(self) -> None:
        event = self.__dict__.get("_event")
        if event is not None:
            event.set()
        self._call_callbacks()

    def _call_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            call_in_thread(callback, self._lost(self._holding.lost))

    def renew(self) -> None:
        """Give the lock its full ttl again, now. The fence stays the same. Only needed with ``renew=False``.

        Raises:
            LeaseLost: the lock is gone, or the lease was released. Stop.
            CoordinatorUnavailable: no answer; the lease lasts at least until its old deadline. Retry before that.
            TypeError: the coordinator cannot renew leases. Use a ttl that outlasts the work.
        """
        self._check_renewable()
        try:
            run(set_ttl(self._backend, self._holding, self._holding.settings), self._backend.perform)
        except LeaseLost as error:
            self._holding.lose("gone", error.cause)
            raise

    def reclaim(self, timeout: float | None = None) -> Self:
        """Replace the fence by a new one, so that no late request under the old one can still write. Then read again.

        For a write whose outcome is unknown, where ``landed`` cannot tell it, as over HTTP: a request that timed out
        may still arrive. The lock stays yours. This lease ends before the new fence is minted: guards and ``fenced``
        refuse it. When this returns, all guards have admitted the new fence, and refuse the old one. So what you read
        under the new lease says whether the write happened.

        What watches this lease (``lost``, ``on_lost``, the block of ``hold``) watches the new one. The block's end
        releases it. ``max_lifetime`` counts from the first grant. A further call, on either, replaces the newest fence.

        Args:
            timeout: seconds, claims included; None: as long as a request and the claims may take in ``acquire``.

        Returns:
            The lease that has taken this one's place.

        Raises:
            CoordinatorUnavailable, GuardUnavailable: no answer in time. Neither lease writes, the lock is kept, and the
                late request may still write. Call it again, on this very lease, until it returns. An interruption
                leaves the same state.
            LeaseLost: the lock is gone, the guards have admitted a newer holder's fence again and again (``"stale"``),
                or this lease has ended. Stop.
            RuntimeError: a re-entrant block inside this one uses the lease, or another thread reclaims it. Reclaim it
                there after that has ended.
            TypeError: the lock has no guards, so nobody would refuse the late request. Pass ``guards=[guard]``.
        """
        lease: Self = run(plan_reclaim(self, timeout), self._backend.perform)
        return lease

    def release(self) -> bool:
        """Free the lock. Idempotent: a second call does nothing and returns the same.

        If another thread is releasing it, this waits for that thread's answer.

        Returns:
            True: the lock was still this lease's. False: it had been lost before, or there was nothing to release here,
            because the lease was detached or is the parent process'. Writes that guards acknowledged count in any case.

        Raises:
            CoordinatorUnavailable: no answer. Call it again, or let the lock free itself within its ttl.
        """
        return self._release_until(None)

    def _release_until(self, deadline: float | None, free_at: float | None = None) -> bool:
        """Do the same as :meth:`release`, until a moment of the coordinator's clock. Coordinators call this.

        Args:
            free_at: the moment until which the lock stays taken; None: it is freed at once.
        """
        if process.pid() != self._pid:  # another thread of the parent may have been releasing it
            return False
        if self._successor is not None:
            return self._newest._release_until(deadline, free_at)
        try:
            with self._releasing:
                if self._successor is not None:
                    return self._newest._release_until(deadline, free_at)
                if self._begin_release():
                    if self._replacement is None:
                        plan = plans.release(self._backend, self._holding, self._holding.settings, deadline, free_at)
                    else:
                        plan = self._plan_release(deadline, free_at)
                    asked_before, self._asked = self._asked, True
                    freed = run(plan, self._backend.perform)
                    if freed is None:
                        raise wrong_reply(self._backend, "plan_release", freed, "True or False")
                    self._freed = freed or asked_before
            return bool(self._freed)
        except FencingError:
            raise
        except BaseException:
            self._release_later(free_at)  # a signal handler interrupted it, and its user may not repeat it
            raise

    def __enter__(self) -> Lease:
        """Return this lease.

        Raises:
            LeaseLost: it was released or detached before, or is the parent process'. Acquire a new one.
        """
        self._check_not_ended()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Raise LeaseLost if the lease was lost and the block raised nothing."""
        if self._successor is not None:
            self._newest.__exit__(kind, error, trace)
            return
        was_lost = False
        try:
            if error is not None:
                self._lose_if_stale(error)
            was_lost = self._holding.lost is not None or self._backend.clock() >= self._holding.deadline
        finally:
            freed = self._release_at_exit(error, was_lost)
        if not freed and error is None:
            loss = run(self._plan_loss_at_exit(), self._backend.perform)
            if loss is not None:
                raise loss

    def _release_at_exit(self, error: BaseException | None, was_lost: bool) -> bool:
        try:
            return self._release_until(self._release_by, self._free_at)
        except BaseException as failure:
            if not isinstance(failure, Exception):
                keep_outcome(failure, error)
                raise
            if error is None and not isinstance(failure, FencingError):
                raise
            self._log_unreleased(failure)
            self._release_later(self._free_at)
            return not was_lost

    def _release_later(self, free_at: float | None = None) -> None:
        """Release in the background what a release at the end of a block did not."""
        if self._successor is not None:
            self._newest._release_later(free_at)
        elif self._must_release_later():
            self._holding.end("released")
            self._asked = True
            self._backend.give_back_later(self._holding, self._holding.settings, free_at)
            for fence in self._unanswered():
                self._backend.give_back_later(fence, self._holding.settings, free_at)
