"""Leases for asyncio, and the cancelling of a block whose lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from fencing.kernel import process, quirks
from fencing.kernel.effects import call_surely, finish, run_async
from fencing.kernel.errors import FencingError, LeaseLost
from fencing.locks import plans
from fencing.locks.backend import Backend, wrong_reply
from fencing.locks.callbacks import log_failure
from fencing.locks.holding import Grant
from fencing.locks.lease import LeaseBase, keep_outcome
from fencing.locks.reclaim import plan_reclaim
from fencing.locks.ttl import set_ttl


class AsyncLease(LeaseBase):
    """One holding of a lock for asyncio, with its fence and deadline. ``acquire``, ``hold`` and ``adopt`` return it.

    ``async with lease:`` releases it when the block ends, as :meth:`AsyncFencedLock.hold` does. Tasks that share one
    must put each read-modify-write into one ``guard.begin``.
    """

    __module__ = "fencing"

    _event: asyncio.Event | None = None
    _cancel: Callable[[], None] | None = None
    _releasing: tuple[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] | None = None

    def __init__(self, backend: Backend, holding: Grant) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(backend, holding)

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set as soon as the lease is known to be lost. A release or a reclaim does not set it.

        A lease is lost when the coordinator no longer has it, when its deadline has passed, or when a StaleFence of its
        fence leaves its block. After a pause the event is set late; a guard is never late.
        """
        if self._event is None:
            self._event = asyncio.Event()
        if self._holding.lost is not None:
            self._event.set()
        return self._event

    def on_lost(self, callback: Callable[[LeaseLost], Awaitable[Any] | Any]) -> None:
        """Call ``callback`` with a LeaseLost when the lease is lost; at once if it is lost already.

        The callback may be ``async def`` or not. It runs in a task of its own. Its exceptions are logged.

        Raises:
            TypeError: ``callback`` is not a function. Pass a function.
        """
        if not callable(callback):
            raise TypeError(f"on_lost takes a function, not {type(callback).__name__}; it is called with the LeaseLost")
        lease = self._newest
        lease._callbacks.append(callback)
        if lease._holding.lost is not None:
            lease._call_callbacks()

    def _hand_over(self, lease: Self) -> None:
        lease._event = self.lost
        lease._cancel, self._cancel = self._cancel, None
        super()._hand_over(lease)

    def _notify_lost(self) -> None:
        loop = self._holding.loop
        if quirks.running_loop_getter()() is loop:
            self._notify_here()
            return
        try:
            loop.call_soon_threadsafe(call_surely, loop, self._notify_here)  # the renewal has a thread of its own
        except RuntimeError:
            pass  # the loop is closed: nobody waits there

    def _notify_here(self) -> None:
        if self._event is not None:
            self._event.set()
        if self._cancel is not None:
            self._cancel()
        self._call_callbacks()

    def _call_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            task = asyncio.get_running_loop().create_task(self._call(callback))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _call(self, callback: Callable[[LeaseLost], Awaitable[Any] | Any]) -> None:
        try:
            result = callback(self._lost(self._holding.lost))
            if isinstance(result, Awaitable):
                await result
        except Exception:  # noqa: BLE001 - every exception of a user's function is logged
            log_failure(callback)

    async def renew(self) -> None:
        """Give the lock its full ttl again, now. The fence stays the same. Only needed with ``renew=False``.

        Raises:
            LeaseLost: the lock is gone, or the lease was released. Stop.
            CoordinatorUnavailable: no answer; the lease lasts at least until its old deadline. Retry before that.
            TypeError: the coordinator cannot renew leases. Use a ttl that outlasts the work.
        """
        self._check_renewable()
        try:
            await run_async(set_ttl(self._backend, self._holding, self._holding.settings), self._backend.perform)
        except LeaseLost as error:
            self._holding.lose("gone", error.cause)
            raise

    async def reclaim(self, timeout: float | None = None) -> Self:
        """Replace the fence by a new one, so that no late request under the old one can still write. Then read again.

        For a write whose outcome is unknown, where ``landed`` cannot tell it, as over HTTP: a request that timed out
        may still arrive. The lock stays yours. This lease ends before the new fence is minted: guards and ``fenced``
        refuse it. When this returns, all guards have admitted the new fence, and refuse the old one. So what you read
        under the new lease says whether the write happened.

        What watches this lease (``lost``, ``on_lost``, ``cancel_on_loss``, the block of ``hold``) watches the new one.
        The block's end releases it. ``max_lifetime`` counts from the first grant. A further call, on either, replaces
        the newest fence.

        Args:
            timeout: seconds, claims included; None: as long as a request and the claims may take in ``acquire``.

        Returns:
            The lease that has taken this one's place.

        Raises:
            CoordinatorUnavailable, GuardUnavailable: no answer in time. Neither lease writes, the lock is kept, and the
                late request may still write. Call it again, on this very lease, until it returns. A cancellation leaves
                the same state.
            LeaseLost: the lock is gone, the guards have admitted a newer holder's fence again and again (``"stale"``),
                or this lease has ended. Stop.
            RuntimeError: a re-entrant block inside this one uses the lease, or another task reclaims it. Reclaim it
                there after that has ended.
            TypeError: the lock has no guards, so nobody would refuse the late request. Pass ``guards=[guard]``.
        """
        lease: Self = await run_async(plan_reclaim(self, timeout), self._backend.perform)
        return lease

    async def release(self) -> bool:
        """Free the lock. Idempotent: a second call does nothing and returns the same.

        Cancelling the task, even twice, does not prevent the release: it is finished first. If another task is
        releasing it, this waits for that task's answer.

        Returns:
            True: the lock was still this lease's. False: it had been lost before, or there was nothing to release here,
            because the lease was detached or is the parent process'. Writes that guards acknowledged count in any case.

        Raises:
            CoordinatorUnavailable: no answer. Call it again, or let the lock free itself within its ttl.
        """
        return await self._release_until(None)

    async def _release_until(self, deadline: float | None, free_at: float | None = None) -> bool:
        """Do the same as :meth:`release`, until a moment of the coordinator's clock. Coordinators call this.

        Args:
            free_at: the moment until which the lock stays taken; None: it is freed at once.
        """
        if self._successor is not None:
            return await self._newest._release_until(deadline, free_at)
        if self._freed is None and process.pid() == self._pid:
            try:
                await self._release(
                    deadline, free_at
                )  # without a task of its own, which would take a tenth of the time
            except asyncio.CancelledError as cancelled:
                try:
                    await finish(self._release(deadline, free_at))  # the same request again: it may be answered already
                except FencingError as failure:
                    raise cancelled from failure
                raise
        return bool(self._freed)

    async def _release(self, deadline: float | None, free_at: float | None) -> None:
        loop = asyncio.get_running_loop()
        while self._releasing is not None and self._releasing[0] is loop:
            answered = loop.create_future()
            self._releasing[1].append(answered)
            await answered
        if self._begin_release():
            waiting: list[asyncio.Future[None]] = []
            self._releasing = loop, waiting
            try:
                if self._replacement is None:
                    plan = plans.release(self._backend, self._holding, self._holding.settings, deadline, free_at)
                else:
                    plan = self._plan_release(deadline, free_at)
                asked_before, self._asked = self._asked, True
                freed = await run_async(plan, self._backend.perform)
                if freed is None:
                    raise wrong_reply(self._backend, "plan_release", freed, "True or False")
                self._freed = freed or asked_before
            except (FencingError, asyncio.CancelledError):
                raise
            except BaseException:
                self._release_later(free_at)  # a signal handler interrupted it, and its user may not repeat it
                raise
            finally:
                self._releasing = None
                for answered in waiting:
                    if not answered.done():
                        answered.set_result(None)

    async def __aenter__(self) -> AsyncLease:
        """Return this lease.

        Raises:
            LeaseLost: it was released or detached before, or is the parent process'. Acquire a new one.
        """
        self._check_not_ended()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. Raise LeaseLost if the lease was lost and the block raised nothing."""
        if self._successor is not None:
            await self._newest.__aexit__(kind, error, trace)
            return
        was_lost = False
        try:
            if error is not None:
                self._lose_if_stale(error)
            was_lost = self._holding.lost is not None or self._backend.clock() >= self._holding.deadline
        finally:
            freed = await self._release_at_exit(error, was_lost)
        if not freed and error is None:
            loss = await run_async(self._plan_loss_at_exit(), self._backend.perform)
            if loss is not None:
                raise loss

    async def _release_at_exit(self, error: BaseException | None, was_lost: bool) -> bool:
        try:
            return await self._release_until(self._release_by, self._free_at)
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


class CancelOnLoss:
    """Cancels the block of a lease when the lease is lost."""

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._cancelling_before = 0
        self._fired = False
        self._outer: Callable[[], None] | None = None  # of the block around this one

    def begin(self) -> None:
        """Watch the lease, for the current task."""
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling_before = self._task.cancelling()
        self._outer, self._lease._cancel = self._lease._cancel, self._cancel
        if self._lease._holding.lost is not None:
            self._cancel()

    def _cancel(self) -> None:
        # If the task itself noticed the loss, by renew() for example, it raises LeaseLost by itself.
        if self._task is not None and asyncio.current_task() is not self._task:
            self._fired = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> LeaseLost | None:
        """Return the error to raise in the place of the one that ended the block; None: leave that."""
        task, self._task = self._task, None
        self._lease = self._lease._newest
        self._lease._cancel = self._outer
        if not self._fired or task is None:
            return None
        cancelled_elsewhere = task.uncancel() > self._cancelling_before
        if isinstance(error, asyncio.CancelledError) and not cancelled_elsewhere:
            return self._lease._lost(self._lease._holding.lost)
        return None
