"""A SQL database: of locks, of guards, or of both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined, clock, measured_offset
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.locks.urls import redacted, scheme_of
from fencing.sql import table as lock_table
from fencing.sql.dialects import dialect_of
from fencing.sql.sessions import SESSIONS
from fencing.sql.urls import engine_of
from storage_guards import SQLAlchemyGuard
from storage_guards.files.systems import check_file_system
from storage_guards.sql import table as guard_tables
from storage_guards.sqlalchemy.waits import waits

DATABASES = "docs/guards/databases.md#the-table"
RIGHTS = "docs/guards/databases.md#rights-and-migrations"
ISOLATION = "docs/guards/databases.md#isolation-levels"
TIMEOUTS = "docs/guards/databases.md#time-outs"
MYSQL = "docs/guards/databases.md#mariadb-and-mysql"
SQLITE = "docs/guards/databases.md#sqlite"
ENFORCED = "docs/guards/enforcement.md#set-up"
EARLIER = "docs/operations/incidents.md#tables-of-an-earlier-program"
VERIFICATION = "docs/operations/upkeep.md#verification"
POOLERS = "docs/operations/upkeep.md#poolers"
RESTORE = "docs/operations/upkeep.md#backup-and-restore"
LOCKS = "docs/coordinators/sql.md#the-table"
PRIVILEGES = "docs/coordinators/sql.md#privileges"
ONE_MACHINE = "docs/coordinators/sql.md#sqlite-locks-for-the-processes-of-one-machine"

MARKS, DONE, LOCK_TABLE = guard_tables.MARK_TABLE.name, guard_tables.DONE, lock_table.TABLE
NEEDED = {MARKS: ("SELECT", "INSERT", "UPDATE"), DONE: ("SELECT", "INSERT"), LOCK_TABLE: ("SELECT", "INSERT", "UPDATE")}
"""The rights on each table. ``prune`` also needs DELETE."""

KNOWN = {MARKS: guard_tables.VERSION, DONE: guard_tables.VERSION, LOCK_TABLE: lock_table.VERSION}
"""The version of each table that this library knows."""

CONNECTION_SECONDS = 10.0
"""How long all questions of one connection may take."""

LEAST_SECONDS = 1.0
"""Below this, a time-out of the role ends statements on a busy day."""


def examine(url: str) -> Iterator[Finding]:
    """Yield the findings about the database of a URL.

    Raises:
        NotExamined: it does not answer, or refuses us.
        ValueError: the URL is wrong.
    """
    scheme = scheme_of(url)
    kind = scheme.partition("+")[0]
    plain = kind + url[len(scheme) :]  # an asyncio driver is of no use here
    if kind == "sqlite":
        yield from _sqlite(plain)
        return
    checked = engine_of(plain, asynchronous=False).url
    engine = engine_of(_bounded(checked, kind), asynchronous=False)
    try:
        with bounded_waits(engine), engine.connect() as connection:
            found = _postgresql(connection) if kind in ("postgresql", "postgres") else _mysql(connection)
            facts = yield from found
    except SQLAlchemyError as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise NotExamined(f"does not answer, or refuses us: {redacted(str(reason))}") from error
    finally:
        engine.dispose()
    yield from tables(facts)
    if is_usable(facts[MARKS]):
        yield from verified(plain)


@contextmanager
def bounded_waits(engine: Engine) -> Iterator[None]:
    """Shut each connection that the block opens when it takes too long: a server that stands still ends no request."""
    opened: list[object] = []

    @event.listens_for(engine, "do_connect")  # SQLAlchemy itself asks something before its event "connect"
    def bound(dialect: Any, _: Any, args: Any, options: Any) -> Any:
        connection = dialect.connect(*args, **options)
        opened.append(connection)
        waits.begin(connection, CONNECTION_SECONDS, partial(SESSIONS[type(dialect_of(engine))].break_off, connection))
        return connection

    try:
        yield
    finally:
        for each in opened:
            waits.pop(each, None)
        waits.wait_until_shut()


def _bounded(url: URL, kind: str) -> str:
    """Return the URL with limits of our own. ``verify`` gets it without them, and says what is missing."""
    limits = ("connect_timeout",) if kind in ("postgresql", "postgres") else ("connect_timeout", "read_timeout")
    missing = {name: str(SECONDS) for name in limits if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False)


Tables = dict[str, dict[str, Any]]
"""By name: schema, version (None: the column is missing), the rights that the role lacks. Empty: there is none."""


def tables(facts: Tables) -> Iterator[Finding]:
    """Yield the findings about the library's tables."""
    if not facts[MARKS] and not facts[LOCK_TABLE]:
        yield Finding(
            "wrong",
            f"there is neither {MARKS} nor {LOCK_TABLE}, or this account has no right on them",
            "Neither guards nor locks work there.",
            "create them, as the owner, or write a migration:\nfencing create-tables URL",
            DATABASES,
        )
        return
    for name, page in ((MARKS, DATABASES), (DONE, "docs/guards/once.md#the-table"), (LOCK_TABLE, LOCKS)):
        fact = facts[name]
        if not fact:
            if name != DONE:  # verify says it of that
                use = "guards" if name == MARKS else "locks"
                yield Finding("ok", f"{name} is not there: no {use} here", page=page)
            continue
        version, schema = fact["version"], fact["schema"]
        if str(version) != str(KNOWN[name]):
            yield Finding(
                "wrong",
                f"{schema}.{name} is of version {version or 'none'}, and this library knows {KNOWN[name]}",
                "This library refuses the table.",
                "upgrade the program if the table is newer; otherwise execute the statements that the refusal names",
                EARLIER,
            )
        elif fact["lacks"]:
            rights, role = ", ".join(fact["lacks"]), fact.get("role", "ROLE")
            yield Finding(
                "wrong",
                f"this account lacks {rights} on {schema}.{name}",
                "Locks need them." if name == LOCK_TABLE else "The guard needs them.",
                f"give them, as the owner:\nGRANT {rights} ON {schema}.{name} TO {role}",
                PRIVILEGES if name == LOCK_TABLE else RIGHTS,
            )
        else:
            yield Finding("ok", f"{schema}.{name} is of version {version}, and this account may use it", page=page)


