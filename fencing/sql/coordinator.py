# Made from coordinator_async.py by `make faces`: change that file, not this one.
"""The sync coordinator whose locks are in a table of a SQL database."""

from __future__ import annotations

from typing import Any, Unpack

from sqlalchemy import Engine, MetaData

from fencing.coordinator import Coordinator
from fencing.kernel.effects import run
from fencing.locks.settings import CoordinatorOptions
from fencing.locks.signatures import show_options
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.sql.connections import Connections
from fencing.sql.listener import Listener
from fencing.sql.own_engine import OwnEngine, not_an_engine
from fencing.sql.plans import SQLPlans
from fencing.sql.table import Request


class SQLBackend(SQLPlans):
    """The backend of a table, with connections of its own."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine = OwnEngine(engine, schema)
        self._connections = Connections(self._engine)
        self.listener = Listener(self._engine, self._connections.perform)
        self.address, self.location = self._engine.address, self._engine.location

    @property
    def metadata(self) -> MetaData:
        """The table's metadata."""
        return self._engine.locks.metadata

    def perform(self, effect: Request | Enlist | Wait | Leave) -> Any:
        """Perform one request at the table, or one step of waiting."""
        if isinstance(effect, Request):
            return self._connections.perform(effect)
        return self.listener.perform(effect)

    def close(self) -> None:
        """Close the connections."""
        self.listener.close()
        self._connections.close()


class SQLCoordinator(Coordinator):
    """A coordinator whose locks are in a table of a SQL database. Thread-safe; make one per process and database.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    the database loses data. The guards make data safe: they refuse every holder but the newest.

    On PostgreSQL a release wakes a waiter; elsewhere waiters ask again after 10 to 200 ms. No order is promised. The
    database's clock alone ends leases. On SQLite the table is created at its first use; elsewhere call
    :meth:`create_tables` once.

    Args:
        engine: from ``create_engine``: ``postgresql+psycopg``, ``mysql+pymysql``, ``mariadb+pymysql`` or ``sqlite``.
            The coordinator opens up to 8 connections of its own with the engine's settings. It does not use the
            engine's pool.
        schema: the schema of the table (on MariaDB and MySQL a database; on SQLite an attached file). None: the
            connection's own.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default),
            ``guards``, ``renew``, ``max_lifetime``, ``owner``; and ``prefix``.

    Raises:
        TypeError, ValueError: an argument has a wrong value, or the driver or pool is not supported. Correct it as the
            message says.
    """

    __module__ = "fencing"

    _backend: SQLBackend
    _shared_by_clients = staticmethod(SQLPlans.shared_by_clients)

    @show_options(CoordinatorOptions)
    def __init__(self, engine: Engine, *, schema: str | None = None, **options: Unpack[CoordinatorOptions]) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(not_an_engine(engine, "SQLCoordinator", "an Engine"))
        if engine.dialect.is_async:
            raise TypeError("this is the sync part of an async engine; pass the engine to AsyncSQLCoordinator")
        super().__init__(SQLBackend(engine, schema), **options)

    @property
    def metadata(self) -> MetaData:
        """The table's metadata, for Alembic: ``target_metadata = [my_metadata, coordinator.metadata]``."""
        return self._backend.metadata

    def create_tables(self) -> None:
        """Create the table of locks where it is missing. Two processes may do it at once.

        Raises:
            CoordinatorUnavailable: no answer, or the user may not create tables. Retry, or change its privileges.
        """
        run(self._backend.plan_create(), self._backend.perform)

    def prune(self, *, older_than: float) -> int:
        """Delete the rows of free locks that were not granted for a long time.

        A row stays when its lock is free. A table of many names that never come back grows, until it is pruned. No
        number is minted twice: the highest number among the deleted rows stays in a row of its own, the **floor**. A
        new row begins above it. Held locks stay, and so do rows whose number is not as far behind the clock.

        Each request deletes 1000 rows at most, and blocks no other lock. The user needs the privilege to DELETE.

        Args:
            older_than: delete rows whose last grant is so many seconds ago; 60 at least. Choose days.

        Returns:
            How many rows were deleted. After a lost reply, rows of that request are not counted.

        Raises:
            TypeError, ValueError: ``older_than`` is no number in range.
            CoordinatorUnavailable: no answer, or the privilege is missing. What was deleted stays deleted. Call it
                again.
        """
        return run(self._backend.plan_prune(older_than), self._backend.perform)
