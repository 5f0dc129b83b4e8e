"""Statements sent by the driver's cursor: without the layers of SQLAlchemy, which cost as much as a round trip."""

from __future__ import annotations

import asyncio
import random
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement
from sqlalchemy.util import await_only

from fencing.kernel import process
from fencing.sql.errors import LOCK_NOT_AVAILABLE
from fencing.sql.failures import state_of_failure

MOST_STATEMENTS = 200
"""How many statements are remembered: renewals of each number of leases are some of their own."""

PAUSE_SECONDS = 0.002
"""The longest pause before a file of SQLite that is locked is asked again."""

Compiled = tuple[str, Sequence[str] | None]
"""The text for the driver, and the order of its parameters; None: they have names."""


class Result:
    """The rows of one statement, read to the end. It has the methods of SQLAlchemy's that are used here."""

    __slots__ = ("rowcount", "rows")

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self.rows, self.rowcount = rows, rowcount

    def all(self) -> Sequence[Any]:
        return self.rows

    def one(self) -> Any:
        [row] = self.rows
        return row

    def one_or_none(self) -> Any:
        return self.rows[0] if self.rows else None

    def scalar_one(self) -> Any:
        return self.one()[0]


def as_sqlalchemy(dialect: Any, dbapi_connection: Any, error: Any, cursor: Any, statement: str | None = None) -> Any:
    """Return SQLAlchemy's error for the driver's. It says whether the connection is broken."""
    base = dialect.loaded_dbapi.Error
    gone = dialect.is_disconnect(error, dbapi_connection, cursor)
    return DBAPIError.instance(statement, None, error, base, connection_invalidated=gone, dialect=dialect)


class DirectConnection:
    """A connection whose statements are each a call of the driver's cursor. Errors are SQLAlchemy's as usual.

    Args:
        connection: in autocommit.

    Attributes:
        deadline: until then a statement may wait for a file that is locked.
    """

    deadline = 0.0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self._cursor: Callable[[], Any] = connection.connection.cursor
        self._dbapi_connection: Any = connection.connection.dbapi_connection
        self._compiled: dict[ClauseElement, Compiled] = {}
        self._rows: dict[ClauseElement, Any] = {}

    def execute(self, statement: ClauseElement, values: Mapping[str, Any] | None = None) -> Result:
        """Execute a statement with these parameters; others are ignored."""
        if len(self._compiled) > MOST_STATEMENTS:
            self._compiled.clear()
            self._rows.clear()
        text, order = self._compiled.get(statement) or self._compile(statement)
        given: Any = values or {}
        if order is not None:
            given = tuple([given[name] for name in order])
        cursor = None
        try:
            cursor = self._cursor()
            cursor.execute(text, given)
            make = self._rows.get(statement)
            if make is None:  # a driver may make the description anew each time
                if cursor.description is None:
                    return Result((), cursor.rowcount)
                make = self._row_of(statement, cursor.description)
            return Result([make(row) for row in cursor.fetchall()], cursor.rowcount)
        except self._dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(self._dialect, self._dbapi_connection, error, cursor) from error
        finally:
            if cursor is not None:
                with suppress(Exception):  # of a broken connection
                    cursor.close()

    def _compile(self, statement: ClauseElement) -> Compiled:
        compiled: Any = statement.compile(dialect=self._dialect)
        order = compiled.positiontup if getattr(compiled, "positional", False) else None
        made = self._compiled[statement] = (str(compiled), order)
        return made

    def _row_of(self, statement: ClauseElement, description: Sequence[Sequence[Any]]) -> Any:
        make_type: Any = namedtuple  # its names are known at run time alone
        row = make_type("Row", [column[0] for column in description], rename=True)
        make = self._rows[statement] = row._make
        return make


class ConnectionToFile(DirectConnection):
    """A connection to a file of SQLite, which asks again while the file is locked.

    SQLite itself has no queue: it waits in steps that grow to 0.1 s. Beside clients that write all the time, it would
    rarely find the file free. So it waits in short steps alone, and here the statement is repeated.
    """

    def execute(self, statement: ClauseElement, values: Mapping[str, Any] | None = None) -> Result:
        """Execute a statement, until the deadline at the latest."""
        while True:
            try:
                return super().execute(statement, values)
            except DBAPIError as error:
                if state_of_failure(error) != LOCK_NOT_AVAILABLE or process.now() >= self.deadline:
                    raise
            seconds = random.uniform(0, PAUSE_SECONDS)
            if self._dialect.is_async:
                await_only(asyncio.sleep(seconds))
            else:
                time.sleep(seconds)
