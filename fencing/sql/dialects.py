"""The differences of databases and drivers: which are supported, how waits are bounded, what an open transaction is.

Code asks for the name of a database or driver only here, and where it chooses one of these classes.
"""

from __future__ import annotations

import math
import os
import socket
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, text
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
"""SERVER_STATUS_IN_TRANS, a bit of the status that MariaDB and MySQL send with each reply."""

# MariaDB's and MySQL's bounds in whole seconds: for waits for rows and for tables, and for clients that stop while they
# receive rows or while they send.
_MYSQL_BOUNDS = ("innodb_lock_wait_timeout", "lock_wait_timeout", "net_write_timeout", "net_read_timeout")
# MariaDB only: for clients that stop between two statements, and for each statement, which is not in whole seconds.
_MARIADB_BOUNDS = (*_MYSQL_BOUNDS, "idle_transaction_timeout", "max_statement_time")


# How a connection of one's own is bounded for good, and made READ COMMITTED. Behind a pooler of transactions, the
# settings would reach other clients. The id of the session shows a pooler: it is not the one of the server's process.
_BOUND_POSTGRESQL = """
    SELECT name, set_config(name, CASE name WHEN 'default_transaction_isolation' THEN 'read committed' ELSE :limit END,
        false)
    FROM pg_settings
    WHERE pg_backend_pid() = :session AND name IN ('statement_timeout', 'lock_timeout', 'tcp_user_timeout',
        'client_connection_check_interval', 'default_transaction_isolation')
"""


def unsupported(engine: Engine) -> str | None:
    """Return why transactions of this engine are not reliable, and what to use instead; None: they are reliable."""
    dialect = engine.dialect
    if dialect.driver not in _DRIVERS.get(dialect.name, ()):
        return (
            f"{dialect.name}+{dialect.driver} is not supported: the statements, and the check for an open "
            f"transaction, were not tested there; use postgresql+psycopg (psycopg 3), mysql+pymysql or sqlite, and for "
            f"asyncio postgresql+psycopg, postgresql+asyncpg, mysql+aiomysql or sqlite+aiosqlite"
        )
    if dialect.name == "sqlite":
        version: tuple[int, ...] = getattr(dialect.dbapi, "sqlite_version_info", _RETURNING_SINCE)
        if version < _RETURNING_SINCE:
            return f"SQLite {'.'.join(map(str, version))} has no RETURNING; use 3.35 or later"
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)):
        return (
            f"with a {type(engine.pool).__name__} several transactions share one connection, so they are not isolated "
            f"until they commit; use a database file (an in-memory database needs its shared-cache URI)"
        )
    return None


class Dialect(ABC):
    """One kind of database, with the drivers that are used with it."""

    names: ClassVar[tuple[str, ...]]
    """SQLAlchemy's names of it. The URL chooses between ``mysql`` and ``mariadb``; the server may be either."""

    def serves(self, connection: Connection) -> bool:
        """Return whether the connection is to this kind of database."""
        return connection.dialect.name in self.names

    def title(self, connection: Connection) -> str:
        """Return kind and version of the server, for people."""
        version = connection.dialect.server_version_info or ()
        return f"{self._kind(connection)} {'.'.join(map(str, version))}"

    @abstractmethod
    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Bound the waits of a connection for the whole block, its BEGIN and COMMIT included.

        This applies where bounds are settings of the connection; they are restored afterwards. On PostgreSQL it does
        nothing: there bounds belong to the transaction, see :class:`PostgreSQL`.

        Args:
            connection: a connection to this kind of database.
            seconds: the bound.
            begins: the block begins a transaction. On MariaDB and MySQL this transaction is READ COMMITTED, or
                SERIALIZABLE if the session is. So a SELECT before the first write, in an event hook for example, does
                not make later reads old, and no gap before a new row is locked.
            read_committed: use READ COMMITTED even if the session is SERIALIZABLE, where each plain SELECT would wait
                for locks.
        """

    @abstractmethod
    def bound_session(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        """Bound the waits of a connection of one's own for good, and make its transactions READ COMMITTED.

        Args:
            connection: in autocommit.
            driver_connection: the driver's.
            seconds: the bound.

        Returns:
            False: nothing was changed, because the session is shared with other clients. Bound each transaction.
        """

    def session_seconds(self, seconds: float) -> float:
        """Return the bound of a session for requests with this bound.

        A change costs a round trip, so it is a power of two. The client itself ends a request in time.
        """
        return float(2 ** math.ceil(math.log2(seconds)))

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        """Return the arguments of the sync driver's ``connect`` that bound it."""
        return {}

    def break_off(self, driver_connection: Any) -> None:  # noqa: B027 - SQLite has no socket
        """Shut the socket, so that a sync call that waits on it in another thread ends with an error."""

    @abstractmethod
    def is_open(self, connection: Connection) -> bool:
        """Return whether the driver reports an open transaction.

        With psycopg and SQLite the transaction has then not failed either. With the others, the next statement of a
        failed transaction fails.
        """

    def begins_by_itself(self, connection: Connection) -> bool:
        """Return whether the driver begins a transaction before a statement outside one.

        asyncpg does not, and SQLite does not if the engine is set up so. There, each statement after a COMMIT is
        committed at once.
        """
        return True

    def hang_up(self, connection: Connection | None) -> None:
        """Close the socket at once, even if a call waits on it, without a message to the server."""
        if connection is not None and not connection.invalidated:
            self.close_socket(connection.connection.driver_connection)

    @abstractmethod
    def close_socket(self, driver_connection: Any) -> None:
        """Close the socket at once, even if a call waits on it: see :meth:`hang_up`."""

    @abstractmethod
    def _kind(self, connection: Connection) -> str: ...


