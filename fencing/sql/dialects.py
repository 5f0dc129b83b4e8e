"""What the databases and drivers do differently: which can be used, how waits are bounded, what a transaction is.

All that is asked of a database's or driver's name is asked here, and where somebody chooses one of these classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from fencing.sql.client import LEAST_SECONDS, ask, milliseconds, with_settings

_DRIVERS = {
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("pymysql", "aiomysql"),
    "mariadb": ("pymysql", "aiomysql"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
_RETURNING_SINCE = (3, 35, 0)

_PSYCOPG_INTRANS = 2
"""psycopg.pq.TransactionStatus.INTRANS: an open transaction that has not failed, on a connection that is not busy."""

_IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS, a bit of what MariaDB and MySQL report with each answer."""

# MariaDB's and MySQL's bounds, on waits for rows and for tables, on clients that stand still while they are being sent
# rows or while they send. In whole seconds.
_MYSQL_BOUNDS = ("innodb_lock_wait_timeout", "lock_wait_timeout", "net_write_timeout", "net_read_timeout")
# Of MariaDB alone: a client that stands still between two statements, and each statement, which is more exact.
_MARIADB_BOUNDS = (*_MYSQL_BOUNDS, "idle_transaction_timeout", "max_statement_time")


def unsupported(engine: Engine) -> str | None:
    """Why no transaction of this engine can be relied on, and what to use instead; None: it can."""
    dialect = engine.dialect
    if dialect.driver not in _DRIVERS.get(dialect.name, ()):
        return (
            f"{dialect.name}+{dialect.driver} is not supported: the statements, and the check for an open "
            f"transaction, were not proved there; use postgresql+psycopg (psycopg 3), mysql+pymysql or sqlite, and for "
            f"asyncio postgresql+psycopg, postgresql+asyncpg, mysql+aiomysql or sqlite+aiosqlite"
        )
    if dialect.name == "sqlite":
        version: tuple[int, ...] = getattr(dialect.dbapi, "sqlite_version_info", _RETURNING_SINCE)
        if version < _RETURNING_SINCE:
            return f"SQLite {'.'.join(map(str, version))} has no RETURNING; 3.35 or later is needed"
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        return (
            f"with a {type(engine.pool).__name__} several transactions share one connection, so none is alone until "
            f"its commit; use a database file (an in-memory database needs its shared-cache URI)"
        )
    return None


