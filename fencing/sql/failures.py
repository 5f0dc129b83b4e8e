"""The meaning of a failed request to the table of locks: whether another attempt may succeed, or what to change."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.sql.errors import (
    HINT_OF_FILE,
    NO_PRIVILEGE,
    READ_ONLY,
    UNDEFINED_FILE,
    UNDEFINED_TABLE,
    first_line,
    is_an_answer,
    login_was_refused,
    state_of,
    state_of_sqlite,
)
from fencing.sql.table import TABLE, OtherVersion

FAILURES = (DBAPIError, PoolTimeoutError, OSError, asyncio.TimeoutError, OtherVersion)
"""The errors of a database, and of the connection to it. asyncpg passes on the errors of its socket."""

_PASSING = ("25", "40", "53", "55", "57", "23505", "42P07", "42710")
"""States that pass, and classes of them: a read-only replica, a lost race, insufficient resources, an operator's doing;
and the states of two that create the table at once."""


def unwrap(error: BaseException) -> BaseException:
    """Return the exception in whose place SQLAlchemy raised ``error``: one that interrupted a driver, for example."""
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def state_of_failure(error: BaseException) -> str | None:
    """Return the state of a failure; None: it has none."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return state_of(cause) or state_of_sqlite(first_line(cause))


def leaves_good_connection(error: BaseException) -> bool:
    """Return whether the connection can be used again. A server that cannot write may be a replica since a failover."""
    return was_answered(error) and state_of_failure(error) != READ_ONLY


def was_answered(error: BaseException) -> bool:
    """Return whether the failure is an answer of the database, so that the statement was undone."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    state = state_of_failure(error)
    if state is not None:
        return is_an_answer(state)
    # Without a state, it is an error of the driver, or of a disk under SQLite, or one that MariaDB alone has.
    return not hasattr(error.orig, "sqlstate") and "I/O" not in first_line(error.orig)


def explain(error: Exception, *, sent: bool, address: str) -> Exception:
    """Return what to raise for a failure: NoReply if another attempt may succeed.

    Args:
        error: one of FAILURES.
        sent: whether the request may have been sent.
        address: of the database.
    """
    if isinstance(error, OtherVersion):
        return _refused(str(error), address)
    if not isinstance(error, DBAPIError):
        return NoReply(_Text(str(error) or type(error).__name__), may_have_run=sent)
    text, state = first_line(error.orig), state_of_failure(error)
    if state == UNDEFINED_TABLE:
        return _refused(
            f"the table {TABLE} is missing: call coordinator.create_tables() once, or give coordinator.metadata to "
            f"Alembic; or pass the schema= that has it",
            address,
        )
    if state == NO_PRIVILEGE:
        needs = f"SELECT, INSERT and UPDATE on {TABLE}, DELETE to prune, CREATE where create_tables() makes it"
        return _refused(f"{text}; the user needs {needs}", address)
    if login_was_refused(state):
        return _refused(f"{text}; correct the engine's URL", address)
    if state == UNDEFINED_FILE:
        return _refused(f"{text}; {HINT_OF_FILE}", address)
    if isinstance(error, (OperationalError, InterfaceError, InternalError)) or type(error) is DBAPIError:
        is_answer = state is not None and was_answered(error)
        return NoReply(_Text(text, error), may_have_run=sent and not was_answered(error), is_answer=is_answer)
    if state is not None and is_an_answer(state) and state.startswith(_PASSING):
        return NoReply(_Text(text, error), may_have_run=False, is_answer=True)
    return _refused(f"{text}; is {TABLE} the table that create_tables() makes?", address)


class _Text(Exception):
    """A database's error in one line, without the statement that SQLAlchemy's text has."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause


def _refused(text: str, address: str) -> CoordinatorUnavailable:
    return CoordinatorUnavailable(
        f"the database at {address} refused the request: {text}", address=address, refused=True
    )
