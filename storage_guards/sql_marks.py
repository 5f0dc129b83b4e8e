"""The mark table, and the statements that are the admission rule in SQL.

Each verdict is one ``UPDATE … RETURNING`` (or the claim's upsert): it takes the mark's row lock, compares, and answers
in one step, and the lock is kept until the transaction ends. Only a refusal reads the mark again, to say why; there
the kernel's :func:`~fencing.fence.admit_claim` and :func:`~fencing.fence.admit_write` speak.

A mark also remembers its last writes, newest first, each by a random id: see ``sql_outcome.py`` for what that is for.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, DateTime, MetaData, Row, Table, Text, func, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import UserDefinedType

from fencing.errors import GuardUnavailable
from fencing.fence import MAX_NUMBER, Fence, Mark, admit_claim, admit_write

__all__ = ["FLOOR", "REMEMBERED_CHARACTERS", "TABLE", "Admitted", "Marks", "Settled", "new_id"]

TABLE = "fencing_marks"

FLOOR = "fencing:floor"
"""The one row that is no mark (no fence can have the name): the highest number among the marks that were pruned."""

_ROUNDS = 3
"""How often a verdict is sought while claims of others come between the statement and the look at the mark."""

_CREATE_LOCK = 7_236_273_601
"""Arbitrary: the advisory lock under which PostgreSQL creates the table, as IF NOT EXISTS fails where two race."""

_REMEMBERED = 16
"""How many writes a mark remembers: enough for whoever asks soon, and 208 bytes at most."""

_WRITE_BYTES = 9
REMEMBERED_CHARACTERS = _REMEMBERED * (_WRITE_BYTES * 4 // 3 + 1)

_REMEMBER = f"substr(CAST(:write AS text) || ' ' || fencing_marks.recent_writes, 1, {REMEMBERED_CHARACTERS})"

# Qualified by the table's name, which the upsert needs; the UPDATE does not mind.
_RAISE = f"""
    number = :number,
    token = :token,
    seq = CASE WHEN fencing_marks.number = :number THEN fencing_marks.seq ELSE 0 END + :writes,{{xact}}
    recent_writes = CASE WHEN :writes = 0 THEN fencing_marks.recent_writes ELSE {_REMEMBER} END,
    claimed_at = CURRENT_TIMESTAMP
"""
_ADMITS = """
    (fencing_marks.number < :number OR (fencing_marks.number = :number AND fencing_marks.token = :token))