class Dialect(ABC):
    """One kind of database, with the drivers that are used with it."""

    names: ClassVar[tuple[str, ...]]
    """SQLAlchemy's: of MariaDB and MySQL the URL chooses the one or the other, whatever the server."""
    commits_implicitly = False
    """Whether a statement without COMMIT in its text may commit."""

    def serves(self, connection: Connection) -> bool:
        """Whether the connection goes to this kind of database."""
        return connection.dialect.name in self.names

    def title(self, connection: Connection) -> str:
        """Kind and version of the server, for people."""
        version = connection.dialect.server_version_info or ()
        return f"{self._kind(connection)} {'.'.join(map(str, version))}"

    @abstractmethod
    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Bound the waits of a connection while the block runs, its BEGIN and COMMIT included, where bounds are
        settings of the connection, which are put back afterwards. Nothing on PostgreSQL, whose bounds are the
        transaction's: see :class:`PostgreSQL`.

        Args:
            connection: of this kind of database.
            seconds: the bound.
            begins: the block begins a transaction. On MariaDB and MySQL that one is then READ COMMITTED, or
                SERIALIZABLE where the session is, so that no SELECT before the first write, of an event hook say, makes
                later ones old, and no gap before a new row is locked.
            read_committed: SERIALIZABLE does not stay either: each plain SELECT there would wait for locks.
        """

    @abstractmethod
    def is_open(self, connection: Connection) -> bool:
        """Whether the driver itself reports an open transaction. Of psycopg and SQLite it is a sound one, too. With the
        others the next statement of a failed transaction fails."""

    def begins_by_itself(self, connection: Connection) -> bool:
        """Whether the driver begins a transaction before a statement that finds none. Not asyncpg, nor SQLite if the
        engine says so: there each statement after a COMMIT is committed at once."""
        return True

    def hang_up(self, connection: Connection | None) -> None:
        """Close the socket under whatever waits for it, without a word to the server."""
        if connection is not None and not connection.invalidated:
            self._close(connection)

    @abstractmethod
    def _close(self, connection: Connection) -> None: ...

    @abstractmethod
    def _kind(self, connection: Connection) -> str: ...


class PostgreSQL(Dialect):
    """Through psycopg 3 or asyncpg."""

    names = ("postgresql",)

    LIMITS = (
        "set_config('statement_timeout', :limit, true), set_config('lock_timeout', :limit, true), "
        "set_config('idle_in_transaction_session_timeout', :limit, true), set_config('tcp_user_timeout', :limit, true)"
    )
    """To be selected in a transaction, with :meth:`limit`, and valid for its rest. The first bounds each statement, and
    so each wait for a lock; the second does where a block takes the first away, for a slow statement; the third ends
    the session of a client that stands still between two statements, the fourth of one that stands still while it is
    being sent rows, which the others do not notice."""

    @staticmethod
    def limit(seconds: float) -> dict[str, str]:
        """The value of LIMITS."""
        return {"limit": str(milliseconds(seconds))}

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """See :meth:`Dialect.bounded_waits`."""
        return nullcontext()

    def is_open(self, connection: Connection) -> bool:
        """See :meth:`Dialect.is_open`."""
        driver: Any = connection.connection.driver_connection
        if self.is_psycopg(connection):
            return bool(driver.pgconn.transaction_status == _PSYCOPG_INTRANS)
        return bool(driver.is_in_transaction())

    def begins_by_itself(self, connection: Connection) -> bool:
        """See :meth:`Dialect.begins_by_itself`."""
        return self.is_psycopg(connection)

    @staticmethod
    def is_psycopg(connection: Connection) -> bool:
        """Whether this is psycopg's connection."""
        return connection.dialect.driver == "psycopg"

    def _close(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if self.is_psycopg(connection):
            driver.pgconn.finish()
        else:
            driver.terminate()

    def _kind(self, connection: Connection) -> str:
        return "PostgreSQL"


class MySQL(Dialect):
    """MariaDB and MySQL, through PyMySQL or aiomysql."""

    names = ("mysql", "mariadb")
    commits_implicitly = True  # by CREATE, say, or in a procedure

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """See :meth:`Dialect.bounded_waits`. One statement sets the bounds, and remembers what was there."""
        is_mariadb = self.is_mariadb(connection)
        names = _MARIADB_BOUNDS if is_mariadb else _MYSQL_BOUNDS
        whole_seconds = max(1, math.ceil(seconds))
        exact_seconds = max(seconds, LEAST_SECONDS)
        limits = {
            name: f"{exact_seconds:.6f}" if name == "max_statement_time" else str(whole_seconds) for name in names
        }
        prefix = "fencing" if begins else "fencing_joined"  # a block around a joined transaction may have set bounds
        change = [f"@{prefix}_{name} = @@SESSION.{name}" for name in names]
        change += [f"SESSION {name} = {limit}" for name, limit in limits.items()]
        if begins:
            level = "tx_isolation" if is_mariadb else "transaction_isolation"
            # Without SESSION it is the next transaction's alone.
            next_level = "'READ-COMMITTED'"
            if not read_committed:
                next_level = f"IF(@@SESSION.{level} = 'SERIALIZABLE', 'SERIALIZABLE', {next_level})"
            change.append(f"@@{level} = {next_level}")
        restore = [f"SESSION {name} = @{prefix}_{name}" for name in names]
        return with_settings(connection, f"SET {', '.join(change)}", f"SET {', '.join(restore)}")

    def is_open(self, connection: Connection) -> bool:
        """See :meth:`Dialect.is_open`."""
        driver: Any = connection.connection.driver_connection
        return bool(driver.server_status & _IN_TRANSACTION)

    @staticmethod
    def is_mariadb(connection: Connection) -> bool:
        """Whether the server is MariaDB, not MySQL."""
        return bool(connection.dialect.is_mariadb)  # type: ignore[attr-defined]

    def _close(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.close()

    def _kind(self, connection: Connection) -> str:
        return "MariaDB" if self.is_mariadb(connection) else "MySQL"


class SQLite(Dialect):
    """Through Python's sqlite3 or aiosqlite."""

    names = ("sqlite",)

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """See :meth:`Dialect.bounded_waits`."""
        before = ask(connection, "PRAGMA busy_timeout")
        return with_settings(
            connection, f"PRAGMA busy_timeout = {milliseconds(seconds)}", f"PRAGMA busy_timeout = {before}"
        )

    def is_open(self, connection: Connection) -> bool:
        """See :meth:`Dialect.is_open`."""
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)

    def begins_by_itself(self, connection: Connection) -> bool:
        """See :meth:`Dialect.begins_by_itself`."""
        return False

    def _close(self, connection: Connection) -> None:
        """There is no server to wait for."""

    def _kind(self, connection: Connection) -> str:
        return "SQLite"
