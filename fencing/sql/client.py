"""Temporary changes of a connection's settings without the engine, for databases whose bounds are such settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


@contextmanager
def with_settings(connection: Connection, change: str, restore: str) -> Iterator[None]:
    """Change settings of the connection for the whole block, its BEGIN and COMMIT included.

    The statements go directly to the driver's cursor. The engine would begin a transaction first, and that can be the
    statement that waits (BEGIN IMMEDIATE).

    Args:
        connection: may be lost meanwhile.
        change: the statement that changes the settings.
        restore: the statement that restores them. If it fails, the connection is invalidated.
    """
    try:
        ask(connection, change)
    except BaseException:
        connection.invalidate()  # a cancelled statement may still run
        raise
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            try:
                ask(connection, restore)
            except BaseException as error:
                connection.invalidate()  # a connection with changed settings must not return to the pool
                if not isinstance(error, DBAPIError):
                    raise  # an interruption; a database's error must not hide the end of the block: it may be committed


def ask(connection: Connection, statement: str) -> Any:
    """Execute one statement without the engine, which would begin a transaction. Errors are SQLAlchemy's as usual.

    Returns:
        The first value of the first row; None if there is no row.
    """
    dialect = connection.dialect
    pooled = connection.connection
    cursor = None
    try:
        cursor = pooled.cursor()
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    except dialect.loaded_dbapi.Error as error:
        gone = dialect.is_disconnect(error, pooled.dbapi_connection, cursor)
        if gone:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=gone, dialect=dialect
        ) from error
    finally:
        if cursor is not None:
            cursor.close()
    return row[0] if row else None


def milliseconds(seconds: float) -> int:
    """Return a bound in whole milliseconds; at least 1, because 0 means no bound."""
    return max(1, round(seconds * 1000))
