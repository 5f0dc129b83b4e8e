"""The differences of databases and drivers: which are supported, how waits are bounded, what an open transaction is.

Code asks for the name of a database or driver only here, and where it chooses one of these classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.sockets import shut_down
from fencing.sql.client import ask, milliseconds, with_settings

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

LONGEST_SECONDS = 3600.0
"""How long a transaction may take on PostgreSQL, unless the user has set another bound."""

_MOST_MILLISECONDS = 2**31 - 1
"""The longest bound of PostgreSQL's."""

# MariaDB's and MySQL's bounds in whole seconds: for waits for rows and for tables, and for clients that stop while they
# receive rows or while they send.
_MYSQL_BOUNDS = ("innodb_lock_wait_timeout", "lock_wait_timeout", "net_write_timeout", "net_read_timeout")
# MariaDB only: for clients that stop between two statements (the second one counts instead, once the transaction has
# written), and for each statement, which is not in whole seconds.
_MARIADB_IDLE_BOUNDS = ("idle_transaction_timeout", "idle_write_transaction_timeout")
_MARIADB_BOUNDS = (*_MYSQL_BOUNDS, *_MARIADB_IDLE_BOUNDS, "max_statement_time")


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

    def refuses_within(self, seconds: float) -> float:
        """Return in how many seconds the database itself ends a wait that is bounded by so many."""
        return seconds

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
        """Shut the socket of a connection at once, as :meth:`shut_socket` does."""
        if connection is not None and not connection.closed and not connection.invalidated:
            self.shut_socket(connection.connection.driver_connection)

    def shut_socket(self, driver_connection: Any) -> None:
        """End what waits on the socket, without a message to the server. The connection is broken then."""
        self.close_socket(driver_connection)

    @abstractmethod
    def close_socket(self, driver_connection: Any) -> None:
        """Close the socket at once. No thread or task may wait on it."""

    def socket_number(self, driver_connection: Any) -> int | None:
        """Return the number of the connection's socket; None: it has none."""
        return None

    @abstractmethod
    def _kind(self, connection: Connection) -> str: ...


class PostgreSQL(Dialect):
    """PostgreSQL, through psycopg 3 or asyncpg."""

    names = ("postgresql",)

    LIMITS = (
        "set_config('statement_timeout', :limit, true), "
        "set_config('lock_timeout', :limit, true), "
        "set_config('idle_in_transaction_session_timeout', :limit, true), "
        "set_config('tcp_user_timeout', :limit, true), "
        "CASE current_setting('transaction_timeout', true) WHEN '0' "
        "THEN set_config('transaction_timeout', :longest, true) END"
    )
    """The bounds of a transaction: select them in it, with :meth:`limit`; they are valid until its end.

    The first bounds each statement, and so each wait for a lock. The second bounds waits for locks where a block
    removes the first for a slow statement. The third ends the session of a client that stops between two statements.
    The fourth ends the session of a client that stops while it receives rows, which the others do not notice. The fifth
    ends the session of a client that stops while it sends, as asyncpg's may between two parts of a new statement. Only
    PostgreSQL 17 and later have it (https://www.postgresql.org/docs/17/runtime-config-client.html), and a bound of the
    user's own counts instead.
    """

    @staticmethod
    def limit(seconds: float) -> dict[str, str]:
        """Return the parameters of LIMITS for a bound in seconds."""
        longest = min(milliseconds(max(LONGEST_SECONDS, 2 * seconds)), _MOST_MILLISECONDS)
        return {"limit": str(milliseconds(seconds)), "longest": str(longest)}

    def bounded_waits(
        self, connection: Connection, seconds: float, *, begins: bool = True, read_committed: bool = False
    ) -> AbstractContextManager[None]:
        """Do nothing: on PostgreSQL, bounds belong to the transaction."""
        return nullcontext()

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

    def shut_socket(self, driver_connection: Any) -> None:
        """End what waits on the socket. The loop has psycopg's by its number: once that is closed, another has it."""
        if not hasattr(driver_connection, "pgconn"):  # asyncpg
            driver_connection.terminate()
        elif not driver_connection.closed:
            shut_down(lambda: driver_connection.pgconn.socket)

    def close_socket(self, driver_connection: Any) -> None:
        """Close the socket at once."""
        if hasattr(driver_connection, "pgconn"):  # psycopg
            driver_connection.pgconn.finish()
        else:
            driver_connection.terminate()

    def socket_number(self, driver_connection: Any) -> int | None:
        """Return the number of the connection's socket."""
        if hasattr(driver_connection, "pgconn"):  # psycopg
            return int(driver_connection.pgconn.socket)
        return int(driver_connection._transport.get_extra_info("socket").fileno())  # asyncpg (seen in 0.32)

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
        settings = mysql_settings(self.is_mariadb(connection), seconds, begins=begins, read_committed=read_committed)
        return with_settings(connection, *settings)

    def refuses_within(self, seconds: float) -> float:
        """Return a second more than the whole seconds that it counts: it checks once in a second."""
        return math.ceil(seconds) + 1.0

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
        """Close the socket at once. aiomysql takes only the end of its transport for an error of the connection."""
        writer = getattr(driver_connection, "_writer", None)
        if writer is None:
            driver_connection.close()
        else:
            writer.transport.abort()

    def socket_number(self, driver_connection: Any) -> int | None:
        """Return the number of the connection's socket."""
        writer = getattr(driver_connection, "_writer", None)
        sock = driver_connection._sock if writer is None else writer.transport.get_extra_info("socket")
        return int(sock.fileno())

    def _kind(self, connection: Connection) -> str:
        return "MariaDB" if self.is_mariadb(connection) else "MySQL"


