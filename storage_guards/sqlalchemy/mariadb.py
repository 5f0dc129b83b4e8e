"""The check of a guarded transaction as one request, on MariaDB: its bounds, the statement, and the read of the mark.

A compound statement is one request. MySQL has none outside stored procedures, so there each of these is a request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.sql.client import LEAST_SECONDS
from storage_guards.sqlalchemy.direct import fetch_directly, has_hooks, is_logged

NO_SAVEPOINT = (1178, 1305)
"""The errors of a savepoint in a table whose engine has none, and in autocommit, where it is gone at once."""

KEEP = {"admitted": "@fencing_admitted := ", "seq": "@fencing_seq := ", "recent": "@fencing_recent := "}
"""Assignments by which a change of a mark keeps what it has found and written. To read the row again takes longer."""

# The change has its bound from SET STATEMENT, because inside a compound statement the session's max_statement_time is
# not applied.
#
# A table without transactions would not be locked, and nothing would be rolled back. Its engine is not looked up, which
# would take longer than all the rest. Instead a savepoint comes after the change, and is rolled back to at once, which
# undoes nothing. Where the changed table has no transactions, either SAVEPOINT fails (Aria), or ROLLBACK TO gives a
# warning (1196: MyISAM and others). So this tests the very table that was changed, each time.
_COMPOUND = """BEGIN NOT ATOMIC {opening}SET @fencing_admitted = NULL;
SET STATEMENT max_statement_time = {seconds} FOR {change};
SAVEPOINT {savepoint}; ROLLBACK TO SAVEPOINT {savepoint};
SELECT IF(@fencing_admitted, CONVERT(
    CONCAT_WS(' ', @@warning_count, @fencing_seq, @fencing_recent) USING utf8mb4), NULL); END"""

# The same bounds as MySQL.bounded_waits, in a form that can be sent together with the check. When all old values are
# restored, one of them is forgotten: a second restoration fails, and so never brings back those of another transaction.
_WHOLE_SECONDS = (
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "net_write_timeout",
    "net_read_timeout",
    "idle_transaction_timeout",
)
_NAMES = (*_WHOLE_SECONDS, "max_statement_time")
_SET = "SET {};".format(
    ", ".join(
        [
            *(f"@fencing_guard_{name} = @@SESSION.{name}" for name in _NAMES),
            *(f"SESSION {name} = {{whole}}" for name in _WHOLE_SECONDS),
            "SESSION max_statement_time = {exact}",
            # Without SESSION it applies only to the next transaction.
            "@@tx_isolation = IF(@@SESSION.tx_isolation = 'SERIALIZABLE', 'SERIALIZABLE', 'READ-COMMITTED')",
        ]
    )
)
_RESTORE = "SET {}, @fencing_guard_{} = NULL".format(
    ", ".join(f"SESSION {name} = @fencing_guard_{name}" for name in _NAMES), _NAMES[-1]
)

_COMMIT = f"BEGIN NOT ATOMIC COMMIT; {_RESTORE}; END"


def compound(change: str) -> str:
    """Return the template of a change of a mark for :meth:`SessionBounds.fill`.

    It answers with NULL where the rule does not admit the fence. Otherwise with the number of warnings, and the mark's
    seq and recent writes, in one text.

    Args:
        change: an UPDATE that keeps its answer (``KEEP``), with ``:name`` for each value.
    """
    template = _COMPOUND.format(change=change, **{name: f"{{{name}}}" for name in ("opening", "seconds", "savepoint")})
    return re.sub(r":(resource|number|token|writes|write)\b", r"{\1}", template)


def savepoint_of(write: str) -> str:
    """Return the name of the savepoint that the compound statement sets. No other transaction has it."""
    return f"`fencing {write}`"


class SessionBounds:
    """The bounds of a connection for one guarded transaction. Its first compound statement sets them.

    As a context manager it surrounds the transaction, BEGIN and COMMIT included. It restores the old bounds, unless
    :meth:`commit` has. Where that fails it invalidates the connection.

    Args:
        connection: to a MariaDB, and idle.
        seconds: the bound.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = f"{max(seconds, LEAST_SECONDS):.6f}"
        self._opening = _SET.format(whole=max(1, math.ceil(seconds)), exact=self._seconds)
        self._are_set = False

    def __enter__(self) -> Self:
        connection = self._connection
        if has_hooks(connection):
            # A hook may execute a statement as the transaction begins: that one must be bounded, and see the right
            # isolation level.
            try:
                fetch_directly(connection, self._open())
            except BaseException:
                connection.invalidate()  # a cancelled statement may still run
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if self._are_set and not connection.closed and not connection.invalidated:
            try:
                fetch_directly(connection, _RESTORE)
            except BaseException as failure:
                connection.invalidate()  # a connection with changed settings must not return to the pool
                if not isinstance(failure, DBAPIError):
                    raise  # an interruption; a database's error must not hide the end of the block: it may be committed

    def commit(self) -> bool:
        """Commit and restore the bounds, in one request. The engine's transaction is rolled back after that, which has
        nothing left to undo: as the connection is closed, and in place of the pool's own rollback.

        Returns:
            False: nothing was done, because a hook or the log would see a rollback instead of a commit.
        """
        connection = self._connection
        if not self._are_set or has_hooks(connection) or is_logged(connection):
            return False
        fetch_directly(connection, _COMMIT)
        self._are_set = False
        return True

    def fill(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the compound statement with these values of a claim or a check. The first one also sets the bounds."""
        literals = {
            **values,
            "resource": f"'{values['resource']}'",
            "token": f"'{values['token']}'",
            "write": f"'{values['write']}'",
        }
        savepoint = savepoint_of(values["write"])
        return template.format(opening=self._open(), seconds=self._seconds, savepoint=savepoint, **literals)

    def _open(self) -> str:
        opening, self._opening = self._opening, ""
        self._are_set = True
        return opening
