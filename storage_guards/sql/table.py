"""The tables of the guards: columns, constraints and version, once for every database and library. No I/O; no driver is
known here.

SQLAlchemy's Tables, which Alembic has too, are made of these, and so is each CREATE TABLE and what ``verify`` expects.

The default of a table's column ``version`` is the table's version, so the catalog tells it without a look at a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES
from storage_guards.continuity import ID_CHARACTERS
from storage_guards.once import MOST_KEY_BYTES
from storage_guards.sql.outcome import REMEMBERED_CHARACTERS, TABLE

DatabaseName = Literal["postgresql", "sqlite", "mysql"]

VERSION = 1
"""Of the tables and of the functions that enforce. A guard refuses any other one."""

VERSION_MARK = "-- fencing "
"""Begins the line of a function's body that tells its version."""

FUNCTIONS = (
    "fencing_check",
    "fencing_claim",
    "fencing_first_claim",
    "fencing_lock_floor",
    "fencing_lock_mark",
    "fencing_lock_absence",
    "fencing_require",
    "fencing_refuse_truncate",
)
"""The functions that enforce. Each one tells its version, for an earlier program replaces only those that it knows."""

NAMES_OF_FUNCTIONS = ", ".join(f"'{name}'" for name in FUNCTIONS)

DONE = "fencing_done"


class Column(NamedTuple):
    """One column.

    Args:
        name: of the column.
        holds: "exact": a text that equals no other one. "number", "version", "time", and "xact": PostgreSQL's
            transaction id.
        size: the most bytes of a text, where a database asks for it.
        default: as SQL, with ``{now}``. "": none.
        required: it is never NULL.
    """

    name: str
    holds: Literal["exact", "number", "version", "time", "xact"]
    size: int = 0
    default: str = ""
    required: bool = True


class Definition(NamedTuple):
    """One table.

    Args:
        name: of the table.
        columns: all of them.
        key: the columns of the primary key.
        checks: the CHECK constraints by their names.
        integers: the name of one more on SQLite, whose columns take any type: text sorts above every number.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    checks: dict[str, str]
    integers: str

    def columns_on(self, database: DatabaseName) -> list[Column]:
        """Return the columns that the table has on this database."""
        return [column for column in self.columns if column.holds in TYPES[database]]

    def checks_on(self, database: DatabaseName) -> dict[str, str]:
        """Return the CHECK constraints that the table has on this database."""
        if database != "sqlite":
            return self.checks
        numbers = [column.name for column in self.columns if column.holds == "number"]
        return {self.integers: " AND ".join(f"typeof({name}) = 'integer'" for name in numbers), **self.checks}


_NUMBER, _READERS = "fencing_marks_number", "fencing_marks_readers"

MARK_TABLE = Definition(
    TABLE,
    (
        Column("resource", "exact", MAX_RESOURCE_BYTES),
        Column("number", "number"),
        Column("token", "exact", 128),
        Column("seq", "number"),
        Column("readers", "number", default="0"),
        Column("recent_writes", "exact", REMEMBERED_CHARACTERS, "''"),
        Column("claimed_at", "time", default="{now}"),
        Column("xact", "xact", required=False),
        Column("version", "version", default=str(VERSION)),
    ),
    ("resource",),
    {
        # 0 is the floor's, and that of a mark which a reader made: the token of both is empty.
        _NUMBER: f"number BETWEEN 1 AND {MAX_NUMBER} OR (number = 0 AND token = '')",
        "fencing_marks_seq": "seq >= 0",
        _READERS: f"readers BETWEEN 0 AND {MAX_NUMBER}",
    },
    "fencing_marks_integers",
)
"""The marks.

``readers`` is the highest reader that was admitted, and no version admits one yet. Nor does one write a mark with an
empty token: "no holder yet". All of them heed both.
"""

DONE_TABLE = Definition(
    DONE,
    (
        Column("resource", "exact", MAX_RESOURCE_BYTES),
        Column("once_key", "exact", MOST_KEY_BYTES),
        Column("number", "number"),
        Column("done_at", "time", default="{now}"),
        Column("write_id", "exact", ID_CHARACTERS, "''"),
        Column("floor", "exact", MOST_KEY_BYTES, "''"),
        Column("version", "version", default=str(VERSION)),
    ),
    ("resource", "once_key"),
    {"fencing_done_number": f"number BETWEEN 0 AND {MAX_NUMBER}"},
    "fencing_done_integers",
)
"""What was done once per key. The row of a resource with the empty key has its floor: the highest key that was pruned.

