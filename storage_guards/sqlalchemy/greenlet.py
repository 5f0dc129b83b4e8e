"""The two ends of a guarded transaction under asyncio, the second shielded from cancellation."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from storage_guards.sql.shield import carry, tell
from storage_guards.sqlalchemy.drivers import hang_up
from storage_guards.sqlalchemy.transaction import GuardedTransaction

__all__ = ["InGreenlet", "in_greenlet"]

T = TypeVar("T")


class InGreenlet:
    """Runs ``transaction.on`` on a plain connection for the asyncio connection that wraps it.

    Its end, the COMMIT or the ROLLBACK, is carried to an answer, whatever is cancelled: see ``sql/shield.py``.
    """

    def __init__(self, connection: AsyncConnection, transaction: GuardedTransaction) -> None:
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
        ended = await carry(end, self._transaction.seconds, lambda: hang_up(self._connection.sync_connection))
        if isinstance(error, asyncio.CancelledError):
            _let_go(error)
        tell(ended, error, self._transaction.meaning)

    def _enter(self, connection: Connection) -> AbstractContextManager[Connection]:
        manager = self._transaction.on(connection)
        manager.__enter__()
        return manager


async def in_greenlet(connection: AsyncConnection, function: Callable[[Connection], T]) -> T:
    """``connection.run_sync``, which leaves nothing locked when it is cancelled."""
    try:
        return await connection.run_sync(function)
    except asyncio.CancelledError as error:
        _let_go(error)
        raise


def _let_go(cancelled: asyncio.CancelledError) -> None:
    """Drop the cursors that the frames of a cancelled statement keep alive.

    SQLAlchemy closes a connection whose statement was cancelled. But SQLite's connection, and its write lock, live on
    until the last unfinished statement of it is gone (https://www.sqlite.org/c3ref/close.html), which without this
    would be the garbage collector's next full run.
    """
    traceback.clear_frames(cancelled.__traceback__)
