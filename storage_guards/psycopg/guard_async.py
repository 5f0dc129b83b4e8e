"""The guard for PostgreSQL through psycopg 3 alone, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import Params

from fencing.kernel.fence import Fence, HasFence
from storage_guards.psycopg.base import PsycopgBase, Query, may_end_the_transaction
from storage_guards.psycopg.running import AsyncGuardedBlock, run_alone_async, run_async
from storage_guards.psycopg.sources import AsyncSource, async_connection_source
from storage_guards.sql.operations import AsyncOperations, Operation


class AsyncPsycopgGuard(PsycopgBase, AsyncOperations):
    """:class:`~storage_guards.PsycopgGuard`, which see, for asyncio; ``begin`` gives an ``AsyncConnection``.

    Args:
        source: an ``AsyncConnectionPool``, an ``AsyncConnection``, a connection string, or a function that returns an
            awaitable of a new connection.
        timeout: as there.
    """

    def __init__(self, source: AsyncSource, *, timeout: float = 10.0) -> None:
        super().__init__(timeout)
        self._borrow = async_connection_source(source)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`PsycopgGuard.claim`."""
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        with transaction:
            async with self._borrow(transaction.seconds) as connection:
                await run_alone_async(connection, transaction.plan_begin(connection), transaction.max_silence)

    @asynccontextmanager
    async def begin(self, *holders: Fence | HasFence, claim: bool = False) -> AsyncIterator[AsyncConnection[Any]]:
        """See :meth:`PsycopgGuard.begin`, but for cancellation: the commit is carried to its answer first, within the
        guard's bound. If there was none, the ``CancelledError``'s ``__cause__`` is the ``OutcomeUnknown``; if the
        database refused it, that error; if it has none, the block is committed or was never finished."""
        transaction = self._transaction(holders, claim=claim, caller_block=True)
        with transaction:
            async with self._borrow(transaction.seconds) as connection, AsyncGuardedBlock(connection, transaction):
                yield connection

    async def write(
        self, holder: Fence | HasFence, query: Query, params: Params | None = None, *, claim: bool = False
    ) -> int:
        """See :meth:`PsycopgGuard.write`."""
        transaction = self._transaction((holder,), claim=claim, caller_block=may_end_the_transaction(query))
        with transaction:
            async with self._borrow(transaction.seconds) as connection, AsyncGuardedBlock(connection, transaction):
                rows = (await connection.execute(query, params)).rowcount
        return rows

    async def advance(self, connection: AsyncConnection[Any], *holders: Fence | HasFence) -> None:
        """See :meth:`PsycopgGuard.advance`."""
        if not isinstance(connection, AsyncConnection):
            raise TypeError(f"advance takes a psycopg AsyncConnection, not {type(connection).__name__}")
        transaction = self._transaction(holders, claim=False, joined=True)
        with transaction:
            await run_async(connection, transaction.plan_advance(connection), transaction.max_silence)

    async def _operate(self, operation: Operation) -> Any:
        seconds = operation.errors.seconds
        with operation.errors as errors:
            async with self._borrow(seconds) as connection:
                errors.connected = True
                return await run_alone_async(connection, operation.work(connection), operation.waits * seconds)