``write_id`` is the id of the block's write, as the mark remembers it. So the row tells which block has made it.
"""

TABLES = (MARK_TABLE, DONE_TABLE)

TYPES: dict[DatabaseName, dict[str, str]] = {
    "postgresql": {
        "exact": 'TEXT COLLATE "C"',
        "number": "BIGINT",
        "version": "SMALLINT",
        "time": "TIMESTAMP WITH TIME ZONE",
        "xact": "xid8",
    },
    "sqlite": {"exact": 'TEXT COLLATE "BINARY"', "number": "BIGINT", "version": "SMALLINT", "time": "DATETIME"},
    "mysql": {"exact": "VARBINARY({size})", "number": "BIGINT", "version": "SMALLINT", "time": "DATETIME"},
}
NOW: dict[DatabaseName, str] = {"postgresql": "now()", "sqlite": "CURRENT_TIMESTAMP", "mysql": "CURRENT_TIMESTAMP"}

PARTITION = "fencing"
"""The only partition of the tables on MariaDB and MySQL. A temporary table cannot have one."""

PARTITION_BY = f"PARTITION BY KEY (resource) (PARTITION {PARTITION})"


def create_table(home: str, definition: Definition, database: DatabaseName) -> str:
    """Return the CREATE TABLE.

    Args:
        home: the schema, as SQL.
        definition: of the table.
        database: its kind.
    """
    parts = [_declared(column, database) for column in definition.columns_on(database)]
    parts.append(f"PRIMARY KEY ({', '.join(definition.key)})")
    parts += [f"CONSTRAINT {name} CHECK ({check})" for name, check in definition.checks_on(database).items()]
    options = f" ENGINE = InnoDB {PARTITION_BY}" if database == "mysql" else ""
    return f"CREATE TABLE IF NOT EXISTS {home}.{definition.name} ({', '.join(parts)}){options}"


ADDED = ("readers", "version")
"""The columns that tables of an earlier program lack."""


def bring_up_to_date(home: str, database: DatabaseName, lacks: Sequence[str], *, lacks_done: bool) -> list[str]:
    """Return the statements that make tables of version 1 of those that an earlier program made.

    Earlier programs go on with them. Each statement stands for itself: after an interruption the rest can follow. On
    SQLite the CHECK of ``number`` stays the earlier one, for it cannot be replaced.

    Args:
        home: the schema, as SQL.
        database: its kind.
        lacks: which columns of ``ADDED`` are not there.
        lacks_done: there is no ``fencing_done``.
    """
    table, checks = f"{home}.{TABLE}", MARK_TABLE.checks_on(database)
    added = [column for column in MARK_TABLE.columns_on(database) if column.name in lacks]
    statements = []
    if database == "sqlite":
        for column in added:
            statement = f"ALTER TABLE {table} ADD COLUMN {_declared(column, database)}"
            if column.name == "readers":
                statement += f" CONSTRAINT {_READERS} CHECK (typeof(readers) = 'integer' AND {checks[_READERS]})"
            statements.append(statement)
    else:
        drop = "DROP CONSTRAINT IF EXISTS" if database == "postgresql" else "DROP CONSTRAINT"
        changes = [f"ADD COLUMN {_declared(column, database)}" for column in added]
        if "readers" in lacks:
            changes.append(f"{drop} {_NUMBER}")
            changes += [f"ADD CONSTRAINT {name} CHECK ({checks[name]})" for name in (_NUMBER, _READERS)]
        statements += [f"ALTER TABLE {table} {', '.join(changes)}"] if changes else []
    return [*([create_table(home, DONE_TABLE, database)] if lacks_done else []), *statements]


def _declared(column: Column, database: DatabaseName) -> str:
    kind = TYPES[database][column.holds].format(size=column.size)
    default = f" DEFAULT {column.default.format(now=NOW[database])}" if column.default else ""
    return f"{column.name} {kind}{default}{' NOT NULL' if column.required else ''}"
