"""What the databases and drivers do differently: which can be guarded, how waits are bounded, what a transaction is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from fencing.errors import GuardNotEnforceable

__all__ = ["AUTOCOMMIT", "bounded_waits", "check_engine", "hang_up", "limit_transaction", "require_open_transaction"]

AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits by itself, so a check would not hold until the write. Make "
    'the engine without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one '
    "for the guard"
)

_SUPPORTED = {("postgresql", "psycopg"), ("sqlite", "pysqlite"), ("sqlite", "aiosqlite")}
_RETURNING_SINCE = (3, 35, 0)


def check_engine(engine: Engine) -> None:
    """GuardNotEnforceable where no transaction of this engine could be guarded."""
    dialect = engine.dialect
    if (dialect.name, dialect.driver) not in _SUPPORTED:
        raise GuardNotEnforceable(
            f"{dialect.name}+{dialect.driver} is not supported: the guard's statements, and its check for an open "
            f"transaction, were not proved there; use postgresql+psycopg (psycopg 3), sqlite or sqlite+aiosqlite"
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
    """GuardNotEnforceable, saying ``what_else``, where the driver itself reports no sound open transaction."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        is_open = bool(driver.in_transaction)
    else:
        is_open = driver.info.transaction_status.name == "INTRANS"
    if not is_open:
        raise GuardNotEnforceable(what_else)


@contextmanager
def bounded_waits(connection: Connection, seconds: float) -> Iterator[None]:
    """Bound the waits for SQLite's locks while the block runs, its BEGIN and COMMIT included. Nothing on PostgreSQL.

    It is a setting of the connection, so it is put back afterwards. It goes to the driver's cursor directly: through
    the engine it would begin the transaction, which may be the very statement that waits (BEGIN IMMEDIATE).
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    before = _pragma(connection, "PRAGMA busy_timeout")
    try:
        _pragma(connection, f"PRAGMA busy_timeout = {_milliseconds(seconds)}")
    except BaseException:
        connection.invalidate()  # a cancelled statement may run all the same
        raise
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            try:
                _pragma(connection, f"PRAGMA busy_timeout = {before}")
            except BaseException as error:
                connection.invalidate()  # better no connection in the pool than a changed one
                if not isinstance(error, Exception):
                    raise  # an interruption; anything else must not hide how the block ended: it may be committed


def limit_transaction(connection: Connection, seconds: float, *, read_committed: bool = False) -> None:
    """Bound each lock wait and each statement of this PostgreSQL transaction, in one round trip. Nothing on SQLite.

    With ``read_committed`` a statement that has waited sees what it waited for, whatever the engine's isolation level.
    """
    if connection.dialect.name == "postgresql":
        limit = _milliseconds(seconds)
        level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; " if read_committed else ""
        connection.exec_driver_sql(f"{level}SET LOCAL lock_timeout = {limit}; SET LOCAL statement_timeout = {limit}")


def hang_up(connection: Connection | None) -> None:
    """Close PostgreSQL's socket under whatever waits for it, without a word to the server. Nothing on SQLite, where
    there is no server to wait for."""
    if connection is not None and connection.dialect.name == "postgresql" and not connection.invalidated:
        driver: Any = connection.connection.driver_connection
        driver.pgconn.finish()


def _pragma(connection: Connection, statement: str) -> Any:
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row = cursor.fetchone()
    finally:
        cursor.close()
    return row[0] if row else None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
