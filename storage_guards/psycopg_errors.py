"""What a psycopg error means when the guard's own statements met it. Errors of a guarded block never come here."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from fencing.errors import FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.fence import Fence
from storage_guards.recent_writes import TABLE

__all__ = ["commit_was_refused", "explain"]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_UNDEFINED_TABLE = "42P01"
_READ_ONLY = "25006"
_RAISED = "P0001"  # raise_exception
_WAITED_TOO_LONG = {"55P03", "57014"}  # lock_not_available, query_canceled (statement_timeout)
_LOST_A_RACE = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_CONNECTION_EXCEPTION = "08"
_SERVER_GOES = "57P0"  # admin_shutdown, crash_shutdown, cannot_connect_now
_COMPLETION_UNKNOWN = "40003"


def explain(
    error: psycopg.Error,
    fences: Sequence[Fence],
    seconds: float,
    *,
    connected: bool,
    then: str = "no data was written, retry",
) -> Exception:
    """The error to raise instead of ``error``, which a claim or a check met: no data was written then.

    Args:
        error: as psycopg raised it.
        fences: what was claimed or checked; may be empty.
        seconds: how long the statement was allowed to wait.
        connected: whether there was a connection.
        then: what follows from an error that may pass.

    Returns:
        ``GuardUnavailable`` (retry) or ``GuardNotEnforceable`` (change the set-up); ``error`` itself where neither is
        known to be right.
    """
    names = ", ".join(repr(fence.resource) for fence in fences)
    resource = fences[0].resource if len(fences) == 1 else None
    about = f"the mark of {names}" if len(fences) == 1 else f"the marks of {names}" if fences else f"the table {TABLE}"
    state, said = error.sqlstate, _first_line(error)

    def unavailable(text: str) -> FencingError:
        return GuardUnavailable(f"{text}; {then}", resource=resource)

    if type(error).__module__.partition(".")[0] == "psycopg_pool":
        return unavailable(f"the pool had no free connection to reach {about}: {said}")
    if state == _UNDEFINED_TABLE:
        return GuardNotEnforceable(f"the table {TABLE} is missing: call guard.create_tables() once")
    if state == _RAISED:  # by what enforcement.py executes
        return GuardNotEnforceable(said)
    if state == _READ_ONLY:
        return GuardNotEnforceable(f"this connection is read-only; a guard needs the primary, not a replica ({said})")
    if isinstance(error, psycopg.ProgrammingError):
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {said}")
    if state in _WAITED_TOO_LONG:
        return unavailable(f"{about} stayed locked by another transaction for {seconds:.3g} s")
    if state in _LOST_A_RACE:
        return unavailable(f"{about} was changed by another transaction at the same time")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)):
        hint = "" if connected or state is not None else "; is it running, and is this its address?"
        return unavailable(f"the database did not answer about {about}: {said}{hint}")
    return error


def commit_was_refused(error: BaseException, *, closed: bool) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke) it may have happened.

    Args:
        error: what came instead of an answer, or as one.
        closed: whether the connection is closed now: then whatever was said last is no answer.
    """
    if closed or not isinstance(error, psycopg.Error) or error.sqlstate is None:  # None: psycopg speaks, not the server
        return False
    return not error.sqlstate.startswith((_CONNECTION_EXCEPTION, _SERVER_GOES, _COMPLETION_UNKNOWN))


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).splitlines()), "no reason given")
