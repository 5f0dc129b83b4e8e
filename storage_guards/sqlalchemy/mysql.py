"""The mark table and the admission rule on MariaDB and MySQL, which have no ``UPDATE … RETURNING``.

Each verdict takes two statements: one that takes the mark's row lock and changes it only if the rule admits the fence,
and a locking read of what is there now. How many rows the first affected is no verdict: 0, 1 or 2, after the driver's
flags. Assignments run from left to right, so what a column was is used before it is assigned: number comes last.

What must be exact is VARBINARY: collations hold different names to be equal, and some pad them with blanks. Names
travel as hexadecimal digits, so that no character set and no ``sql_mode`` of the session changes them on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    VARBINARY,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    MetaData,
    Row,
    Table,
    func,
    text,
)

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES, Fence, Mark
from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS, TABLE, Admitted, new_id
from storage_guards.sqlalchemy.marks import Marks

__all__ = ["MySQLMarks"]

_TOKEN_BYTES = 128

_REMEMBER = f"SUBSTRING(CONCAT(:write, ' ', recent_writes), 1, {REMEMBERED_CHARACTERS})"
_ADMITS = "(number < :number OR (number = :number AND token = :token))"
_IS_MINE = "(number = :number AND token = :token)"

# SIMULTANEOUS_ASSIGNMENT, a mode of MariaDB, changes nothing: each column is read only before it is assigned.
_RAISE = f"""
    recent_writes = IF(:writes > 0 AND {_ADMITS}, {_REMEMBER}, recent_writes),
    claimed_at = IF({_ADMITS}, UTC_TIMESTAMP(), claimed_at),
    seq = IF({_ADMITS}, IF(number = :number, seq, 0) + :writes, seq),
    token = IF(number < :number, :token, token),
    number = GREATEST(number, :number)
"""
_RAISE_MARK = f"UPDATE fencing_marks SET {_RAISE} WHERE resource = UNHEX(:resource)"
_FIRST_MARK = (
    "INSERT INTO fencing_marks (resource, number, token, seq, recent_writes, claimed_at) VALUES "
    "(UNHEX(:resource), :number, :token, :writes, CONCAT(:write, ' ', :table), UTC_TIMESTAMP()) "
    f"ON DUPLICATE KEY UPDATE {_RAISE}"
)
_CHECK_MARK = f"""
    UPDATE fencing_marks SET recent_writes = IF({_IS_MINE}, {_REMEMBER}, recent_writes), seq = seq + {_IS_MINE}
    WHERE resource = UNHEX(:resource)
"""
# The engine, since a table of another could be written without a transaction: then nothing is locked, or rolled back.
_READ_MARK = """
    SELECT number, CONVERT(token USING utf8mb4) AS token, seq, CONVERT(recent_writes USING utf8mb4) AS recent_writes,
        (SELECT engine FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_name = 'fencing_marks') AS engine
    FROM fencing_marks WHERE resource = UNHEX(:resource)
