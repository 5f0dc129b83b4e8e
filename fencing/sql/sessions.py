"""Sessions of one's own: bounded for good, for requests that are single statements, and broken off from outside."""

from __future__ import annotations

import math
import socket
import weakref
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from fencing.kernel.sockets import shut_down
from fencing.sql import dialects
from fencing.sql.client import milliseconds
from fencing.sql.dialects import MySQL, PostgreSQL, mysql_limits

T = TypeVar("T")

BUSY_SECONDS = 0.003
"""How long SQLite itself waits for a file that is locked: in steps of 1 and 2 ms."""

LEFT_SECONDS = 0.5
"""How soon PostgreSQL ends a statement whose client has left: one that waits for a row would take the lock later."""

# Behind a pooler of transactions, the settings would reach other clients. The id of the session shows a pooler: it is
# not the one of the server's process.
_BOUND_POSTGRESQL = text("""
    SELECT name, set_config(name, CASE name WHEN 'default_transaction_isolation' THEN 'read committed'
        WHEN 'client_connection_check_interval' THEN :left ELSE :limit END, false)
    FROM pg_settings
    WHERE pg_backend_pid() = :session AND name IN ('statement_timeout', 'lock_timeout', 'tcp_user_timeout',
        'client_connection_check_interval', 'default_transaction_isolation')
""")


class Sessions:
    """The sessions of one kind of database. This is the one without a server."""

    def bound(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        """Bound the waits of a session, and make its transactions READ COMMITTED.

        Args:
            connection: in autocommit.
            driver_connection: the driver's.
            seconds: the bound.

        Returns:
            False: nothing was changed, because the session is shared with other clients. Bound each transaction.
        """
        connection.execute(text(f"PRAGMA busy_timeout = {milliseconds(seconds)}"))
        return True

    def bound_for(self, seconds: float) -> float:
        """Return the bound of a session for requests that may take this many seconds.

        On SQLite it is short: see ``ConnectionToFile``.
        """
        return BUSY_SECONDS

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        """Return the arguments of the sync driver's ``connect`` that bound it."""
        return {}

    def break_off(self, driver_connection: Any) -> None:
        """Shut the socket, so that a sync call that waits on it in another thread ends with an error."""

    def let_in(self, driver_connection: Any) -> None:
        """Have exceptions that another thread throws into a waiting one raised while it waits, if the driver can."""


class _ServerSessions(Sessions):
    def bound_for(self, seconds: float) -> float:
        """Return a power of two: a change costs a round trip. The client itself ends each request in time."""
        return float(2 ** math.ceil(math.log2(seconds)))


class _PostgreSQLSessions(_ServerSessions):
    def bound(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        if PostgreSQL.is_psycopg(connection):
            session = driver_connection.info.backend_pid
        else:
            session = driver_connection.get_server_pid()
        left = str(milliseconds(min(seconds, LEFT_SECONDS)))
        values = {**PostgreSQL.limit(seconds), "left": left, "session": session}
        return bool(connection.execute(_BOUND_POSTGRESQL, values).all())

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        return {"connect_timeout": math.ceil(seconds)}  # psycopg takes 1 for 2

    def break_off(self, driver_connection: Any) -> None:
        shut_down(lambda: driver_connection.pgconn.socket)

    def let_in(self, driver_connection: Any) -> None:
        """psycopg waits in C, and every 0.1 s asks its generators to go on. Theirs pass it on by ``yield from``, and
        there Python raises nothing: it does at a ``yield``.
        """
        wait, this = type(driver_connection).wait, weakref.ref(driver_connection)
        driver_connection.wait = lambda steps, *args, **options: wait(this(), _one_by_one(steps), *args, **options)


def _one_by_one(steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    ready = None
    while True:
        try:
            awaited = steps.send(ready)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        ready = yield awaited


class _MySQLSessions(_ServerSessions):
    def bound(self, connection: Connection, driver_connection: Any, seconds: float) -> bool:
        limits = mysql_limits(MySQL.is_mariadb(connection), seconds)
        connection.execute(text("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        settings = {"time_zone": "'+00:00'", **limits}
        connection.execute(text(f"SET {', '.join(f'SESSION {name} = {value}' for name, value in settings.items())}"))
        return True

    def connect_bounds(self, seconds: float) -> dict[str, float]:
        return {"connect_timeout": math.ceil(seconds), "read_timeout": seconds, "write_timeout": seconds}

    def break_off(self, driver_connection: Any) -> None:
        # The socket, not its number, which is another's after an end. And not as TLS would: it forgets its keys first.
        with suppress(OSError):
            socket.socket.shutdown(driver_connection._sock, socket.SHUT_RDWR)


SESSIONS: dict[type[dialects.Dialect], Sessions] = {
    PostgreSQL: _PostgreSQLSessions(),
    MySQL: _MySQLSessions(),
    dialects.SQLite: Sessions(),
}
