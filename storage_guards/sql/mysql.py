"""What MariaDB and MySQL answer about the marks, and how values are written there. No I/O, and no driver is known here.

No row answers a change there. So a mark is read after each change of it, and :func:`execute` makes of what was read the
answer that a plan expects.

Columns that must be exact are VARBINARY: collations treat different names as equal, and some pad them with blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.plans import Refused, Statement
from storage_guards.sql.schema import Versions, VisibleTables, quoted
from storage_guards.sql.statements import MySQLStatements, statements_on_mysql
from storage_guards.sql.table import ADDED, DONE, PARTITION

# A temporary table has no partition, so it is not taken for the mark table where the server lists it, too.
VISIBLE_TABLES = (
    f"SELECT 'path', DATABASE(), '' "
    f"UNION ALL SELECT table_name, table_schema, '' FROM information_schema.tables "
    f"WHERE table_name IN ('{TABLE}', '{DONE}') "
    f"UNION ALL SELECT CONCAT('partition of ', table_name), table_schema, '' "
    f"FROM information_schema.partitions "
    f"WHERE table_name IN ('{TABLE}', '{DONE}') AND partition_name = '{PARTITION}' "
    f"UNION ALL SELECT CONCAT('version of ', table_name), table_schema, column_default "
    f"FROM information_schema.columns WHERE table_name IN ('{TABLE}', '{DONE}') AND column_name = 'version' "
    f"UNION ALL SELECT CONCAT('column ', column_name), table_schema, '' FROM information_schema.columns "
    f"WHERE table_name = '{TABLE}' AND column_name IN ({', '.join(map(repr, ADDED))})"
)
"""Rows of a kind, a schema and a value, for :func:`read_visible`."""


class Visible(NamedTuple):
    """The mark tables that a connection can see.

    Args:
        tables: with their versions.
        partitioned: the schemas whose mark table has the partition. Tables of earlier versions do not.
        done_partitioned: the same of the table of what is done once.
    """

    tables: VisibleTables
    partitioned: frozenset[str]
    done_partitioned: frozenset[str]


def read_visible(rows: Iterable[Sequence[Any]]) -> Visible:
    """Return the answer to VISIBLE_TABLES as a value."""
    found: dict[str, dict[str, str]] = {}
    for kind, schema, value in rows:
        if schema:
            found.setdefault(str(kind), {})[str(schema)] = str(value or "")

    def version(table: str, schema: str) -> str | None:
        if schema not in found.get(table, {}):
            return None
        return found.get(f"version of {table}", {}).get(schema, "")

    everywhere = {
        name: Versions(
            version(TABLE, name),
            version(DONE, name),
            lacks=[column for column in ADDED if name not in found.get(f"column {column}", {})],
        )
        for name in sorted(found.get(TABLE, ()))
    }
    return Visible(
        VisibleTables(everywhere, tuple(found.get("path", ()))),
        frozenset(found.get(f"partition of {TABLE}", ())),
        frozenset(found.get(f"partition of {DONE}", ())),
    )


class Tables(NamedTuple):
    """Tables that were found.

    Args:
        schema: of them.
        is_partitioned: the mark table has the partition.
        done_is_partitioned: the table of what is done once has it.
        is_innodb: no engine need be looked up, because each statement names the partition. On MySQL 8 and later,
            InnoDB and NDB alone have partitions, and both have transactions:
            https://dev.mysql.com/doc/refman/8.4/en/partitioning-limitations-storage-engines.html
    """

    schema: str
    is_partitioned: bool
    done_is_partitioned: bool
    is_innodb: bool

    @property
    def marks(self) -> str:
        """The full name of the mark table."""
        return _full_name(self.schema, TABLE, self.is_partitioned)


@cache
def statements_of(tables: Tables) -> MySQLStatements:
    """Return the statements on these tables."""
    done = _full_name(tables.schema, DONE, tables.done_is_partitioned)
    return statements_on_mysql(tables.marks, done, tables.schema, is_innodb=tables.is_innodb)


def _full_name(schema: str, table: str, is_partitioned: bool) -> str:
    name = f"{quoted(schema, mark='`')}.{table}"
    return f"{name} PARTITION ({PARTITION})" if is_partitioned else name


class Found(NamedTuple):
    """A mark as it was read, or the floor."""

    number: int
    token: str
    seq: int
    recent_writes: str
    readers: int
    engine: str | None


class Done(NamedTuple):
    """What is noted of a key."""

    number: int
    write_id: str
    second: int
    engine: str | None


def execute(fetch: Callable[[str], Any], texts: MySQLStatements, statement: Statement, before: Any) -> Any:
    """Execute a statement of a plan, and return its answer as an ``Ask`` names it.

    Args:
        fetch: executes a text without values, and returns its first row, or None.
        texts: of the statements.
        statement: to execute.
        before: the answer to the statement before it.

    Returns:
        For a check or a claim that was admitted: its seq and recent writes.
    """
    name = statement.name
    if statement.key:
        return _execute_once(fetch, texts, statement)
    if name == "read_mark":
        row = first(fetch(texts.rule.read_mark.format(**values_of(statement))))
        return None if row is None else row[:5]
    if name in ("read_floor", "lock_floor"):
        values = values_of(statement._replace(resource=FLOOR))
        row = first(fetch(getattr(texts.rule, name).format(**values)))
        if row is None:
            return None
        floor = row.number, row.recent_writes
        return Refused(floor) if name == "lock_floor" and row.number >= statement.number else floor
    values = values_of(statement)
    if name == "first_claim":
        values["table"] = binary(before[1])  # of the floor, which is locked
    fetch(getattr(texts.rule, name).format(**values))
    # No lock on an absent mark: a locking read deadlocks where two insert it.
    return answer_of(statement, first(fetch(texts.read_locked.format(**values))))


def answer_of(statement: Statement, row: Found | None) -> Any:
    """Return the answer to a change of a mark, from the mark as it was read behind it."""
    if row is None:
        return None if statement.name == "lock_mark" else Refused(None)
    if statement.name == "lock_mark":
        return (row.recent_writes,)
    number, token = statement.number, statement.token
    written = row.recent_writes.partition(" ")[0] == statement.write
    if (row.number, row.token) == (number, token) and row.readers < number and (written or not statement.writes):
        return row.seq, row.recent_writes
    return Refused((row.seq, row.recent_writes, None, None, row.number, row.token, row.readers))


def _execute_once(fetch: Callable[[str], Any], texts: MySQLStatements, statement: Statement) -> Any:
    """Execute a statement on what is done once. An INSERT tells by no number whether there was a row already, so that
    is read behind it: it has the id of this write, or of another."""
    values = {**values_of(statement), "key": f"'{statement.key.encode().hex()}'"}
    if statement.name == "note_done":
        fetch(texts.make_key_floor.format(**values))
    row = fetch(getattr(texts.rule, statement.name).format(**values))
    if statement.name not in ("note_done", "read_done"):
        return row
    if statement.name == "note_done":
        row = fetch(texts.rule.read_done.format(**values))
    if row is not None:
        require_innodb(Done._make(row), DONE)
    if statement.name == "note_done" and row is not None and row[1] != statement.write:
        return None
    return row


def first(row: Any) -> Found | None:
    """Return a mark that was read, if there is one. Raise GuardNotEnforceable where its table has no transactions."""
    if row is None:
        return None
    found = Found._make(row)
    require_innodb(found)
    return found


def values_of(statement: Statement) -> dict[str, Any]:
    """Return the values of a statement as SQL. The driver adds none, so no setting of the session changes them."""
    return {
        "resource": f"'{statement.resource.encode().hex()}'",
        "number": statement.number,
        "token": f"'{statement.token}'",
        "write": f"'{statement.write}'",
        "writes": statement.writes,
    }


def binary(found: str) -> str:
    """Return a text that was read as SQL, whatever is in it."""
    return f"x'{found.encode().hex()}'"


def require_innodb(row: Any, table: str = TABLE) -> None:
    """Raise GuardNotEnforceable where the ``engine`` of a row says that the table has no transactions."""
    if row is None or row.engine != "InnoDB":
        engine = "of a temporary table" if row is None else row.engine
        raise GuardNotEnforceable(
            f"the table {table} has the engine {engine}, which has no transactions: a check would not hold until "
            f"the write; ALTER TABLE {table} ENGINE = InnoDB, and do the same for the data"
        )