"""
_FIRST_FLOOR = (
    "INSERT INTO fencing_marks (resource, number, token, seq, recent_writes, claimed_at) "
    "VALUES (UNHEX(:resource), 0, '', 0, :table, UTC_TIMESTAMP()) ON DUPLICATE KEY UPDATE seq = seq"
)
_LOCK_MARK = "UPDATE fencing_marks SET seq = seq WHERE resource = UNHEX(:resource)"
_LOCK_ABSENCE = (
    "INSERT INTO fencing_marks (resource, number, token, seq, recent_writes, claimed_at) "
    "VALUES (UNHEX(:resource), :number, :token, 0, :write, UTC_TIMESTAMP()) ON DUPLICATE KEY UPDATE seq = seq"
)


class MySQLMarks(Marks):
    """The marks of a MariaDB or MySQL database, on connections that others open and bound."""

    def __init__(self) -> None:
        self.metadata = MetaData()
        self.table = _define(self.metadata)
        self._postgresql = False
        self._enforced = self
        self._raise = text(_RAISE_MARK)
        self._first = text(_FIRST_MARK)
        self._check = text(_CHECK_MARK)
        self._read = text(_READ_MARK)
        self._lock = text(_READ_MARK + " FOR UPDATE")
        self._floor = text(_READ_MARK + " LOCK IN SHARE MODE")
        self._first_floor = text(_FIRST_FLOOR)
        self._touch = text(_LOCK_MARK)
        self._lock_absence = text(_LOCK_ABSENCE)

    def note_transaction(self, connection: Connection) -> None:
        """A savepoint, which no transaction outlives: not a COMMIT, nor what commits implicitly, nor a deadlock."""
        connection.exec_driver_sql("SAVEPOINT fencing_checked")

    def is_still(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Whether this is the transaction in which the fence was admitted; error 1305 where it is not."""
        connection.exec_driver_sql("RELEASE SAVEPOINT fencing_checked")
        return True

    def check(self, connection: Connection, fences: Sequence[Fence], *, joined: bool = False) -> list[Admitted]:
        """See :meth:`Marks.check`. A transaction that had read may have a snapshot from before the fence's claim, or
        before another write under it. What it goes on to read would be old, though the check is not: so its snapshot
        must have the mark as it is."""
        seen = [self._row(connection, self._read, fence) for fence in fences] if joined else []
        admitted = super().check(connection, fences, joined=joined)
        for row, now in zip(seen, admitted, strict=False):
            if row is None or now.recent_writes != _remember(now.recent_writes, row.recent_writes):
                raise GuardUnavailable(
                    f"what this transaction has read may be older than the mark of {now.fence.resource!r}: roll it "
                    f"back, and advance at its beginning",
                    resource=now.fence.resource,
                )
        return admitted

    def _claim_one(self, connection: Connection, fence: Fence, writes: int) -> Admitted:
        values = {**self._values(fence), "writes": writes, "write": new_id()}
        connection.execute(self._raise, values)
        row = self._row(connection, self._lock, fence)
        if row is None:  # nobody locks a mark that is not there: a locking read of it deadlocks where two insert it
            floor, table = self._shared_floor(connection)
            if fence.number <= floor:
                admit_claim(None, fence, floor)
            connection.execute(self._first, {**values, "table": table})
            row = self._row(connection, self._lock, fence)
        if row is not None and _is_mine(row, fence) and (not writes or _begins_with(row, values["write"])):
            return Admitted(fence, row.seq, row.recent_writes, None)
        admit_claim(_mark(row), fence, 0)
        raise GuardUnavailable("the mark was locked, and changed all the same; retry", resource=fence.resource)

    def _check_one(self, connection: Connection, fence: Fence, joined: bool) -> Admitted:
        values = {**self._values(fence), "write": new_id()}
        connection.execute(self._check, values)
        row = self._row(connection, self._lock, fence)
        if row is not None and _is_mine(row, fence) and _begins_with(row, values["write"]):
            return Admitted(fence, row.seq, row.recent_writes, None)
        admit_write(_mark(row), fence)
        # It was not there for the UPDATE, and came before the look at it.
        raise GuardUnavailable("the mark was claimed at the same time; retry", resource=fence.resource)

    def _locked(self, connection: Connection, fence: Fence, require_open: Callable[[], None]) -> Row[Any] | None:
        # A write first: with the answer to a SELECT the server may not yet say that it has begun a transaction.
        connection.execute(self._touch, {"resource": self._key(fence.resource)})
        require_open()
        return self._row(connection, self._lock, fence)

    def _was_absent(self, connection: Connection, fence: Fence) -> bool:
        values = {**self._values(fence), "write": new_id()}
        connection.execute(self._lock_absence, values)
        row = self._row(connection, self._lock, fence)
        return row is not None and _begins_with(row, values["write"])

    def _row(self, connection: Connection, statement: Any, fence: Fence) -> Row[Any] | None:
        row = connection.execute(statement, {"resource": self._key(fence.resource)}).one_or_none()
        if row is not None:
            _require_innodb(row)
        return row

    def _make_floor(self, connection: Connection) -> None:
        super()._make_floor(connection)
        _require_innodb(connection.execute(self._read, {"resource": self._key(FLOOR)}).one())

    def _key(self, resource: str) -> str:
        return resource.encode().hex()


def _define(metadata: MetaData) -> Table:
    numbers = f"number BETWEEN 1 AND {MAX_NUMBER} OR (resource = '{FLOOR}' AND number BETWEEN 0 AND {MAX_NUMBER})"
    return Table(
        TABLE,
        metadata,
        Column("resource", VARBINARY(MAX_RESOURCE_BYTES), primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("token", VARBINARY(_TOKEN_BYTES), nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("recent_writes", VARBINARY(REMEMBERED_CHARACTERS), server_default="", nullable=False),
        Column("claimed_at", DateTime, server_default=func.now(), nullable=False),
        CheckConstraint(numbers, name="fencing_marks_number"),
        CheckConstraint("seq >= 0", name="fencing_marks_seq"),
        mysql_engine="InnoDB",
    )


def _require_innodb(row: Row[Any]) -> None:
    if row.engine != "InnoDB":
        raise GuardNotEnforceable(
            f"the table {TABLE} is of the engine {row.engine}, which has no transactions: a check would not hold until "
            f"the write; ALTER TABLE {TABLE} ENGINE = InnoDB, and the same for the data"
        )


def _remember(now: str, before: str) -> str:
    """What a mark's writes would be after the newest one of ``now``, if there was none between it and ``before``."""
    newest = now.partition(" ")[0]
    return f"{newest} {before}"[:REMEMBERED_CHARACTERS]


def _is_mine(row: Row[Any], fence: Fence) -> bool:
    return (row.number, row.token) == (fence.number, fence.token)


def _begins_with(row: Row[Any], write: str) -> bool:
    return bool(row.recent_writes.partition(" ")[0] == write)


def _mark(row: Row[Any] | None) -> Mark | None:
    return None if row is None else Mark(row.number, row.token, row.seq)
