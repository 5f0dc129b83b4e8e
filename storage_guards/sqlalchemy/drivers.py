"""What the databases and drivers do differently: which can be guarded, how waits are bounded, what a transaction is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.bounds import LEAST_SECONDS
from storage_guards.sql.statements import ENFORCED

__all__ = [
    "AUTOCOMMIT",
    "bounded_waits",
    "check_engine",
    "family",
    "hang_up",
    "limit_transaction",
    "require_it_for_each_statement",
    "require_open_transaction",
]

AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits by itself, so a check would not hold until the write. Make "
    'the engine without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one '
    "for the guard"
)

_SUPPORTED = {
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("pymysql", "aiomysql"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
_RETURNING_SINCE = (3, 35, 0)

_PSYCOPG_INTRANS = 2
"""psycopg.pq.TransactionStatus.INTRANS: an open transaction that has not failed, on a connection that is not busy."""

_IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS, a bit of what MariaDB and MySQL report with each answer."""

_LIMITS = text(
    f"SELECT {ENFORCED}, "
    "set_config('statement_timeout', :limit, true), set_config('lock_timeout', :limit, true), "
    "set_config('idle_in_transaction_session_timeout', :limit, true), set_config('tcp_user_timeout', :limit, true)"
)
"""For the rest of a PostgreSQL transaction. The first bounds each statement, and so each wait for a lock; the second
does where a block takes the first away, for a slow statement; the third ends the session of a client that stands still
between two statements, the fourth of one that stands still while it is being sent rows, which the others do not notice.
The psycopg guard sets the same."""

# MariaDB's and MySQL's bounds, on waits for rows and for tables, on clients that stand still while they are being sent
# rows or while they send. In whole seconds.
_MYSQL_BOUNDS = ("innodb_lock_wait_timeout", "lock_wait_timeout", "net_write_timeout", "net_read_timeout")
# Of MariaDB alone: a client that stands still between two statements, and each statement, which is more exact.
_MARIADB_BOUNDS = (*_MYSQL_BOUNDS, "idle_transaction_timeout", "max_statement_time")


def family(dialect: str) -> str:
    """SQLAlchemy's name of a database, but one for MariaDB and MySQL: the URL chooses between these, not the server."""
    return "mysql" if dialect == "mariadb" else dialect


def check_engine(engine: Engine) -> None:
    """GuardNotEnforceable where no transaction of this engine could be guarded."""
    dialect = engine.dialect
    if dialect.driver not in _SUPPORTED.get(family(dialect.name), ()):
        raise GuardNotEnforceable(
            f"{dialect.name}+{dialect.driver} is not supported: the guard's statements, and its check for an open "
            f"transaction, were not proved there; use postgresql+psycopg (psycopg 3), mysql+pymysql or sqlite, and for "
            f"asyncio postgresql+psycopg, postgresql+asyncpg, mysql+aiomysql or sqlite+aiosqlite"
        )
    if dialect.name == "sqlite":
        version: tuple[int, ...] = getattr(dialect.dbapi, "sqlite_version_info", _RETURNING_SINCE)
        if version < _RETURNING_SINCE:
            raise GuardNotEnforceable(f"SQLite {'.'.join(map(str, version))} has no RETURNING; 3.35 or later is needed")
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        raise GuardNotEnforceable(
            f"with a {type(engine.pool).__name__} several transactions share one connection, so none is alone until "
            f"its commit; use a database file (an in-memory database needs its shared-cache URI)"
        )


