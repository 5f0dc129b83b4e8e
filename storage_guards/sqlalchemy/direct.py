"""Statements of the guard that go to the driver directly, past SQLAlchemy's engine.

The engine needs more time for a statement of the guard than many servers do. So its hooks and its log do not see these
statements. Their errors are SQLAlchemy's as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection

from fencing.sql.dialects import MySQL
from fencing.sql.direct import as_sqlalchemy

_MYSQL = MySQL()


class Answer(NamedTuple):
    """The answer to one statement.

    Args:
        rows: all of them.
        number: MySQL's ``LAST_INSERT_ID(…)`` in the statement.
    """

    rows: Sequence[Any]
    number: int | None


_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python


def fetch_directly(connection: Connection, statement: str, values: Any = None) -> Any:
    """Execute the statement in the connection's transaction, and return its first row, or None.

    All results are read to their end: SQLite needs this for RETURNING, and a compound statement of MariaDB has two.

    Args:
        connection: it is invalidated where the statement may still be running.
        statement: as the driver takes it.
        values: its parameters. None: it has none.
    """
    answers: list[Answer] = []
    ask_directly(connection, statement, answers, values=values)
    [(rows, _)] = answers
    return rows[0] if rows else None


def ask_directly(
    connection: Connection, request: str, answers: list[Answer], *, statements: int = 1, values: Any = None
) -> None:
    """Execute one request in the connection's transaction.

    Args:
        connection: it is invalidated where a statement may still be running.
        request: as the driver takes it.
        answers: takes each answer as it comes: after an error, those of the statements before it.
        statements: how many there are in the request. For several, the driver's cursor must have ``nextset``.
        values: their parameters. None: there are none.
    """
    pooled = connection.connection
    cursor: Any = None
    try:
        cursor = pooled.cursor()
        if values is None:
            cursor.execute(request)
        else:
            cursor.execute(request, values)
        answers.append(_new(Answer, (cursor.fetchall() if cursor.description else (), cursor.lastrowid)))
        for _ in range(statements - 1):
            cursor.nextset()
            answers.append(_new(Answer, (cursor.fetchall() if cursor.description else (), cursor.lastrowid)))
        cursor.close()  # it reads what is left
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemy(connection, request, error, cursor) from error
    except BaseException as interruption:  # also an Exception of a signal handler: the answer is still to come
        cursor = None  # this frame may live on, and SQLite's connection lives as long as an unfinished statement
        connection.invalidate(interruption)
        raise


ON_EXECUTION = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")
"""The hooks that can execute statements of their own around another one."""


def has_hooks(target: Any, names: tuple[str, ...]) -> bool:
    """Return whether an engine, or a connection or its engine, has hooks of these names.

    SQLAlchemy keeps in an attribute whether there are any at all (seen in 2.0 and 2.1). Without it, there may be some.
    """
    for each in (target, target.engine):
        if getattr(each, "_has_events", True):
            dispatch = each.dispatch
            for name in names:
                if getattr(dispatch, name, True):
                    return True
    return False


def is_logged(connection: Connection) -> bool:
    """Return whether the engine logs what the connection does (by an attribute, as :func:`has_hooks`)."""
    return bool(getattr(connection, "_echo", True))


def end_directly(connection: Connection) -> None:
    """Say that the connection's transaction was committed past the engine: closing the connection sends no ROLLBACK.

    The pool sends none either, because the connection had a transaction (seen in 2.0 and 2.1). Where the driver reports
    that one is open, as with ``completion_type = CHAIN``, the ROLLBACK is sent.
    """
    transaction = connection.get_transaction()
    if transaction is not None and not connection.invalidated and not _MYSQL.is_open(connection):
        transaction.is_active = False


def _as_sqlalchemy(connection: Connection, statement: str, error: Any, cursor: Any) -> Any:
    """Return SQLAlchemy's error for the driver's. Tell the pool if the connection is broken."""
    dialect, pooled = connection.dialect, connection.connection
    raised = as_sqlalchemy(dialect, pooled.dbapi_connection, error, cursor, statement)
    if raised.connection_invalidated:
        connection.invalidate(error)
    elif cursor is not None:
        with suppress(dialect.loaded_dbapi.Error):
            cursor.close()
    return raised
