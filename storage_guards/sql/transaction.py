"""One guarded transaction, as far as it is the same whatever the driver: how far it has come, and so what an error
means. No I/O, and no driver is known here.

It is admitted; its body may fail; it is committing, from the moment that a COMMIT may be sent; it is committed. An
error says that nothing was written, until the commit begins. From then on whatever is not the server's own answer means
that the outcome is not known.
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
    """One use: a claim, a guarded block, or a check in a transaction of the caller's own.

    As a context manager it goes around all of it, connecting included, and gives database errors the meaning they have
    at the point reached. An interruption (CancelledError, KeyboardInterrupt) stays what it is. If it came during the
    commit, so that the outcome is not known, its ``__cause__`` says so.

    Args:
        marks: the guard's way to them, which is one object of the guard.
        errors: the driver's, for the fences, which are sorted by resource, one each; and the bound of every wait for a
            lock, and of every statement where the database has such a bound.
        claim: raise the marks; else they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        caller_block: the block is the caller's, who can send anything, a COMMIT included: look again at its end.
        joined: it is a transaction of the caller's own.

    Raises:
        RuntimeError: on entry: it would wait for a guarded block of the same thread or task.
    """

    _admitted: Sequence[Any] | None = None
    """What the database answered to each claim or check."""
    _body_error: BaseException | None = None
    """By which the block ended: nothing will be committed."""
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
                raise explained  # with the cause that it has
            raise explained from error
        if error is None or isinstance(error, Exception) or error.__cause__ is not None:
            return False
        if self._committing and not self._committed and self.writes:
            raise error from self.explain(error)
        return False

    def explain(self, error: BaseException) -> BaseException | None:
        """What ``error``, which ended the transaction, says of it; None: nothing, for it is committed."""
        if self._committed:
            return None
        if self._body_error is not None:
            return self._body_error  # a rollback that failed after it changes nothing: the transaction is gone
        if self._admitted is None or not self.writes:
            if isinstance(error, self.errors.kinds):
                return self.errors.explain(error)
            return GuardUnavailable("the database did not answer in time; no data was written, retry")
        if self._committing and not self._commit_was_refused(error):
            return self._unknown()
        return error

    def body_failed(self, error: BaseException) -> None:
        """The block raised it; what comes from a commit that has begun is none of it."""
        if not self._committing:
            self._body_error = error

    def refuse(self, text: str) -> NoReturn:
        """GuardNotEnforceable: this is not the checked transaction any more, so it is not committed."""
        self._body_error = GuardNotEnforceable(text)
        raise self._body_error

    def is_over(self) -> bool:
        """Whether it holds the marks no more, though this context has not been left yet: hooks may run then."""
        return False

    @abstractmethod
    def _commit_was_refused(self, error: BaseException) -> bool:
        """Whether it is the database's own no to the COMMIT."""

    @abstractmethod
    def _unknown(self) -> OutcomeUnknown:
        """The error of a commit without an answer, from what was admitted."""