class PostgreSQL(Dialect):
    """PostgreSQL, through psycopg 3 or asyncpg."""

    names = ("postgresql",)

    LIMITS = (
        "set_config('statement_timeout', :limit, true), set_config('lock_timeout', :limit, true), "
        "set_config('idle_in_transaction_session_timeout', :limit, true), set_config('tcp_user_timeout', :limit, true)"
    )
    """The bounds of a transaction: select them in it, with :meth:`limit`; they are valid until its end.

    The first bounds each statement, and so each wait for a lock. The second bounds waits for locks where a block
    removes the first for a slow statement. The third ends the session of a client that stops between two statements.
    The fourth ends the session of a client that stops while it receives rows, which the others do not notice.
    """

    @staticmethod
    def limit(seconds: float) -> dict[str, str]:
        """Return the parameters of LIMITS for a bound in seconds."""
        return {"limit": str(milliseconds(seconds))}

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Do nothing: on PostgreSQL, bounds belong to the transaction."""
        return nullcontext()

    def bound_session(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        """Bound the waits of a connection of one's own: see :meth:`Dialect.bound_session`."""
        if self.is_psycopg(connection):
            session = driver_connection.info.backend_pid
        else:
            session = driver_connection.get_server_pid()
        return bool(connection.execute(text(_BOUND_POSTGRESQL), {**self.limit(seconds), "session": session}).all())

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        """Return the bound of ``connect``, in whole seconds; psycopg takes 1 for 2."""
        return {"connect_timeout": math.ceil(seconds)}

    def break_off(self, driver_connection: Any) -> None:
        """Shut the socket: see :meth:`Dialect.break_off`."""
        _shut(driver_connection.pgconn.socket)

    def is_open(self, connection: Connection) -> bool:
        """Return whether the driver reports an open transaction; with psycopg, one that has not failed."""
        driver: Any = connection.connection.driver_connection
        if self.is_psycopg(connection):
            return bool(driver.pgconn.transaction_status == _PSYCOPG_INTRANS)
        return bool(driver.is_in_transaction())

    def begins_by_itself(self, connection: Connection) -> bool:
        """Return whether the driver begins a transaction before a statement outside one: psycopg does."""
        return self.is_psycopg(connection)

    @staticmethod
    def is_psycopg(connection: Connection) -> bool:
        """Return whether this is a connection of psycopg."""
        return connection.dialect.driver == "psycopg"

    def close_socket(self, driver_connection: Any) -> None:
        """Close the socket at once."""
        if hasattr(driver_connection, "pgconn"):  # psycopg
            driver_connection.pgconn.finish()
        else:
            driver_connection.terminate()

    def _kind(self, connection: Connection) -> str:
        return "PostgreSQL"


