"""What a database error means when the guard's own statements met it. Errors of a guarded block never come here."""

from __future__ import annotations

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
from storage_guards.sql_marks import TABLE

__all__ = ["commit_was_refused", "explain"]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_UNDEFINED_TABLE = "42P01"
_READ_ONLY = "25006"
_WAITED_TOO_LONG = {"55P03", "57014"}  # lock_not_available, query_canceled (statement_timeout)
_LOST_A_RACE = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_CONNECTION_EXCEPTION = "08"
_SERVER_GOES = "57P0"  # admin_shutdown, crash_shutdown, cannot_connect_now
_COMPLETION_UNKNOWN = "40003"


def explain(
    error: DBAPIError | PoolTimeoutError,
    fences: Sequence[Fence],
    seconds: float,
    *,
    then: str = "no data was written, retry",
) -> Exception:
    """The error to raise instead of ``error``, which a claim or a check met: no data was written then.

    Args:
        error: as SQLAlchemy raised it.
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
    state, said = _sqlstate(error), _first_line(error)
    if state == _UNDEFINED_TABLE or f"no such table: {TABLE}" in said:
        return GuardNotEnforceable(
            f"the table {TABLE} is missing: call guard.create_tables() once, or give guard.metadata to Alembic"
        )
    if state == _READ_ONLY or "readonly database" in said:
        return GuardNotEnforceable(f"this connection is read-only; a guard needs the primary, not a replica ({said})")
    if isinstance(error, ProgrammingError):
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {said}")
    if state in _WAITED_TOO_LONG or "is locked" in said:
        return unavailable(f"{about} stayed locked by another transaction for {seconds:.3g} s")
    if state in _LOST_A_RACE:
        return unavailable(f"{about} was changed by another transaction at the same time")
    if isinstance(error, (OperationalError, InterfaceError, InternalError)):
        hint = "; is it running, and is this its address?" if _was_not_reached(error) else ""
        return unavailable(f"the database did not answer about {about}: {said}{hint}")
    return error


def commit_was_refused(error: DBAPIError) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke, the disk failed) it may have
    happened."""
    if error.connection_invalidated:  # whatever was said last
        return False
    state = _sqlstate(error)
    if state is not None:
        return not state.startswith((_CONNECTION_EXCEPTION, _SERVER_GOES, _COMPLETION_UNKNOWN))
    if hasattr(error.orig, "sqlstate"):  # psycopg speaks, not the server
        return False
    return isinstance(error, IntegrityError) or "is locked" in _first_line(error)  # SQLite


def _was_not_reached(error: DBAPIError) -> bool:
    """Whether it failed before there was a statement: in connecting."""
    return error.statement is None and isinstance(error, OperationalError) and _sqlstate(error) is None


def _sqlstate(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


def _first_line(error: DBAPIError) -> str:
    return next(iter(str(error.orig).splitlines()), "no reason given")
