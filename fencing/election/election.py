# Made from election_async.py by `make faces`: change that file, not this one.
"""The sync election of a leader among replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fencing.election.candidates import Candidate, Pause
from fencing.election.terms import MAY_RECOVER, Failures, Leader, check_every, is_loss, leader_of, pause_after, term_of
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.locks.lock import FencedLock

if TYPE_CHECKING:
    from fencing.locks.hold import Hold
    from fencing.locks.lease import Lease

logger = logging.getLogger("fencing")


class Election:
    """An election: of all replicas that take part, one leads at a time. ``coordinator.election`` makes it.

    It is a lock that is waited for without end; the block is the term. What is true of a lock is true of a term: two
    replicas may believe to lead at the same time, if one was paused. So whatever the leader writes goes through a guard
    with the term's lease: there only the newest leader is admitted. What no guard can refuse, such as an e-mail, may
    happen twice.
    """

    __module__ = "fencing"

    def __init__(self, lock: FencedLock) -> None:
        self._lock = lock
        self._candidates: list[Candidate] = []
        self._is_stopped = False
        self._pause = Pause()
        self._failures = Failures()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._is_stopped

    def lead(self) -> Hold:
        """Lead for a ``with`` block: wait to be elected, and resign when the block ends.

        The block gets the term's lease. It watches ``lease.lost``. ``stop`` does not end it.

        Raises:
            LeaseLost: the term was lost. Another replica may lead. Campaign again, or let :meth:`run` do so.
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as
                :meth:`fencing.FencedLock.hold`.
        """
        return self._lock.hold()

    def run(self, function: Callable[[Lease], object]) -> None:
        """Campaign, call ``function`` with the lease of the term, resign, and campaign again, until :meth:`stop`.

        The function watches ``lease.lost`` and :attr:`stopped`, and returns. When the coordinator or a guard does not
        answer, this tries again. Between two campaigns it pauses for a tenth to a third of the ttl.

        Args:
            function: what the leader does. It may run again at any time, in any replica. When it returns, the replica
                resigns.

        Returns:
            After :meth:`stop`, when the function has returned and the replica has resigned.

        Raises:
            Exception: of the function, after the replica has resigned. LeaseLost and StaleFence of the term are none:
                another replica leads.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            TypeError: ``function`` is no function, or an async one. Pass the right kind.
            RuntimeError: the coordinator was closed. Make a new one.
        """
        if not callable(function):
            raise TypeError(f"run takes a function, not {type(function).__name__}; it is called with the lease")
        candidate = Candidate(self._lock)
        self._candidates.append(candidate)
        try:
            while not self._is_stopped:  # read after the line above
                self._campaign(candidate, function)
                if not self._is_stopped:
                    candidate.pause(pause_after(self._lock._settings))
        except BaseException as error:
            if not candidate.has_ended_with(error):
                raise
        finally:
            self._candidates.remove(candidate)

    def _campaign(self, candidate: Candidate, function: Callable[[Lease], object]) -> None:
        """Wait for a term, and call the function in it."""
        resource, has_led = self._lock.resource, False
        candidate.may_be_granted = True
        try:
            with candidate.term() as lease:
                has_led = True
                self._failures.end()
                if not self._is_stopped:
                    candidate.call(function, lease)
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

    def leader(self) -> Leader | None:
        """Tell who leads: for people, and for routing. Never a basis for a write, as it may have changed already.

        Returns:
            The leader; None: nobody leads at this moment. A leader that was killed is told until its ttl is over.

        Raises:
            CoordinatorUnavailable: no answer. Retry.
        """
        return leader_of(self._lock.holder())

    def observe(self, every: float = 1.0) -> Iterator[Leader | None]:
        """Tell who leads, and each change of it; None: nobody.

        A term that is shorter than ``every`` may be missed. While the coordinator does not answer, nothing is told, and
        the log has a warning. It ends at the next look after :meth:`stop`.

        Args:
            every: seconds between two looks; each is a request.

        Raises:
            TypeError, ValueError: ``every`` is no number of seconds, or below 0.01. Correct it.
        """
        return self._observe(check_every(every))

    def _observe(self, every: float) -> Iterator[Leader | None]:
        last: Any = _UNKNOWN
        is_away = False
        while not self._is_stopped:
            try:
                leader = self.leader()
            except CoordinatorUnavailable as error:
                if not is_away:
                    logger.warning("the leader of %r is not known at the moment: %s", self._lock.resource, error)
                is_away = True
            else:
                is_away = False
                if term_of(leader) != last:
                    last = term_of(leader)
                    yield leader
            self._pause.wait(every)

    def stop(self) -> None:
        """End :meth:`run`, for good: this election is not run again. Any thread and any signal handler may call it.

        A campaign ends at once. The function of a term has to watch :attr:`stopped`; when it returns, the replica
        resigns.
        """
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
