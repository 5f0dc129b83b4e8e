"""Empty databases for tests, used again and again: to create one costs thirty times as much as to empty one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
from psycopg.sql import SQL, Identifier

from examples.servers import PostgresServer
from tests.support.servers import MariaDBServer


class Databases:
    """The databases of one server that no test uses at the moment."""

    def __init__(self, server: PostgresServer | MariaDBServer) -> None:
        self._server = server
        self._free: list[str] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """Lend an empty database; yields its SQLAlchemy URL. What a test left in it is removed afterwards."""
        url = self._free.pop() if self._free else self._server.create_database()
        yield url
        if self._empty(url):
            self._free.append(url)
        else:
            self._server.drop_database(url)

    def _empty(self, url: str) -> bool:
        if isinstance(self._server, MariaDBServer):
            return _empty_mariadb(self._server, url)
        return _empty_postgres(url)


# Beyond tables, functions and types, which go with their schema.
_OTHER_TRACES = """
SELECT (SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('public', 'information_schema'))
  + (SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql')
  + (SELECT count(*) FROM pg_event_trigger)
  + (SELECT count(*) FROM pg_default_acl)
  + (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())
  + (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
    WHERE d.datname = current_database())
"""
_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def _empty_postgres(url: str) -> bool:
    """Empty it, and return whether it is as new."""
    dsn = urlsplit(url)._replace(scheme="postgresql").geturl()
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            if connection.execute(_OTHER_TRACES).fetchone() != (0,):
                return False
            connection.execute("SET lock_timeout = '5s'")
            connection.execute(_END_SESSIONS)
            connection.execute("SET client_min_messages = warning")
            old = connection.info.server_version < 150000
            owner = Identifier(connection.info.user if old else "pg_database_owner")
            with connection.transaction():
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute(SQL("CREATE SCHEMA public AUTHORIZATION {}").format(owner))
                connection.execute(f"GRANT {'ALL' if old else 'USAGE'} ON SCHEMA public TO PUBLIC")
    except psycopg.Error:
        return False
    return True


def _empty_mariadb(server: MariaDBServer, url: str) -> bool:
    """Empty it, and return whether it is as new."""
    name = urlsplit(url).path.removeprefix("/")
    server.end_sessions(name)
    tables = server.execute(
        f"SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = '{name}'"
    )
    routines = server.execute(f"SELECT 1 FROM information_schema.routines WHERE routine_schema = '{name}'")
    if routines or any(kind != "BASE TABLE" for _, kind in tables):
        return False
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET foreign_key_checks = 0")
        for table, _ in tables:
            cursor.execute(f"DROP TABLE `{name}`.`{table}`")
    return True
