"""The types of the mark table, for migrations with Alembic. One of them also makes the floor row.

With ``import storage_guards.sqlalchemy.alembic`` in ``script.py.mako`` each migration can name them, as in
``storage_guards.sqlalchemy.alembic.XID8()``. See docs/guards/databases.md. This module does not need Alembic.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import VARBINARY, Column, Connection, Table, Text, event, inspect
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import TypeDecorator, UserDefinedType

from storage_guards.continuity import new_id
from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS, TABLE

__all__ = ["XID8", "RecentWrites"]

_WAS_THERE = "fencing_was_there"


class XID8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


ischema_names.setdefault("xid8", XID8)  # so that Alembic recognises the column that it has made


class RecentWrites(TypeDecorator[Any]):
    """The last writes of a mark, or the table's id in the floor row.

    Where SQLAlchemy or Alembic creates a table ``fencing_marks`` with such a column, it makes the floor row, too, at 0:
    a new table has lost no mark. So neither ``metadata.create_all`` nor a migration needs ``create_tables()``. A table
    that is there already (``if_not_exists``) stays as it is: marks of it may be lost.
    """

    impl = (
        Text(collation="C")
        .with_variant(Text(collation="BINARY"), "sqlite")
        .with_variant(VARBINARY(REMEMBERED_CHARACTERS), "mysql", "mariadb")
    )
    cache_ok = True

    def __repr__(self) -> str:
        return "RecentWrites()"  # which Alembic writes into a migration


@event.listens_for(RecentWrites, "after_parent_attach")
def _of_a_column(_: RecentWrites, column: Column[Any]) -> None:
    event.listen(column, "after_parent_attach", _of_a_table)


def _of_a_table(_: Column[Any], table: Table) -> None:
    if table.name == TABLE:  # and not the one to which Alembic copies it, for a change on SQLite
        event.listen(table, "before_create", _note_presence)
        event.listen(table, "after_create", _make_floor)


def _note_presence(table: Table, connection: Any, **_: Any) -> None:
    # Not of a Connection, where Alembic writes a script (``--sql``).
    is_real = isinstance(connection, Connection)
    schema = connection.schema_for_object(table) if is_real else None
    table.info[_WAS_THERE] = is_real and inspect(connection).has_table(table.name, schema=schema)


def _make_floor(table: Table, connection: Any, **_: Any) -> None:
    if table.info.pop(_WAS_THERE, False):
        return
    values: dict[str, Any] = {"resource": FLOOR, "number": 0, "token": "", "seq": 0, "recent_writes": new_id()}
    if isinstance(table.columns["resource"].type, VARBINARY):  # on MariaDB and MySQL
        values.update({name: values[name].encode() for name in ("resource", "token", "recent_writes")})
    # Where DDL commits, a process that calls create_tables() may have been faster.
    insert = table.insert().prefix_with("IGNORE", dialect="mysql").prefix_with("OR IGNORE", dialect="sqlite")
    connection.execute(insert.values(values))