class MySQL(Dialect):
    """MariaDB and MySQL, through PyMySQL or aiomysql."""

    names = ("mysql", "mariadb")

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Bound the waits of the connection for the whole block.

        One statement sets the bounds, and saves the old values in user variables. See :meth:`Dialect.bounded_waits` for
        the arguments.
        """
        is_mariadb = self.is_mariadb(connection)
        names = _MARIADB_BOUNDS if is_mariadb else _MYSQL_BOUNDS
        limits = _limits(names, seconds)
        prefix = "fencing" if begins else "fencing_joined"  # a block around a joined transaction may have set bounds
        change = [f"@{prefix}_{name} = @@SESSION.{name}" for name in names]
        change += [f"SESSION {name} = {limit}" for name, limit in limits.items()]
        if begins:
            level = "tx_isolation" if is_mariadb else "transaction_isolation"
            # Without SESSION it applies only to the next transaction.
            next_level = "'READ-COMMITTED'"
            if not read_committed:
                next_level = f"IF(@@SESSION.{level} = 'SERIALIZABLE', 'SERIALIZABLE', {next_level})"
            change.append(f"@@{level} = {next_level}")
        restore = [f"SESSION {name} = @{prefix}_{name}" for name in names]
        return with_settings(connection, f"SET {', '.join(change)}", f"SET {', '.join(restore)}")

    def bound_session(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        """Bound the waits of a connection of one's own: see :meth:`Dialect.bound_session`."""
        names = _MARIADB_BOUNDS if self.is_mariadb(connection) else _MYSQL_BOUNDS
        bounds = ", ".join(f"SESSION {name} = {limit}" for name, limit in _limits(names, seconds).items())
        connection.execute(text("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        connection.execute(text(f"SET {bounds}"))
        return True

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        """Return the bounds of ``connect``, and of each reply after it."""
        return {"connect_timeout": math.ceil(seconds), "read_timeout": seconds, "write_timeout": seconds}

    def break_off(self, driver_connection: Any) -> None:
        """Shut the socket: see :meth:`Dialect.break_off`."""
        _shut(driver_connection._sock.fileno())

    def is_open(self, connection: Connection) -> bool:
        """Return whether the server's last reply reported an open transaction."""
        driver: Any = connection.connection.driver_connection
        return bool(driver.server_status & _IN_TRANSACTION)

    def begins_by_itself(self, connection: Connection) -> bool:
        """Return False: a session does not, after the block has sent ``SET autocommit = 1``."""
        return False

    @staticmethod
    def is_mariadb(connection: Connection) -> bool:
        """Return whether the server is MariaDB, not MySQL."""
        return bool(connection.dialect.is_mariadb)  # type: ignore[attr-defined]

    def close_socket(self, driver_connection: Any) -> None:
        """Close the socket at once."""
        driver_connection.close()

    def _kind(self, connection: Connection) -> str:
        return "MariaDB" if self.is_mariadb(connection) else "MySQL"


def _limits(names: tuple[str, ...], seconds: float) -> dict[str, str]:
    """Return the values of MariaDB's and MySQL's bounds."""
    whole_seconds, exact_seconds = max(1, math.ceil(seconds)), max(seconds, LEAST_SECONDS)
    return {name: f"{exact_seconds:.6f}" if name == "max_statement_time" else str(whole_seconds) for name in names}


class SQLite(Dialect):
    """SQLite, through Python's sqlite3 or aiosqlite."""

    names = ("sqlite",)

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Bound the waits of the connection for the whole block, with its busy time-out."""
        before = ask(connection, "PRAGMA busy_timeout")
        return with_settings(
            connection, f"PRAGMA busy_timeout = {milliseconds(seconds)}", f"PRAGMA busy_timeout = {before}"
        )

    def bound_session(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        """Bound the waits of a connection of one's own: see :meth:`Dialect.bound_session`."""
        connection.execute(text(f"PRAGMA busy_timeout = {milliseconds(seconds)}"))
        return True

    def session_seconds(self, seconds: float) -> float:
        """Return the exact bound: a change costs no round trip."""
        return seconds

    def is_open(self, connection: Connection) -> bool:
        """Return whether sqlite3 reports an open transaction."""
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)

    def begins_by_itself(self, connection: Connection) -> bool:
        """Return False: it depends on the engine's set-up."""
        return False

    def close_socket(self, driver_connection: Any) -> None:
        """Do nothing: there is no server to wait for."""

    def _kind(self, connection: Connection) -> str:
        return "SQLite"


def _shut(fileno: int) -> None:
    with socket.socket(fileno=os.dup(fileno)) as copy, suppress(OSError):  # it may be closed already
        copy.shutdown(socket.SHUT_RDWR)


DIALECTS: tuple[Dialect, ...] = (PostgreSQL(), MySQL(), SQLite())


def dialect_of(engine: Engine) -> Dialect:
    """Return the kind of database of a supported engine."""
    return next(each for each in DIALECTS if engine.dialect.name in each.names)
