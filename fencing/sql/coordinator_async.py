"""The async coordinator whose locks are in a table of a SQL database."""

from __future__ import annotations

from typing import Any, Unpack

# SYNC: from sqlalchemy import Engine
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine  # ASYNC

from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel.effects import run_async
from fencing.locks.settings import AsyncCoordinatorOptions
from fencing.locks.signatures import show_options
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.sql.connections_async import AsyncConnections
from fencing.sql.listener_async import AsyncListener
from fencing.sql.own_engine import OwnEngine, not_an_engine
from fencing.sql.plans import SQLPlans
from fencing.sql.table import Request


class AsyncSQLBackend(SQLPlans):
    """The backend of a table for asyncio, with connections of its own."""

    def __init__(self, engine: AsyncEngine, schema: str | None) -> None:
        # SYNC instead: self._engine = OwnEngine(engine, schema)
        self._engine = OwnEngine(engine.sync_engine, schema)
        self._connections = AsyncConnections(self._engine)
        self.listener = AsyncListener(self._engine, self._connections.perform)
        self.address, self.location = self._engine.address, self._engine.location

    @property
    def metadata(self) -> MetaData:
        """The table's metadata."""
        return self._engine.locks.metadata

    async def perform(self, effect: Request | Enlist | Wait | Leave) -> Any:
        """Perform one request at the table, or one step of waiting."""
        if isinstance(effect, Request):
            return await self._connections.perform(effect)
        return await self.listener.perform(effect)

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self.listener.close()
        await self._connections.close()


class AsyncSQLCoordinator(AsyncCoordinator):
    """A coordinator for asyncio whose locks are in a table of a SQL database. Make one per process and database.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    the database loses data. The guards make data safe: they refuse every holder but the newest.

    On PostgreSQL a release wakes a waiter; elsewhere waiters ask again after 10 to 200 ms. No order is promised. The
    database's clock alone ends leases. On SQLite the table is created at its first use; elsewhere call
    :meth:`create_tables` once.

    Args:
        engine: from ``create_async_engine``: ``postgresql+psycopg``, ``postgresql+asyncpg``, ``mysql+aiomysql``,
            ``mariadb+aiomysql`` or ``sqlite+aiosqlite``. The coordinator opens up to 8 connections of its own per event
            loop, with the engine's settings. It does not use the engine's pool.
        schema: the schema of the table (on MariaDB and MySQL a database; on SQLite an attached file). None: the
            connection's own.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`: ``ttl`` (10 seconds by default),
            ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner``; and ``prefix``.

    Raises:
        TypeError, ValueError: an argument has a wrong value, or the driver or pool is not supported. Correct it as the
            message says.
    """

    # SYNC "Make one": Thread-safe; make one
    # SYNC "``postgresql+asyncpg``, ... ``sqlite+aiosqlite``.": ``mysql+pymysql``, ``mariadb+pymysql`` or ``sqlite``.
    # SYNC "of its own per event loop,": of its own

    __module__ = "fencing"

    _backend: AsyncSQLBackend
    _shared_by_clients = staticmethod(SQLPlans.shared_by_clients)

    @show_options(AsyncCoordinatorOptions)
    def __init__(
        self, engine: AsyncEngine, *, schema: str | None = None, **options: Unpack[AsyncCoordinatorOptions]
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise TypeError(not_an_engine(engine, "AsyncSQLCoordinator", "an AsyncEngine"))
        # SYNC: if engine.dialect.is_async:
        # SYNC:     raise TypeError("this is the sync part of an async engine; pass the engine to AsyncSQLCoordinator")
        super().__init__(AsyncSQLBackend(engine, schema), **options)

    @property
    def metadata(self) -> MetaData:
        """The table's metadata, for Alembic: ``target_metadata = [my_metadata, coordinator.metadata]``."""
        return self._backend.metadata

    async def create_tables(self) -> None:
        """Create the table of locks where it is missing. Two processes may do it at once.

        Raises:
            CoordinatorUnavailable: no answer, or the user may not create tables. Retry, or change its privileges.
        """
        await run_async(self._backend.plan_create(), self._backend.perform)

    async def prune(self, *, older_than: float) -> int:
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
        return await run_async(self._backend.plan_prune(older_than), self._backend.perform)
