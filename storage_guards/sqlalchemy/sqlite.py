"""The mark table on SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, Mark
from fencing.sql.dialects import SQLite
from fencing.sql.files import opened_by, require_current
from storage_guards.continuity import new_id
from storage_guards.sql.outcome import FLOOR, TABLE, Admitted
from storage_guards.sql.plans import Batch, Plan, plan_batch, plan_create
from storage_guards.sql.pruning import Pruning, is_implausible, on_sqlite
from storage_guards.sql.schema import Versions, VisibleTables, quoted
from storage_guards.sql.statements import statements_on
from storage_guards.sql.table import ADDED, DONE, MARK_TABLE, TYPES
from storage_guards.sql.verify import IMPLAUSIBLE, MAKE_ANEW, Finding, implausible_marks, missing_checks, not_durable
from storage_guards.sqlalchemy.direct import fetch_directly
from storage_guards.sqlalchemy.marks import Located, Marks
from storage_guards.sqlalchemy.table import PLACES, prepare, tables_of

# This transaction has written, so it holds the write lock, and the row stays as it is until the commit.
_IS_SAME_TRANSACTION = (
    "SELECT recent_writes = :recent_writes FROM {table} "
    "WHERE resource = :resource AND number = :number AND token = :token"
)

_TYPES = {
    column.name: TYPES["sqlite"][column.holds].partition(" ")[0]
    for column in MARK_TABLE.columns_on("sqlite")
    if column.holds != "time"
}


class SQLiteMarks(Marks):
    """The marks of a SQLite database, on connections that a guard opens and bounds."""

    dialect = SQLite()
    database = "sqlite"

    def __init__(self, schema: str | None = None, *, actual_schema: str | None = None) -> None:
        super().__init__(tables_of(self.database, schema), actual_schema or schema)
        self._choice_is_confirmed = False

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing, as :meth:`Marks.create` does.

        Where two do it, SQLite tells one of them at once that the database is locked: IF NOT EXISTS reads before it
        writes, and waiting then would be a deadlock. So that one retries.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                with connection.begin():
                    if not self.dialect.is_open(connection):  # Python's sqlite3 begins no transaction before DDL
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                    return self.perform(connection, plan_create(self._choice))
            except OperationalError:
                if time.monotonic() > deadline:
                    raise

    def files_of(self, connection: Connection) -> Mapping[str, object] | None:
        return opened_by(connection)

    def require_current(self, connection: Connection) -> None:
        require_current(connection)

    def locate(self, connection: Connection) -> Located:
        """Return the statements on the table of ``main``, or of the schema that was named.

        The choice is confirmed after the first claim, check or reading. To look at the catalog before would begin a
        transaction with a snapshot.
        """
        if self._located is None:
            self._located = _located_in(self._choice.named or "main")
        return self._located

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
        located = self._located
        if self._choice_is_confirmed and located is not None and not claim and not joined and len(fences) == 1:
            # The usual case, past the engine: it needs several times as long as SQLite.
            fence = fences[0]
            values = {"resource": fence.resource, "number": fence.number, "token": fence.token, "write": new_id()}
            row = fetch_directly(connection, located.check, values)
            if row is not None and self.dialect.is_open(connection):
                return [Admitted(fence, row[0], row[1], None)]
        if joined:  # the caller may commit in spite of a refusal
            self._confirm(connection)
        admitted = super().admit(connection, fences, seconds, claim=claim, writes=writes, joined=joined)
        self._confirm(connection)
        return admitted

    def read(self, connection: Connection, resource: str) -> Mark | None:
        mark = super().read(connection, resource)
        self._confirm(connection)
        return mark

    def settle(self, connection: Connection, unknown: OutcomeUnknown, seconds: float) -> bool | None:
        with connection.begin():
            self._confirm(connection)
        return super().settle(connection, unknown, seconds)

    def prune(self, connection: Connection, pruning: Pruning, seconds: float) -> int:
        with connection.begin():
            self._confirm(connection)
        return super().prune(connection, pruning, seconds)

    def prune_done(self, connection: Connection, resource: str, below: str, seconds: float) -> int:
        with connection.begin():
            self._confirm(connection)
        return super().prune_done(connection, resource, below, seconds)

    def _confirm(self, connection: Connection) -> None:
        if not self._choice_is_confirmed:
            self._choice.of(self._visible_tables(connection))
            self._choice_is_confirmed = True

    def _visible_tables(self, connection: Connection) -> VisibleTables:
        names = [row.name for row in connection.exec_driver_sql("PRAGMA database_list")]
        found = {}
        for name in names:
            marks, done = _columns_of(connection, name, TABLE), _columns_of(connection, name, DONE)
            if marks:
                lacks = [column for column in ADDED if column not in marks]
                version = marks.get("version", "")
                found[name] = Versions(version, done.get("version", "") if done else None, lacks=lacks)
        path = ["main", *("temp" for name in names if name == "temp")]
        return VisibleTables(found, tuple(path))

    def _statements_in(self, schema: str) -> Located:
        return _located_in(schema)

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        fence = admitted.fence
        values = {"resource": fence.resource, "number": fence.number, "token": fence.token}
        query = text(_IS_SAME_TRANSACTION.format(table=self.locate(connection).table))
        return bool(connection.execute(query, {**values, "recent_writes": admitted.recent_writes}).scalar())

    def _batch(self, table: str, pruning: Pruning) -> Plan[Batch]:
        return plan_batch(table, on_sqlite(table, pruning))

    def _key_of_done(self, connection: Connection) -> Sequence[str]:
        home = quoted(self.locate(connection).schema)
        return [row.name for row in connection.exec_driver_sql(f"PRAGMA {home}.table_info({DONE})") if row.pk]

    def _check_catalog(self, connection: Connection) -> Iterator[Finding]:
        located = self.locate(connection)
        home, table = quoted(located.schema), located.table
        columns = {row.name: row for row in connection.exec_driver_sql(f"PRAGMA {home}.table_info({TABLE})")}
        for name, wanted in _TYPES.items():
            kind = columns[name].type.upper() if name in columns else "missing"
            if kind != wanted:
                yield Finding("safety", f"the column {name} is {kind}, not {wanted}", MAKE_ANEW)
            elif not columns[name].notnull and name != "resource":
                yield Finding("upkeep", f"the column {name} may be NULL", MAKE_ANEW)
        if [name for name, row in columns.items() if row.pk] != ["resource"]:
            yield Finding("safety", "the primary key is not (resource) alone", MAKE_ANEW)
        query = f"SELECT sql FROM {home}.sqlite_master WHERE name = '{TABLE}'"
        made: str = connection.exec_driver_sql(query).scalar_one()
        yield from missing_checks(made, may_be_added=False)
        if MARK_TABLE.integers not in made:
            yield Finding("upkeep", f"the CHECK {MARK_TABLE.integers} is missing: a number may be text", MAKE_ANEW)
        implausible = f"SELECT resource, max(number, readers) FROM {table} WHERE {is_implausible()} LIMIT {IMPLAUSIBLE}"
        rows = connection.exec_driver_sql(implausible).all()
        yield from implausible_marks([(name, number) for name, number in rows if name != FLOOR])
        if (journal := connection.exec_driver_sql(f"PRAGMA {home}.journal_mode").scalar_one()) == "off":
            yield Finding("safety", "journal_mode is off, so nothing can be rolled back", "PRAGMA journal_mode = WAL")
        elif journal == "memory":
            yield not_durable("journal_mode", journal, "PRAGMA journal_mode = WAL")
        if connection.exec_driver_sql(f"PRAGMA {home}.synchronous").scalar_one() == 0:
            yield not_durable("synchronous", "off", "PRAGMA synchronous = FULL")


@cache
def _located_in(schema: str) -> Located:
    table = f"{quoted(schema)}.{TABLE}"
    statements = statements_on(table, f"{quoted(schema)}.{DONE}", postgresql=False)
    prepared = prepare(statements)
    # sqlite3 takes values by their names, as text() does.
    return Located(schema, table, prepared, prepared, check=statements.check.format(**PLACES))


def _columns_of(connection: Connection, home: str, table: str) -> dict[str, str]:
    """Return the columns of a table, with their defaults. There are none where it is not there."""
    columns = connection.exec_driver_sql(f"PRAGMA {_quoted_any(home)}.table_info({table})").all()
    return {column.name: str(column.dflt_value or "") for column in columns}


def _quoted_any(name: str) -> str:
    """Return the name of an attached database as SQL, whatever it is."""
    return '"' + name.replace('"', '""') + '"'
