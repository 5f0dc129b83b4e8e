"""The meaning of database errors in a guard's own statements, for every driver. No driver is known here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from fencing.kernel.errors import FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.sql.errors import (
    ALREADY_BEGUN,
    HINT_OF_FILE,
    LOST_RACE,
    NO_PRIVILEGE,
    RAISED,
    READ_ONLY,
    UNDEFINED_COLUMN,
    UNDEFINED_FILE,
    UNDEFINED_TABLE,
    WAITED_TOO_LONG,
    ended_by_a_bound,
    login_was_refused,
)
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.table import DONE

NOTHING_WRITTEN = "no data was written, retry"
ASK_AGAIN = "the outcome is still open, ask again"

ISOLATION = "SHOW transaction_isolation"
"""Of PostgreSQL's transaction."""

ROUNDS = 3
"""Attempts to reach a verdict while other claims come between the statement and the read of the mark."""


def keeps_changing(fence: Fence, then: str = "retry") -> GuardUnavailable:
    """Return the error for a mark that changed at every attempt, so that there is no verdict."""
    return GuardUnavailable(
        f"the mark of {fence.resource!r} changed at each of {ROUNDS} attempts; {then}", resource=fence.resource
    )


def old_snapshot(fence: Fence) -> GuardUnavailable:
    """Return the error for a transaction of the caller's own whose snapshot may be older than the fence's claim."""
    return GuardUnavailable(
        f"this transaction may have read data that are older than the mark of {fence.resource!r}: "
        f"roll it back, and advance at its beginning",
        resource=fence.resource,
    )


class ErrorContext(ABC):
    """The context of a guard's own statements, connecting included. It maps a driver's errors to the caller's errors.

    Args:
        fences: the fences of the claim or check; may be empty.
        seconds: how long a statement may wait.
        then: the caller's next step after an error that may pass.
    """

    kinds: ClassVar[tuple[type[Exception], ...]]
    """The errors of the driver, and of the connection to the database."""
    of_driver: ClassVar[tuple[type[Exception], ...]]
    """Those of them that only the driver raises. A signal handler may raise the others, such as TimeoutError."""
    connected = False
    """Whether there is a connection yet, for a driver whose errors do not say so."""

    def __init__(self, fences: Sequence[Fence], seconds: float, then: str = NOTHING_WRITTEN) -> None:
        self.fences = fences
        self.seconds = seconds
        self.then = then

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self.kinds):
            explained = self.explain(error)
            if explained is not error:
                raise explained from error

    @abstractmethod
    def explain(self, error: Exception) -> Exception:
        """Return the error to raise instead of ``error``, which is one of ``kinds`` and came from the guard's own
        statements.

        Returns:
            ``GuardUnavailable`` (retry) or ``GuardNotEnforceable`` (change the set-up). Or ``error`` itself where
            neither is known to be right.
        """

    def is_by_a_bound(self, error: BaseException) -> bool:
        """Return whether a time-out such as the guard's ended a statement, or the transaction."""
        return isinstance(error, self.of_driver) and ended_by_a_bound(getattr(error, "orig", None) or error)

    @property
    def subject(self) -> str:
        """The marks or the table that the statements are about, for messages."""
        if not self.fences:
            return f"the table {TABLE}"
        names = ", ".join(repr(fence.resource) for fence in self.fences)
        return f"the mark{'s' * (len(self.fences) > 1)} of {names}"

    def unavailable(self, text: str) -> GuardUnavailable:
        """Return the error for a failure that may pass."""
        resource = self.fences[0].resource if len(self.fences) == 1 else None
        return GuardUnavailable(f"{text}; {self.then}", resource=resource)

    def unanswered(self, message: str, *, reached: bool) -> GuardUnavailable:
        """Return the error for a database that gave no answer; ``reached`` says whether there was a connection."""
        hint = "" if reached else "; is it running, and is its address right?"
        return self.unavailable(f"the database did not answer about {self.subject}: {message}{hint}")

    def refused(self, message: str) -> GuardNotEnforceable:
        """Return the error for a statement that the database refused."""
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {message}")

    def from_state(self, state: str | None, message: str) -> FencingError | None:
        """Return the error that a state stands for by itself, or None.

        Args:
            state: the SQLSTATE, as PostgreSQL has it.
            message: the first line of the error.
        """
        if state == UNDEFINED_TABLE:
            missing = DONE if DONE in message else TABLE
            return GuardNotEnforceable(
                f"the table {missing} is missing: call guard.create_tables() once; nothing was written"
            )
        if state == UNDEFINED_COLUMN and "write_id" in message:
            return GuardNotEnforceable(
                f"the table {DONE} is of an earlier program, which never filled it: DROP TABLE {DONE}, and call "
                f"guard.create_tables(); nothing was written"
            )
        if state == UNDEFINED_COLUMN:
            return GuardNotEnforceable(
                f"the table {TABLE} is of another version than this library ({message}): guard.create_tables() says "
                f"how to bring it up to date; nothing was written"
            )
        if login_was_refused(state):
            return GuardNotEnforceable(
                f"the database did not let the guard in: {message}; correct its address, its name, user and password"
            )
        if state == UNDEFINED_FILE:
            return GuardNotEnforceable(f"the database was not opened: {message}; {HINT_OF_FILE}")
        if state == READ_ONLY:
            return GuardNotEnforceable(
                f"this connection is read-only ({message}): connect the guard to the primary, not to a replica"
            )
        if state == ALREADY_BEGUN:
            return GuardNotEnforceable(
                f"the connection was in a transaction before the guard began its own ({message}): remove what "
                f"executes statements when the pool hands out a connection"
            )
        if state == NO_PRIVILEGE:
            return GuardNotEnforceable(
                f"the database refused the guard's statement: {message}; use a role that has this right, or grant "
                f"it (where the database enforces, enforce() grants what guards need, and the owner prunes)"
            )
        if state == RAISED:  # by the statements of enforcement.py
            return GuardNotEnforceable(message)
        if state in WAITED_TOO_LONG:
            return self.unavailable(
                f"{self.subject} stayed locked by another transaction for {self.seconds:.3g} s "
                f"(perhaps a begin around this one)"
            )
        if state in LOST_RACE:
            return self.unavailable(f"another transaction changed {self.subject} at the same time")
        return None
