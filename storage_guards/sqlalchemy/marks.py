"""The mark table through SQLAlchemy, and the order in which ``sql/statements.py`` is asked.

Where a statement refuses, the mark is read again, to say why; there :func:`~fencing.kernel.admit_claim` and
:func:`~fencing.kernel.admit_write` speak. A mark also remembers its last writes: see ``sql/outcome.py`` for what that
is for.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, DateTime, MetaData, Row, Table, Text, func, text
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import UserDefinedType

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.sql.outcome import FLOOR, TABLE, Admitted, Settled, new_id
from storage_guards.sql.statements import CALLS, CREATE_LOCK, ENFORCED, POSTGRESQL, SQLITE, Statements
from storage_guards.sqlalchemy.drivers import AUTOCOMMIT, limit_transaction, require_open_transaction

__all__ = ["Marks"]

_ROUNDS = 3
"""How often a verdict is sought while claims of others come between the statement and the look at the mark."""

_PLACES = {"resource": ":resource", "number": ":number", "token": ":token", "write": ":write", "writes": ":writes"}

_IS_STILL = {
    "postgresql": "SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM :transaction",
    # Whoever has written since holds the write lock, so what is read here holds until the commit.
    "sqlite": (
        "SELECT recent_writes = :recent_writes FROM fencing_marks "
        "WHERE resource = :resource AND number = :number AND token = :token"
    ),
}


class XID8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


ischema_names.setdefault("xid8", XID8)  # so that Alembic knows the column again that it has made


class Marks:
    """The marks of one kind of database, on connections that others open and bound."""

    def __init__(self, dialect: str) -> None:
        self.metadata = MetaData()
        self.table = _define(self.metadata, dialect)
        self._postgresql = dialect == "postgresql"
        self._is_still = text(_IS_STILL[dialect])
        self._say(POSTGRESQL if self._postgresql else SQLITE)
        self._enforced = self
        if self._postgresql:
            self._enforced = copy.copy(self)
            self._enforced._say(CALLS)

    def _say(self, statements: Statements) -> None:
        self._raise, self._first, self._check, self._read, self._floor, self._lock, self._lock_absence = (
            text(statement.format(**_PLACES))
            for statement in (
                statements.claim,
                statements.first_claim,
                statements.check,
                statements.read_mark,
                statements.lock_floor,
                statements.lock_mark,
                statements.lock_absence,
            )
        )
        self._first_floor = text(statements.make_floor.format(write=":table"))

    def admit(
        self,
        connection: Connection,
        fences: Sequence[Fence],
        seconds: float,
        *,
        claim: bool,
        writes: int = 1,
        joined: bool = False,
    ) -> list[Admitted]:
        """Claim or check, as the first statements of a transaction or, ``joined``, at a later point of the caller's
        own; and bound what the transaction may wait for."""
        marks = self.on_database(enforced=limit_transaction(connection, seconds))
        if claim:
            admitted = marks.claim(connection, fences, writes=writes)
        else:
            admitted = marks.check(connection, fences, joined=joined)
        require_open_transaction(connection, AUTOCOMMIT)
        return admitted

    def on_database(self, *, enforced: bool) -> Marks:
        """These marks as they are to be reached where the database enforces, or does not."""
        return self._enforced if enforced else self

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
                        if connection.execute(text(f"SELECT {ENFORCED}")).scalar_one():
                            return  # it is there, and none but its owner may make it
                        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": CREATE_LOCK})
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

    def is_still(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
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
                floor, _ = self._shared_floor(connection)
                row = _one(connection, self._first, values)  # if the fence is above the floor
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
        Column("number", BigInteger, nullable=False),
        Column("token", exact, nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("recent_writes", exact, server_default="", nullable=False),
        Column("claimed_at", DateTime(timezone=True), server_default=func.now(), nullable=False),
        # Of the table: those of a column would be lost on Alembic.
        CheckConstraint(numbers, name="fencing_marks_number"),
        CheckConstraint("seq >= 0", name="fencing_marks_seq"),
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


def _moving(fence: Fence) -> GuardUnavailable:
    return GuardUnavailable(
        f"the mark of {fence.resource!r} changed at each of {_ROUNDS} attempts; retry", resource=fence.resource
    )
