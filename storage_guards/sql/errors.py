"""What a database's error state means to a guard's own statements, whatever the driver. No driver is known here.

https://www.postgresql.org/docs/current/errcodes-appendix.html; other databases' errors are translated to these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencing.kernel.errors import FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards.sql.outcome import TABLE

__all__ = [
    "ALREADY_BEGUN",
    "LOST_A_RACE",
    "NO_PRIVILEGE",
    "READ_ONLY",
    "TRANSACTION_IS_GONE",
    "UNDEFINED_TABLE",
    "Trouble",
    "is_an_answer",
]

UNDEFINED_TABLE = "42P01"
READ_ONLY = "25006"
ALREADY_BEGUN = "25001"  # active_sql_transaction
NO_PRIVILEGE = "42501"
LOST_A_RACE = {"40001", "40P01"}  # serialization_failure, deadlock_detected
TRANSACTION_IS_GONE = {"25P02", "3B001"}  # in_failed_sql_transaction, and no such savepoint
_RAISED = "P0001"  # raise_exception, by what enforcement.py executes
_WAITED_TOO_LONG = {"55P03", "57014"}  # lock_not_available, query_canceled (statement_timeout)
_CONNECTION_EXCEPTION = "08"
_SERVER_GOES = "57P0"  # admin_shutdown, crash_shutdown, cannot_connect_now
_COMPLETION_UNKNOWN = "40003"


class Trouble(NamedTuple):
    """A statement of the guard's own that failed, so that no data was written.

    Args:
        fences: what was claimed or checked; may be empty.
        seconds: how long the statement was allowed to wait.
        then: what follows from an error that may pass.
    """

    fences: Sequence[Fence]
    seconds: float
    then: str

    @property
    def about(self) -> str:
        """What it was about, for messages."""
        if not self.fences:
            return f"the table {TABLE}"
        names = ", ".join(repr(fence.resource) for fence in self.fences)
        return f"the mark{'s' * (len(self.fences) > 1)} of {names}"

    def unavailable(self, text: str) -> GuardUnavailable:
        """The error of what may pass."""
        resource = self.fences[0].resource if len(self.fences) == 1 else None
        return GuardUnavailable(f"{text}; {self.then}", resource=resource)

    def unanswered(self, said: str, *, reached: bool) -> GuardUnavailable:
        """The database did not answer, though it was ``reached``, or was not."""
        hint = "" if reached else "; is it running, and are its address, its name, user and password right?"
        return self.unavailable(f"the database did not answer about {self.about}: {said}{hint}")

    def refused(self, said: str) -> GuardNotEnforceable:
        """The database will not have the statement."""
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {said}")

    def meaning(self, state: str | None, said: str) -> FencingError | None:
        """The error that a state stands for by itself; None: none.

        Args:
            state: SQLSTATE.
            said: the error's first line.
        """
        if state == UNDEFINED_TABLE:
            return GuardNotEnforceable(f"the table {TABLE} is missing: call guard.create_tables() once")
        if state == READ_ONLY:
            return GuardNotEnforceable(
                f"this connection is read-only; a guard needs the primary, not a replica ({said})"
            )
        if state == ALREADY_BEGUN:
            return GuardNotEnforceable(
                f"the connection was in a transaction before the guard began its own: something executes statements "
                f"when the pool hands connections out ({said})"
            )
        if state == NO_PRIVILEGE:
            return GuardNotEnforceable(
                f"the database refused the guard's statement: {said}; use a role that has this right, or grant "
                f"it (where the database enforces, enforce() grants what guards need, and the owner prunes)"
            )
        if state == _RAISED:
            return GuardNotEnforceable(said)
        if state in _WAITED_TOO_LONG:
            return self.unavailable(
                f"{self.about} stayed locked by another transaction for {self.seconds:.3g} s (a begin around this one?)"
            )
        if state in LOST_A_RACE:
            return self.unavailable(f"{self.about} was changed by another transaction at the same time")
        return None


def is_an_answer(state: str) -> bool:
    """Whether the database itself said no to a COMMIT; else, as the connection broke, it may have happened."""
    return not state.startswith((_CONNECTION_EXCEPTION, _SERVER_GOES, _COMPLETION_UNKNOWN))
