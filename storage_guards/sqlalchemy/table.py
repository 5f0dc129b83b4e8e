"""The mark table as SQLAlchemy takes it: its columns and constraints, its statements, and the rows that answer them."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, DateTime, MetaData, Row, Table, text
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.types import TypeEngine

from fencing.kernel.fence import MAX_NUMBER
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.statements import Statements
from storage_guards.sqlalchemy.alembic import RecentWrites

PARTITION = "fencing"
"""The only partition of the table on MariaDB and MySQL. A temporary table cannot have one."""

PARTITION_BY = f"PARTITION BY KEY (resource) (PARTITION {PARTITION})"

PLACES = {"resource": ":resource", "number": ":number", "token": ":token", "write": ":write", "writes": ":writes"}


def mark_table(
    *more: SchemaItem,
    resource: TypeEngine[Any],
    token: TypeEngine[Any],
    schema: str | None,
    claimed_at: TypeEngine[Any] | None = None,
    now: str = "CURRENT_TIMESTAMP",
    **options: Any,
) -> Table:
    """Return the mark table of a database.

    Args:
        more: further columns and constraints.
        resource: the type of that column, and so on.
        schema: of the table. None: the connection's own.
        now: the present time, as the database tells it.
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
        # The defaults are as the database tells them: otherwise Alembic finds a difference for ever.
        Column("recent_writes", RecentWrites(), server_default=text("''"), nullable=False),
        Column("claimed_at", claimed_at or DateTime(timezone=True), server_default=text(now), nullable=False),
        # Constraints of the table, because Alembic would lose those of a column.
        CheckConstraint(numbers, name="fencing_marks_number"),
        CheckConstraint("seq >= 0", name="fencing_marks_seq"),
        *more,
        schema=schema,
        **options,
    )


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


def prepare(statements: Statements) -> Prepared:
    return Prepared(*(text(statement.format(**PLACES)) for statement in statements))


def fetch_one(connection: Connection, statement: Any, values: dict[str, Any]) -> Row[Any] | None:
    """Execute the statement and return its row, or None. It fetches all: SQLite needs RETURNING read to its end."""
    return connection.execute(statement, values).one_or_none()
