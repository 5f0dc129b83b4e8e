"""The async guard for PostgreSQL through psycopg 3 alone, without SQLAlchemy.

It takes as few round trips as safety allows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import Params

# SYNC: from storage_guards.psycopg.sources import django_hint
from fencing.kernel.fence import Fence, HasFence
from storage_guards.blocks import async_block
from storage_guards.psycopg.base import PsycopgBase, Query, may_end_the_transaction
from storage_guards.psycopg.blocks import AsyncGuardedBlock, run_alone_async
from storage_guards.psycopg.sources import AsyncSource, async_connection_source
from storage_guards.psycopg.wire import run_async
from storage_guards.sql.base import Operation
from storage_guards.sql.operations_async import AsyncOperations


class AsyncPsycopgGuard(PsycopgBase, AsyncOperations):
    """An async guard that keeps the marks in the table ``fencing_marks`` of the database whose data they protect.

    The table is that of ``AsyncSQLAlchemyGuard``, so programs with either guard exclude each other.

    It does **not** protect what was read before the claim, before ``hold``: acquire the lock before you open a
    transaction of your own. It keeps out only writers that use the guard. It does not cover replicas and caches.

    It promises this of an acknowledged write: everything that the same fence read at this database since its claim was
    still current when the write committed. That holds whatever Redis, clocks and pauses did.

    A holder that is frozen inside a guarded transaction blocks others for ``timeout`` at most. Then the server ends its
    session (``idle_in_transaction_session_timeout`` and ``tcp_user_timeout``, of that transaction alone). So a block
    that does not speak to the database for so long is undone: put slow work outside. The server has no bound for a
    client in the middle of sending, in an ``executemany``, a pipeline or COPY FROM STDIN: docs/guards/databases.md.

    Args:
        source: of connections. An ``AsyncConnectionPool`` is best. A single ``AsyncConnection`` serves one operation
            after the other, and must be outside any transaction then; while a guarded block runs, use the connection in
            the block only. With a connection string (as for ``psycopg.connect``), or a function that returns an
            awaitable of a new connection, each operation connects anew. Autocommit or not, and every isolation level,
            are right.
        timeout: seconds: the longest wait for a connection, and for any statement of a guarded transaction, locks
            included. A lease that ends earlier shortens it. With psycopg 3.3 and later the guard's own requests also
            give up one second after that bound when the network is silent.
        schema: the schema of the mark table. None: the only mark table of the database, which must be on the search
            path. A second one in sight is refused (docs/guards/databases.md). Each guard checks that once, with one
            round trip.

    Raises:
        TypeError: ``source`` is none of these, or is sync; ``timeout`` is no number.
        ValueError: ``source`` is no connection string; ``timeout`` is not finite and above 0.
    """

    # SYNC "an awaitable of a new connection": a new connection
    # SYNC "or is sync": or is for asyncio

    __module__ = "storage_guards"

    def __init__(self, source: AsyncSource, *, timeout: float = 10.0, schema: str | None = None) -> None:
        super().__init__(source, timeout, schema)
        self._borrow = async_connection_source(source)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence, all or none. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait for locks, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed, and nothing was changed. Stop.
            UnclaimedFence: the database was restored, and has lost what it had acknowledged. Acquire again.
            GuardUnavailable: the database did not answer, or a mark stayed locked. Retry; the claim may have happened.
            GuardNotEnforceable: the table is missing, or the set-up cannot enforce the rules. The text says what to do.
            ValueError: the guard's only connection is in a transaction. End it first.
        """
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        lent = self._borrow(transaction.seconds)
        try:
            with transaction:
                async with lent as connection:
                    await run_alone_async(connection, transaction.plan_begin(connection), transaction.max_silence)
        except BaseException as error:
            await lent.recover()
            if transaction.end_interrupted(error):
                raise

    @async_block
    async def begin(
        self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None
    ) -> AsyncIterator[AsyncConnection[Any]]:
        """Run one transaction: its first statement checks and locks the marks, which stay locked until its commit.

        It does **not** protect what was read before the claim. Read and write inside the block, on its connection. The
        block commits at its end. An exception rolls it back and propagates. ``connection.transaction()`` inside makes
        savepoints; ``commit()``, ``rollback()`` and ``close()`` are refused.

        On cancellation a commit that was begun is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`. After a refusal by the database, it is that
        error. With no cause, nothing was written.

        Args:
            holders: leases or fences of all resources that the block writes. Their marks are locked in a fixed order.
            claim: claim and check at once, which saves a round trip. It is right only if nothing was read outside the
                block.
            once: a key of what the block does, such as ``"2026-11-23"``: at most one block of this resource with this
                key is ever committed. It needs exactly one lease (docs/guards/once.md). 255 bytes of UTF-8 at most.

        Returns:
            An async context manager; its value is the psycopg ``AsyncConnection``, in its transaction.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here: pass ``guards=[guard]`` to the lock, or claim first. Or the
                database was restored, and has lost what it had acknowledged: acquire again.
            AlreadyDone: a block with this ``once`` was committed before. Nothing was read. Go on without it.
            TooOld: this ``once`` was pruned, or lies below one that was. Read the data, and decide.
            OutcomeUnknown: the connection broke during the commit, or an exception of a signal handler interrupted it.
                Ask :meth:`landed`. A KeyboardInterrupt has it as its ``__cause__``.
            GuardUnavailable: no answer, no free connection, or a mark stayed locked. The block has not run. Retry.
            GuardNotEnforceable: the table is missing, the server is a replica, or the block ended the transaction by
                itself. The text says what to do.
            ValueError: the guard's only connection is in a transaction, or in pipeline mode. End that first.
            psycopg.Error: the database refused the commit, because of a deferred constraint or a serialization failure
                for instance. Nothing was written. Correct the data, or begin a new block.
        """
        # SYNC "On cancellation ...":
        transaction = self._transaction(holders, claim=claim, caller_block=True, once=once)
        lent = self._borrow(transaction.seconds)
        try:
            with transaction:
                async with lent as connection, AsyncGuardedBlock(connection, transaction) as own:
                    yield own
        except BaseException as error:
            await lent.recover()
            if transaction.end_interrupted(error):
                raise

    async def write(
        self,
        holder: Fence | HasFence,
        query: Query,
        params: Params | None = None,
        *,
        claim: bool = False,
        once: str | None = None,
    ) -> int:
        """Execute one guarded statement: a :meth:`begin` with nothing else in it.

        With ``claim=True`` it is a **blind** write: right only if its values depend on nothing read before.

        Args:
            holder: a lease or a fence.
            query: an INSERT, UPDATE or DELETE, as for ``connection.execute``. A SELECT is not noticed.
            params: its values.
            claim: claim and write at once.
            once: as for :meth:`begin`.

        Returns:
            How many rows it affected; with RETURNING, how many it returned; -1 where the server does not say.

        Raises:
            TypeError: ``query`` is no query. Pass a str, for instance, after the lease.
            RuntimeError: it is inside another :meth:`begin` of the same fence, and would wait for itself. Use that
                block's connection.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable,
                ValueError: as :meth:`begin`.
        """
        caller_block = may_end_the_transaction(query)
        transaction = self._transaction((holder,), claim=claim, caller_block=caller_block, once=once)
        lent = self._borrow(transaction.seconds)
        rows = -1
        try:
            with transaction:
                async with lent as connection, AsyncGuardedBlock(connection, transaction) as own:
                    rows = (await own.execute(query, params)).rowcount
        except BaseException as error:
            await lent.recover()
            if transaction.end_interrupted(error):
                raise
        return rows

    async def advance(
        self, connection: AsyncConnection[Any], *holders: Fence | HasFence, once: str | None = None
    ) -> None:
        """Check and lock the marks in a transaction of your own, from here to its end.

        It does **not** protect what this transaction read before: read again what you write from. It never commits.
        After any error here roll the transaction back. The guard's bounds hold for the rest of the transaction.

        Args:
            connection: of this guard's database. Its transaction is begun where there is none.
            holders: leases or fences of all resources that the transaction writes.
            once: as for :meth:`begin`. What it notes is committed with your transaction.

        Raises:
            TypeError: ``connection`` is no psycopg ``AsyncConnection``.
            ValueError: it is in a nested transaction or in a savepoint (a rollback to it would drop the check), in a
                failed transaction, or in pipeline mode. End that first.
            GuardNotEnforceable: it is in autocommit, outside ``connection.transaction()``; or as :meth:`begin`.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, GuardUnavailable: as :meth:`begin`.
        """
        if not isinstance(connection, AsyncConnection):
            kind = type(connection).__name__
            # SYNC instead: raise TypeError(f"advance takes a psycopg Connection, not {kind}{django_hint(connection)}")
            raise TypeError(f"advance takes a psycopg AsyncConnection, not {kind}")
        transaction = self._transaction(holders, claim=False, joined=True, once=once)
        with transaction:
            await run_async(connection, transaction.plan_advance(connection), transaction.max_silence)

    async def _operate(self, operation: Operation) -> Any:
        seconds = operation.errors.seconds
        lent = self._borrow(seconds)
        try:
            with operation.errors as errors:
                async with lent as connection:
                    errors.connected = True
                    return await run_alone_async(connection, operation.work(connection), operation.waits * seconds)
        finally:
            await lent.recover()
