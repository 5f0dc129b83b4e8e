"""Statements of the guard that go to the driver directly, past SQLAlchemy's engine.

The engine needs more time for a statement of the guard than many servers do. So its hooks and its log do not see these
statements. Their errors are SQLAlchemy's as usual.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from fencing.sql.direct import as_sqlalchemy


def fetch_directly(connection: Connection, statement: str, values: Any = None) -> Any:
    """Execute the statement in the connection's transaction, and return its first row, or None.

    All results are read to their end: SQLite needs this for RETURNING, and a compound statement of MariaDB has two.

    Args:
        connection: it is invalidated where the statement may still be running.
        statement: as the driver takes it.
        values: its parameters. None: it has none.
    """
    pooled = connection.connection
    cursor = None
    try:
        cursor = pooled.cursor()
        if values is None:
            cursor.execute(statement)
        else:
            cursor.execute(statement, values)
        rows = cursor.fetchall() if cursor.description else ()
        cursor.close()  # it reads what is left
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemy(connection, statement, error, cursor) from error
    except BaseException as interruption:  # also an Exception of a signal handler: the answer is still to come
        cursor = None  # this frame may live on, and SQLite's connection lives as long as an unfinished statement
        connection.invalidate(interruption)
        raise
    return rows[0] if rows else None


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
