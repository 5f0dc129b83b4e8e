"""The check of a guarded transaction as one request, on MariaDB: its bounds, the statement, and the mark's answer.

A compound statement is one request. MySQL has none outside stored procedures, so there each of these is a request.
"""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.kernel.retry import LEAST_SECONDS
from storage_guards.sql.plans import Statement
from storage_guards.sql.statements import digest_of
from storage_guards.sqlalchemy.direct import end_directly, fetch_directly, has_hooks, is_logged
from storage_guards.sqlalchemy.mysql_bounds import OwnBounds

NO_SAVEPOINT = (1178, 1305)
"""The errors of a savepoint in a table whose engine has none, and in autocommit, where it is gone at once."""

_NOT_PREPARED = 1243
_TOO_MANY_PREPARED = 1461

# The change has its bound from SET STATEMENT, because inside a compound statement the session's new max_statement_time
# is not applied. Where the session has one already, that one applies, and waits for locks are bounded by the others.
#
# A table without transactions would not be locked, and nothing would be rolled back. Its engine is not looked up, which
# would take longer than all the rest. Instead a savepoint comes after the change, and is rolled back to at once, which
# undoes nothing. Where the changed table has no transactions, either SAVEPOINT fails (Aria), or ROLLBACK TO gives a
# warning (1196: MyISAM and others). So this tests the very table that was changed, each time.
#
# There is no row in the answer where all is as the guard expects, the id of this write included: a row takes the driver
# longer than the comparison takes the server.
_COMPOUND = """BEGIN NOT ATOMIC {opening}
SET STATEMENT max_statement_time = :exact FOR {change};
SAVEPOINT {savepoint}; ROLLBACK TO SAVEPOINT {savepoint};
SET @fencing_warnings = @@warning_count;
IF NOT (@fencing_warnings = 0 AND @fencing_seq <=> :seq AND @fencing_recent <=> :recent)
THEN SELECT IF(@fencing_admitted, CONVERT(
    CONCAT_WS(' ', @fencing_warnings, @fencing_seq, @fencing_recent) USING utf8mb4), NULL); END IF; END"""

# The same bounds as MySQL.bounded_waits, in a form that can be sent together with the check. When all old values are
# restored, one of them is forgotten: a second restoration fails, and so never brings back those of another transaction.
_WHOLE_SECONDS = (
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "net_write_timeout",
    "net_read_timeout",
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
)
_NAMES = (*_WHOLE_SECONDS, "max_statement_time")
_SET = "SET {};".format(
    ", ".join(
        [
            *(f"@fencing_guard_{name} = @@SESSION.{name}" for name in _NAMES),
            *(f"SESSION {name} = :whole" for name in _WHOLE_SECONDS),
            "SESSION max_statement_time = :exact",
            # Without SESSION it applies only to the next transaction.
            "@@tx_isolation = IF(@@SESSION.tx_isolation = 'SERIALIZABLE', 'SERIALIZABLE', 'READ-COMMITTED')",
            "@fencing_admitted = NULL",
        ]
    )
)
_RESET = "SET @fencing_admitted = NULL;"
_RESTORE = "SET {}, @fencing_guard_{} = NULL".format(
    ", ".join(f"SESSION {name} = @fencing_guard_{name}" for name in _NAMES), _NAMES[-1]
)

_VALUE = re.compile(r":(whole|exact|resource|number|token|writes|write|seq|recent)\b")
_SAVEPOINT = "fencing"


class Compound(NamedTuple):
    """A change of a mark as a compound statement.

    Each connection prepares the usual one, because parsing takes longer than the rest of it. PREPARE opens no table.

    Args:
        change: an UPDATE that stores its answer (``STORE``), with ``:name`` for each value.
        name: of the prepared statement, which no other text has.
        prepare: the PREPARE. Its statement also sets the bounds.
        execute: the EXECUTE, with a field for each value.
    """

    change: str
    name: str
    prepare: str
    execute: str

    def text(self, opening: str, savepoint: str) -> str:
        """Return the statement as it is, with a field for each value."""
        statement = _COMPOUND.format(opening=opening, change=self.change, savepoint=savepoint)
        return _VALUE.sub(r"{\1}", statement)