"""
_RAISE_MARK = f"UPDATE fencing_marks SET {_RAISE} WHERE resource = :resource AND {_ADMITS} RETURNING {{reply}}"
_FIRST_MARK = (
    "INSERT INTO fencing_marks (resource, number, token, seq, recent_writes{column}) "
    "VALUES (:resource, :number, :token, :writes, CAST(:write AS text) || ' ' || CAST(:table AS text){value}) "
    f"ON CONFLICT (resource) DO UPDATE SET {_RAISE} WHERE {_ADMITS} RETURNING {{reply}}"
)
_CHECK_MARK = (
    f"UPDATE fencing_marks SET{{xact}} seq = seq + 1, recent_writes = {_REMEMBER} "
    "WHERE resource = :resource AND number = :number AND token = :token RETURNING {reply}"
)
_READ_MARK = "SELECT number, token, seq FROM fencing_marks WHERE resource = :resource"
_READ_FLOOR = "SELECT number, recent_writes FROM fencing_marks WHERE resource = :resource{share}"
_FIRST_FLOOR = (
    "INSERT INTO fencing_marks (resource, number, token, seq, recent_writes) VALUES (:resource, 0, '', 0, :table) "
    "ON CONFLICT (resource) DO NOTHING"
)
_IS_STILL = {
    "postgresql": "SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM :transaction",
    # Whoever has written since holds the write lock, so what is read here holds until the commit.
    "sqlite": (
        "SELECT recent_writes = :recent_writes FROM fencing_marks "
        "WHERE resource = :resource AND number = :number AND token = :token"
    ),
}
_LOCK_MARK = "UPDATE fencing_marks SET seq = seq WHERE resource = :resource RETURNING recent_writes"
_LOCK_ABSENCE = (
    "INSERT INTO fencing_marks (resource, number, token, seq) VALUES (:resource, :number, :token, 0) "
    "ON CONFLICT (resource) DO NOTHING RETURNING resource"
)

_FILL = {
    # xact: the transaction that last wrote the mark, for checks inside the database.
    "postgresql": {
        "xact": " xact = pg_current_xact_id(),",
        "column": ", xact",
        "value": ", pg_current_xact_id()",
        "reply": "seq, recent_writes, xact::text",
        "share": " FOR SHARE",
    },
    # SQLite has one writer at a time: the UPDATE before has taken the write lock, which covers the floor.
    "sqlite": {"xact": "", "column": "", "value": "", "reply": "seq, recent_writes", "share": ""},
}


class XID8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


class Admitted(NamedTuple):
    """A fence that the storage has admitted, and what it answered."""

    fence: Fence
    seq: int
    recent_writes: str
    transaction: str | None


class Settled(NamedTuple):
    """What is known of a resource's mark while it is locked, and so while no transaction that wrote it is open.

    Args:
        recent_writes: of the mark; None: there is no mark.
        table: the id of this very table, from its floor row: the oldest entry of each mark that remembers all of its
            writes. "" where it has none.
        floor: the highest number among marks that were pruned.
    """

    recent_writes: str | None
    table: str
    floor: int


class Marks:
    """The marks of one kind of database, on connections that others open and bound."""

    def __init__(self, dialect: str) -> None:
        self.metadata = MetaData()
        self.table = _define(self.metadata, dialect)
        self._postgresql = dialect == "postgresql"
        fill = _FILL[dialect]
        self._raise = text(_RAISE_MARK.format(**fill))
        self._first = text(_FIRST_MARK.format(**fill))
        self._check = text(_CHECK_MARK.format(**fill))
        self._read = text(_READ_MARK)
        self._floor = text(_READ_FLOOR.format(**fill))
        self._first_floor = text(_FIRST_FLOOR)
        self._is_still = text(_IS_STILL[dialect])
        self._lock = text(_LOCK_MARK)
        self._lock_absence = text(_LOCK_ABSENCE)

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing; two processes may do it at once.

        Where two do, SQLite tells one at once that the database is locked: IF NOT EXISTS reads before it writes,
        and waiting then would be a deadlock. So that one tries again, for ``seconds`` at most.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                with connection.begin():
                    if self._postgresql:
                        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _CREATE_LOCK})
                    connection.execute(CreateTable(self.table, if_not_exists=True))
                    self._make_floor(connection)
                return
            except OperationalError:
                if connection.dialect.name != "sqlite" or time.monotonic() > deadline:
                    raise

    def read(self, connection: Connection, resource: str) -> Mark | None:
        """The mark as it is; locks nothing, so nothing follows from it."""
        row = _one(connection, self._read, {"resource": self._key(resource)})
        return None if row is None else Mark(row.number, row.token, row.seq)

    def claim(self, connection: Connection, fences: Sequence[Fence], *, writes: int = 0) -> list[Admitted]:
        """Raise each mark to its fence, counting ``writes`` at once; StaleFence where the rule refuses one."""
        return [self._claim_one(connection, fence, writes) for fence in fences]

    def check(self, connection: Connection, fences: Sequence[Fence], *, joined: bool = False) -> list[Admitted]:
        """Admit a write under each fence; StaleFence or UnclaimedFence where the rule refuses one.

        Args:
            connection: in a transaction.
            fences: sorted by resource.
            joined: the transaction may have begun, and read, before.
        """
        return [self._check_one(connection, fence, joined) for fence in fences]

    def note_transaction(self, connection: Connection) -> None:
        """Make :meth:`is_still` possible, where it needs more than the admitted fence."""

    def is_still(self, connection: Connection, admitted: Admitted) -> bool:
        """Whether this is the transaction in which the fence was admitted, or at least one before any other's."""
        if self._postgresql:
            values: dict[str, Any] = {"transaction": admitted.transaction}
        else:
            values = {**self._values(admitted.fence), "recent_writes": admitted.recent_writes}
        row = _one(connection, self._is_still, values)
        return row is not None and bool(row[0])

    def settle(self, connection: Connection, fence: Fence, require_open: Callable[[], None]) -> Settled:
        """Lock the mark of the fence's resource, or its absence; roll the transaction back afterwards.

        Args:
            connection: in a transaction of its own, READ COMMITTED.
            fence: whose resource it is.
            require_open: called after the first statement, which changes nothing; raises where no transaction is open.
        """
        for _ in range(_ROUNDS):
            row = self._locked(connection, fence, require_open)
            # A mark that an open transaction is about to insert is not there yet: inserting it, too, waits for that.
            if row is not None or self._was_absent(connection, fence):
                floor = _one(connection, self._floor, {"resource": self._key(FLOOR)})
                return Settled(
                    recent_writes=None if row is None else row.recent_writes,
                    table="" if floor is None else floor.recent_writes,
                    floor=MAX_NUMBER if floor is None else floor.number,
                )
        raise _moving(fence)

    def _locked(self, connection: Connection, fence: Fence, require_open: Callable[[], None]) -> Row[Any] | None:
        row = _one(connection, self._lock, {"resource": self._key(fence.resource)})
        require_open()
        return row

    def _was_absent(self, connection: Connection, fence: Fence) -> bool:
        return _one(connection, self._lock_absence, self._values(fence)) is not None

    def _claim_one(self, connection: Connection, fence: Fence, writes: int) -> Admitted:
        values = {**self._values(fence), "writes": writes, "write": new_id()}
        for _ in range(_ROUNDS):
            row = _one(connection, self._raise, values)
            if row is None:
                floor, table = self._shared_floor(connection)
                if fence.number > floor:
                    row = _one(connection, self._first, {**values, "table": table})
                if row is None:
                    admit_claim(self.read(connection, fence.resource), fence, floor)
                    continue
            return Admitted(fence, *_answer(row))
        raise _moving(fence)

    def _check_one(self, connection: Connection, fence: Fence, joined: bool) -> Admitted:
        values = {**self._values(fence), "write": new_id()}
        for _ in range(_ROUNDS):
            row = _one(connection, self._check, values)
            if row is not None:
                return Admitted(fence, *_answer(row))
            admit_write(self.read(connection, fence.resource), fence)
        raise _moving(fence)

    def _shared_floor(self, connection: Connection) -> tuple[int, str]:
        """The floor, which nobody can raise before this transaction ends, and the table's id."""
        row = _one(connection, self._floor, {"resource": self._key(FLOOR)})
        if row is None:
            self._make_floor(connection)
            row = _one(connection, self._floor, {"resource": self._key(FLOOR)})
        if row is None:
            raise GuardUnavailable("the floor row of fencing_marks is being replaced; retry")
        return row.number, row.recent_writes

    def _make_floor(self, connection: Connection) -> None:
        connection.execute(self._first_floor, {"resource": self._key(FLOOR), "table": new_id()})

    def _key(self, resource: str) -> str:
        """The resource's name as the statements take it."""
        return resource

    def _values(self, fence: Fence) -> dict[str, Any]:
        return {"resource": self._key(fence.resource), "number": fence.number, "token": fence.token}


