"""The bounds of a guarded transaction, and on MySQL its statements in as few requests as the connection allows.

A connection with the client flag MULTI_STATEMENTS takes several statements in one request. aiomysql always sets the
flag, PyMySQL where the user does. The server stops at the first of them that fails
(https://dev.mysql.com/doc/c-api/8.4/en/c-api-multiple-queries.html).
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.sql.dialects import mysql_settings
from storage_guards.sqlalchemy.direct import Answer, ask_directly, end_directly, fetch_directly, has_hooks, is_logged

_MULTI_STATEMENTS = 1 << 16
"""The flag, as the protocol has it: https://dev.mysql.com/doc/dev/mysql-server/latest/group__group__cs__capabilities__flags.html"""

_TAKES_SEVERAL = "fencing_takes_several_statements"
"""The key in what SQLAlchemy keeps for each connection of the driver, as long as it lives."""


@lru_cache(64)
def _settings(whole_seconds: int) -> tuple[str, str]:
    change, restore = mysql_settings(False, whole_seconds)
    # A second restoration fails, and so never brings back the values of another transaction.
    return change, f"{restore}, @fencing_wait_timeout = NULL"


class OwnBounds:
    """The bounds of a connection for one guarded transaction of MariaDB or MySQL. Its first statement may set them.

    As a context manager it surrounds the transaction, BEGIN and COMMIT included. It restores the old bounds, unless
    that was done with the COMMIT. Where it fails, it invalidates the connection.

    Args:
        connection: it is idle.
        change: the statement that sets the bounds.
        restore: the one that brings the old ones back.
        sets_first: the bounds are set before the transaction begins.

    Attributes:
        savepoints: that were set for a caller's block.
    """

    def __init__(self, connection: Connection, change: str, restore: str, *, sets_first: bool) -> None:
        self._connection, self._change, self._restore, self._sets_first = connection, change, restore, sets_first
        self._are_set = False
        self.savepoints: set[str] = set()

    def __enter__(self) -> Self:
        # A hook may execute a statement as the transaction begins: that one must be bounded, and see the right
        # isolation level.
        if self._sets_first or has_hooks(self._connection, ("begin",)):
            self._are_set = True
            try:
                fetch_directly(self._connection, self._change)
            except BaseException:
                self._connection.invalidate()  # a cancelled statement may still run
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if self._are_set and not connection.closed and not connection.invalidated:
            try:
                fetch_directly(connection, self._restore)
            except BaseException as failure:
                connection.invalidate()  # a connection with changed settings must not return to the pool
                if not isinstance(failure, DBAPIError):
                    raise  # an interruption; a database's error must not hide the end of the block: it may be committed


class MySQLBounds(OwnBounds):
    """The bounds on a MySQL. They go with the first statement, where one request takes both.

    Args:
        connection: to a MySQL, and idle.
        seconds: the bound.
        caller_block: the block is the caller's, so the transaction gets a savepoint by which it can be recognized.

    Attributes:
        takes_several: a request may have several statements.
    """

    def __init__(self, connection: Connection, seconds: float, caller_block: bool) -> None:
        self.takes_several = _takes_several(connection)
        super().__init__(connection, *_settings(math.ceil(seconds)), sets_first=not self.takes_several)
        self.caller_block = caller_block

    def ask(self, *statements: str) -> list[Answer]:
        """Execute statements in the transaction, in one request if that may be. The first ones also set the bounds."""
        asked = statements if self._are_set else (self._change, *statements)
        self._are_set = True
        answers: list[Answer] = []
        if self.takes_several:
            ask_directly(self._connection, "; ".join(asked), answers, statements=len(asked))
        else:
            for each in asked:
                ask_directly(self._connection, each, answers)
        return answers[-len(statements) :]

    def commit(self) -> bool:
        """Commit, and restore the bounds in the same request if that may be. The engine does not know, so it would roll
        back as the connection is closed, which is left out.

        Returns:
            False: nothing was done, because a hook or the log would not see the commit.
        """
        connection = self._connection
        if is_logged(connection) or has_hooks(connection, ("commit", "rollback")):
            return False
        answers: list[Answer] = []
        try:
            if self.takes_several:
                ask_directly(connection, f"COMMIT; {self._restore}", answers, statements=2)
                self._are_set = False
            else:
                ask_directly(connection, "COMMIT", answers)
        except DBAPIError:
            if not answers:
                raise
            connection.invalidate()  # it is committed, and has changed settings
        end_directly(connection)
        return True


def _takes_several(connection: Connection) -> bool:
    """Return whether the driver's connection takes several statements in one request, and its cursor their answers."""
    info = connection.info
    known: bool | None = info.get(_TAKES_SEVERAL)
    if known is None:
        driver: Any = connection.connection.driver_connection
        known = bool(getattr(driver, "client_flag", 0) & _MULTI_STATEMENTS)
        if known:  # SQLAlchemy's cursors for asyncio have it since 2.0.28
            cursor = connection.connection.cursor()
            known = hasattr(cursor, "nextset")
            cursor.close()
        info[_TAKES_SEVERAL] = known
    return known
