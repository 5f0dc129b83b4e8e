"""One guarded transaction, as far as it is the same for every driver: its state, and so the meaning of an error.

No I/O, and no driver is known here. The states are: admitted; its body has failed; committing, from the moment that a
COMMIT may be sent; committed. Until the commit begins, an error means that nothing was written. From then on every
error that is not the server's own answer means that the outcome is not known. It does not matter what raised it: the
driver, a hook, a signal handler, or a cancellation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from fencing.kernel import process
from fencing.kernel.admission import as_fence
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, LeaseLost, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence
from fencing.kernel.interruptions import interruption_in
from fencing.kernel.sockets import leave_to_parent
from storage_guards.blocks import note_open, refuse_nested
from storage_guards.continuity import Acknowledged, Continuity, check
from storage_guards.sql.errors import ErrorContext
from storage_guards.sql.once import plan_once
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Plan

M = TypeVar("M")


_NOT_SENT = "The COMMIT was not sent yet, so nothing was written. Begin a new block."


class NoAnswer(Exception):
    """The failure of a request that was given up: it is not known what became of it."""


class GuardedTransaction(ABC, Generic[M]):
    """One claim, one guarded block, or one check in a transaction of the caller's own. It is used once.

    As a context manager it surrounds all of it, connecting included. It gives errors the meaning that they have in the
    current state. From the commit on, every error that leaves it is an OutcomeUnknown, or has one as its ``__cause__``.
    The exception is the refusal of the commit, which can also be the cause. So any other error means that nothing was
    written. An interruption that programs end by (CancelledError, KeyboardInterrupt) stays the same error. An Exception
    becomes the OutcomeUnknown's cause.

    An interruption can also hit ``__exit__`` itself. So the guard's methods have an ``except`` around it, which calls
    :meth:`end_interrupted`.

    Args:
        marks: the guard's access to the marks: one object for each guard.
        errors: the driver's error context. It has the fences, sorted by resource, one for each; and the bound of every
            wait for a lock, and of every statement where the database has such a bound.
        claim: raise the marks. Otherwise they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        caller_block: the block is the caller's and can send anything, also a COMMIT: check the transaction again at its
            end.
        joined: it is a transaction of the caller's own.
        holders: the leases or fences that the caller passed.
        continuity: the guard's memory of what was acknowledged. None: nothing is remembered.
        once: the key of what the block does once. None: it has none.

    Raises:
        RuntimeError: on entry: it would wait for a guarded block of the same thread or task.
    """

    _admitted: Sequence[Admitted] | None = None
    """The database's answer to each claim or check."""
    _body_error: BaseException | None = None
    """The error by which the block ended: nothing will be committed."""
    _committing = False
    _committed = False

    _explained: BaseException | None = None
    """The error that says already what became of the transaction."""
    is_left = False
    """Its context was left."""
    _is_parents = False
    """A fork has copied it into this process."""

    files: Mapping[str, object] | None = None
    """The files of a database that is no server, by their paths: see ``continuity.py``."""

    def __init__(
        self,
        marks: M,
        errors: ErrorContext,
        *,
        claim: bool,
        writes: int = 1,
        caller_block: bool = False,
        joined: bool = False,
        holders: Sequence[Fence | HasFence] = (),
        continuity: Continuity | None = None,
        once: str | None = None,
    ) -> None:
        process.pid()  # it notices a fork, whose child leaves the transactions of its parent alone
        self._holders = holders
        self._known: dict[Fence, Acknowledged | None] = {}
        self._continuity = continuity
        self.errors = errors
        self.fences: Sequence[Fence] = errors.fences
        self.seconds = errors.seconds
        self.claims = claim
        self.writes = writes
        self.caller_block = caller_block
        self.joined = joined
        self._marks = marks
        self.once = once

    def __enter__(self) -> Self:
        if not self.joined:
            open_now = refuse_nested(self._marks, self.fences)
            note_open(self._marks, self.fences, self, open_now)
        if not self.writes and self._continuity is not None:  # the answer may come after the commit
            for holder in self._holders:
                fence = as_fence(holder)
                self._known[fence] = self._continuity.last(holder, fence)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.is_left = True
        return error is not None and not self._remains(error)

    def end_interrupted(self, error: BaseException) -> bool:
        """End what an interruption of ``__exit__`` has left. Raise the meaning of ``error``, where it has another one.

        Returns:
            Whether ``error`` itself must be raised. False: the transaction is committed, so raise nothing.
        """
        self.is_left = True
        return self._remains(error)

    def outcome_of(self, error: BaseException) -> BaseException | None:
        """Return the error to raise for ``error``, which ended the transaction. None: it is committed, so raise
        nothing."""
        if error is self._explained or error is self._body_error:
            return error
        if not self._committing or not self.writes or self._body_error is not None:
            return self._explain(error) if isinstance(error, (NoAnswer, *self.errors.kinds)) else error
        if self._committed and isinstance(error, self.errors.of_driver):
            return None
        if not self._committed and isinstance(error, self.errors.kinds) and self._commit_was_refused(error):
            self._explained = error
            return error
        return self._in_doubt(error)

    def raise_outcome(
        self, interruption: BaseException | None, failure: BaseException | None, error: BaseException | None
    ) -> None:
        """Raise the error that the caller must see after the shielded end of the transaction, if there is one.

        Args:
            interruption: what came meanwhile.
            failure: the error of the end.
            error: the error of the block. It propagates by itself unless another one is raised here.
        """
        meaning = None if failure is None else self.outcome_of(failure)
        if isinstance(failure, NoAnswer) and error is None and not self._committing:
            meaning = GuardUnavailable("the database gave no answer before COMMIT was sent; no data was written, retry")
        if interruption is None:
            if meaning is None or meaning is error:
                return
            if meaning is failure or meaning is self._body_error:
                raise meaning
            raise meaning from failure
        if error is not None or meaning is None:
            outcome = self.outcome_of(interruption)
            raise interruption if outcome is None else outcome
        if isinstance(interruption, Exception) and isinstance(meaning, OutcomeUnknown):
            raise meaning from interruption
        self._explained = interruption
        raise interruption from meaning

    def _remains(self, error: BaseException) -> bool:
        meaning = self.outcome_of(error)
        if meaning is error and not self.joined and self.errors.is_by_a_bound(error):
            note = (
                f"In a guarded transaction no statement, and no pause between two, may take longer than the guard's "
                f"timeout, here {self.seconds:.3g} s (less where the lease had less left). Nothing was written. Put "
                f"slow work outside the block, or give the guard a longer timeout, and the lock a longer ttl."
            )
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        if meaning is None or meaning is error:
            return meaning is not None
        if meaning is self._body_error or meaning is self._explained:
            raise meaning  # it keeps its own cause
        raise meaning from error

    def _explain(self, error: BaseException) -> BaseException | None:
        """Return the meaning of a database's error where no data was committed."""
        if self._committed:
            return None
        if self._body_error is not None:
            return self._body_error  # the transaction is gone, even if the rollback failed
        interruption = interruption_in(error)
        if interruption is not None:
            self._explained = interruption
            return interruption
        if self._admitted is None or not self.writes:
            if isinstance(error, self.errors.kinds):
                return self.errors.explain(error)
            return GuardUnavailable("the database did not answer in time; no data was written, retry")
        return error

    def _in_doubt(self, error: BaseException) -> BaseException:
        """Return the error that says that the outcome is not known."""
        unknown = self._unknown()
        if isinstance(error, Exception):
            unknown.__cause__ = error
            self._explained = unknown
        else:  # programs, and asyncio, end by it
            unknown.__cause__ = error.__cause__
            error.__cause__ = unknown
            self._explained = error
        return self._explained

    def check_continuity(self, admitted: Sequence[Admitted]) -> None:
        """Raise UnclaimedFence if the database has lost what it had acknowledged under one of the fences."""
        if self._continuity is None:
            return
        one = len(self._holders) == 1
        for holder, each in ((self._holders[0], admitted[0]),) if one else self._by_holder(admitted):
            known = self._known[each.fence] if self._known else self._continuity.last(holder, each.fence)
            if known is not None:
                check(known, each.fence, each.seq - self.writes, each.recent_writes, self.files)

    def plan_once(self, admitted: Admitted, key: str) -> Plan[None]:
        """Note that the block's key is done. Raise AlreadyDone where it was done before."""
        return plan_once(admitted, key, self._holders[0])

    def note_commit(self) -> None:
        """Note that the database has acknowledged the commit."""
        self._committed = True
        admitted = self._admitted
        if self._continuity is not None and admitted is not None:
            one = len(self._holders) == 1
            for holder, each in ((self._holders[0], admitted[0]),) if one else self._by_holder(admitted):
                newest = each.recent_writes.partition(" ")[0]
                self._continuity.remember(holder, each.fence, each.seq, newest, files=self.files)

    def _by_holder(self, admitted: Sequence[Admitted]) -> Iterable[tuple[Fence | HasFence, Admitted]]:
        holders = {as_fence(holder): holder for holder in self._holders}
        return [(holders[each.fence], each) for each in admitted]

    def body_failed(self, error: BaseException) -> None:
        """Note that the block raised ``error``, unless the commit has begun: then the error is the commit's."""
        if not self._committing:
            self._body_error = error

    def note_not_sent(self, error: BaseException) -> None:
        """Add to ``error`` that it came before the COMMIT was sent, and so is no lost reply."""
        if _NOT_SENT not in getattr(error, "__notes__", ()):
            error.add_note(_NOT_SENT)

    def refuse(self, text: str) -> NoReturn:
        """Raise GuardNotEnforceable: this is no longer the checked transaction, so it is not committed."""
        self._body_error = GuardNotEnforceable(text)
        raise self._body_error

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""
        return self.is_left

    def leave_to_parent(self) -> None:
        """End this child process's copy. What a socket of its connection is sent from here on goes nowhere."""
        self._is_parents = True
        with suppress(Exception):  # it is broken already
            number = self._socket_number()
            if number is not None:
                leave_to_parent(number)

    def require_own(self) -> None:
        """Raise LeaseLost in a forked child: only the parent ends its transaction."""
        process.pid()  # it notices a fork
        if self._is_parents:
            raise LeaseLost(fence=self.fences[0], reason="forked")

    def _socket_number(self) -> int | None:
        """Return the number of the connection's socket; None: there is none."""
        return None

    @abstractmethod
    def _commit_was_refused(self, error: BaseException) -> bool:
        """Return whether ``error`` is the database's own refusal of the COMMIT."""

    def _unknown(self) -> OutcomeUnknown:
        """Return the error for a commit without an answer."""
        if self._admitted is None:
            raise AssertionError("a commit without a check")
        return self._admitted[0].unknown(self.once)
