"""The two ends of a guarded transaction under asyncio, the second shielded from cancellation."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from storage_guards.sql_drivers import hang_up
from storage_guards.sql_transaction import GuardedTransaction

__all__ = ["InGreenlet", "in_greenlet"]

T = TypeVar("T")

_GRACE = 1.0
"""Seconds that the end of a transaction gets beyond its bound, so that the database's own refusal comes first; and what
a connection gets that was hung up."""


class InGreenlet:
    """Runs ``transaction.on`` on a plain connection for the asyncio connection that wraps it.

    Its end, the COMMIT or the ROLLBACK, is carried to an answer however often the task is cancelled, for as long as the
    transaction's bound allows; then the connection is hung up. Cancellations are delivered afterwards. A
    ``CancelledError`` whose ``__cause__`` is None came after a commit that happened; else the cause says what became of
    it: an ``OutcomeUnknown``, or the error by which the database refused it.
    """

    def __init__(self, connection: AsyncConnection, transaction: GuardedTransaction) -> None:
        self._connection = connection
        self._transaction = transaction

    async def __aenter__(self) -> None:
        self._manager = await in_greenlet(self._connection, self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        end = asyncio.ensure_future(self._connection.run_sync(lambda _: self._manager.__exit__(kind, error, trace)))
        cancelled = await _outlast(end, self._transaction.seconds + _GRACE)
        if not end.done():
            hang_up(self._connection.sync_connection)
            end.cancel()
            cancelled = await _outlast(end, _GRACE) or cancelled
        if isinstance(error, asyncio.CancelledError):
            _let_go(error)
        failure = _failure(end)
        if cancelled is not None and (failure is None or error is not None):
            raise cancelled
        if failure is None:
            return False
        if isinstance(failure, Exception) and cancelled is None:
            raise failure
        meaning = self._transaction.meaning(failure)
        if cancelled is not None:
            raise cancelled from meaning
        if meaning is None or meaning is error:
            return False
        raise meaning from failure

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


async def _outlast(task: asyncio.Future[Any], seconds: float) -> asyncio.CancelledError | None:
    """Wait for ``task`` whatever cancellations arrive, for so many seconds; the last of them."""
    cancelled = None
    deadline = time.monotonic() + seconds
    while not task.done() and (left := deadline - time.monotonic()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _failure(end: asyncio.Future[Any]) -> BaseException | None:
    if not end.done():
        return asyncio.CancelledError("not to be had back from the driver")
    if end.cancelled():
        return asyncio.CancelledError("hung up, or cancelled from elsewhere")
    return end.exception()
