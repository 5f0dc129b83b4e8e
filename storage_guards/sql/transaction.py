"""One guarded transaction, as far as it is the same for every driver: its state, and so the meaning of an error.

No I/O, and no driver is known here. The states are: admitted; its body has failed; committing, from the moment that a
COMMIT may be sent; committed. Until the commit begins, an error means that nothing was written. From then on every
error that is not the server's own answer means that the outcome is not known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence
from storage_guards.sql.errors import ErrorContext
from storage_guards.sql.nesting import refuse_nested

M = TypeVar("M")


class GuardedTransaction(ABC, Generic[M]):
    """One claim, one guarded block, or one check in a transaction of the caller's own. It is used once.

    As a context manager it surrounds all of it, connecting included. It gives database errors the meaning that they
    have in the current state. An interruption (CancelledError, KeyboardInterrupt) stays the same error. If it came
    during the commit, so that the outcome is not known, its ``__cause__`` says so.

    Args:
        marks: the guard's access to the marks: one object for each guard.
        errors: the driver's error context. It has the fences, sorted by resource, one for each; and the bound of every
            wait for a lock, and of every statement where the database has such a bound.
        claim: raise the marks. Otherwise they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        caller_block: the block is the caller's and can send anything, also a COMMIT: check the transaction again at its
            end.
        joined: it is a transaction of the caller's own.

    Raises:
        RuntimeError: on entry: it would wait for a guarded block of the same thread or task.
    """

    _admitted: Sequence[Any] | None = None
    """The database's answer to each claim or check."""
    _body_error: BaseException | None = None
    """The error by which the block ended: nothing will be committed."""
    _committing = False
    _committed = False

    def __init__(
        self,
        marks: M,
        errors: ErrorContext,
        *,
        claim: bool,
        writes: int = 1,
        caller_block: bool = False,
        joined: bool = False,
    ) -> None:
        self.errors = errors
        self.fences: Sequence[Fence] = errors.fences
        self.seconds = errors.seconds
        self.claims = claim
        self.writes = writes
        self.caller_block = caller_block
        self.joined = joined
        self._marks = marks

    def __enter__(self) -> Self:
        self._nesting: AbstractContextManager[None] = (
            nullcontext() if self.joined else refuse_nested(self._marks, self.fences, self)
        )
        self._nesting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._nesting.__exit__(None, None, None)
        if isinstance(error, self.errors.kinds):
            explained = self.explain(error)
            if explained is None:
                return True
            if explained is error:
                return False
            if explained is self._body_error:
                raise explained  # it keeps its own cause
            raise explained from error
        if error is None or isinstance(error, Exception) or error.__cause__ is not None:
            return False
        if self._committing and not self._committed and self.writes:
            raise error from self.explain(error)
        return False

    def explain(self, error: BaseException) -> BaseException | None:
        """Return the error to raise for ``error``, which ended the transaction. None: it is committed, so raise
        nothing."""
        if self._committed:
            return None
        if self._body_error is not None:
            return self._body_error  # the transaction is gone, even if the rollback failed
        if self._admitted is None or not self.writes:
            if isinstance(error, self.errors.kinds):
                return self.errors.explain(error)
            return GuardUnavailable("the database did not answer in time; no data was written, retry")
        if self._committing and not self._commit_was_refused(error):
            return self._unknown()
        return error

    def body_failed(self, error: BaseException) -> None:
        """Note that the block raised ``error``, unless the commit has begun: then the error is the commit's."""
        if not self._committing:
            self._body_error = error

    def refuse(self, text: str) -> NoReturn:
        """Raise GuardNotEnforceable: this is no longer the checked transaction, so it is not committed."""
        self._body_error = GuardNotEnforceable(text)
        raise self._body_error

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""
        return False

    @abstractmethod
    def _commit_was_refused(self, error: BaseException) -> bool:
        """Return whether ``error`` is the database's own refusal of the COMMIT."""

    @abstractmethod
    def _unknown(self) -> OutcomeUnknown:
        """Return the error for a commit without an answer."""
