"""The mark table: its columns and constraints, once for every database and library. No I/O; no driver is known here.

SQLAlchemy's Table, which Alembic has too, is made of these, and so is each CREATE TABLE and what ``verify`` expects.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES
from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS

DatabaseName = Literal["postgresql", "sqlite", "mysql"]


class Column(NamedTuple):
    """One column.

    Args:
        name: of the column.
        holds: "exact": a text that equals no other one. "number", "time", and "xact": PostgreSQL's transaction id.
        size: the most bytes of a text, where a database asks for it.
        default: as SQL, with ``{now}``. "": none.
        required: it is never NULL.
    """

    name: str
    holds: Literal["exact", "number", "time", "xact"]
    size: int = 0
    default: str = ""
    required: bool = True


COLUMNS = (
    Column("resource", "exact", MAX_RESOURCE_BYTES),
    Column("number", "number"),
    Column("token", "exact", 128),
    Column("seq", "number"),
    Column("recent_writes", "exact", REMEMBERED_CHARACTERS, "''"),
    Column("claimed_at", "time", default="{now}"),
    Column("xact", "xact", required=False),
)

TYPES: dict[DatabaseName, dict[str, str]] = {
    "postgresql": {"exact": 'TEXT COLLATE "C"', "number": "BIGINT", "time": "TIMESTAMP WITH TIME ZONE", "xact": "xid8"},
    "sqlite": {"exact": 'TEXT COLLATE "BINARY"', "number": "BIGINT", "time": "DATETIME"},
    "mysql": {"exact": "VARBINARY({size})", "number": "BIGINT", "time": "DATETIME"},
}
NOW: dict[DatabaseName, str] = {"postgresql": "now()", "sqlite": "CURRENT_TIMESTAMP", "mysql": "CURRENT_TIMESTAMP"}

CHECKS = {
    "fencing_marks_number": (
        f"number BETWEEN 1 AND {MAX_NUMBER} OR (resource = '{FLOOR}' AND number BETWEEN 0 AND {MAX_NUMBER})"
    ),
    "fencing_marks_seq": "seq >= 0",
}
INTEGERS = "fencing_marks_integers"
OF_SQLITE = {INTEGERS: "typeof(number) = 'integer' AND typeof(seq) = 'integer'"}
"""SQLite's columns take any type, and text sorts above every number."""

PARTITION = "fencing"
"""The only partition of the table on MariaDB and MySQL. A temporary table cannot have one."""

PARTITION_BY = f"PARTITION BY KEY (resource) (PARTITION {PARTITION})"


def columns_on(database: DatabaseName) -> list[Column]:
    """Return the columns that the table has on this database."""
    return [column for column in COLUMNS if column.holds in TYPES[database]]


def checks_on(database: DatabaseName) -> dict[str, str]:
    """Return the CHECK constraints by their names."""
    return {**(OF_SQLITE if database == "sqlite" else {}), **CHECKS}


def create_table(table: str, database: DatabaseName) -> str:
    """Return the CREATE TABLE for the table of this full name."""
    parts = []
    for column in columns_on(database):
        kind = TYPES[database][column.holds].format(size=column.size)
        default = f" DEFAULT {column.default.format(now=NOW[database])}" if column.default else ""
        parts.append(f"{column.name} {kind}{default}{' NOT NULL' if column.required else ''}")
    parts.append("PRIMARY KEY (resource)")
    parts += [f"CONSTRAINT {name} CHECK ({condition})" for name, condition in checks_on(database).items()]
    options = f" ENGINE = InnoDB {PARTITION_BY}" if database == "mysql" else ""
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)}){options}"