def _define(metadata: MetaData, dialect: str) -> Table:
    postgresql = dialect == "postgresql"
    exact = Text(collation="C" if postgresql else "BINARY")
    numbers = f"number BETWEEN 1 AND {MAX_NUMBER} OR (resource = '{FLOOR}' AND number BETWEEN 0 AND {MAX_NUMBER})"
    table = Table(
        TABLE,
        metadata,
        Column("resource", exact, primary_key=True),
        Column("number", BigInteger, CheckConstraint(numbers, name="fencing_marks_number"), nullable=False),
        Column("token", exact, nullable=False),
        Column("seq", BigInteger, CheckConstraint("seq >= 0", name="fencing_marks_seq"), nullable=False),
        Column("recent_writes", exact, server_default="", nullable=False),
        Column("claimed_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
    )
    if postgresql:
        table.append_column(Column("xact", XID8, nullable=True))
    else:  # SQLite's columns take any type, and text sorts above every number
        integers = "typeof(number) = 'integer' AND typeof(seq) = 'integer'"
        table.append_constraint(CheckConstraint(integers, name="fencing_marks_integers"))
    return table


def _one(connection: Connection, statement: Any, values: dict[str, Any]) -> Row[Any] | None:
    return connection.execute(statement, values).one_or_none()  # fetches all: SQLite wants RETURNING read to its end


def _answer(row: Row[Any]) -> tuple[int, str, str | None]:
    return row.seq, row.recent_writes, getattr(row, "xact", None)


def new_id() -> str:
    return secrets.token_urlsafe(_WRITE_BYTES)


def _moving(fence: Fence) -> GuardUnavailable:
    return GuardUnavailable(
        f"the mark of {fence.resource!r} changed at each of {_ROUNDS} attempts; retry", resource=fence.resource
    )
