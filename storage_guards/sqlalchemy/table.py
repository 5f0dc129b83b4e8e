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
    Table,
    Text,
    text,
)
from sqlalchemy.sql.elements import TextClause

from storage_guards.sql.outcome import TABLE
from storage_guards.sql.statements import Statements
from storage_guards.sql.table import NOW, DatabaseName, checks_on, columns_on
from storage_guards.sqlalchemy.alembic import XID8, RecentWrites

PLACES = {"resource": ":resource", "number": ":number", "token": ":token", "write": ":write", "writes": ":writes"}


_TYPES: dict[DatabaseName, dict[str, Callable[[int], Any]]] = {
    "postgresql": {
        "exact": lambda _: Text(collation="C"),
        "number": lambda _: BigInteger(),
        "time": lambda _: DateTime(timezone=True),
        "xact": lambda _: XID8(),
    },
    "sqlite": {
        "exact": lambda _: Text(collation="BINARY"),
        "number": lambda _: BigInteger(),
        "time": lambda _: DateTime(timezone=True),
    },
    "mysql": {"exact": VARBINARY, "number": lambda _: BigInteger(), "time": lambda _: DateTime()},
}


def mark_table(database: DatabaseName, schema: str | None, **options: Any) -> Table:
    """Return the mark table of a database.

    Args:
        database: its kind.
        schema: of the table. None: the connection's own.
        options: of the table.
    """
    columns = []
    for each in columns_on(database):
        kind = RecentWrites() if each.name == "recent_writes" else _TYPES[database][each.holds](each.size)
        # The defaults are as the database tells them: otherwise Alembic finds a difference for ever.
        default = text(each.default.format(now=NOW[database])) if each.default else None
        is_key = each.name == "resource"
        columns.append(Column(each.name, kind, primary_key=is_key, server_default=default, nullable=not each.required))
    # Constraints of the table, because Alembic would lose those of a column.
    checks = [CheckConstraint(condition, name=name) for name, condition in checks_on(database).items()]
    return Table(TABLE, MetaData(), *columns, *checks, schema=schema, **options)


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
    create_table: TextClause


def prepare(statements: Statements) -> Prepared:
    return Prepared(*(text(statement.format(**PLACES)) for statement in statements))
