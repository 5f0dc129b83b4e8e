"""The locks on PostgreSQL that are compared, each on connections of its own, and the database that they share."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event, text

from examples.servers import PostgresServer, start_postgres
from fencing import SQLCoordinator
from tests.benchmarks.contenders import AGAIN, OURS, Way, way_of

TWO_UPDATES = "two autocommit UPDATEs"
ADVISORY, FOR_UPDATE = "advisory lock", "SELECT FOR UPDATE"
DLOCK, PALS = "sqlalchemy-dlock", "PALs"
POLLING = f"{OURS}, polling"

_MODULES = {DLOCK: "sqlalchemy_dlock", PALS: "pals"}

RESOURCE = "orders:42"
SECONDS = 20.0
_UPDATE = text(f"UPDATE plain SET total = total + 1 WHERE name = '{RESOURCE}'")
_SELECT_FOR_UPDATE = text(f"SELECT total FROM plain WHERE name = '{RESOURCE}' FOR UPDATE")
_LOCK, _UNLOCK = text("SELECT pg_advisory_lock(42)"), text("SELECT pg_advisory_unlock(42)")
_SYNCS = ("Sync\n", "Query")
"""The last words of the messages of a client that the server answers. Each one is a round trip."""


def installed(kinds: list[str]) -> list[str]:
    """Return the kinds of locks whose libraries are installed."""
    return [kind for kind in kinds if kind not in _MODULES or importlib.util.find_spec(_MODULES[kind])]


class Database:
    """A new database with the tables, on a server that waits for the disk, and vacuums.

    Args:
        server: its server.
        synchronous: whether commits wait for the disk.
    """

    def __init__(self, server: PostgresServer, *, synchronous: bool) -> None:
        self.server = server
        self.url = server.create_database()
        self.admin = server.connect()
        self._clients: list[Engine | SQLCoordinator] = []
        self.set_synchronous(synchronous)
        with self.engine().begin() as connection:
            connection.execute(text("CREATE TABLE plain (name TEXT PRIMARY KEY, total BIGINT) WITH (fillfactor = 50)"))
            connection.execute(text(f"INSERT INTO plain VALUES ('{RESOURCE}', 0)"))
        self.coordinator().create_tables()

    def set_synchronous(self, synchronous: bool) -> None:
        """Let commits wait for the disk, or not: those of open connections, too."""
        self.admin.execute(f"ALTER SYSTEM SET synchronous_commit = {'on' if synchronous else 'off'}")
        self.admin.execute("SELECT pg_reload_conf()")

    def engine(self, **options: Any) -> Engine:
        """Return an engine of its own: libraries add hooks to theirs."""
        engine = create_engine(self.url, **options)
        self._clients.append(engine)
        return engine

    def coordinator(self, **options: Any) -> SQLCoordinator:
        coordinator = SQLCoordinator(self.engine(), **options)
        self._clients.append(coordinator)
        return coordinator

    def way(self, kind: str) -> Way:
        """Return how a worker takes and frees its lock, on connections of its own."""
        return _WAYS[kind.removesuffix(AGAIN)](self)

    def sessions(self) -> list[int]:
        """Return the processes of the clients' sessions."""
        asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return [int(pid) for (pid,) in self.admin.execute(asked).fetchall() if isinstance(pid, int)]

    def wal_bytes(self) -> int:
        """Return the bytes of the write-ahead log so far."""
        [written] = self.admin.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone() or [0]
        return int(str(written))

    def close(self) -> None:
        for each in reversed(self._clients):
            each.dispose() if isinstance(each, Engine) else each.close()
        self._clients.clear()


@contextmanager
def database(*, synchronous: bool) -> Iterator[Database]:
    settings = {"fsync": "on", "full_page_writes": "on"}
    with start_postgres(settings=settings, local=True) as server:
        made = Database(server, synchronous=synchronous)
        try:
            yield made
        finally:
            made.close()
            made.admin.close()


class Requests:
    """A count of the requests of all connections that are opened from now on. It slows them down."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fencing-bench-")
        self._file = (Path(self._directory.name) / "trace").open("a+b")

    def __enter__(self) -> Requests:
        event.listen(Engine, "connect", self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "connect", self._trace)

    def _trace(self, driver_connection: psycopg.Connection[Any], record: object) -> None:
        driver_connection.pgconn.trace(self._file.fileno())

    @property
    def count(self) -> int:
        """How many there were."""
        self._file.seek(0)
        sent = (line.decode().split("\t") for line in self._file if b"\tF\t" in line)
        return sum(message[3].startswith(_SYNCS) for message in sent)


def _fencing(database: Database) -> Way:
    return way_of(database.coordinator().lock(RESOURCE), SECONDS)


def _polling(database: Database) -> Way:
    coordinator = database.coordinator()
    coordinator._backend._engine.locks.notifies = False  # type: ignore[misc]  # as if the database had no LISTEN
    return way_of(coordinator.lock(RESOURCE), SECONDS)


def _two_updates(database: Database) -> Way:
    engine = database.engine(isolation_level="AUTOCOMMIT")

    def update() -> None:
        with engine.connect() as connection:
            connection.execute(_UPDATE)

    return Way(update, update)


def _advisory(database: Database) -> Way:
    connection = database.engine().connect().execution_options(isolation_level="AUTOCOMMIT")
    return Way(lambda: connection.execute(_LOCK), lambda: connection.execute(_UNLOCK))


def _for_update(database: Database) -> Way:
    connection = database.engine().connect()
    return Way(lambda: connection.execute(_SELECT_FOR_UPDATE), connection.commit)


def _dlock(database: Database) -> Way:
    create_sadlock = importlib.import_module("sqlalchemy_dlock").create_sadlock
    connection = database.engine().connect()
    locks: list[Any] = []

    def acquire() -> None:
        locks.append(create_sadlock(connection, RESOURCE))
        locks[-1].acquire()

    def release() -> None:
        locks.pop().release()
        connection.rollback()

    return Way(acquire, release)


def _pals(database: Database) -> Way:
    locker = importlib.import_module("pals").Locker("bench", create_engine_callable=database.engine)
    locks: list[Any] = []

    def acquire() -> None:
        locks.append(locker.lock(RESOURCE))
        assert locks[-1].acquire()

    return Way(acquire, lambda: locks.pop().release())


_WAYS: dict[str, Callable[[Database], Way]] = {
    OURS: _fencing,
    POLLING: _polling,
    TWO_UPDATES: _two_updates,
    ADVISORY: _advisory,
    FOR_UPDATE: _for_update,
    DLOCK: _dlock,
    PALS: _pals,
}
