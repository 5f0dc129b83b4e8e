"""A connection whose settings are changed for a while, past the engine: how waits are bounded where the bounds are the
connection's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

LEAST_SECONDS = 0.001
"""The shortest bound: databases count in milliseconds, and read 0 as "no bound"."""


@contextmanager
def with_settings(connection: Connection, change: str, restore: str) -> Iterator[None]:
    """Change settings of the connection while the block runs, its BEGIN and COMMIT included.

    The statements go to the driver's cursor directly: through the engine they would begin the transaction, which may be
    the very statement that waits (BEGIN IMMEDIATE).

    Args:
        connection: which may be lost meanwhile.
        change: one statement.
        restore: one statement. Where it fails, the connection is invalidated.
    """
    try:
        ask(connection, change)
    except BaseException:
        connection.invalidate()  # a cancelled statement may run all the same
        raise
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            try:
                ask(connection, restore)
            except BaseException as error:
                connection.invalidate()  # better no connection in the pool than a changed one
                if not isinstance(error, Exception):
                    raise  # an interruption; anything else must not hide how the block ended: it may be committed


def ask(connection: Connection, statement: str) -> Any:
    """One statement past the engine, which would begin a transaction; its errors are SQLAlchemy's all the same.

    Returns:
        The first value of its first row; None where there is none.
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
    """As databases take bounds; at least one, as 0 would be no bound."""
    return max(1, round(seconds * 1000))
