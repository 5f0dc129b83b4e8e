"""MariaDB and MySQL, as the doctor sees them."""

from __future__ import annotations

from collections.abc import Generator

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.cli.doctor.findings import Finding, clock, measured_offset
from fencing.cli.doctor.sql import NEEDED, RESTORE, VERIFICATION, Tables, asking, isolation, may_lose, timeouts

MYSQL = "docs/guards/databases.md#mariadb-and-mysql"

_OLDEST_MARIADB, _OLDEST_MYSQL = (10, 6), (8, 4)
_VARIABLES = """
SHOW VARIABLES WHERE Variable_name IN ('version', 'tx_isolation', 'transaction_isolation', 'read_only',
'super_read_only', 'innodb_lock_wait_timeout', 'lock_wait_timeout', 'max_statement_time',
'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')
"""
_MYSQL_TABLES = """
SELECT tables.table_name, tables.table_schema, column_default FROM information_schema.tables
LEFT JOIN information_schema.columns ON columns.table_schema = tables.table_schema
AND columns.table_name = tables.table_name AND column_name = 'version'
WHERE tables.table_schema = DATABASE() AND tables.table_name IN ('fencing_marks', 'fencing_done', 'fencing_locks')
"""
_TRIALS = {
    "SELECT": "EXPLAIN SELECT * FROM {table}",
    "INSERT": "EXPLAIN INSERT INTO {table} (resource) VALUES ('')",
    "UPDATE": "EXPLAIN UPDATE {table} SET number = 1 WHERE resource = ''",
}
"""Each needs the right of the statement that it explains, and executes nothing."""

_DENIED = (1142, 1143, 1044)
"""ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR, ER_DBACCESS_DENIED_ERROR."""


def examine(connection: Connection) -> Generator[Finding, None, Tables]:
    """Yield the findings about the server. Return the facts about the tables."""
    facts = {name.lower(): value for name, value in connection.exec_driver_sql(_VARIABLES)}
    numbers = connection.dialect.server_version_info or ()
    is_mariadb = "mariadb" in facts["version"].lower()
    title = f"{'MariaDB' if is_mariadb else 'MySQL'} {'.'.join(map(str, numbers[:3]))}"
    if tuple(numbers[:2]) < (_OLDEST_MARIADB if is_mariadb else _OLDEST_MYSQL):
        yield Finding("warning", title, "The library was not run on it.", "use MariaDB 10.11 or MySQL 8.4", MYSQL)
    else:
        yield Finding("ok", title, page=MYSQL)
    if "ON" in (facts.get("read_only", ""), facts.get("super_read_only", "")):
        yield Finding(
            "wrong",
            "the server is read only",
            "It takes no writes of this account: it is a replica, or being moved.",
            "connect to the primary",
            VERIFICATION,
        )
    semi = facts.get("rpl_semi_sync_master_enabled", facts.get("rpl_semi_sync_source_enabled", "OFF"))
    replicas = sum(int(count) for _, count in connection.exec_driver_sql("SHOW STATUS LIKE 'Slaves_connected'"))
    if semi == "ON":
        yield Finding("ok", "replication is semi-synchronous", page=RESTORE)
    elif replicas:
        yield may_lose(f"{replicas} replicas follow, and replication is not semi-synchronous")
    level = facts.get("transaction_isolation", facts.get("tx_isolation", ""))
    yield isolation(level, ": guards use read committed, or serializable", MYSQL)
    names = ("innodb_lock_wait_timeout", "lock_wait_timeout", "max_statement_time")
    yield from timeouts({name: float(facts[name]) for name in names if name in facts})
    yield clock(*measured_offset(asking(connection, "SELECT UNIX_TIMESTAMP(NOW(6))")))
    found: Tables = {name: {} for name in NEEDED}
    role = connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()
    for name, schema, version in connection.exec_driver_sql(_MYSQL_TABLES).all():
        lacks = [right for right in NEEDED[name] if not _may(connection, _TRIALS[right].format(table=name))]
        found[name] = {"schema": schema, "version": version, "lacks": lacks, "role": _quoted(role)}
    return found


def _quoted(account: str) -> str:
    name, _, host = account.rpartition("@")
    return f"'{name}'@'{host}'"


def _may(connection: Connection, statement: str) -> bool:
    try:
        connection.exec_driver_sql(statement).close()
    except DBAPIError as error:
        if error.orig is not None and error.orig.args and error.orig.args[0] in _DENIED:
            return False
        if error.connection_invalidated:
            raise
    return True  # another error came behind the check of the rights
