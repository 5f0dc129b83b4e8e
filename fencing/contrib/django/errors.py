"""The meaning of Django's database errors in a guard's own statements."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, Error, InterfaceError, OperationalError, ProgrammingError

from fencing.sql.errors import TRANSACTION_IS_GONE, first_line, state_of, state_of_sqlite
from fencing.sql.errors import commit_was_refused as driver_refused
from storage_guards.sql.errors import ErrorContext, old_snapshot

_NO_TRANSACTION = "25P01"  # no_active_sql_transaction: psycopg2 begins none behind a COMMIT that was sent as text


class DjangoErrors(ErrorContext):
    """The context of statements that go through Django's cursors. Django's errors have the driver's as their cause."""

    kinds = (Error,)
    of_driver = (Error,)

    def explain(self, error: Exception) -> Exception:
        cause = _cause_of(error)
        message = first_line(cause)
        if getattr(cause, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT" and self.fences:
            return old_snapshot(self.fences[0])
        state = _state_of(cause) or state_of_sqlite(message)
        explained = self.from_state(state, message)
        if explained is not None:
            return explained
        if isinstance(error, ProgrammingError):
            return self.refused(message)
        if isinstance(error, (OperationalError, InterfaceError)) or type(error) is DatabaseError:
            return self.unanswered(message, reached=True)
        return error


def commit_was_refused(error: BaseException) -> bool:
    """Return whether the database itself refused the COMMIT. Otherwise (a broken connection) it may have happened."""
    return isinstance(error, Error) and driver_refused(_cause_of(error))


def savepoint_is_gone(error: BaseException) -> bool:
    """Return whether a savepoint was not there any more, or its transaction had failed already."""
    cause = _cause_of(error)
    return _state_of(cause) in (*TRANSACTION_IS_GONE, _NO_TRANSACTION) or "no such savepoint" in first_line(cause)


def number_of(error: BaseException) -> object:
    """Return the number of an error of MariaDB or MySQL."""
    return error.args[0] if error.args else None


def _cause_of(error: BaseException) -> Any:
    return error.__cause__ or error


def _state_of(cause: Any) -> str | None:
    return state_of(cause) or getattr(cause, "pgcode", None)  # which is psycopg2's
