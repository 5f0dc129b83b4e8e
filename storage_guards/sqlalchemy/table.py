"""The mark table as SQLAlchemy takes it: its columns and constraints, its statements, and the rows that answer them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import (
    VARBINARY,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.sql.elements import TextClause

from storage_guards.sql.statements import Statements
from storage_guards.sql.table import NOW, TABLES, DatabaseName, Definition
from storage_guards.sqlalchemy.alembic import XID8, RecentWrites

PLACES = {name: f":{name}" for name in ("resource", "number", "token", "write", "writes", "table", "key")}


_TYPES: dict[DatabaseName, dict[str, Callable[[int], Any]]] = {
    "postgresql": {
        "exact": lambda _: Text(collation="C"),
        "number": lambda _: BigInteger(),
        "version": lambda _: SmallInteger(),
        "time": lambda _: DateTime(timezone=True),
        "xact": lambda _: XID8(),
    },
    "sqlite": {
        "exact": lambda _: Text(collation="BINARY"),
        "number": lambda _: BigInteger(),
        "version": lambda _: SmallInteger(),
        "time": lambda _: DateTime(timezone=True),
    },
    "mysql": {
        "exact": VARBINARY,
        "number": lambda _: BigInteger(),
        "version": lambda _: SmallInteger(),
        "time": lambda _: DateTime(),
    },
}


def tables_of(database: DatabaseName, schema: str | None, **options: Any) -> MetaData:
    """Return the guards' tables of a database.

    Args:
        database: its kind.
        schema: of the tables. None: the connection's own.
        options: of each table.
    """
    metadata = MetaData()
    for definition in TABLES:
        _define(definition, database, metadata, schema, **options)
    return metadata


def _define(
    definition: Definition, database: DatabaseName, metadata: MetaData, schema: str | None, **options: Any
) -> None:
    columns = []
    for each in definition.columns_on(database):
        kind = RecentWrites() if each.name == "recent_writes" else _TYPES[database][each.holds](each.size)
        # The defaults are as the database tells them: otherwise Alembic finds a difference for ever.
        default = text(each.default.format(now=NOW[database])) if each.default else None
        is_key = each.name in definition.key
        columns.append(Column(each.name, kind, primary_key=is_key, server_default=default, nullable=not each.required))
    # Constraints of the table, because Alembic would lose those of a column.
    checks = [CheckConstraint(condition, name=name) for name, condition in definition.checks_on(database).items()]
    Table(definition.name, metadata, *columns, *checks, schema=schema, **options)


class Prepared(NamedTuple):
    """The :class:`Statements` as SQLAlchemy takes them."""

    check: TextClause
    claim: TextClause
    first_claim: TextClause
    lock_floor: TextClause
    make_floor: TextClause
    lock_mark: TextClause
    lock_absence: TextClause
    read_mark: TextClause
    read_floor: TextClause
    note_done: TextClause
    read_done: TextClause
    key_floor: TextClause
    last_done: TextClause
    raise_key_floor: TextClause
    delete_done: TextClause


def prepare(statements: Statements) -> Prepared:
    return Prepared(*(text(statement.format(**PLACES)) for statement in statements))
