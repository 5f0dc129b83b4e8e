"""The run of a guarded transaction on an asyncio connection, which wraps a plain one."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.pool import QueuePool

from fencing.kernel import process
from fencing.kernel.effects import finish, require_asyncio
from fencing.sql.dialects import MySQL, SQLite, dialect_of
from fencing.sql.statement_thread import StatementThread
from storage_guards.bounds import LEAST_CONNECT_SECONDS
from storage_guards.sql.shield import GRACE, finish_within
from storage_guards.sql.transaction import NoAnswer
from storage_guards.sqlalchemy.errors import NoConnection, may_grow
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction, Waited

T = TypeVar("T")


class AsyncGuardedBlock:
    """The run of ``transaction.on`` for the asyncio connection that wraps a plain one.

    Its end, the COMMIT or the ROLLBACK, runs until it has an answer, whatever is cancelled: see ``sql/shield.py``.
    """

    def __init__(self, connection: AsyncConnection, transaction: SQLAlchemyTransaction) -> None:
        self._connection = connection
        self._transaction = transaction
        self._thread = StatementThread()

    async def __aenter__(self) -> None:
        seconds = self._transaction.seconds
        self._manager = await in_greenlet(self._connection, self._enter, self._thread, seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def leave(_: Connection) -> None:
            self._manager.__exit__(kind, error, trace)

        async def end_statement_and_leave() -> None:
            await self._thread.end_statement(self._transaction.seconds)
            await self._connection.run_sync(leave)

        # After an error a cancelled statement of the block may still be under way.
        end = self._connection.run_sync(leave) if error is None else end_statement_and_leave()
        interruption, failure = await finish_within(end, self._transaction.seconds, self._hang_up)
        _drop_cursors(error)
        self._transaction.raise_outcome(interruption, failure, error)

    def _enter(self, connection: Connection) -> AbstractContextManager[Connection]:
        self._thread.note(connection)
        manager = self._transaction.on(connection)
        manager.__enter__()
        return manager

    def _hang_up(self) -> None:
        self._transaction.hang_up(self._connection.sync_connection)


async def in_greenlet(
    target: AsyncConnection | AsyncSession, function: Callable[[Any], T], thread: StatementThread, seconds: float
) -> T:
    """Run the function as ``run_sync`` does. A cancellation leaves nothing locked, and no statement under way.

    Args:
        target: a connection or a session.
        function: it notes the connection's thread first.
        thread: for the function.
        seconds: the longest wait of a statement.
    """
    try:
        return await target.run_sync(function)
    except asyncio.CancelledError as error:
        try:
            await finish(thread.end_statement(seconds + GRACE))
        finally:
            _drop_cursors(error)
        raise


def _drop_cursors(error: BaseException | None) -> None:
    """Drop the cursors that the frames of a cancelled statement keep alive.

    SQLAlchemy closes a connection whose statement was cancelled. But SQLite's connection, with its write lock, lives
    until its last unfinished statement is gone (https://www.sqlite.org/c3ref/close.html). Without this call that would
    be at the next full run of the garbage collector.

    Args:
        error: the cancellation, or what came of it, such as the TimeoutError of ``asyncio.timeout``.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, asyncio.CancelledError):
            traceback.clear_frames(error.__traceback__)
        error = error.__context__


def async_lend(engine: AsyncEngine, seconds: float, waited: Waited | None = None) -> _AsyncLent:
    """Lend a connection of an asyncio engine for a block, as :func:`lend` does."""
    return _AsyncLent(engine, seconds, waited)


class _AsyncLent:
    """A connection that is lent for an ``async with``."""

    __slots__ = ("_connection", "_engine", "_seconds", "_waited")

    def __init__(self, engine: AsyncEngine, seconds: float, waited: Waited | None) -> None:
        self._engine, self._seconds, self._waited = engine, max(seconds, LEAST_CONNECT_SECONDS), waited
        self._connection = engine.connect()

    async def __aenter__(self) -> AsyncConnection:
        require_asyncio()
        process.pid()  # it notices a fork
        began = time.monotonic()
        bound = asyncio.timeout(None if _opens_at_once(self._engine.sync_engine) else self._seconds)
        try:
            async with bound:
                await self._connection.start()
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise NoConnection(self._engine.sync_engine, self._seconds) from error
        if self._waited is not None:
            self._waited(time.monotonic() - began)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine = self._engine.sync_engine
        dialect = dialect_of(engine)
        if not isinstance(dialect, MySQL):
            return await self._connection.__aexit__(kind, error, trace)
        # Its drivers ask the server as a connection goes back to its pool.
        seconds = dialect.refuses_within(self._seconds)
        interruption, failure = await finish_within(
            self._connection.close(), seconds, lambda: dialect.hang_up(self._connection.sync_connection)
        )
        if interruption is not None:
            raise interruption
        if failure is not None and not isinstance(failure, NoAnswer):
            raise failure
        return None


def _opens_at_once(engine: Engine) -> bool:
    """Return whether a connection is there at once. aiosqlite loses one whose opening is cancelled."""
    pool = engine.pool
    is_idle = isinstance(pool, QueuePool) and pool.checkedin() > 0
    return isinstance(dialect_of(engine), SQLite) and (is_idle or may_grow(pool))
