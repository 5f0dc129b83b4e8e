"""The async election of a leader among replicas."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fencing.election.candidates import AsyncCandidate, AsyncPause
from fencing.election.terms import MAY_RECOVER, Failures, Leader, check_every, is_loss, leader_of, pause_after, term_of
from fencing.kernel.effects import require_asyncio  # ASYNC
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.locks.lock_async import AsyncFencedLock

if TYPE_CHECKING:
    from fencing.locks.hold_async import AsyncHold
    from fencing.locks.lease_async import AsyncLease

logger = logging.getLogger("fencing")


class AsyncElection:
    """An election: of all replicas that take part, one leads at a time. ``coordinator.election`` makes it.

    It is a lock that is waited for without end; the block is the term. What is true of a lock is true of a term: two
    replicas may believe to lead at the same time, if one was paused. So whatever the leader writes goes through a guard
    with the term's lease: there only the newest leader is admitted. What no guard can refuse, such as an e-mail, may
    happen twice.
    """

    __module__ = "fencing"

    def __init__(self, lock: AsyncFencedLock) -> None:
        self._lock = lock
        self._candidates: list[AsyncCandidate] = []
        self._is_stopped = False
        self._pause = AsyncPause()
        self._failures = Failures()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._is_stopped

    # SYNC instead: def lead(self) -> Hold:
    def lead(self) -> AsyncHold:
        """Lead for an ``async with`` block: wait to be elected, and resign when the block ends.

        The block gets the term's lease. It is cancelled as soon as the lease is known to be lost. ``stop`` does not
        end it.

        Raises:
            LeaseLost: the term was lost. Another replica may lead. Campaign again, or let :meth:`run` do so.
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as
                :meth:`fencing.AsyncFencedLock.hold`.
        """
        # SYNC "It is cancelled as soon as the lease is known to be lost.": It watches ``lease.lost``.
        # SYNC instead: return self._lock.hold()
        return self._lock.hold(cancel_on_loss=True)

    # SYNC instead: def run(self, function: Callable[[Lease], object]) -> None:
    async def run(self, function: Callable[[AsyncLease], Awaitable[object]]) -> None:
        """Campaign, call ``function`` with the lease of the term, resign, and campaign again, until :meth:`stop`.

        When the lease is lost, the function is cancelled. When the coordinator or a guard does not answer, this tries
        again. Between two campaigns it pauses for a tenth to a third of the ttl.

        Args:
            function: what the leader does. It may run again at any time, in any replica. When it returns, the replica
                resigns.

        Returns:
            After :meth:`stop`, which cancels the function, when the replica has resigned.

        Raises:
            Exception: of the function, after the replica has resigned. LeaseLost and StaleFence of the term are none:
                another replica leads.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            TypeError: ``function`` is no function, or a sync one. Pass the right kind.
            RuntimeError: the coordinator was closed. Make a new one.
        """
        # SYNC "When the lease is lost, the function is cancelled.": The function watches ``lease.lost`` and
        #     :attr:`stopped`, and returns.
        # SYNC "After :meth:`stop`, which cancels the function, when the replica has resigned.": After :meth:`stop`,
        #     when the function has returned and the replica has resigned.
        # SYNC "a sync one": an async one
        require_asyncio()  # ASYNC
        if not callable(function):
            raise TypeError(f"run takes an async function, not {type(function).__name__}; it is called with the lease")
        candidate = AsyncCandidate(self._lock)
        self._candidates.append(candidate)
        try:
            while not self._is_stopped:  # read after the line above
                await self._campaign(candidate, function)
                if not self._is_stopped:
                    await candidate.pause(pause_after(self._lock._settings))
        except BaseException as error:
            if not candidate.has_ended_with(error):
                raise
        finally:
            candidate.end()  # ASYNC
            self._candidates.remove(candidate)
        if candidate.failure is not None:  # ASYNC
            raise candidate.failure  # stop() came behind it, and has cancelled the release

    # SYNC instead: def _campaign(self, candidate: Candidate, function: Callable[[Lease], object]) -> None:
    async def _campaign(self, candidate: AsyncCandidate, function: Callable[[AsyncLease], Awaitable[object]]) -> None:
        """Wait for a term, and call the function in it."""
        resource, has_led = self._lock.resource, False
        candidate.may_be_granted = True
        try:
            async with candidate.term() as lease:
                has_led = True
                self._failures.end()
                if not self._is_stopped:
                    await candidate.call(function, lease)
        except MAY_RECOVER as error:
            if has_led:
                raise
            if self._failures.should_warn():
                logger.warning("no leader of %r could be elected; this replica tries again: %s", resource, error)
        except BaseException as error:
            if not has_led or not is_loss(error, resource):
                raise
            if not self._is_stopped:  # or else it was released on purpose
                logger.warning("this replica no longer leads %r: %s", resource, error)
        finally:
            candidate.may_be_granted = False

    async def leader(self) -> Leader | None:
        """Tell who leads: for people, and for routing. Never a basis for a write, as it may have changed already.

        Returns:
            The leader; None: nobody leads at this moment. A leader that was killed is told until its ttl is over.

        Raises:
            CoordinatorUnavailable: no answer. Retry.
        """
        return leader_of(await self._lock.holder())

    def observe(self, every: float = 1.0) -> AsyncIterator[Leader | None]:
        """Tell who leads, and each change of it; None: nobody.

        A term that is shorter than ``every`` may be missed. While the coordinator does not answer, nothing is told, and
        the log has a warning. It ends at the next look after :meth:`stop`.

        Args:
            every: seconds between two looks; each is a request.

        Raises:
            TypeError, ValueError: ``every`` is no number of seconds, or below 0.01. Correct it.
        """
        return self._observe(check_every(every))

    async def _observe(self, every: float) -> AsyncIterator[Leader | None]:
        last: Any = _UNKNOWN
        is_away = False
        while not self._is_stopped:
            try:
                leader = await self.leader()
            except CoordinatorUnavailable as error:
                if not is_away:
                    logger.warning("the leader of %r is not known at the moment: %s", self._lock.resource, error)
                is_away = True
            else:
                is_away = False
                if term_of(leader) != last:
                    last = term_of(leader)
                    yield leader
            await self._pause.wait(every)

    def stop(self) -> None:
        """End :meth:`run`, for good: this election is not run again. Any thread and any signal handler may call it.

        A campaign ends at once. The function of a term is cancelled, and the replica resigns.
        """
        # SYNC "The function of a term is cancelled, and the replica resigns.": The function of a term has to watch
        #     :attr:`stopped`; when it returns, the replica resigns.
        self._is_stopped = True
        self._pause.end()
        for candidate in list(self._candidates):  # read after the line above
            candidate.stop()

    @property
    def _may_be_granted(self) -> bool:
        """Whether the lock may be granted to a campaign that is under way, or is being ended."""
        return any(candidate.may_be_granted for candidate in list(self._candidates))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._lock.resource!r} at {self._lock.coordinator!r}>"


_UNKNOWN = object()
