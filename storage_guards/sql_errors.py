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

from fencing.errors import FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.fence import Fence
from storage_guards.recent_writes import TABLE

__all__ = [
    "DATABASE_ERRORS",
    "commit_was_refused",
    "explain",
    "has_lost_a_race",
    "transaction_is_gone",
]

DATABASE_ERRORS = (DBAPIError, PoolTimeoutError, OSError, asyncio.TimeoutError)
"""What a database, or the way to it, fails with. asyncpg lets the errors of its socket through as they are."""

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_UNDEFINED_TABLE = "42P01"
_READ_ONLY = "25006"
_RAISED = "P0001"  # raise_exception
_WAITED_TOO_LONG = {"55P03", "57014"}  # lock_not_available, query_canceled (statement_timeout)
_LOST_A_RACE = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_CONNECTION_EXCEPTION = "08"
_SERVER_GOES = "57P0"  # admin_shutdown, crash_shutdown, cannot_connect_now
_COMPLETION_UNKNOWN = "40003"
_ALREADY_BEGUN = "25001"  # active_sql_transaction
_NO_PRIVILEGE = "42501"
_TRANSACTION_IS_GONE = {"25P02", "3B001"}  # in_failed_sql_transaction, and no such savepoint

# The same, from MariaDB's and MySQL's numbers: their own states are too coarse.
# https://mariadb.com/kb/en/mariadb-error-codes/
_STATES = {
    1020: "40001",  # the row has changed since the transaction's snapshot
    1044: _NO_PRIVILEGE,
    1142: _NO_PRIVILEGE,
    1143: _NO_PRIVILEGE,
    1146: _UNDEFINED_TABLE,
    1205: "55P03",  # lock wait timeout; only the statement was rolled back
    1213: "40P01",
    1290: _READ_ONLY,
    1305: "3B001",
    1568: _ALREADY_BEGUN,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1969: "57014",  # max_statement_time
    3024: "57014",  # max_execution_time
    3572: "55P03",
}


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
    names = ", ".join(repr(fence.resource) for fence in fences)
    resource = fences[0].resource if len(fences) == 1 else None
    about = f"the mark of {names}" if len(fences) == 1 else f"the marks of {names}" if fences else f"the table {TABLE}"

    def unavailable(text: str) -> FencingError:
        return GuardUnavailable(f"{text}; {then}", resource=resource)

    if isinstance(error, PoolTimeoutError):
        return unavailable(f"the engine's pool had no free connection to reach {about}")
    if not isinstance(error, DBAPIError):
        return unavailable(
            f"the database did not answer about {about}: {str(error) or type(error).__name__}; is it running, and is "
            f"this its address?"
        )
    state, said = _sqlstate(error), _first_line(error)
    if state == _UNDEFINED_TABLE or f"no such table: {TABLE}" in said:
        return GuardNotEnforceable(
            f"the table {TABLE} is missing: call guard.create_tables() once, or give guard.metadata to Alembic"
        )
    if state == _RAISED:  # by what enforcement.py executes
        return GuardNotEnforceable(said)
    if state == _READ_ONLY or "readonly database" in said:
        return GuardNotEnforceable(f"this connection is read-only; a guard needs the primary, not a replica ({said})")
    if state == _ALREADY_BEGUN:
        return GuardNotEnforceable(
            f"the connection was in a transaction before the guard began its own: something executes statements when "
            f"the pool hands connections out ({said})"
        )
    if isinstance(error, ProgrammingError) or state == _NO_PRIVILEGE:
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {said}")
    if state in _WAITED_TOO_LONG or "is locked" in said:
        return unavailable(f"{about} stayed locked by another transaction for {seconds:.3g} s")
    if state in _LOST_A_RACE:
        return unavailable(f"{about} was changed by another transaction at the same time")
    if isinstance(error, (OperationalError, InterfaceError, InternalError)) or type(error) is DBAPIError:
        hint = "; is it running, and is this its address?" if _was_not_reached(error) else ""
        return unavailable(f"the database did not answer about {about}: {said}{hint}")
    return error


def commit_was_refused(error: DBAPIError) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke, the disk failed) it may have
    happened."""
    if error.connection_invalidated:  # whatever was said last
        return False
    state = _sqlstate(error)
    if _mysql_number(error) is not None:
        return state in _LOST_A_RACE
    if state is not None:
        return not state.startswith((_CONNECTION_EXCEPTION, _SERVER_GOES, _COMPLETION_UNKNOWN))
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
    return _sqlstate(error) in _LOST_A_RACE or number == 1205 or (number is None and "is locked" in _first_line(error))


def transaction_is_gone(error: DBAPIError) -> bool:
    """Whether a statement failed because its transaction had failed, or was over, before."""
    return _sqlstate(error) in _TRANSACTION_IS_GONE


def _was_not_reached(error: DBAPIError) -> bool:
    """Whether it failed before there was a statement: in connecting."""
    return error.statement is None and isinstance(error, OperationalError) and _sqlstate(error) is None


def _sqlstate(error: DBAPIError) -> str | None:
    number = _mysql_number(error)
    state = getattr(error.orig, "sqlstate", None) if number is None else _STATES.get(number)
    return state if isinstance(state, str) else None


def _mysql_number(error: DBAPIError) -> int | None:
    """What MariaDB, MySQL and their drivers give as the first of two; None: it is another's error."""
    args: tuple[object, ...] = getattr(error.orig, "args", ())
    return args[0] if len(args) == 2 and isinstance(args[0], int) else None


def _first_line(error: DBAPIError) -> str:
    return next(iter(str(error.orig).splitlines()), "no reason given")
