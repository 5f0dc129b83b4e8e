"""Guards for PostgreSQL through psycopg 3 alone, without SQLAlchemy, in as few round trips as safety allows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.abc import Params
from psycopg.sql import SQL, Composed

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from storage_guards.bounds import check_timeout, check_unknown, fences_of, wait_seconds
from storage_guards.psycopg.enforcement import AsyncEnforcing, Enforcing
from storage_guards.psycopg.marks import create_tables, read_mark
from storage_guards.psycopg.outcome import Inquiry
from storage_guards.psycopg.running import AsyncRunning, Running, once, once_async, run, run_async
from storage_guards.psycopg.sources import AsyncSource, Source, async_lender, lender
from storage_guards.psycopg.statements import Way
from storage_guards.psycopg.transaction import GuardedTransaction
from storage_guards.psycopg.upkeep import AsyncUpkeep, Upkeep

__all__ = ["AsyncPsycopgGuard", "PsycopgGuard"]

Query = str | bytes | SQL | Composed


class _Bounded:
    """What both guards share: arguments become transactions."""

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        self._way = Way()

    def _transaction(
        self,
        holders: Sequence[Fence | HasFence],
        *,
        claim: bool,
        writes: int = 1,
        timeout: float | None = None,
        foreign_body: bool = False,
    ) -> GuardedTransaction:
        seconds = wait_seconds(holders, self._timeout, timeout)
        return GuardedTransaction(
            self._way, fences_of(holders), seconds, claim=claim, writes=writes, foreign_body=foreign_body
        )

    def _without_fence(self) -> GuardedTransaction:
        return GuardedTransaction(self._way, (), self._timeout, claim=False, writes=0)

    def _inquiry(self, error: object, timeout: float | None) -> Inquiry:
        return Inquiry(self._way, check_unknown(error), wait_seconds((), self._timeout, timeout))


class PsycopgGuard(Upkeep, _Bounded, Enforcing):
    """Keeps the marks in the table ``fencing_marks`` of the database whose data they protect: the same as
    ``SQLAlchemyGuard``, so programs with either exclude each other.

    What it does **not** promise: what was read before the claim (before ``hold``) is not protected; so acquire the lock
    before you open a transaction of your own. Only writers that use the guard are kept out. Replicas and caches are not
    covered. What it promises: if a write is acknowledged, everything the same fence read at this database since its
    claim was still current when it committed, whatever Redis, clocks and pauses did.

    A holder that is frozen inside a guarded transaction keeps others waiting for ``timeout`` at most: then the server
    ends its session (``idle_in_transaction_session_timeout`` and ``tcp_user_timeout``, of that transaction alone). So a
    block that does not speak to the database for so long is undone: slow work belongs outside. The server has no bound
    for a client in the middle of sending, in an ``executemany``, a pipeline or COPY FROM STDIN: docs/databases.md.

    Args:
        source: of connections. A ``psycopg_pool`` pool is best. A connection serves one after the other, and must be
            outside any transaction then; while a guarded block runs, use it in the block only. With a connection string
            (as for ``psycopg.connect``), or a function that returns a new connection, each operation connects anew.
            Autocommit or not, and every isolation level, are right.
        timeout: the longest wait for a connection, and for any statement of a guarded transaction, locks included, in
            seconds. A lease that ends earlier shortens it. With psycopg 3.3 and later the guard's own requests also
            give up when the network has been silent for that long, and a second.

    Raises:
        TypeError: ``source`` is none of these, or is for asyncio; ``timeout`` is no number.
        ValueError: ``source`` is no connection string; ``timeout`` is not finite and above 0.
    """

    def __init__(self, source: Source, *, timeout: float = 10.0) -> None:
        super().__init__(timeout)
        self._lend = lender(source)

    def create_tables(self) -> None:
        """Create the mark table where it is missing. May be called at each start, by several processes at once.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: the database refused, for want of a privilege say.
        """
        with self._without_fence(), self._lend(self._timeout) as connection:
            once(connection, create_tables(connection, self._timeout), self._timeout)

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence, all or none. A lock with ``guards=[guard]`` calls it on acquiring.

        It protects what is read **after** it has returned. Idempotent: after an error it may be repeated.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait for locks, at most the guard's own; None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed; nothing was changed. Stop.
            GuardUnavailable: no answer, or a mark stayed locked. Retry; the claim may have happened.
            GuardNotEnforceable: the table is missing, or the set-up cannot enforce the rules. The text says what to do.
            ValueError: the guard's only connection is in a transaction.
        """
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        with transaction, self._lend(transaction.seconds) as connection:
            once(connection, transaction.enter(connection), transaction.silence)

    def mark(self, resource: str) -> Mark | None:
        """The newest fence claimed for ``resource``; None: none. For people and tests: no basis for a write."""
        check_resource(resource)
        with self._without_fence(), self._lend(self._timeout) as connection:
            found = once(connection, read_mark(connection, resource, self._timeout), self._timeout)
        return found  # noqa: RET504 - as in write()

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Whether the write whose outcome was unknown happened, at this guard's database. Changes nothing there.

        It does **not** say whether it still stands: others may have written since. True and False are never wrong, also
        after a crash, a failover or a restore of the database: they are said of the data that are there now. Ask soon:
        a mark remembers its last 16 writes. The answer may be had by another process (the error can be pickled), and
        with any guard of this database.

        Args:
            error: as :meth:`begin` or :meth:`write` raised it; after a cancellation the ``__cause__`` of that.
            timeout: seconds to wait for a transaction that is still under way, at most the guard's own, which is the
                default.

        Returns:
            True: it happened. False: it did not, and never will; it may be written again, under a lease that still
            holds. None: it cannot be known here any more (many writes came after it, or it was sent to another
            database); read the data under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown.
            GuardUnavailable: no answer, or the transaction, or another one, still holds the mark. Ask again.
            GuardNotEnforceable: as :meth:`claim`.
        """
        inquiry = self._inquiry(error, timeout)
        with inquiry.explained(), self._lend(inquiry.seconds) as connection:
            return once(connection, inquiry.ask(connection), inquiry.silence)

    @contextmanager
    def begin(self, *holders: Fence | HasFence, claim: bool = False) -> Iterator[Connection[Any]]:
        """One transaction: the marks are checked and locked by its first statement, and stay so until its commit.

        It does **not** protect what was read before the claim. Read and write inside the block, on its connection; it
        commits at the end, and an exception rolls it back and passes through. ``connection.transaction()`` inside makes
        savepoints; ``commit()``, ``rollback()`` and ``close()`` are refused.

        Args:
            holders: leases or fences of all the resources that the block writes; their marks are locked in one order.
            claim: claim and check at once, one round trip less; right only if nothing was read outside the block.

        Returns:
            A context manager; its value is the psycopg ``Connection``, in its transaction.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here. Pass ``guards=[guard]`` to the lock, or claim first.
            OutcomeUnknown: the connection broke during the commit. Ask :meth:`landed`.
            GuardUnavailable: no answer, no free connection, or a mark stayed locked; the block has not run. Retry.
            GuardNotEnforceable: the table is missing, the server is a replica, or the block ended the transaction by
                itself. The text says what to do.
            ValueError: the guard's only connection is in a transaction, or in pipeline mode.
            psycopg.Error: the commit was refused, by a deferred constraint or a serialization failure say; nothing was
                written.
        """
        transaction = self._transaction(holders, claim=claim, foreign_body=True)
        with transaction, self._lend(transaction.seconds) as connection, Running(connection, transaction):
            yield connection

    def write(
        self, holder: Fence | HasFence, query: Query, params: Params | None = None, *, claim: bool = False
    ) -> int:
        """One guarded statement: a :meth:`begin` with nothing else in it, and its errors. Inside another :meth:`begin`
        of the same fence it would wait for itself: RuntimeError.

        With ``claim=True`` it is a **blind** write: right only if its values depend on nothing read before.

        Args:
            holder: a lease or a fence.
            query: an INSERT, UPDATE, DELETE, as for ``connection.execute``; that it is a SELECT is not noticed.
            params: its values.
            claim: claim and write at once.

        Returns:
            How many rows it affected; with RETURNING, how many it returned; -1 where the server does not say.

        Raises:
            TypeError: ``query`` is no query.
        """
        transaction = self._transaction((holder,), claim=claim, foreign_body=may_end_the_transaction(query))
        with transaction, self._lend(transaction.seconds) as connection, Running(connection, transaction):
            rows = connection.execute(query, params).rowcount
        return rows  # noqa: RET504 - the transaction swallows what comes after its commit

    def advance(self, connection: Connection[Any], *holders: Fence | HasFence) -> None:
        """Check and lock the marks in a transaction of your own, from here to its end.

        It does **not** protect what this transaction read before: read again what you write from. It never commits.
        After any error here roll the transaction back. The guard's bounds hold for the rest of the transaction.

        Args:
            connection: of this guard's database; its transaction is begun where there is none.
            holders: leases or fences of all the resources that the transaction writes.

        Raises:
            TypeError: no psycopg ``Connection``.
            ValueError: it is in a nested transaction, or in a savepoint (a rollback to it would drop the check), in a
                failed transaction, or in pipeline mode.
            GuardNotEnforceable: it is in autocommit, outside ``connection.transaction()``; or as :meth:`begin`.
            StaleFence, UnclaimedFence, GuardUnavailable: as :meth:`begin`.
        """
        if not isinstance(connection, Connection):
            raise TypeError(f"advance takes a psycopg Connection, not {type(connection).__name__}")
        transaction = self._transaction(holders, claim=False)
        transaction.joined = True
        with transaction:
            run(connection, transaction.advance(connection), transaction.silence)


class AsyncPsycopgGuard(AsyncUpkeep, _Bounded, AsyncEnforcing):
    """:class:`PsycopgGuard`, which see, for asyncio; ``begin`` gives an ``AsyncConnection``.

    Args:
        source: an ``AsyncConnectionPool``, an ``AsyncConnection``, a connection string, or a function that returns an
            awaitable of a new connection.
        timeout: as there.
    """

    def __init__(self, source: AsyncSource, *, timeout: float = 10.0) -> None:
        super().__init__(timeout)
        self._lend = async_lender(source)

    async def create_tables(self) -> None:
        """See :meth:`PsycopgGuard.create_tables`."""
        with self._without_fence():
            async with self._lend(self._timeout) as connection:
                await once_async(connection, create_tables(connection, self._timeout), self._timeout)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`PsycopgGuard.claim`."""
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        with transaction:
            async with self._lend(transaction.seconds) as connection:
                await once_async(connection, transaction.enter(connection), transaction.silence)

    async def mark(self, resource: str) -> Mark | None:
        """See :meth:`PsycopgGuard.mark`."""
        check_resource(resource)
        with self._without_fence():
            async with self._lend(self._timeout) as connection:
                found = await once_async(connection, read_mark(connection, resource, self._timeout), self._timeout)
        return found

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """See :meth:`PsycopgGuard.landed`."""
        inquiry = self._inquiry(error, timeout)
        with inquiry.explained():
            async with self._lend(inquiry.seconds) as connection:
                return await once_async(connection, inquiry.ask(connection), inquiry.silence)

    @asynccontextmanager
    async def begin(self, *holders: Fence | HasFence, claim: bool = False) -> AsyncIterator[AsyncConnection[Any]]:
        """See :meth:`PsycopgGuard.begin`, but for cancellation: the commit is carried to its answer first, within the
        guard's bound. If there was none, the ``CancelledError``'s ``__cause__`` is the ``OutcomeUnknown``; if the
        database refused it, that error; if it has none, the block is committed or was never finished."""
        transaction = self._transaction(holders, claim=claim, foreign_body=True)
        with transaction:
            async with self._lend(transaction.seconds) as connection, AsyncRunning(connection, transaction):
                yield connection

    async def write(
        self, holder: Fence | HasFence, query: Query, params: Params | None = None, *, claim: bool = False
    ) -> int:
        """See :meth:`PsycopgGuard.write`."""
        transaction = self._transaction((holder,), claim=claim, foreign_body=may_end_the_transaction(query))
        with transaction:
            async with self._lend(transaction.seconds) as connection, AsyncRunning(connection, transaction):
                rows = (await connection.execute(query, params)).rowcount
        return rows

    async def advance(self, connection: AsyncConnection[Any], *holders: Fence | HasFence) -> None:
        """See :meth:`PsycopgGuard.advance`."""
        if not isinstance(connection, AsyncConnection):
            raise TypeError(f"advance takes a psycopg AsyncConnection, not {type(connection).__name__}")
        transaction = self._transaction(holders, claim=False)
        transaction.joined = True
        with transaction:
            await run_async(connection, transaction.advance(connection), transaction.silence)


def may_end_the_transaction(query: object) -> bool:
    """Whether it may be several statements, a COMMIT among them, as PostgreSQL takes where there are no parameters."""
    if isinstance(query, str):
        return ";" in query
    if isinstance(query, bytes):
        return b";" in query
    if isinstance(query, Fence) or isinstance(getattr(query, "fence", None), Fence):
        raise TypeError("write takes the lease first, then the query")
    if type(query).__module__.partition(".")[0] == "sqlalchemy":
        raise TypeError(f"write takes what psycopg executes, a str say, not SQLAlchemy's {type(query).__name__}")
    return True
