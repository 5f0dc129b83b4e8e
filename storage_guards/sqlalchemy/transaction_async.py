"""The run of a guarded transaction on an asyncio connection, which wraps a plain one."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from storage_guards.sql.shield import finish_within
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction

T = TypeVar("T")


class AsyncGuardedBlock:
    """The run of ``transaction.on`` for the asyncio connection that wraps a plain one.

    Its end, the COMMIT or the ROLLBACK, runs until it has an answer, whatever is cancelled: see ``sql/shield.py``.
    """

    def __init__(self, connection: AsyncConnection, transaction: SQLAlchemyTransaction) -> None:
        self._connection = connection
        self._transaction = transaction

    async def __aenter__(self) -> None:
        self._manager = await in_greenlet(self._connection, self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def leave(_: Connection) -> None:
            self._manager.__exit__(kind, error, trace)

        end = self._connection.run_sync(leave)
        interruption, failure = await finish_within(end, self._transaction.seconds, self._hang_up)
        if isinstance(error, asyncio.CancelledError):
            _drop_cursors(error)
        self._transaction.raise_outcome(interruption, failure, error)

    def _enter(self, connection: Connection) -> AbstractContextManager[Connection]:
        manager = self._transaction.on(connection)
        manager.__enter__()
        return manager

    def _hang_up(self) -> None:
        self._transaction.hang_up(self._connection.sync_connection)


async def in_greenlet(connection: AsyncConnection, function: Callable[[Connection], T]) -> T:
    """Run the function as ``connection.run_sync`` does. A cancellation leaves nothing locked."""
    try:
        return await connection.run_sync(function)
    except asyncio.CancelledError as error:
        _drop_cursors(error)
        raise


def _drop_cursors(cancelled: asyncio.CancelledError) -> None:
    """Drop the cursors that the frames of a cancelled statement keep alive.

    SQLAlchemy closes a connection whose statement was cancelled. But SQLite's connection, with its write lock, lives
    until its last unfinished statement is gone (https://www.sqlite.org/c3ref/close.html). Without this call that would
    be at the next full run of the garbage collector.
    """
    traceback.clear_frames(cancelled.__traceback__)
