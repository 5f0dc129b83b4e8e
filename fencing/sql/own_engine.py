"""Connections of a coordinator's own, with the settings of the user's engine: bounded, and in autocommit.

The user's pool is never asked for a connection. It may be empty just because its users wait for a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from fencing.kernel import process
from fencing.kernel.sockets import shut_down
from fencing.sql.connecting import connecting, hook
from fencing.sql.dialects import Dialect, PostgreSQL, dialect_of, unsupported
from fencing.sql.direct import ConnectionToFile, DirectConnection
from fencing.sql.errors import UNDEFINED_TABLE
from fencing.sql.failures import state_of_failure
from fencing.sql.files import follow, opened_by, require_same
from fencing.sql.sessions import SESSIONS, Sessions
from fencing.sql.statements import LOCKS
from fencing.sql.table import Request, SQLLocks

MAX_CONNECTIONS = 8
"""How many connections a coordinator opens; with asyncio, for each event loop."""

GRACE_SECONDS = 0.1
"""How much later than the database the client ends a request, so that the database's own answer comes first."""

_LIMITS = text(f"SELECT {PostgreSQL.LIMITS}")


def break_off(sessions: Sessions, driver_connection: Any) -> None:
    """Shut a connection's socket, from another thread."""
    with suppress(Exception):
        sessions.break_off(driver_connection)


class OwnConnection:
    """A connection of a coordinator, outside any pool. Each request is committed by itself.

    Args:
        connection: in autocommit. It is detached from its pool.
        dialect: its kind of database.
        locks: the table of locks.

    Attributes:
        driver_connection: the driver's own connection.
    """

    def __init__(self, connection: Connection, dialect: Dialect, locks: SQLLocks) -> None:
        self._connection = connection
        self._dialect, self._locks = dialect, locks
        self._sessions = SESSIONS[type(dialect)]
        self._dbapi_connection: Any = connection.connection.dbapi_connection
        self.driver_connection: Any = connection.connection.driver_connection
        self._files = opened_by(connection)
        connection.detach()
        if not connection.dialect.is_async:
            self._sessions.let_in(self.driver_connection)
        self._direct = (ConnectionToFile if locks.is_embedded else DirectConnection)(connection)
        self._seconds = 0.0
        self._is_shared = False

    def perform(self, request: Request) -> Any:
        """Perform a request. On SQLite, create the table first if it is missing.

        Raises:
            OSError: its file of SQLite was replaced, so the request had no effect that others see.
        """
        self._bound(request.timeout)
        self._direct.deadline = process.now() + request.timeout
        if not self._locks.is_embedded:
            return self._perform(request)
        require_same(self._files)
        reply = self._perform_on_file(request)
        require_same(self._files)
        return reply

    def _perform_on_file(self, request: Request) -> Any:
        try:
            return self._perform(request)
        except DBAPIError as error:
            if state_of_failure(error) != UNDEFINED_TABLE:
                raise
        self._perform(Request("create", {}, request.timeout))
        return self._perform(request)

    def _perform(self, request: Request) -> Any:
        if not self._is_shared:
            return self._locks.perform(self._direct, request)
        with self._connection.begin():
            self._connection.execute(_LIMITS, PostgreSQL.limit(request.timeout))
            return self._locks.perform(self._connection, request)

    def _bound(self, seconds: float) -> None:
        bound = self._sessions.bound_for(seconds)
        if self._is_shared or bound == self._seconds:
            return
        if not self._sessions.bound(self._connection, self.driver_connection, bound):
            self._connection.rollback()
            self._connection.dialect.set_isolation_level(self._dbapi_connection, "READ COMMITTED")
            self._is_shared = True
        self._seconds = bound

    def break_off(self) -> None:
        """End a call of another thread that waits for the server."""
        break_off(self._sessions, self.driver_connection)

    def shut(self) -> None:
        """End what waits on the socket. Close the connection afterwards."""
        with suppress(Exception):
            self._dialect.shut_socket(self.driver_connection)

    def hang_up(self) -> None:
        """Close the socket at once. No task may wait on it. If its loop is closed already, it is only shut."""
        number = None
        try:
            number = self._dialect.socket_number(self.driver_connection)
            self._dialect.close_socket(self.driver_connection)
        except Exception:  # noqa: BLE001 - asyncio closes none on a closed loop
            if number is not None:
                with suppress(Exception):
                    shut_down(lambda: number)

    def close(self) -> None:
        """Close the connection, also a broken one."""
        with suppress(Exception):
            self._connection.engine.dialect.do_terminate(self._dbapi_connection)


class OwnEngine:
    """The source of a coordinator's connections.

    Args:
        engine: a user's, which is copied, and not referenced; of an async engine the sync one in it.
        schema: of the table; None: the connection's own.
    """

    def __init__(self, engine: Engine, schema: str | None) -> None:
        if schema is not None and not isinstance(schema, str):
            raise TypeError(f"schema must be a str, not {type(schema).__name__}")
        if schema == "":
            raise ValueError("schema must not be empty; leave it out for the connection's own")
        reason = unsupported(engine)
        if reason is not None:
            raise TypeError(reason)
        self.dialect = dialect_of(engine)
        self.locks = LOCKS[type(self.dialect)](schema, engine.dialect)
        self.address = engine.url.host or engine.url.database or "its address"
        if engine.url.port is not None:
            self.address += f":{engine.url.port}"
        self.location = engine.url.render_as_string(hide_password=True)
        self._engine = self._copy(engine)
        follow(self._engine)
        hook(self._engine)

    def open(self, seconds: float, watched: Callable[[Callable[[], None]], None] | None = None) -> OwnConnection:
        """Open a connection. An async engine needs to be asked in a greenlet of SQLAlchemy's.

        Args:
            seconds: for connecting.
            watched: is told how to break the connection off, while its first requests are under way.
        """
        bounds, notify = None, None
        if not self._engine.dialect.is_async:  # an event loop bounds it itself, and its tasks share the thread
            sessions = SESSIONS[type(self.dialect)]
            bounds = sessions.connect_bounds(seconds)
            if watched is not None:
                notify = lambda made: watched(partial(break_off, sessions, made))  # noqa: E731
        with connecting(self._engine, bounds, notify):
            # From a pool of its own, that lives for this moment: no other thread can use it up.
            connection = self._copy(self._engine).connect()
        try:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            return OwnConnection(connection, self.dialect, self.locks)
        except BaseException as error:
            connection.invalidate(error)  # a cancelled task, too, would leave it to the garbage collector
            if isinstance(error, connection.dialect.loaded_dbapi.Error):  # to MariaDB, whose errors pass SQLAlchemy by
                raise DBAPIError(None, None, error, connection_invalidated=True) from error
            raise

    @staticmethod
    def _copy(engine: Engine) -> Engine:
        return Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True)


def not_an_engine(given: object, coordinator: str, wanted: str) -> str:
    """Return the text of the error for an argument that is not an engine of the wanted kind."""
    hint = ""
    if isinstance(getattr(given, "sync_engine", None), Engine):
        hint = "; for asyncio use AsyncSQLCoordinator or AsyncFencedLock"
    elif isinstance(given, Engine):
        hint = "; for threads use SQLCoordinator or FencedLock"
    elif isinstance(given, str):
        hint = f"; write {'create_async_engine' if 'Async' in wanted else 'create_engine'}(...)"
    return f"{coordinator} takes {wanted} of SQLAlchemy, not {type(given).__name__}{hint}"