def is_usable(fact: dict[str, Any]) -> bool:
    """Return whether a guard would use the mark table of these facts. Otherwise there is a finding about it."""
    return bool(fact) and not fact["lacks"] and str(fact["version"]) == str(KNOWN[MARKS])


def verified(url: str) -> Iterator[Finding]:
    """Yield what the guard's own ``verify`` finds."""
    engine = engine_of(url, asynchronous=False)
    try:
        report = SQLAlchemyGuard(engine).verify()
    except GuardNotEnforceable as error:
        yield Finding(
            "wrong",
            str(error),
            "Guards refuse to work there.",
            "do what the message says, and look again:\nfencing verify URL",
            VERIFICATION,
        )
        return
    except GuardUnavailable as error:
        what = f"verify() could not look: {redacted(str(error))}"
        yield Finding("unknown", what, change="look again:\nfencing verify URL", page=VERIFICATION)
        return
    finally:
        engine.dispose()
    for found in report.findings:
        page = POOLERS if "pooler" in found.problem else VERIFICATION
        why = {
            "durability": "" if "may lose" in found.problem else "A crash may lose acknowledged writes.",
            "waiting": "A wait has no bound.",
            "upkeep": "One safeguard of several is missing, or cannot be seen from here.",
        }.get(found.threatens, "")
        yield Finding("warning", found.problem, why, found.change, page)
    if not report.findings:
        yield Finding("ok", "verify() finds nothing wrong", page=VERIFICATION)


# PostgreSQL

