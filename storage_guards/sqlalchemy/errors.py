"""What a database error through SQLAlchemy means when the guard's own statements met it. Errors of a guarded block
never come here."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from fencing.kernel.errors import GuardNotEnforceable
from fencing.sql import errors as sql_errors
from fencing.sql.errors import TRANSACTION_IS_GONE, UNDEFINED_TABLE, first_line, state_of, state_of_sqlite
from storage_guards.sql.errors import ErrorContext

DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, OSError, asyncio.TimeoutError)
"""What a database, or the way to it, fails with. asyncpg lets the errors of its socket through as they are."""


class SQLAlchemyErrors(ErrorContext):
    """The context of statements that go through SQLAlchemy."""

    kinds = DATABASE_ERRORS

    def explain(self, error: Exception) -> Exception:
        """See :meth:`ErrorContext.explain`."""
        if isinstance(error, PoolTimeoutError):
            return self.unavailable(f"the engine's pool had no free connection to reach {self.about}")
        if not isinstance(error, DBAPIError):
            return self.unanswered(str(error) or type(error).__name__, reached=False)
        said = first_line(error.orig)
        state = state_of(error.orig) or state_of_sqlite(said)
        meaning = self.of_state(state, said)
        if state == UNDEFINED_TABLE:
            return GuardNotEnforceable(f"{meaning}, or give guard.metadata to Alembic")
        if meaning is not None:
            return meaning
        if isinstance(error, ProgrammingError):
            return self.refused(said)
        if isinstance(error, (OperationalError, InterfaceError, InternalError)) or type(error) is DBAPIError:
            return self.unanswered(said, reached=not _was_not_reached(error))
        return error


def commit_was_refused(error: BaseException) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke, the disk failed) it may have
    happened."""
    if (
        not isinstance(error, DBAPIError) or error.orig is None or error.connection_invalidated
    ):  # whatever was said last
        return False
    return sql_errors.commit_was_refused(error.orig)


def has_lost_a_race(error: BaseException | None) -> bool:
    """Whether the transaction failed only because of others at the same time: all of it may be tried again."""
    if not isinstance(error, DBAPIError) or error.orig is None or error.connection_invalidated:
        return False
    return sql_errors.lost_race(error.orig)


def transaction_is_gone(error: DBAPIError) -> bool:
    """Whether a statement failed because its transaction had failed, or was over, before."""
    return state_of(error.orig) in TRANSACTION_IS_GONE


def _was_not_reached(error: DBAPIError) -> bool:
    """Whether it failed before there was a statement: in connecting."""
    return error.statement is None and isinstance(error, OperationalError) and state_of(error.orig) is None
