"""What a database error means when the guard's own statements met it. Errors of a guarded block never come here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import Fence
from storage_guards.sql.errors import (
    ALREADY_BEGUN,
    LOST_A_RACE,
    NO_PRIVILEGE,
    READ_ONLY,
    TRANSACTION_IS_GONE,
    UNDEFINED_TABLE,
    Trouble,
    is_an_answer,
)
from storage_guards.sql.outcome import TABLE

__all__ = [
    "DATABASE_ERRORS",
    "commit_was_refused",
    "explain",
    "has_lost_a_race",
    "transaction_is_gone",
]

DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, OSError, asyncio.TimeoutError)
"""What a database, or the way to it, fails with. asyncpg lets the errors of its socket through as they are."""

# PostgreSQL's states, from MariaDB's and MySQL's numbers: their own states are too coarse.
# https://mariadb.com/kb/en/mariadb-error-codes/
_STATES = {
    1020: "40001",  # the row has changed since the transaction's snapshot
    1044: NO_PRIVILEGE,
    1142: NO_PRIVILEGE,
    1143: NO_PRIVILEGE,
    1146: UNDEFINED_TABLE,
    1205: "55P03",  # lock wait timeout; only the statement was rolled back
    1213: "40P01",
    1290: READ_ONLY,
    1305: "3B001",
    1568: ALREADY_BEGUN,
    1792: READ_ONLY,
    1836: READ_ONLY,
    1969: "57014",  # max_statement_time
    3024: "57014",  # max_execution_time
    3572: "55P03",
}

_SQLITE_STATES = {f"no such table: {TABLE}": UNDEFINED_TABLE, "readonly database": READ_ONLY, "is locked": "55P03"}


def explain(
    error: Exception,
    fences: Sequence[Fence],
    seconds: float,
    *,
    then: str = "no data was written, retry",
) -> Exception:
    """The error to raise instead of ``error``, which a claim or a check met: no data was written then.

    Args:
        error: one of DATABASE_ERRORS.
        fences: what was claimed or checked; may be empty.
        seconds: how long the statement was allowed to wait.
        then: what follows from an error that may pass.

    Returns:
        ``GuardUnavailable`` (retry) or ``GuardNotEnforceable`` (change the set-up); ``error`` itself where neither is
        known to be right.
    """
    trouble = Trouble(fences, seconds, then)
    if isinstance(error, PoolTimeoutError):
        return trouble.unavailable(f"the engine's pool had no free connection to reach {trouble.about}")
    if not isinstance(error, DBAPIError):
        return trouble.unanswered(str(error) or type(error).__name__, reached=False)
    said = _first_line(error)
    state = _sqlstate(error) or _state_of_sqlite(said)
    meaning = trouble.meaning(state, said)
    if state == UNDEFINED_TABLE:
        return GuardNotEnforceable(f"{meaning}, or give guard.metadata to Alembic")
    if meaning is not None:
        return meaning
    if isinstance(error, ProgrammingError):
        return trouble.refused(said)
    if isinstance(error, (OperationalError, InterfaceError, InternalError)) or type(error) is DBAPIError:
        return trouble.unanswered(said, reached=not _was_not_reached(error))
    return error


def commit_was_refused(error: DBAPIError) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke, the disk failed) it may have
    happened."""
    if error.connection_invalidated:  # whatever was said last
        return False
    state = _sqlstate(error)
    if _mysql_number(error) is not None:
        return state in LOST_A_RACE
    if state is not None:
        return is_an_answer(state)
    if hasattr(error.orig, "sqlstate"):  # the driver speaks, not the server
        return False
    return isinstance(error, IntegrityError) or "is locked" in _first_line(error)  # SQLite


def has_lost_a_race(error: BaseException | None) -> bool:
    """Whether the transaction failed only because of others at the same time: all of it may be tried again.

    That is a serialization failure, a deadlock, MariaDB's and MySQL's lock wait timeout (1205), which has undone only
    the statement, and SQLite's "database is locked".
    """
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    number = _mysql_number(error)
    return _sqlstate(error) in LOST_A_RACE or number == 1205 or (number is None and "is locked" in _first_line(error))


def transaction_is_gone(error: DBAPIError) -> bool:
    """Whether a statement failed because its transaction had failed, or was over, before."""
    return _sqlstate(error) in TRANSACTION_IS_GONE


def _was_not_reached(error: DBAPIError) -> bool:
    """Whether it failed before there was a statement: in connecting."""
    return error.statement is None and isinstance(error, OperationalError) and _sqlstate(error) is None


def _sqlstate(error: DBAPIError) -> str | None:
    number = _mysql_number(error)
    state = getattr(error.orig, "sqlstate", None) if number is None else _STATES.get(number)
    return state if isinstance(state, str) else None


def _state_of_sqlite(said: str) -> str | None:
    """PostgreSQL's state, from a message; SQLite's errors have no state."""
    found = (state for part, state in _SQLITE_STATES.items() if part in said)
    return next(found, None)


def _mysql_number(error: DBAPIError) -> int | None:
    """What MariaDB, MySQL and their drivers give as the first of two; None: it is another's error."""
    args: tuple[object, ...] = getattr(error.orig, "args", ())
    return args[0] if len(args) == 2 and isinstance(args[0], int) else None


def _first_line(error: DBAPIError) -> str:
    return next(iter(str(error.orig).splitlines()), "no reason given")
