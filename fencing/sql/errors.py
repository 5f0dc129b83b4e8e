"""The meaning of a SQL database's errors, for all drivers. No driver is imported here.

All errors are mapped to PostgreSQL's states (SQLSTATE), those of MariaDB, MySQL and SQLite too:
https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import re

UNDEFINED_TABLE = "42P01"
UNDEFINED_COLUMN = "42703"
READ_ONLY = "25006"
ALREADY_BEGUN = "25001"  # active_sql_transaction
NO_PRIVILEGE = "42501"
RAISED = "P0001"  # raise_exception
_SERIALIZATION_FAILURE = "40001"
_DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"  # statement_timeout
IDLE_TRANSACTION_ENDED = "25P03"  # idle_in_transaction_session_timeout: the server has read no COMMIT
_NO_SUCH_SAVEPOINT = "3B001"
LOST_RACE = {_SERIALIZATION_FAILURE, _DEADLOCK}
WAITED_TOO_LONG = {LOCK_NOT_AVAILABLE, _QUERY_CANCELED}
UNDEFINED_FILE = "58P01"
HINT_OF_FILE = "does its folder exist, and may this process write there? Or it has too many files open"
_REFUSED_USER = "28000"  # invalid_authorization_specification
_NO_DATABASE = "3D000"  # invalid_catalog_name
TRANSACTION_IS_GONE = {"25P02", _NO_SUCH_SAVEPOINT}  # 25P02: in_failed_sql_transaction
_CONNECTION_EXCEPTION = "08"
_SERVER_SHUTDOWN = "57P0"  # admin_shutdown, crash_shutdown, cannot_connect_now
_COMPLETION_UNKNOWN = "40003"

_LOCK_WAIT_TIMEOUT = 1205  # it rolls back only the statement

# MariaDB's and MySQL's numbers, because their own states are too coarse. https://mariadb.com/kb/en/mariadb-error-codes/
_OF_MYSQL = {
    1020: _SERIALIZATION_FAILURE,  # the row has changed since the transaction's snapshot
    1044: NO_PRIVILEGE,
    1045: _REFUSED_USER,
    1046: _NO_DATABASE,
    1049: _NO_DATABASE,
    1054: UNDEFINED_COLUMN,
    1130: _REFUSED_USER,  # its host may not connect
    1142: NO_PRIVILEGE,
    1143: NO_PRIVILEGE,
    1146: UNDEFINED_TABLE,
    _LOCK_WAIT_TIMEOUT: LOCK_NOT_AVAILABLE,
    1213: _DEADLOCK,
    1290: READ_ONLY,
    1305: _NO_SUCH_SAVEPOINT,
    1568: ALREADY_BEGUN,
    1698: _REFUSED_USER,
    1792: READ_ONLY,
    1836: READ_ONLY,
    1969: _QUERY_CANCELED,  # max_statement_time
    3024: _QUERY_CANCELED,  # max_execution_time
    3572: LOCK_NOT_AVAILABLE,
}

_IS_LOCKED = "is locked"
_OF_SQLITE = {
    "no such table": UNDEFINED_TABLE,
    "no such column": UNDEFINED_COLUMN,
    "has no column named": UNDEFINED_COLUMN,
    "readonly database": READ_ONLY,
    _IS_LOCKED: LOCK_NOT_AVAILABLE,
    "unable to open database file": UNDEFINED_FILE,
}

# libpq names no state where connecting failed. These are English, as most servers' messages are.
_OF_LOGINS = (
    (re.compile(r"FATAL: .*(database .* does not exist|no such database)"), _NO_DATABASE),
    (
        re.compile(
            r"FATAL: .*(role .* does not exist|no such user|authentication failed|no pg_hba.conf entry|"
            r"is not permitted to log in)|no password supplied"
        ),
        _REFUSED_USER,
    ),
)


def state_of(error: BaseException | None) -> str | None:
    """Return the state of a driver's error; None: it has none, because it is not from a server, or is SQLite's."""
    number = _mysql_number(error)
    if number is not None:
        return _OF_MYSQL.get(number)
    state = getattr(error, "sqlstate", "")
    if state is None:
        return next((state for found, state in _OF_LOGINS if found.search(str(error))), None)
    return state if state and isinstance(state, str) else None


def login_was_refused(state: str | None) -> bool:
    """Return whether a state means that the server knows no such database, or lets no such user in."""
    return state is not None and state.startswith((_REFUSED_USER[:2], _NO_DATABASE[:2]))


def state_of_sqlite(message: str) -> str | None:
    """Return the state that a message of SQLite stands for; None: not known."""
    return next((state for part, state in _OF_SQLITE.items() if part in message), None)


def is_an_answer(state: str) -> bool:
    """Return whether a state after COMMIT means that the database refused it. If not, the commit may have happened."""
    return not state.startswith((_CONNECTION_EXCEPTION, _SERVER_SHUTDOWN, _COMPLETION_UNKNOWN))


def commit_was_refused(error: BaseException) -> bool:
    """Return whether a driver's error after COMMIT means that the database refused it.

    If not (the connection broke, the disk failed), the commit may have happened. Only valid while the connection is
    still open.
    """
    state = state_of(error)
    if _mysql_number(error) is not None:
        return state in LOST_RACE
    if state is not None:
        return is_an_answer(state)
    if hasattr(error, "sqlstate"):  # the error is the driver's, not the server's
        return False
    kinds = {kind.__name__ for kind in type(error).__mro__}  # SQLite's, by the names of PEP 249
    return "IntegrityError" in kinds or _IS_LOCKED in first_line(error)


def ended_by_a_bound(error: BaseException) -> bool:
    """Return whether a time-out of the session, such as the guard's, ended a statement or the transaction."""
    state = state_of(error)
    if state == _QUERY_CANCELED:
        return "user request" not in first_line(error)
    return state in (IDLE_TRANSACTION_ENDED, LOCK_NOT_AVAILABLE)


def lost_race(error: BaseException) -> bool:
    """Return whether a driver's error means that concurrent transactions made this one fail, so that it can be retried.

    Such errors are a serialization failure, a deadlock, MariaDB's and MySQL's lock wait timeout, and SQLite's "database
    is locked".
    """
    number = _mysql_number(error)
    if state_of(error) in LOST_RACE or number == _LOCK_WAIT_TIMEOUT:
        return True
    return number is None and _IS_LOCKED in first_line(error)


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).splitlines()), "no reason given")


def _mysql_number(error: BaseException | None) -> int | None:
    """Return the error number of MariaDB, MySQL and their drivers; None: another database's error."""
    args: tuple[object, ...] = getattr(error, "args", ())
    return args[0] if len(args) == 2 and isinstance(args[0], int) else None
