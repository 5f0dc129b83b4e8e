"""What ``verify`` checks on MariaDB and MySQL: the mark table as the catalog has it, and the settings of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.pruning import is_implausible
from storage_guards.sql.table import MARK_TABLE, PARTITION_BY, TYPES
from storage_guards.sql.verify import IMPLAUSIBLE, MAKE_ANEW, Finding, implausible_marks, missing_checks, not_durable
from storage_guards.sqlalchemy.marks import Located

_TYPES = {
    column.name: TYPES["mysql"][column.holds].format(size=column.size).lower()
    for column in MARK_TABLE.columns_on("mysql")
    if column.holds != "time"
}
_WIDTH = re.compile(r"int\(\d+\)")
_DURABLE = {"innodb_flush_log_at_trx_commit": ("1",), "innodb_doublewrite": ("1", "ON")}

_COLUMNS = text(
    "SELECT column_name, column_type, is_nullable FROM information_schema.columns "
    "WHERE table_schema = :schema AND table_name = :table"
)
_KEY = text(
    "SELECT column_name, sub_part FROM information_schema.statistics "
    "WHERE table_schema = :schema AND table_name = :table AND index_name = 'PRIMARY'"
)
_CHECKS = text("SELECT constraint_name FROM information_schema.check_constraints WHERE constraint_schema = :schema")
_SETTINGS = (
    "SHOW VARIABLES WHERE Variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog', 'wsrep_on')"
)


def check_catalog(connection: Connection, located: Located, *, is_partitioned: bool) -> Iterator[Finding]:
    """Yield what is wrong, or may be."""
    yield from _check_columns(connection, located)
    if not is_partitioned:
        yield Finding(
            "safety",
            f"a temporary table {TABLE} would hide the mark table from its connection",
            f"ALTER TABLE {TABLE} {PARTITION_BY}",
        )
    yield from missing_checks(set(connection.execute(_CHECKS, {"schema": located.schema}).scalars()))
    yield from _check_numbers(connection, located)
    yield from _check_settings(connection)
    yield from _check_waits(connection)


def key_of(connection: Connection, schema: str, table: str) -> list[str]:
    """Return the columns of a primary key."""
    return [row[0] for row in connection.execute(_KEY, {"schema": schema, "table": table})]


def _check_columns(connection: Connection, located: Located) -> Iterator[Finding]:
    table = {"table": TABLE, "schema": located.schema}
    columns = {name: (kind.lower(), nullable) for name, kind, nullable in connection.execute(_COLUMNS, table)}
    for name, wanted in _TYPES.items():
        kind, nullable = columns.get(name, ("missing", "NO"))
        if _WIDTH.sub("int", kind) != wanted:
            yield Finding("safety", f"the column {name} is {kind}, not {wanted}", MAKE_ANEW)
        elif nullable != "NO":
            yield Finding("upkeep", f"the column {name} may be NULL", "MODIFY it to NOT NULL")
    if [tuple(row) for row in connection.execute(_KEY, table)] != [("resource", None)]:
        yield Finding("safety", "the primary key is not (resource) alone", MAKE_ANEW)


def _check_numbers(connection: Connection, located: Located) -> Iterator[Finding]:
    rows = connection.exec_driver_sql(
        f"SELECT CONVERT(resource USING utf8mb4), GREATEST(number, readers) FROM {located.table} "
        f"WHERE {is_implausible()} LIMIT {IMPLAUSIBLE}"
    )
    yield from implausible_marks([(name, number) for name, number in rows if name != FLOOR])


def _check_settings(connection: Connection) -> Iterator[Finding]:
    settings = {name: str(value) for name, value in connection.exec_driver_sql(_SETTINGS)}
    for name, good in _DURABLE.items():
        if settings.get(name, good[0]) not in good:
            yield not_durable(name, settings[name], f"set it to {good[0]}")
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        yield not_durable("sync_binlog", settings["sync_binlog"], "set it to 1")
    if settings.get("wsrep_on") == "ON":
        yield Finding(
            "upkeep",
            "this is a Galera cluster, where a lock holds on one node only",
            "send all guarded work to one node",
        )


def _check_waits(connection: Connection) -> Iterator[Finding]:
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "_read_timeout", 0) is None:  # PyMySQL's; aiomysql has none
        yield Finding(
            "waiting",
            "read_timeout is not set: a silent network is noticed by the operating system, after minutes",
            'put connect_args={"read_timeout": …} into create_engine, above the guard\'s timeout',
        )
