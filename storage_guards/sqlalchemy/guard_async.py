"""The guard for SQL databases through SQLAlchemy 2, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, overload

from sqlalchemy import Engine, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)

from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence, HasFence
from storage_guards.sql.operations import AsyncOperations, Operation
from storage_guards.sqlalchemy.base import COUNT_ROWS, Parameters, SQLAlchemyBase, affected, check_writes
from storage_guards.sqlalchemy.retry import split_arguments
from storage_guards.sqlalchemy.session import async_session_on, check_factory
from storage_guards.sqlalchemy.transaction import AsyncGuardedBlock, SQLAlchemyTransaction, in_greenlet

T = TypeVar("T")
A = TypeVar("A", bound=AsyncSession)
AnyFence = Fence | HasFence


class AsyncSQLAlchemyGuard(SQLAlchemyBase, AsyncOperations):
    """:class:`~storage_guards.SQLAlchemyGuard`, which see, for asyncio; ``begin`` gives an ``AsyncConnection``.

    Args:
        engine: from ``create_async_engine``: ``postgresql+psycopg``, ``postgresql+asyncpg``, ``mysql+aiomysql`` or
            ``sqlite+aiosqlite``.
        timeout: as there.
    """

    def __init__(self, engine: AsyncEngine, *, timeout: float = 10.0) -> None:
        if isinstance(engine, Engine):
            raise TypeError("this is a sync Engine; use SQLAlchemyGuard")
        if not isinstance(engine, AsyncEngine):
            raise TypeError(f"an AsyncEngine is needed, not {type(engine).__name__}; use create_async_engine()")
        super().__init__(engine.sync_engine, timeout)
        self._engine = engine

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`SQLAlchemyGuard.claim`."""
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        async with self._run(transaction):
            pass

    @asynccontextmanager
    async def begin(self, *holders: Fence | HasFence, claim: bool = False) -> AsyncIterator[AsyncConnection]:
        """See :meth:`SQLAlchemyGuard.begin`, but for cancellation: the commit is carried to its answer first, within
        the guard's bound. If there was none, the ``CancelledError``'s ``__cause__`` is the ``OutcomeUnknown``; if the
        database refused it, that error; if it has none, the block is committed or was never finished."""
        async with self._run(self._transaction(holders, claim=claim, caller_block=True)) as connection:
            yield connection

    @overload
    def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: None = None
    ) -> AbstractAsyncContextManager[AsyncSession]: ...

    @overload
    def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: async_sessionmaker[A] | async_scoped_session[A]
    ) -> AbstractAsyncContextManager[A]: ...

    @asynccontextmanager
    async def session(self, *holders: Fence | HasFence, claim: bool = False, factory: Any = None) -> AsyncIterator[Any]:
        """See :meth:`SQLAlchemyGuard.session`, with an ``AsyncSession``; and :meth:`begin` for cancellation. Hooks at
        the block's end run in a task of their own, where an ``async_scoped_session`` by tasks has another session: they
        use the one that they are given."""
        check_factory(factory, self._engine.sync_engine, asynchronous=True)
        transaction = self._transaction(holders, claim=claim, caller_block=True)
        with transaction:
            async with (
                self._engine.connect() as connection,
                async_session_on(connection, transaction, factory) as session,
                AsyncGuardedBlock(connection, transaction),
            ):
                yield session

    @asynccontextmanager
    async def _run(self, transaction: SQLAlchemyTransaction) -> AsyncIterator[AsyncConnection]:
        with transaction:
            async with self._engine.connect() as connection, AsyncGuardedBlock(connection, transaction):
                yield connection

    async def run(
        self,
        *holders_then_function: *tuple[AnyFence, *tuple[AnyFence, ...], Callable[[AsyncConnection], Awaitable[T]]],
        claim: bool = False,
        attempts: int = 5,
    ) -> T:
        """See :meth:`SQLAlchemyGuard.run`; the function is asynchronous."""
        holders, function = split_arguments(holders_then_function)
        retries = self._retries(holders, attempts)
        while True:
            transaction = self._transaction(holders, claim=claim, max_seconds=retries.left(), caller_block=True)
            try:
                async with self._run(transaction) as connection:
                    running: Any = function(connection)
                    if not inspect.isawaitable(running):
                        raise TypeError("the function is not asynchronous; write it as async def")
                    result: T = await running
                return result
            except (DBAPIError, GuardUnavailable) as error:
                if not transaction.lost_race(error):
                    raise
                pause = retries.pause(error)
            await asyncio.sleep(pause)

    async def write(
        self, holder: Fence | HasFence, statement: Executable, parameters: Parameters = None, *, claim: bool = False
    ) -> int:
        """See :meth:`SQLAlchemyGuard.write`."""
        check_writes(statement)
        transaction = self._transaction((holder,), claim=claim, caller_block=self._may_end_the_transaction(statement))
        async with self._run(transaction) as connection:
            return affected(await connection.execute(statement, parameters, execution_options=COUNT_ROWS))

    async def advance(self, connection_or_session: AsyncConnection | AsyncSession, *holders: Fence | HasFence) -> None:
        """See :meth:`SQLAlchemyGuard.advance`."""
        if not isinstance(connection_or_session, (AsyncConnection, AsyncSession)):
            raise TypeError(
                f"advance takes an AsyncConnection or AsyncSession, not {type(connection_or_session).__name__}"
            )
        await connection_or_session.run_sync(self._advance, holders)

    async def _operate(self, operation: Operation) -> Any:
        with operation.errors:
            async with self._engine.connect() as connection:
                return await in_greenlet(connection, operation.work)