def mysql_settings(
    is_mariadb: bool, seconds: float, *, begins: bool = True, read_committed: bool = False
) -> tuple[str, str]:
    """Return the statement that bounds a session of MariaDB or MySQL, and the one that restores what was there before.

    See :meth:`Dialect.bounded_waits` for the arguments.
    """
    limits = mysql_limits(is_mariadb, seconds)
    if not is_mariadb:
        # MySQL has no bound for idle transactions alone. A session that goes back to its pool needs its own again.
        limits["wait_timeout"] = limits["lock_wait_timeout"]
    prefix = "fencing" if begins else "fencing_joined"  # a block around a joined transaction may have set bounds
    change = [f"@{prefix}_{name} = @@SESSION.{name}" for name in limits]
    change += [f"SESSION {name} = {limit}" for name, limit in limits.items()]
    if begins:
        level = "tx_isolation" if is_mariadb else "transaction_isolation"
        # Without SESSION it applies only to the next transaction.
        next_level = "'READ-COMMITTED'"
        if not read_committed:
            next_level = f"IF(@@SESSION.{level} = 'SERIALIZABLE', 'SERIALIZABLE', {next_level})"
        change.append(f"@@{level} = {next_level}")
    restore = [f"SESSION {name} = @{prefix}_{name}" for name in limits]
    return f"SET {', '.join(change)}", f"SET {', '.join(restore)}"


def mysql_limits(is_mariadb: bool, seconds: float) -> dict[str, str]:
    """Return the bounds of a session of MariaDB or MySQL, by their names."""
    names = _MARIADB_BOUNDS if is_mariadb else _MYSQL_BOUNDS
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

    def is_open(self, connection: Connection) -> bool:
        """Return whether sqlite3 reports an open transaction."""
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)

    def begins_by_itself(self, connection: Connection) -> bool:
        """Return False: it depends on the engine's set-up."""
        return False

    @staticmethod
    def is_aiosqlite(connection: Connection) -> bool:
        """Return whether this is a connection of aiosqlite."""
        return connection.dialect.driver == "aiosqlite"

    def close_socket(self, driver_connection: Any) -> None:
        """Do nothing: there is no server to wait for."""

    def _kind(self, connection: Connection) -> str:
        return "SQLite"


DIALECTS: tuple[Dialect, ...] = (PostgreSQL(), MySQL(), SQLite())


def dialect_of(engine: Engine) -> Dialect:
    """Return the kind of database of a supported engine."""
    return next(each for each in DIALECTS if engine.dialect.name in each.names)


def connect_watched(dialect: Any, args: Any, options: dict[str, Any], watched: Callable[[Any], object] | None) -> Any:
    """Connect by the driver, and tell ``watched`` of the connection as early as the driver lets one.

    PyMySQL has no bound for a login that comes byte by byte; so its connection is told before it is open. psycopg's
    ``connect_timeout`` bounds all of it.
    """
    early = dialect.driver == "pymysql" and not options.get("defer_connect")
    made = dialect.connect(*args, **({**options, "defer_connect": True} if early else options))
    if watched is not None:
        watched(made)
    if early:
        made.connect()
    return made
