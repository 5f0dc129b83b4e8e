"""The mark table on SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import CheckConstraint, Connection, Text, text
from sqlalchemy.exc import OperationalError

from fencing.sql.dialects import SQLite
from storage_guards.sql.outcome import FLOOR, TABLE, Admitted
from storage_guards.sql.pruning import Pruning, on_sqlite
from storage_guards.sql.statements import SQLITE
from storage_guards.sql.verify import MAKE_ANEW, Finding, missing_checks, missing_floor, not_durable
from storage_guards.sqlalchemy.marks import Marks
from storage_guards.sqlalchemy.table import fetch_one, mark_table

# This transaction has written, so it holds the write lock, and the row stays as it is until the commit.
_IS_SAME_TRANSACTION = text(
    "SELECT recent_writes = :recent_writes FROM fencing_marks "
    "WHERE resource = :resource AND number = :number AND token = :token"
)

_INTEGERS = "fencing_marks_integers"
_TYPES = {"resource": "TEXT", "number": "BIGINT", "token": "TEXT", "seq": "BIGINT", "recent_writes": "TEXT"}


class SQLiteMarks(Marks):
    """The marks of a SQLite database, on connections that a guard opens and bounds."""

    dialect = SQLite()

    def __init__(self) -> None:
        exact = Text(collation="BINARY")
        # SQLite's columns take any type, and text sorts above every number.
        integers = CheckConstraint("typeof(number) = 'integer' AND typeof(seq) = 'integer'", name=_INTEGERS)
        super().__init__(mark_table(integers, resource=exact, token=exact, recent_writes=exact), SQLITE)

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing, as :meth:`Marks.create` does.

        Where two do it, SQLite tells one of them at once that the database is locked: IF NOT EXISTS reads before it
        writes, and waiting then would be a deadlock. So that one retries.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return super().create(connection, seconds)
            except OperationalError:
                if time.monotonic() > deadline:
                    raise

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        row = fetch_one(
            connection, _IS_SAME_TRANSACTION, {**self._values(admitted.fence), "recent_writes": admitted.recent_writes}
        )
        return row is not None and bool(row[0])

    def _prune_batch(self, connection: Connection, pruning: Pruning) -> tuple[int, int]:
        return self._prune_with(connection, on_sqlite(pruning))

    def _check_catalog(self, connection: Connection) -> Iterator[Finding]:
        columns = {row.name: row for row in connection.exec_driver_sql(f"PRAGMA table_info({TABLE})")}
        for name, wanted in _TYPES.items():
            kind = columns[name].type.upper() if name in columns else "missing"
            if kind != wanted:
                yield Finding("safety", f"the column {name} is {kind}, not {wanted}", MAKE_ANEW)
            elif not columns[name].notnull and name != "resource":
                yield Finding("upkeep", f"the column {name} may be NULL", MAKE_ANEW)
        if [name for name, row in columns.items() if row.pk] != ["resource"]:
            yield Finding("safety", "the primary key is not (resource) alone", MAKE_ANEW)
        made: str = connection.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE name = '{TABLE}'").scalar_one()
        yield from missing_checks(made)
        if _INTEGERS not in made:
            yield Finding("upkeep", f"the CHECK {_INTEGERS} is missing: a number may be text", MAKE_ANEW)
        count = f"SELECT count(*) FROM {TABLE} WHERE resource = '{FLOOR}'"
        yield from missing_floor(connection.exec_driver_sql(count).scalar_one())
        if (journal := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) == "off":
            yield Finding("safety", "journal_mode is off, so nothing can be rolled back", "PRAGMA journal_mode = WAL")
        elif journal == "memory":
            yield not_durable("journal_mode", journal, "PRAGMA journal_mode = WAL")
        if connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 0:
            yield not_durable("synchronous", "off", "PRAGMA synchronous = FULL")