_OLDEST_POSTGRESQL, _OLD_POSTGRESQL = 13, 14
_POSTGRESQL = """
SELECT json_build_object(
    'version', current_setting('server_version'),
    'number', current_setting('server_version_num')::int / 10000,
    'role', current_user,
    'isolation', current_setting('default_transaction_isolation'),
    'read_only', current_setting('default_transaction_read_only'),
    'is_standby', pg_is_in_recovery(),
    'timeouts', (SELECT json_object_agg(name, setting::bigint) FROM pg_settings WHERE name IN (
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')),
    'synchronous_commit', current_setting('synchronous_commit'),
    'standby_names', current_setting('synchronous_standby_names'),
    'standbys', (SELECT count(*) FROM pg_stat_replication),
    'tables', (SELECT json_agg(json_build_object(
        'name', relname,
        'schema', nspname,
        'role', current_user,
        'version', (
            SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid
            AND attnum = adnum WHERE adrelid = pg_class.oid AND attname = 'version'),
        'lacks', (
            SELECT COALESCE(json_agg(one), '[]') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS one
            WHERE NOT has_table_privilege(pg_class.oid, one)),
        'enforced', relname = 'fencing_marks' AND EXISTS (
            SELECT FROM pg_proc WHERE proname = 'fencing_check' AND pronamespace = pg_namespace.oid
            AND oidvectortypes(proargtypes) = 'text, bigint, text, text'),
        'may_check', (SELECT bool_and(has_function_privilege(pg_proc.oid, 'EXECUTE')) FROM pg_proc
            WHERE proname = 'fencing_check' AND pronamespace = pg_namespace.oid
            AND oidvectortypes(proargtypes) = 'text, bigint, text, text')
    )) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname IN ('fencing_marks', 'fencing_done', 'fencing_locks') AND relkind IN ('r', 'p', 'v', 'm', 'f')
    AND has_schema_privilege(pg_namespace.oid, 'USAGE'))
)::text
"""
# Only names in lower case need no quotes, so role and schema are shown as they are.


def _postgresql(connection: Connection) -> Generator[Finding, None, Tables]:
    facts = json.loads(connection.exec_driver_sql(_POSTGRESQL).scalar_one())
    number = facts["number"]
    version = f"PostgreSQL {facts['version']}"
    if number < _OLDEST_POSTGRESQL:
        yield Finding("wrong", version, "The tables need types of PostgreSQL 13.", "use 14 or later", DATABASES)
    elif number < _OLD_POSTGRESQL:
        why = "It does not notice that a client has left in the middle of a statement."
        yield Finding("warning", version, why, "use 14 or later", DATABASES)
    else:
        yield Finding("ok", version, page=DATABASES)
    yield from _postgresql_role(facts)
    yield from timeouts({name: milliseconds / 1000 for name, milliseconds in facts["timeouts"].items()})
    yield clock(*measured_offset(_asking(connection, "SELECT extract(epoch FROM clock_timestamp())")))
    found: Tables = {name: {} for name in NEEDED}
    for each in facts["tables"] or []:
        each["lacks"] = [right for right in each["lacks"] if right in NEEDED[each["name"]]]
        if each["enforced"] and each["may_check"]:
            yield Finding("ok", f"{each['schema']}.{MARKS} is enforced, and this role may check", page=ENFORCED)
            each["lacks"] = []
        found[each["name"]] = each
    return found


