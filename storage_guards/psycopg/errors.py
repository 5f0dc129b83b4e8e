"""What a psycopg error means when the guard's own statements met it. Errors of a guarded block never come here."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from fencing.kernel.fence import Fence
from storage_guards.sql.errors import Trouble, is_an_answer

__all__ = ["commit_was_refused", "explain"]


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
    trouble = Trouble(fences, seconds, then)
    state, said = error.sqlstate, _first_line(error)
    if type(error).__module__.partition(".")[0] == "psycopg_pool":
        return trouble.unavailable(f"the pool gave no connection to reach {trouble.about}: {said}")
    meaning = trouble.meaning(state, said)
    if meaning is not None:
        return meaning
    if isinstance(error, psycopg.ProgrammingError):
        return trouble.refused(said)
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)):
        return trouble.unanswered(said, reached=connected or state is not None)
    return error


def commit_was_refused(error: BaseException, *, closed: bool) -> bool:
    """Whether the database itself said no to the COMMIT; else (the connection broke) it may have happened.

    Args:
        error: what came instead of an answer, or as one.
        closed: whether the connection is closed now: then whatever was said last is no answer.
    """
    if closed or not isinstance(error, psycopg.Error) or error.sqlstate is None:  # None: psycopg speaks, not the server
        return False
    return is_an_answer(error.sqlstate)


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).splitlines()), "no reason given")
