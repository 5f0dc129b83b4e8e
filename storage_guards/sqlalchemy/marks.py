"""The mark table through SQLAlchemy, and the order in which its statements are asked.

Where a statement refuses, the mark is read again, to say why; there :func:`~fencing.kernel.admit_claim` and
:func:`~fencing.kernel.admit_write` speak. A mark also remembers its last writes: see ``sql/outcome.py`` for what that
is for. What one kind of database does differently is in its own file: ``postgresql.py``, ``mysql.py``, ``sqlite.py``.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, DateTime, MetaData, Row, Table, func, text
from sqlalchemy.schema import CreateTable, SchemaItem
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.types import TypeEngine

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, StaleFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from fencing.sql.dialects import Dialect
from storage_guards.sql.errors import ROUNDS, keeps_changing
from storage_guards.sql.outcome import FLOOR, TABLE, Admitted, Settled, new_id
from storage_guards.sql.pruning import NO_FLOOR, Pruning, PruningStatements
from storage_guards.sql.statements import Statements
from storage_guards.sql.verify import MAKE_ANEW, Finding, VerifyReport, report

_AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits by itself, so a check would not hold until the write. Make "
    'the engine without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one '
    "for the guard"
)

# A write that begins a transaction, and changes nothing: no mark has that name.
_TOUCH = f"UPDATE {TABLE} SET seq = seq WHERE resource = ''"

_PLACES = {"resource": ":resource", "number": ":number", "token": ":token", "write": ":write", "writes": ":writes"}


class Prepared(NamedTuple):
    """:class:`Statements` as SQLAlchemy takes them."""

    check: TextClause
    claim: TextClause
    first_claim: TextClause
    lock_floor: TextClause
    make_floor: TextClause
    lock_mark: TextClause
    lock_absence: TextClause


class Marks(ABC):
    """The marks of one kind of database, on connections that others open, and bound.

    Args:
        table: as that database has it.
        statements: which answer with rows, as ``UPDATE … RETURNING`` does; what does not overrides more.
        calls: the same where the database enforces, if it can.
    """

    dialect: ClassVar[Dialect]

    def __init__(self, table: Table, statements: Statements, calls: Statements | None = None) -> None:
        self.metadata = table.metadata
        self._table = table
        self._read = text(statements.read_mark.format(**_PLACES))
        self._direct = _prepare(statements)
        self._calls = _prepare(calls) if calls else self._direct

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing; two processes may do it at once.

        Args:
            connection: idle.
            seconds: for how long it is tried where others do the same.
        """
        with connection.begin():
            self._create(connection)

    def read(self, connection: Connection, resource: str) -> Mark | None:
        """The mark as it is; locks nothing, so nothing follows from it."""
        row = fetch_one(connection, self._read, {"resource": self._key(resource)})
        return None if row is None else Mark(row.number, row.token, row.seq)

    def limit(self, connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
        """Bound what this transaction can wait for, and be waited for, where that is a matter of the transaction.

        With ``read_committed`` a statement that has waited sees what it waited for, whatever the engine's isolation
        level. Elsewhere ``dialect.bounded_waits`` does both.

        Returns:
            Whether the database enforces.
        """
        return False

    def require_open(self, connection: Connection, otherwise: str = _AUTOCOMMIT) -> None:
        """GuardNotEnforceable, saying ``otherwise``, where the driver itself reports no open transaction."""
        if not self.dialect.is_open(connection):
            raise GuardNotEnforceable(otherwise)

    @contextmanager
    def rolled_back(self, connection: Connection, seconds: float) -> Iterator[bool]:
        """A transaction of its own, bounded, READ COMMITTED and rolled back at the end; whether the database
        enforces."""
        with self.dialect.bounded_waits(connection, seconds):
            transaction = connection.begin()
            try:
                yield self.limit(connection, seconds, read_committed=True)
            finally:
                transaction.rollback()

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
        enforced = self.limit(connection, seconds)
        if claim:
            admitted = self.claim(connection, fences, writes=writes, enforced=enforced)
        else:
            admitted = self.check(connection, fences, joined=joined, enforced=enforced)
        self.require_open(connection)
        return admitted

    def claim(
        self, connection: Connection, fences: Sequence[Fence], *, writes: int = 0, enforced: bool = False
    ) -> list[Admitted]:
        """Raise each mark to its fence, counting ``writes`` at once; StaleFence where the rule refuses one."""
        return [self._claim_one(connection, self._statements(enforced), fence, writes) for fence in fences]

    def check(
        self, connection: Connection, fences: Sequence[Fence], *, joined: bool = False, enforced: bool = False
    ) -> list[Admitted]:
        """Admit a write under each fence; StaleFence or UnclaimedFence where the rule refuses one.

        Args:
            connection: in a transaction.
            fences: sorted by resource.
            joined: the transaction may have begun, and read, before.
            enforced: the database enforces.
        """
        return [self._check_one(connection, self._statements(enforced), fence) for fence in fences]

    def note_transaction(self, connection: Connection) -> None:  # noqa: B027 - most need nothing
        """Make :meth:`is_same_transaction` possible, where it needs more than the admitted fence."""

    @abstractmethod
    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Whether this is the transaction in which the fence was admitted, or at least one before any other's."""

    def settle(self, connection: Connection, fence: Fence, *, enforced: bool) -> Settled:
        """Lock the mark of the fence's resource, or its absence; roll the transaction back afterwards.

        Args:
            connection: in a transaction of its own, READ COMMITTED.
            fence: whose resource it is.
            enforced: the database enforces.
        """
        sql = self._statements(enforced)
        for _ in range(ROUNDS):
            row = self._lock_mark(connection, sql, fence)
            # A mark that an open transaction is about to insert is not there yet: inserting it, too, waits for that.
            if row is not None or self._lock_absence(connection, sql, fence):
                floor = fetch_one(connection, sql.lock_floor, {"resource": self._key(FLOOR)})
                return Settled(
                    recent_writes=None if row is None else row.recent_writes,
                    table="" if floor is None else floor.recent_writes,
                    floor=MAX_NUMBER if floor is None else floor.number,
                )
        raise keeps_changing(fence)

    def prune(self, connection: Connection, pruning: Pruning, seconds: float) -> int:
        """Delete all that may go, and return how many that were.

        Args:
            connection: idle.
            pruning: which marks may go.
            seconds: the bound of each wait.
        """
        deleted, left = 0, pruning
        while True:
            with self.dialect.bounded_waits(connection, seconds, read_committed=True), connection.begin():
                self.limit(connection, seconds, read_committed=True)
                floor, count = self._prune_batch(connection, left)
            deleted += count
            rest = left.next_batch(floor, count)
            if rest is None:
                return deleted
            left = rest

    def verify(self, connection: Connection) -> VerifyReport:
        """The report, from a claim and from what the catalog and the settings say. To be rolled back."""
        found = [*self._check_exactness(connection), *self._check_catalog(connection)]
        return report(self.dialect.title(connection), found)

    def execute(self, connection: Connection, statement: str, seconds: float) -> None:
        """Execute a statement that makes the database enforce, or not, in a transaction of its own."""
        raise GuardNotEnforceable(f"{self.dialect.names[0]} cannot enforce the check by itself, PostgreSQL can")

    def _statements(self, enforced: bool) -> Prepared:
        return self._calls if enforced else self._direct

    def _create(self, connection: Connection) -> None:
        connection.execute(CreateTable(self._table, if_not_exists=True))
        self._make_floor(connection, self._direct)

    def _claim_one(self, connection: Connection, sql: Prepared, fence: Fence, writes: int) -> Admitted:
        values = {**self._values(fence), "writes": writes, "write": new_id()}
        for _ in range(ROUNDS):
            row = fetch_one(connection, sql.claim, values)
            if row is None:
                floor, _ = self._shared_floor(connection, sql)
                row = fetch_one(connection, sql.first_claim, values)  # if the fence is above the floor
                if row is None:
                    admit_claim(self.read(connection, fence.resource), fence, floor)
                    continue
            return Admitted(fence, *_answer(row))
        raise keeps_changing(fence)

    def _check_one(self, connection: Connection, sql: Prepared, fence: Fence) -> Admitted:
        values = {**self._values(fence), "write": new_id()}
        for _ in range(ROUNDS):
            row = fetch_one(connection, sql.check, values)
            if row is not None:
                return Admitted(fence, *_answer(row))
            admit_write(self.read(connection, fence.resource), fence)
        raise keeps_changing(fence)

    def _lock_mark(self, connection: Connection, sql: Prepared, fence: Fence) -> Row[Any] | None:
        """The mark, locked by a first statement that changes nothing."""
        row = fetch_one(connection, sql.lock_mark, {"resource": self._key(fence.resource)})
        self.require_open(connection)
        return row

    def _lock_absence(self, connection: Connection, sql: Prepared, fence: Fence) -> bool:
        return fetch_one(connection, sql.lock_absence, self._values(fence)) is not None

    def _shared_floor(self, connection: Connection, sql: Prepared) -> tuple[int, str]:
        """The floor, which nobody can raise before this transaction ends, and the table's id."""
        row = fetch_one(connection, sql.lock_floor, {"resource": self._key(FLOOR)})
        if row is None:
            self._make_floor(connection, sql)
            row = fetch_one(connection, sql.lock_floor, {"resource": self._key(FLOOR)})
        if row is None:
            raise GuardUnavailable("the floor row of fencing_marks is being replaced; retry")
        return row.number, row.recent_writes

    def _make_floor(self, connection: Connection, sql: Prepared) -> None:
        connection.execute(sql.make_floor, {"resource": self._key(FLOOR), "write": new_id()})

    @abstractmethod
    def _prune_batch(self, connection: Connection, pruning: Pruning) -> tuple[int, int]:
        """One transaction's part: the new floor, and how many marks went."""

    def _prune_with(self, connection: Connection, statements: PruningStatements) -> tuple[int, int]:
        floor: int | None = connection.exec_driver_sql(statements.raise_floor).scalar_one_or_none()
        self.require_open(connection)
        if floor is None:
            raise GuardNotEnforceable(NO_FLOOR)
        return floor, connection.exec_driver_sql(statements.delete).rowcount

    def _check_catalog(self, connection: Connection) -> Iterable[Finding]:
        """What the catalog and the settings say."""
        return ()

    def _check_exactness(self, connection: Connection) -> Iterator[Finding]:
        """Whether names, tokens and numbers are exact, by a claim."""
        name = f"verify:{secrets.token_hex(8)}"
        mine = Fence(name, MAX_NUMBER, "a" * 22)
        # Before the claim: what was committed by itself would stay, and raise the floor above all others once pruned.
        connection.exec_driver_sql(_TOUCH)
        self.require_open(connection)
        try:
            self.claim(connection, [mine])
            exact = self.read(connection, name) == Mark(mine.number, mine.token)
        except (TypeError, ValueError):  # what was read is no mark
            exact = False
        if not exact:
            yield Finding("safety", "a mark does not read as it was written", MAKE_ANEW)
            return
        for other in (name.upper(), f"{name} "):
            if self.read(connection, other) is not None:
                yield Finding("safety", f"the names {name!r} and {other!r} have one mark", MAKE_ANEW)
        try:
            self.claim(connection, [Fence(name, MAX_NUMBER, "A" * 22)])
        except StaleFence:
            return
        yield Finding("safety", "tokens that differ in their case are taken for equal", MAKE_ANEW)

    def _key(self, resource: str) -> str:
        """The resource's name as the statements take it."""
        return resource

    def _values(self, fence: Fence) -> dict[str, Any]:
        return {"resource": self._key(fence.resource), "number": fence.number, "token": fence.token}


def mark_table(
    *more: SchemaItem,
    resource: TypeEngine[Any],
    token: TypeEngine[Any],
    recent_writes: TypeEngine[Any],
    claimed_at: TypeEngine[Any] | None = None,
    **options: Any,
) -> Table:
    """The mark table of a database.

    Args:
        more: further columns and constraints.
        resource: the type of that column, and so on.
        options: of the table.
    """
    numbers = f"number BETWEEN 1 AND {MAX_NUMBER} OR (resource = '{FLOOR}' AND number BETWEEN 0 AND {MAX_NUMBER})"
    return Table(
        TABLE,
        MetaData(),
        Column("resource", resource, primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("token", token, nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("recent_writes", recent_writes, server_default="", nullable=False),
        Column("claimed_at", claimed_at or DateTime(timezone=True), server_default=func.now(), nullable=False),
        # Of the table: those of a column would be lost on Alembic.
        CheckConstraint(numbers, name="fencing_marks_number"),
        CheckConstraint("seq >= 0", name="fencing_marks_seq"),
        *more,
        **options,
    )


def fetch_one(connection: Connection, statement: Any, values: dict[str, Any]) -> Row[Any] | None:
    """Its row. Fetches all: SQLite wants RETURNING read to its end."""
    return connection.execute(statement, values).one_or_none()


def _prepare(statements: Statements) -> Prepared:
    return Prepared(*(text(statement.format(**_PLACES)) for statement in statements))


def _answer(row: Row[Any]) -> tuple[int, str, str | None]:
    return row.seq, row.recent_writes, getattr(row, "xact", None)