def _postgresql_role(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["is_standby"]:
        yield Finding(
            "wrong", "this server is a standby", "It takes no writes.", "connect to the primary", VERIFICATION
        )
    elif facts["read_only"] == "on":
        yield Finding(
            "wrong",
            "transactions of this role are read only",
            "Locks and guards write.",
            f"choose another role, or let it write:\nALTER ROLE {facts['role']} RESET default_transaction_read_only",
            VERIFICATION,
        )
    if facts["standbys"] and not facts["standby_names"]:
        yield _may_lose(f"{facts['standbys']} standbys follow, and synchronous_standby_names is empty")
    elif facts["standby_names"] and facts["synchronous_commit"] in ("local", "off"):
        yield _may_lose(f"synchronous_commit is {facts['synchronous_commit']}, so no commit waits for a standby")
    elif facts["standby_names"]:
        what = f"commits wait for {facts['standby_names']} (synchronous_commit {facts['synchronous_commit']})"
        yield Finding("ok", what, page=RESTORE)
    yield isolation(facts["isolation"], ": some blocks must be begun again", ISOLATION)


def _may_lose(what: str) -> Finding:
    return Finding(
        "warning",
        what,
        "A failover loses the last commits: marks and data alike, and held locks may be free.",
        "set synchronous_standby_names, and synchronous_commit on; or end the leases before a failover",
        RESTORE,
    )


def isolation(level: str, otherwise: str, page: str) -> Finding:
    """Return the finding about the default level, all of which are right. ``otherwise``: what to know of the others."""
    level = level.lower().replace("-", " ")
    return Finding("ok", f"the default isolation is {level}{'' if level == 'read committed' else otherwise}", page=page)


def timeouts(seconds: dict[str, float]) -> Iterator[Finding]:
    """Yield the findings about time-outs of the account, by name. 0 is none."""
    short = [f"{name} is {value:g} s" for name, value in sorted(seconds.items()) if 0 < value < LEAST_SECONDS]
    if short:
        yield Finding(
            "warning",
            ", ".join(short),
            "The guards set bounds of their own. What you do without them, as scripts and migrations, may end early.",
            "set one second or more, or none",
            TIMEOUTS,
        )
    else:
        values = ", ".join(f"{name} {f'{value:g} s' if value else 'none'}" for name, value in sorted(seconds.items()))
        yield Finding("ok", f"time-outs of this account: {values}", page=TIMEOUTS)


def _asking(connection: Connection, query: str) -> Callable[[], float]:
    return lambda: float(connection.exec_driver_sql(query).scalar_one())


# MariaDB and MySQL

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


def _mysql(connection: Connection) -> Generator[Finding, None, Tables]:
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
        yield _may_lose(f"{replicas} replicas follow, and replication is not semi-synchronous")
    level = facts.get("transaction_isolation", facts.get("tx_isolation", ""))
    yield isolation(level, ": guards use read committed, or serializable", MYSQL)
    names = ("innodb_lock_wait_timeout", "lock_wait_timeout", "max_statement_time")
    yield from timeouts({name: float(facts[name]) for name in names if name in facts})
    yield clock(*measured_offset(_asking(connection, "SELECT UNIX_TIMESTAMP(NOW(6))")))
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


# SQLite


def _sqlite(url: str) -> Iterator[Finding]:
    import sqlite3

    path = make_url(url).database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        change = "name the file: sqlite:////var/lib/app/locks.db"
        yield Finding("unknown", "only a database in a file can be looked at", change=change, page=SQLITE)
        return
    if not os.path.exists(path):
        yield Finding(
            "wrong",
            f"there is no file {path}",
            "Locks make it at their first use; guards do not.",
            "correct the path: four slashes begin an absolute one; or make it:\nfencing create-tables URL",
            ONE_MACHINE,
        )
        return
    yield from file_system(path)
    with closing(sqlite3.connect(path, timeout=SECONDS)) as connection:
        try:
            connection.execute("PRAGMA query_only = ON")
            yield from journal(connection.execute("PRAGMA journal_mode").fetchone()[0])
            found: Tables = {name: {} for name in NEEDED}
            for name in NEEDED:
                columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
                if columns:
                    version = next((column[4] for column in columns if column[1] == "version"), None)
                    found[name] = {"schema": "main", "version": version, "lacks": []}
        except sqlite3.Error as error:
            raise NotExamined(f"cannot be read: {error}") from error
    if not os.access(path, os.W_OK) or not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
        yield Finding(
            "wrong",
            "this user may not write the file, or its folder",
            "SQLite writes a journal beside the file.",
            "run as the owner, or change the rights of both",
            SQLITE,
        )
    else:
        yield from tables(found)
        if is_usable(found[MARKS]):
            yield from verified(url)


def file_system(path: str) -> Iterator[Finding]:
    """Yield whether locks of a file can be relied on where it is."""
    try:
        check_file_system(path)
    except GuardNotEnforceable as error:
        yield Finding(
            "warning",
            str(error),
            "SQLite's locks are not reliable on a network's file systems.",
            "move the file to a local disk",
            ONE_MACHINE,
        )
    else:
        yield Finding("ok", "the file is on a local file system", page=ONE_MACHINE)


def journal(mode: str) -> Iterator[Finding]:
    """Yield the finding about the mode of the journal."""
    if mode == "wal":
        yield Finding("ok", "journal_mode is wal", page=SQLITE)
    elif mode in ("off", "memory"):
        yield Finding(
            "wrong",
            f"journal_mode is {mode}",
            "A crash may destroy the file.",
            "set it, in sqlite3:\nPRAGMA journal_mode = WAL",
            VERIFICATION,
        )
    else:
        yield Finding("ok", f"journal_mode is {mode}: readers wait for writers; wal lets them go on", page=SQLITE)
