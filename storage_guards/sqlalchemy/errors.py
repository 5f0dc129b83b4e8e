"""The meaning of SQLAlchemy's errors in the guard's own statements. Errors of a guarded block never come here."""

from __future__ import annotations

import asyncio

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import Pool, QueuePool

from fencing.kernel.errors import GuardNotEnforceable
from fencing.sql import errors as sql_errors
from fencing.sql.errors import (
    IDLE_TRANSACTION_ENDED,
    TRANSACTION_IS_GONE,
    UNDEFINED_TABLE,
    first_line,
    state_of,
    state_of_sqlite,
)
from storage_guards.sql.errors import ErrorContext
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.table import PARTITION_BY

_NO_PARTITIONS = 1747  # of MariaDB and MySQL
_HIDDEN = (
    f"the table {TABLE} does not have the partition that it had. Perhaps a temporary table of this name hides it from "
    f"this connection: drop that. If the mark table itself was altered: ALTER TABLE {TABLE} {PARTITION_BY}"
)

DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, OSError, asyncio.TimeoutError)
"""The errors of a database, and of the connection to it. asyncpg passes on the errors of its socket."""


class NoConnection(PoolTimeoutError):
    """An engine gave no connection within the time of the guard's call."""

    def __init__(self, engine: Engine, seconds: float, reason: str = "") -> None:
        pool = engine.pool
        if isinstance(pool, QueuePool) and not may_grow(pool) and not pool.checkedin():
            reason = "the engine's pool is used up. Let it have more connections, or give them back sooner"
        reason = reason or "the server did not answer"
        super().__init__(f"within {seconds:.3g} s: {reason} ({pool.status()})")


def may_grow(pool: Pool) -> bool:
    """Return whether the pool may open one more connection."""
    most = getattr(pool, "_max_overflow", -1)  # SQLAlchemy's (seen in 2.0 and 2.1)
    return not isinstance(pool, QueuePool) or most < 0 or pool.overflow() < most


class SQLAlchemyErrors(ErrorContext):
    """The context of statements that go through SQLAlchemy."""

    kinds = DATABASE_ERRORS
    of_driver = (DBAPIError,)

    def explain(self, error: Exception) -> Exception:
        if isinstance(error, NoConnection):
            return self.unavailable(f"no connection to reach {self.subject} {error}")
        if isinstance(error, PoolTimeoutError):
            return self.unavailable(f"the engine's pool had no free connection to reach {self.subject}")
        if not isinstance(error, DBAPIError):
            return self.unanswered(str(error) or type(error).__name__, reached=False)
        message = first_line(error.orig)
        state = state_of(error.orig) or state_of_sqlite(message)
        explained = self.from_state(state, message)
        if state == UNDEFINED_TABLE:
            return GuardNotEnforceable(f"{explained}, or give guard.metadata to Alembic")
        if explained is not None:
            return explained
        if error.orig is not None and error.orig.args[:1] == (_NO_PARTITIONS,):
            return GuardNotEnforceable(_HIDDEN)
        if isinstance(error, ProgrammingError):
            return self.refused(message)
        if isinstance(error, (OperationalError, InterfaceError, InternalError)) or type(error) is DBAPIError:
            return self.unanswered(message, reached=not _was_not_reached(error))
        return error


def commit_was_refused(error: BaseException) -> bool:
    """Return whether the database itself refused the COMMIT. Otherwise (a broken connection, a full disk) it may have
    happened."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    if state_of(error.orig) == IDLE_TRANSACTION_ENDED:
        return True  # the server has read no COMMIT
    if error.connection_invalidated:
        return False  # the last error of a broken connection is no answer
    return sql_errors.commit_was_refused(error.orig)


def lost_race(error: BaseException | None) -> bool:
    """Return whether the transaction failed only because of concurrent ones, so that all of it may be repeated."""
    if not isinstance(error, DBAPIError) or error.orig is None or error.connection_invalidated:
        return False
    return sql_errors.lost_race(error.orig)


def transaction_is_gone(error: DBAPIError) -> bool:
    """Return whether a statement failed because its transaction had already failed or ended."""
    return state_of(error.orig) in TRANSACTION_IS_GONE


def _was_not_reached(error: DBAPIError) -> bool:
    """Return whether connecting failed, before there was a statement."""
    return error.statement is None and isinstance(error, OperationalError) and state_of(error.orig) is None
