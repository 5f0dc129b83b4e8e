"""The marks of a database through SQLAlchemy: the order of the statements on the mark table.

After a refusal the mark is read again, and :func:`~fencing.kernel.admit_claim` or :func:`~fencing.kernel.admit_write`
gives the reason. A mark also remembers its last writes: ``sql/outcome.py`` says for which purpose. The differences
between databases are in ``postgresql.py``, ``mysql.py`` and ``sqlite.py``.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, Engine, MetaData, Row, Table
from sqlalchemy.pool.base import ResetStyle
from sqlalchemy.schema import CreateTable

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, StaleFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from fencing.sql.dialects import Dialect
from storage_guards.continuity import new_id
from storage_guards.sql.errors import ROUNDS, keeps_changing
from storage_guards.sql.outcome import FLOOR, TABLE, Admitted, Settled
from storage_guards.sql.pruning import (
    NO_FLOOR,
    Pruning,
    PruningStatements,
    count_implausible,
    highest_plausible,
    now_as_number,
    warn_of_implausible,
)
from storage_guards.sql.schema import Choice, VisibleTables, other_mark_tables
from storage_guards.sql.statements import ONE_WRITE
from storage_guards.sql.verify import (
    MAKE_ANEW,
    Finding,
    VerifyReport,
    implausible_marks,
    missing_floor,
    other_tables,
    report,
)
from storage_guards.sqlalchemy.table import Prepared, fetch_one
from storage_guards.sqlalchemy.waits import Bounded

_AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits at once, so a check would not hold until the write. Make "
    'the engine without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one '
    "for the guard"
)

WAITS = 3
"""How often in a transaction of its own a guard may wait for the whole bound."""

NESTED = "a rollback to the savepoint would drop the check; advance before the savepoint"

MISSING = "call guard.create_tables() once, or give guard.metadata to Alembic"


class Located(NamedTuple):
    """The mark table in one schema.

    Args:
        schema: its name.
        table: the table's full name, as SQL.
        direct: the statements on it. They answer with rows, as ``UPDATE … RETURNING`` does. A database without such
            statements overrides more of :class:`Marks`.
        calls: the statements where the database enforces, if it can.
        check: the check of ``direct``, in the form in which it goes past the engine. None: it does not.
        claim: the same for the claim.
    """

    schema: str
    table: str
    direct: Prepared
    calls: Prepared
    check: Any = None
    claim: Any = None


class Marks(ABC):
    """The marks of one kind of database, on connections that a guard opens and bounds.

    Args:
        table: as that database has it, with the schema that the caller named.
        schema: what this schema is at the database, where the engine translates schemas; or None.
    """

    dialect: ClassVar[Dialect]
    bounds_sessions: ClassVar[bool] = True
    """Whether bounds are settings of the connection, for :meth:`bounded`, and not of the transaction, for
    :meth:`limit`."""

    def __init__(self, table: Table, schema: str | None) -> None:
        self.metadata = table.metadata
        self._table = table
        self._choice = Choice(schema, MISSING)
        self._located: Located | None = None

    @property
    def schema(self) -> str | None:
        """The schema that was named, as it is at the database."""
        return self._choice.named

    def locate(self, connection: Connection) -> Located:
        """Look up the mark table's schema, once for each guard. Raise GuardNotEnforceable where it is not clear."""
        if self._located is None:
            self._located = self._statements_in(self._choice.of(self._visible_tables(connection)))
        return self._located

    @abstractmethod
    def _visible_tables(self, connection: Connection) -> VisibleTables:
        """Look for mark tables. It takes no lock and no snapshot."""

    @abstractmethod
    def _statements_in(self, schema: str) -> Located:
        """Return the statements on the mark table of that schema."""

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing. Two processes may do it at once.

        Args:
            connection: idle.
            seconds: how long to retry where another process does the same.
        """
        with self.transaction(connection, seconds):
            self._create(connection)

    @contextmanager
    def transaction(self, connection: Connection, seconds: float) -> Iterator[None]:
        """Run the block in a transaction, and bound all of it, COMMIT included. An exception rolls it back."""
        with Bounded(connection, self.dialect, WAITS * seconds), connection.begin():
            yield

    def read(self, connection: Connection, resource: str) -> Mark | None:
        """Read the mark. It locks nothing, so the mark may change at any time."""
        row = fetch_one(connection, self.locate(connection).direct.read_mark, {"resource": self._key(resource)})
        return None if row is None else Mark(row.number, row.token, row.seq)

    def read_within(self, connection: Connection, resource: str, seconds: float) -> Mark | None:
        """Read the mark in a transaction of its own, whose waits are bounded: a migration may have locked the table."""
        with Bounded(connection, self.dialect, seconds), self.dialect.bounded_waits(connection, seconds):
            transaction = connection.begin()
            try:
                self.limit(connection, seconds)
                return self.read(connection, resource)
            finally:
                transaction.rollback()

    def bounded(
        self, connection: Connection, seconds: float, *, caller_block: bool = False
    ) -> AbstractContextManager[Any]:
        """Bound the waits of a guarded transaction, BEGIN and COMMIT included, where bounds are settings of the
        connection.

        Its value is what :meth:`admit` takes as ``bounds``.
        """
        return self.dialect.bounded_waits(connection, seconds)

    def bound_joined(  # noqa: B027 - PostgreSQL's are of the transaction, and the others have none
        self, connection: Connection, seconds: float
    ) -> None:
        """Bound how long the client may stand still until the end of a transaction that is joined, where that is a
        setting of the connection."""

    def leave_others_alone(self, connection: Connection) -> None:
        """Close a connection that the pool has handed out in somebody's open transaction, and connect anew.

        Another pool rolls such a transaction back. There it was begun by a hook, for the guard, and is kept.
        """
        # pool_reset_on_return=None, by an attribute of SQLAlchemy (seen in 2.0 and 2.1); without it, it may be so.
        style = getattr(connection.engine.pool, "_reset_on_return", ResetStyle.reset_none)
        if style is ResetStyle.reset_none and self.dialect.is_open(connection):
            connection.invalidate()
            _ = connection.connection

    def files_of(self, connection: Connection) -> Mapping[str, object] | None:
        """Return the files of the connection's database, by their paths; None: a server keeps them."""
        return None

    def require_current(self, connection: Connection) -> None:  # noqa: B027 - a server has no file of the connection's
        """Raise OSError where the connection's database is not the one that others find: a replaced file of SQLite."""

    def commit(self, bounds: Any) -> bool:
        """Commit in another way than the engine does. False: let the engine commit."""
        return False

    def may_end_the_transaction(self, text: str, engine: Engine) -> bool:
        """Return whether a ``text()`` may end the transaction: unless it is one INSERT, UPDATE, DELETE or SELECT.

        PostgreSQL takes several statements, a COMMIT among them, where there are no parameters. On MariaDB and MySQL
        others commit implicitly, also procedures.
        """
        return ONE_WRITE.match(text) is None

    def limit(self, connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
        """Bound the waits of this transaction, and how long others can wait for it, where a transaction has such
        bounds.

        With ``read_committed`` a statement that has waited sees what it waited for, whatever the engine's isolation
        level. On the other databases ``dialect.bounded_waits`` does both.

        Returns:
            Whether the database enforces.
        """
        return False

    def require_open(self, connection: Connection, otherwise: str = _AUTOCOMMIT) -> None:
        """Raise GuardNotEnforceable, with the text ``otherwise``, where the driver reports no open transaction."""
        if not self.dialect.is_open(connection):
            raise GuardNotEnforceable(otherwise)

    @contextmanager
    def rolled_back(self, connection: Connection, seconds: float) -> Iterator[bool]:
        """Run the block in a transaction of its own: bounded, READ COMMITTED, and rolled back at the end.

        Its value is whether the database enforces.
        """
        with Bounded(connection, self.dialect, WAITS * seconds), self.dialect.bounded_waits(connection, seconds):
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
        bounds: Any = None,
    ) -> list[Admitted]:
        """Claim or check, and bound what the transaction may wait for.

        These are the first statements of a transaction or, if it is ``joined``, later ones of the caller's own
        transaction. ``bounds`` is the value of :meth:`bounded`.
        """
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
        """Raise each mark to its fence, and count ``writes`` at once. Raise StaleFence where the rule refuses a
        fence."""
        sql = self._statements(connection, enforced)
        return [self._claim_one(connection, sql, fence, writes) for fence in fences]

    def check(
        self, connection: Connection, fences: Sequence[Fence], *, joined: bool = False, enforced: bool = False
    ) -> list[Admitted]:
        """Admit a write under each fence. Raise StaleFence or UnclaimedFence where the rule refuses one.

        Args:
            connection: in a transaction.
            fences: sorted by resource.
            joined: the transaction may have begun, and read, before.
            enforced: the database enforces.
        """
        sql = self._statements(connection, enforced, joined)
        return [self._check_one(connection, sql, fence) for fence in fences]

    def is_sound(self, connection: Connection) -> bool:
        """Return whether the driver reports an open transaction, and the server has sent nothing unasked."""
        return self.dialect.is_open(connection) and not self.has_unread(connection)

    def has_unread(self, connection: Connection) -> bool:
        """Return whether the server has sent something unasked, such as the end of the session. It sends nothing."""
        return False

    def note_transaction(  # noqa: B027 - most need nothing
        self, connection: Connection, admitted: Admitted, bounds: Any
    ) -> None:
        """Prepare :meth:`is_same_transaction`, where it needs more than the admitted fence."""

    @abstractmethod
    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Return whether this is the transaction that admitted the fence, or at least no other write has come
        between."""

    def may_have_changed_session(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Return whether a block that failed may have ended the transaction by a statement that changes the session."""
        return False

    def settle(self, connection: Connection, fence: Fence, *, enforced: bool) -> Settled:
        """Lock the mark of the fence's resource, or its absence. The caller rolls the transaction back afterwards.

        Args:
            connection: in a transaction of its own, READ COMMITTED.
            fence: of the resource.
            enforced: the database enforces.
        """
        sql = self._statements(connection, enforced)
        for _ in range(ROUNDS):
            row = self._lock_mark(connection, sql, fence)
            # An open transaction may be about to insert the mark. Inserting it here waits for that transaction.
            if row is not None or self._lock_absence(connection, sql, fence):
                floor = fetch_one(connection, sql.lock_floor, {"resource": self._key(FLOOR)})
                return Settled(
                    recent_writes=None if row is None else row.recent_writes,
                    table="" if floor is None else floor.recent_writes,
                    floor=MAX_NUMBER if floor is None else floor.number,
                )
        raise keeps_changing(fence)

    def prune(self, connection: Connection, pruning: Pruning, seconds: float) -> int:
        """Delete all marks that may go, and return how many were deleted.

        Args:
            connection: idle.
            pruning: which marks may go.
            seconds: the bound of each wait.
        """
        deleted, left = 0, pruning
        while True:
            bounds = self.dialect.bounded_waits(connection, seconds, read_committed=True)
            with Bounded(connection, self.dialect, WAITS * seconds), bounds, connection.begin():
                self.limit(connection, seconds, read_committed=True)
                floor, count = self._prune_batch(connection, left)
                implausible = connection.exec_driver_sql(count_implausible(self.locate(connection).table)).scalar_one()
            deleted += count
            rest = left.next_batch(floor, count)
            if rest is None:
                warn_of_implausible(implausible)
                return deleted
            left = rest

    def verify(self, connection: Connection) -> VerifyReport:
        """Return the report, from trial claims, the catalog and the settings. The caller rolls the transaction back."""
        visible = self._visible_tables(connection)
        self._located = located = self._statements_in(self._choice.of(visible))
        floor = [*self._check_floor(connection)]
        found = [*floor, *self._check_catalog(connection), *other_tables(other_mark_tables(visible, located.schema))]
        if not floor:  # otherwise the trial claims would be refused
            found += self._check_exactness(connection)
        return report(self.dialect.title(connection), found, f"{located.schema}.{TABLE}")

    def execute(self, connection: Connection, statement: str, question: str, seconds: float) -> list[str]:
        """Execute a statement that switches enforcement on or off, in a transaction of its own. Return the texts that
        answer the question."""
        raise GuardNotEnforceable(f"{self.dialect.names[0]} cannot enforce the check by itself; PostgreSQL can")

    def _statements(self, connection: Connection, enforced: bool, joined: bool = False) -> Prepared:
        located = self.locate(connection)
        return located.calls if enforced else located.direct

    def _create(self, connection: Connection) -> None:
        """Create the table and its floor row where they are missing. Others that do the same must wait for this."""
        visible = self._visible_tables(connection)
        schema = self._choice.to_create(visible)
        if schema is None:
            self._located = located = self._statements_in(self._choice.of(visible))
            if fetch_one(connection, located.direct.read_floor, {"resource": self._key(FLOOR)}) is None:
                self._make_floor(connection, located.direct, new=False)
            return
        table = self._table.to_metadata(MetaData(), schema=schema)
        # The schema is what it is at the database.
        options = {"schema_translate_map": None}
        connection.execute(CreateTable(table, if_not_exists=True), execution_options=options)
        self._located = located = self._statements_in(schema)
        self._make_floor(connection, located.direct, new=True)

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
                if not getattr(row, "outermost", True):
                    raise ValueError(NESTED)
                return Admitted(fence, *_answer(row))
            admit_write(self.read(connection, fence.resource), fence)
        raise keeps_changing(fence)

    def _lock_mark(self, connection: Connection, sql: Prepared, fence: Fence) -> Row[Any] | None:
        """Lock the mark by a first statement that changes nothing, and return it."""
        row = fetch_one(connection, sql.lock_mark, {"resource": self._key(fence.resource)})
        self.require_open(connection)
        return row

    def _lock_absence(self, connection: Connection, sql: Prepared, fence: Fence) -> bool:
        """Return whether there was no mark, by inserting one, which waits for concurrent insertions."""
        return fetch_one(connection, sql.lock_absence, self._values(fence)) is not None

    def _shared_floor(self, connection: Connection, sql: Prepared) -> tuple[int, str]:
        """Return the floor, which no other transaction can raise before this one ends, and the table's id."""
        row = fetch_one(connection, sql.lock_floor, {"resource": self._key(FLOOR)})
        if row is None:
            raise GuardNotEnforceable(NO_FLOOR)
        return row.number, row.recent_writes

    def _make_floor(self, connection: Connection, sql: Prepared, *, new: bool) -> None:
        """Make the floor row where there is none.

        Args:
            connection: in a transaction.
            sql: the statements.
            new: the table was just created, so there never was a mark. Otherwise marks may be lost: the floor shuts out
                all fences that are older than now.
        """
        number = 0 if new else now_as_number()
        connection.execute(sql.make_floor, {"resource": self._key(FLOOR), "number": number, "write": new_id()})

    @abstractmethod
    def _prune_batch(self, connection: Connection, pruning: Pruning) -> tuple[int, int]:
        """Prune in one transaction. Return the new floor, and how many marks were deleted."""

    def _prune_with(self, connection: Connection, statements: PruningStatements) -> tuple[int, int]:
        floor: int | None = connection.exec_driver_sql(statements.raise_floor).scalar_one_or_none()
        self.require_open(connection)
        if floor is None:
            raise GuardNotEnforceable(NO_FLOOR)
        return floor, connection.exec_driver_sql(statements.delete).rowcount

    def _check_floor(self, connection: Connection) -> Iterator[Finding]:
        """Yield a finding where no new name can be claimed."""
        located = self.locate(connection)
        # Before any claim: in autocommit it would stay. A write, because a SELECT may not begin a transaction.
        connection.exec_driver_sql(f"UPDATE {located.table} SET seq = seq WHERE resource = ''")
        self.require_open(connection)
        floor = fetch_one(connection, located.direct.read_floor, {"resource": self._key(FLOOR)})
        yield from missing_floor(0 if floor is None else 1)
        if floor is not None and floor.number > highest_plausible():
            yield from implausible_marks([(FLOOR, floor.number)])

    def _check_catalog(self, connection: Connection) -> Iterable[Finding]:
        """Yield the findings in the catalog and the settings."""
        return ()

    def _check_exactness(self, connection: Connection) -> Iterator[Finding]:
        """Yield a finding where names, tokens or numbers are not exact, as trial claims show. They are rolled back."""
        name = f"verify:{secrets.token_hex(8)}"
        trial = Fence(name, MAX_NUMBER, "a" * 22)
        try:
            self.claim(connection, [trial])
            exact = self.read(connection, name) == Mark(trial.number, trial.token)
        except (TypeError, ValueError):  # the row is no mark
            exact = False
        if not exact:
            yield Finding("safety", "a mark is read differently from what was written", MAKE_ANEW)
            return
        for other in (name.upper(), f"{name} "):
            if self.read(connection, other) is not None:
                yield Finding("safety", f"the names {name!r} and {other!r} have one mark", MAKE_ANEW)
        try:
            self.claim(connection, [Fence(name, MAX_NUMBER, "A" * 22)])
        except StaleFence:
            return
        yield Finding("safety", "tokens that differ only in case are treated as equal", MAKE_ANEW)

    def _key(self, resource: str) -> str:
        """Return the resource's name as the statements take it."""
        return resource

    def _values(self, fence: Fence) -> dict[str, Any]:
        return {"resource": self._key(fence.resource), "number": fence.number, "token": fence.token}


def _answer(row: Row[Any]) -> tuple[int, str, str | None]:
    return row.seq, row.recent_writes, getattr(row, "xact", None)