def require_open_transaction(connection: Connection, what_else: str) -> None:
    """GuardNotEnforceable, saying ``what_else``, where the driver itself reports no open transaction.

    Of psycopg and SQLite it is a sound one, too. With the others the next statement of a failed transaction fails.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        is_open = bool(driver.in_transaction)
    elif connection.dialect.driver == "psycopg":
        is_open = driver.pgconn.transaction_status == _PSYCOPG_INTRANS
    elif connection.dialect.driver == "asyncpg":
        is_open = bool(driver.is_in_transaction())
    else:
        is_open = bool(driver.server_status & _IN_TRANSACTION)
    if not is_open:
        raise GuardNotEnforceable(what_else)


def require_it_for_each_statement(connection: Connection, what_else: str) -> None:
    """The same before each later statement, where nothing begins a transaction by itself: on asyncpg, and on SQLite if
    the engine says so. There each statement after a COMMIT in a block would be committed at once, unchecked."""
    if connection.dialect.driver in ("asyncpg", "pysqlite", "aiosqlite"):
        event.listen(connection, "before_cursor_execute", lambda *_: require_open_transaction(connection, what_else))


@contextmanager
def bounded_waits(
    connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
) -> Iterator[None]:
    """Bound the waits of a connection while the block runs, its BEGIN and COMMIT included. Nothing on PostgreSQL.

    They are settings of the connection, so they are put back afterwards. They go to the driver's cursor directly:
    through the engine they would begin the transaction, which may be the very statement that waits (BEGIN IMMEDIATE).

    Args:
        connection: on SQLite, MariaDB and MySQL.
        seconds: the bound.
        begins: the block begins a transaction. On MariaDB and MySQL that one is then READ COMMITTED, or SERIALIZABLE
            where the session is, so that no SELECT before the check, of an event hook say, makes later ones old, and
            no gap before a new mark is locked.
        read_committed: SERIALIZABLE does not stay either: each plain SELECT there would wait for locks.
    """
    family_ = family(connection.dialect.name)
    if family_ == "postgresql":
        yield
        return
    if family_ == "sqlite":
        before = _ask(connection, "PRAGMA busy_timeout")
        bound = f"PRAGMA busy_timeout = {_milliseconds(seconds)}"
        put_back = f"PRAGMA busy_timeout = {before}"
    else:
        bound, put_back = _mysql_settings(connection, seconds, begins, read_committed)
    try:
        _ask(connection, bound)
    except BaseException:
        connection.invalidate()  # a cancelled statement may run all the same
        raise
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            try:
                _ask(connection, put_back)
            except BaseException as error:
                connection.invalidate()  # better no connection in the pool than a changed one
                if not isinstance(error, Exception):
                    raise  # an interruption; anything else must not hide how the block ended: it may be committed


def _mysql_settings(connection: Connection, seconds: float, begins: bool, read_committed: bool) -> tuple[str, str]:
    """The statement that sets the bounds and remembers what was there, and the one that puts it back."""
    dialect: Any = connection.dialect
    names = _MARIADB_BOUNDS if dialect.is_mariadb else _MYSQL_BOUNDS
    whole = max(1, math.ceil(seconds))
    exact = max(seconds, LEAST_SECONDS)  # 0 would be no bound
    limits = {name: f"{exact:.6f}" if name == "max_statement_time" else str(whole) for name in names}
    kept = "fencing" if begins else "fencing_joined"  # a check may join a transaction that a guard has bounded
    bound = [f"@{kept}_{name} = @@SESSION.{name}" for name in names]
    bound += [f"SESSION {name} = {limit}" for name, limit in limits.items()]
    if begins:
        level = "tx_isolation" if dialect.is_mariadb else "transaction_isolation"
        # Without SESSION it is the next transaction's alone.
        next_level = "'READ-COMMITTED'"
        if not read_committed:
            next_level = f"IF(@@SESSION.{level} = 'SERIALIZABLE', 'SERIALIZABLE', {next_level})"
        bound.append(f"@@{level} = {next_level}")
    put_back = [f"SESSION {name} = @{kept}_{name}" for name in names]
    return f"SET {', '.join(bound)}", f"SET {', '.join(put_back)}"


def limit_transaction(connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
    """Bound what this PostgreSQL transaction can wait for, and be waited for. Nothing elsewhere.

    With ``read_committed`` a statement that has waited sees what it waited for, whatever the engine's isolation level.

    Returns:
        Whether the database enforces.
    """
    if connection.dialect.name != "postgresql":
        return False
    if read_committed:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return bool(connection.execute(_LIMITS, {"limit": str(_milliseconds(seconds))}).one()[0])


def hang_up(connection: Connection | None) -> None:
    """Close the socket under whatever waits for it, without a word to the server. Nothing on SQLite, where there is no
    server to wait for."""
    if connection is None or connection.invalidated or connection.dialect.name == "sqlite":
        return
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "psycopg":
        driver.pgconn.finish()
    elif connection.dialect.driver == "asyncpg":
        driver.terminate()
    else:
        driver.close()


def _ask(connection: Connection, statement: str) -> Any:
    """One statement past the engine, which would begin a transaction; its errors are SQLAlchemy's all the same."""
    dialect = connection.dialect
    pooled = connection.connection
    cursor = None
    try:
        cursor = pooled.cursor()
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    except dialect.loaded_dbapi.Error as error:
        gone = dialect.is_disconnect(error, pooled.dbapi_connection, cursor)
        if gone:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=gone, dialect=dialect
        ) from error
    finally:
        if cursor is not None:
            cursor.close()
    return row[0] if row else None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
