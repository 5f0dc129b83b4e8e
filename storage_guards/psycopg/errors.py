"""The meaning of psycopg's errors in the guard's own statements. Errors of a guarded block never come here."""

from __future__ import annotations

import psycopg

from fencing.kernel.errors import GuardNotEnforceable
from fencing.sql import errors as sql_errors
from fencing.sql.errors import first_line
from storage_guards.sql.errors import ErrorContext


class PsycopgErrors(ErrorContext):
    """The context of statements that go through psycopg."""

    kinds = of_driver = (psycopg.Error,)

    def explain(self, error: Exception) -> Exception:
        state, message = sql_errors.state_of(error), first_line(error)
        if type(error).__module__.partition(".")[0] == "psycopg_pool":
            if message.endswith("is not open yet"):
                return GuardNotEnforceable(f"{message}: call its open() before the guard is used")
            if message.endswith("is already closed"):  # for ever: psycopg_pool opens no pool twice
                return GuardNotEnforceable(f"{message}: give a guard a new pool, and close it after the last block")
            return self.unavailable(
                f"the pool gave no connection to reach {self.subject}: {message}; psycopg's log says why"
            )
        explained = self.from_state(state, message)
        if explained is not None:
            return explained
        if isinstance(error, psycopg.ProgrammingError):
            return self.refused(message)
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)):
            return self.unanswered(message, reached=self.connected or state is not None)
        return error


def commit_was_refused(error: BaseException, *, closed: bool) -> bool:
    """Return whether the database itself refused the COMMIT. Otherwise the connection broke, and it may have happened.

    Args:
        error: what came instead of an answer, or as one.
        closed: whether the connection is closed now. Then the last error is no answer, unless it says that the server
            ended a transaction that stood idle: then it has read no COMMIT.
    """
    if sql_errors.state_of(error) == sql_errors.IDLE_TRANSACTION_ENDED:
        return True
    return not closed and isinstance(error, psycopg.Error) and sql_errors.commit_was_refused(error)