@cache
def compound(change: str) -> Compound:
    """Return the change of a mark as a compound statement."""
    statement = _COMPOUND.format(opening=_SET, change=change, savepoint=_SAVEPOINT)
    name = f"fencing_{digest_of(statement)}"
    quoted = _VALUE.sub("?", statement).replace("'", "''")
    values = ", ".join(f"{{{value}}}" for value in _VALUE.findall(statement))
    return Compound(change, name, f"PREPARE {name} FROM '{quoted}'", f"EXECUTE {name} USING {values}")


_COMMIT = f"BEGIN NOT ATOMIC COMMIT; {_RESTORE}; END"


class Changed(NamedTuple):
    """The answer to a change of a mark that the rule has admitted.

    Args:
        seq: of the mark, after the change.
        recent_writes: likewise.
        warnings: how many the savepoint gave. 0: the table has transactions.
    """

    seq: int
    recent_writes: str
    warnings: int


def savepoint_of(write: str) -> str:
    """Return the name of the savepoint of a caller's block. No other transaction has it."""
    return f"`fencing {write}`"


class SessionBounds(OwnBounds):
    """The bounds on a MariaDB. The first change of a mark sets them.

    Args:
        connection: to a MariaDB, and idle.
        seconds: the bound.
        caller_block: the block is the caller's, so the transaction gets a savepoint by which it can be recognized.
    """

    def __init__(self, connection: Connection, seconds: float, caller_block: bool) -> None:
        self._whole = str(max(1, math.ceil(seconds)))
        self._exact = f"{max(seconds, LEAST_SECONDS):.6f}"
        super().__init__(connection, _setting(self._whole, self._exact), _RESTORE, sets_first=False)
        self._caller_block = caller_block

    def change(self, compound: Compound, statement: Statement, expected: Changed | None = None) -> Changed | None:
        """Check or claim, in one request. The first one also sets the bounds. None: the rule refuses the fence.

        Args:
            compound: the change.
            statement: the check or the claim, with its values.
            expected: what the answer will probably be. It is compared by the server, and then has no row.
        """
        write = statement.write
        values = {
            "whole": self._whole,
            "exact": self._exact,
            "resource": f"'{statement.resource.encode().hex()}'",
            "number": statement.number,
            "token": f"'{statement.token}'",
            "write": f"'{write}'",
            "writes": statement.writes,
            "seq": "NULL" if expected is None else expected.seq,
            "recent": "NULL" if expected is None else f"x'{expected.recent_writes.encode().hex()}'",
        }
        if self._caller_block or self._are_set:
            opening, self._are_set = _RESET if self._are_set else _SET, True
            savepoint = savepoint_of(write) if self._caller_block else _SAVEPOINT
            found = fetch_directly(self._connection, compound.text(opening, savepoint).format(**values))
            self.savepoints.add(savepoint)
        else:
            found = self._execute(compound, values)
        if found is None:
            return expected
        if found[0] is None:
            return None
        warnings, seq, recent_writes = found[0].split(" ", 2)
        return Changed(int(seq), recent_writes, int(warnings))

    def commit(self) -> bool:
        """Commit and restore the bounds, in one request. The engine does not know, so it would roll back as the
        connection is closed, which is left out.

        Returns:
            False: nothing was done, because a hook or the log would not see the commit.
        """
        connection = self._connection
        if not self._are_set or is_logged(connection) or has_hooks(connection, ("commit", "rollback")):
            return False
        fetch_directly(connection, _COMMIT)
        self._are_set = False
        end_directly(connection)
        return True

    def _execute(self, compound: Compound, values: dict[str, Any]) -> Any:
        """Execute the prepared statement. It is prepared first where this connection has not done that."""
        connection = self._connection
        prepared = connection.info  # which lives as long as the driver's connection
        execute = compound.execute.format(**values)
        self._are_set = True
        if compound.name in prepared:
            try:
                return fetch_directly(connection, execute)
            except DBAPIError as error:
                if _number_of(error) != _NOT_PREPARED:
                    raise
                # It has vanished: by DEALLOCATE PREPARE, or in a proxy that shares sessions. Nothing was executed.
                del prepared[compound.name]
        try:
            fetch_directly(connection, compound.prepare)
        except DBAPIError as error:
            if _number_of(error) != _TOO_MANY_PREPARED:
                raise
            return fetch_directly(connection, compound.text(_SET, _SAVEPOINT).format(**values))
        prepared[compound.name] = True
        return fetch_directly(connection, execute)


@lru_cache(64)
def _setting(whole: str, exact: str) -> str:
    """Return the statement that sets the bounds."""
    return _VALUE.sub(r"{\1}", _SET).format(whole=whole, exact=exact)


def _number_of(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None
