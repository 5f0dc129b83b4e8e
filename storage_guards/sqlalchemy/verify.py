"""``verify`` through SQLAlchemy: a claim that is rolled back, and what the catalog and the settings say."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, text

from fencing.kernel.errors import StaleFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.verify import Finding, Report, conclude
from storage_guards.sql.verify_postgresql import FACTS, judge
from storage_guards.sqlalchemy.drivers import (
    AUTOCOMMIT,
    bounded_waits,
    family,
    limit_transaction,
    require_open_transaction,
)
from storage_guards.sqlalchemy.marks import Marks

__all__ = ["verify"]

_ANEW = f"make the table {TABLE} as create_tables() or guard.metadata does"
_CHECKS = ("fencing_marks_number", "fencing_marks_seq")

# A write that begins a transaction, and changes nothing: no mark has that name.
_TOUCH = f"UPDATE {TABLE} SET seq = seq WHERE resource = ''"

_MYSQL_TYPES = {
    "resource": "varbinary(512)",
    "number": "bigint",
    "token": "varbinary(128)",
    "seq": "bigint",
    "recent_writes": "varbinary(208)",
}
_MYSQL_DURABLE = {"innodb_flush_log_at_trx_commit": ("1",), "innodb_doublewrite": ("1", "ON")}
_SQLITE_TYPES = {"resource": "TEXT", "number": "BIGINT", "token": "TEXT", "seq": "BIGINT", "recent_writes": "TEXT"}


def verify(connection: Connection, marks: Marks, seconds: float) -> Report:
    """The report; changes nothing.

    Args:
        connection: idle.
        marks: of its database.
        seconds: the bound of each wait.
    """
    kind = family(connection.dialect.name)
    with bounded_waits(connection, seconds):
        transaction = connection.begin()
        try:
            limit_transaction(connection, seconds, read_committed=True)
            if kind == "postgresql":
                report = _postgresql(connection)
            else:
                found = [*_tried(connection, marks)]
                ask = _mysql if kind == "mysql" else _sqlite
                report = conclude(_name(connection), [*found, *ask(connection)])
        finally:
            transaction.rollback()
    return report


def _postgresql(connection: Connection) -> Report:
    facts = connection.exec_driver_sql(FACTS).scalar_one()
    require_open_transaction(connection, AUTOCOMMIT)
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "asyncpg":
        return judge(facts, pid=driver.get_server_pid(), parameters=None)
    over_a_network = not driver.info.host.startswith("/")
    return judge(
        facts, pid=driver.info.backend_pid, parameters=driver.info.get_parameters() if over_a_network else None
    )


def _tried(connection: Connection, marks: Marks) -> Iterator[Finding]:
    """Whether names, tokens and numbers are exact, by a claim that is rolled back."""
    name = f"verify:{secrets.token_hex(8)}"
    mine = Fence(name, MAX_NUMBER, "a" * 22)
    # Before the claim: what was committed by itself would stay, and raise the floor above all others once it is pruned.
    connection.exec_driver_sql(_TOUCH)
    require_open_transaction(connection, AUTOCOMMIT)
    try:
        marks.claim(connection, [mine])
        exact = marks.read(connection, name) == Mark(mine.number, mine.token)
    except (TypeError, ValueError):  # what was read is no mark
        exact = False
    if not exact:
        yield Finding("safety", "a mark does not read as it was written", _ANEW)
        return
    for other in (name.upper(), f"{name} "):
        if marks.read(connection, other) is not None:
            yield Finding("safety", f"the names {name!r} and {other!r} have one mark", _ANEW)
    try:
        marks.claim(connection, [Fence(name, MAX_NUMBER, "A" * 22)])
    except StaleFence:
        return
    yield Finding("safety", "tokens that differ in their case are taken for equal", _ANEW)


def _mysql(connection: Connection) -> Iterator[Finding]:
    dialect: Any = connection.dialect
    table = {"table": TABLE}
    columns = {
        name: (kind.lower(), nullable)
        for name, kind, nullable in connection.execute(
            text(
                "SELECT column_name, column_type, is_nullable FROM information_schema.columns "
                "WHERE table_schema = DATABASE() AND table_name = :table"
            ),
            table,
        )
    }
    for name, wanted in _MYSQL_TYPES.items():
        kind, nullable = columns.get(name, ("missing", "NO"))
        if kind.replace("bigint(20)", "bigint") != wanted:
            yield Finding("safety", f"the column {name} is {kind}, not {wanted}", _ANEW)
        elif nullable != "NO":
            yield Finding("upkeep", f"the column {name} may be NULL", "MODIFY it to NOT NULL")
    key = connection.execute(
        text(
            "SELECT column_name, sub_part FROM information_schema.statistics "
            "WHERE table_schema = DATABASE() AND table_name = :table AND index_name = 'PRIMARY'"
        ),
        table,
    ).all()
    if [tuple(row) for row in key] != [("resource", None)]:
        yield Finding("safety", "the primary key is not (resource) alone", _ANEW)
    checks = connection.execute(
        text("SELECT constraint_name FROM information_schema.check_constraints WHERE constraint_schema = DATABASE()")
    ).scalars()
    yield from _missing_checks(set(checks), _CHECKS)
    yield from _missing_floor(connection, f"UNHEX('{FLOOR.encode().hex()}')")
    settings = {
        name: str(value)
        for name, value in connection.exec_driver_sql(
            "SHOW VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', "
            "'log_bin', 'sync_binlog', 'wsrep_on')"
        )
    }
    for name, good in _MYSQL_DURABLE.items():
        if settings.get(name, good[0]) not in good:
            yield _not_durable(name, settings[name], f"set it to {good[0]}")
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        yield _not_durable("sync_binlog", settings["sync_binlog"], "set it to 1")
    if settings.get("wsrep_on") == "ON":
        yield Finding(
            "upkeep", "this is a Galera cluster, where locks are of one node", "send all guarded work to one node"
        )
    if not dialect.is_mariadb:
        yield Finding(
            "waiting",
            "MySQL has no bound for a client that stands still between two statements",
            "let wait_timeout end its session, or use MariaDB",
        )
    driver: Any = connection.connection.driver_connection
    if dialect.driver == "pymysql" and driver._read_timeout is None:
        yield Finding(
            "waiting",
            "read_timeout is not set: a silent network is noticed by the operating system, after minutes",
            'put connect_args={"read_timeout": …} into create_engine, above the guard\'s timeout',
        )


def _sqlite(connection: Connection) -> Iterator[Finding]:
    columns = {row.name: row for row in connection.exec_driver_sql(f"PRAGMA table_info({TABLE})")}
    for name, wanted in _SQLITE_TYPES.items():
        kind = columns[name].type.upper() if name in columns else "missing"
        if kind != wanted:
            yield Finding("safety", f"the column {name} is {kind}, not {wanted}", _ANEW)
        elif not columns[name].notnull and name != "resource":
            yield Finding("upkeep", f"the column {name} may be NULL", _ANEW)
    if [name for name, row in columns.items() if row.pk] != ["resource"]:
        yield Finding("safety", "the primary key is not (resource) alone", _ANEW)
    made = connection.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE name = '{TABLE}'").scalar_one()
    yield from _missing_checks({name for name in (*_CHECKS, "fencing_marks_integers") if name in made}, _CHECKS)
    if "fencing_marks_integers" not in made:
        yield Finding("upkeep", "the CHECK fencing_marks_integers is missing: a number may be text", _ANEW)
    yield from _missing_floor(connection, f"'{FLOOR}'")
    if (journal := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) == "off":
        yield Finding("safety", "journal_mode is off, so nothing can be rolled back", "PRAGMA journal_mode = WAL")
    elif journal == "memory":
        yield _not_durable("journal_mode", journal, "PRAGMA journal_mode = WAL")
    if connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 0:
        yield _not_durable("synchronous", "off", "PRAGMA synchronous = FULL")


def _missing_checks(there: set[str], wanted: tuple[str, ...]) -> Iterator[Finding]:
    for name in wanted:
        if name not in there:
            yield Finding("upkeep", f"the CHECK {name} is missing", _ANEW)


def _missing_floor(connection: Connection, key: str) -> Iterator[Finding]:
    if not connection.exec_driver_sql(f"SELECT count(*) FROM {TABLE} WHERE resource = {key}").scalar_one():
        yield Finding("upkeep", "the floor row is missing; if marks were ever pruned, stale claims may come in", _ANEW)


def _not_durable(name: str, value: str, change: str) -> Finding:
    return Finding("durability", f"{name} is {value}: a crash may lose acknowledged writes and marks", change)


def _name(connection: Connection) -> str:
    dialect: Any = connection.dialect
    kind = "SQLite" if dialect.name == "sqlite" else "MariaDB" if dialect.is_mariadb else "MySQL"
    return f"{kind} {'.'.join(map(str, dialect.server_version_info or ()))}"
