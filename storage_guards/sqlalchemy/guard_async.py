"""The async guard for SQL databases through SQLAlchemy 2: PostgreSQL, MariaDB, MySQL, SQLite."""

from __future__ import annotations

# SYNC: import time
import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, overload

# SYNC: from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.ext.asyncio import (  # ASYNC
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)

from fencing.kernel.fence import Fence, HasFence
from fencing.sql.statement_thread import StatementThread
from storage_guards.blocks import async_block
from storage_guards.sql.base import Operation
from storage_guards.sql.operations_async import AsyncOperations
from storage_guards.sqlalchemy.base import COUNT_ROWS, Parameters, SQLAlchemyBase, affected
from storage_guards.sqlalchemy.retry import split_arguments
from storage_guards.sqlalchemy.session import check_factory
from storage_guards.sqlalchemy.session_async import MAKERS, async_session_on
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction
from storage_guards.sqlalchemy.transaction_async import AsyncGuardedBlock, async_lend, in_greenlet

T = TypeVar("T")
S = TypeVar("S", bound=AsyncSession)
AnyFence = Fence | HasFence


class AsyncSQLAlchemyGuard(SQLAlchemyBase, AsyncOperations):
    """An async guard that keeps the marks in the table ``fencing_marks`` of the database whose data they protect.

    It does **not** protect what was read before the claim, before ``hold``: acquire the lock before you open a
    transaction of your own. It keeps out only writers that use the guard. It does not cover replicas and caches.

    It promises this of an acknowledged write: everything that the same fence read at this database since its claim was
    still current when the write committed. That holds whatever Redis, clocks and pauses did.

    A holder that is frozen inside a transaction blocks others, but not for ever. Each wait here is bounded, and the
    server (not SQLite) ends the session of a client that stands still inside a guarded transaction. There is one
    exception: on PostgreSQL, a client may stand still in the middle of sending (docs/guards/databases.md). The driver
    bounds the client's own waits for a silent network: see ``tcp_user_timeout`` or ``read_timeout``. The guard itself
    bounds the waits for a free connection, for a new one and for the answer to COMMIT.

    Args:
        engine: from ``create_async_engine``: ``postgresql+psycopg``, ``postgresql+asyncpg``, ``mysql+aiomysql`` or
            ``sqlite+aiosqlite``. Not in autocommit. Every isolation level is right; on PostgreSQL with REPEATABLE READ
            and above more claims end in ``GuardUnavailable``. MariaDB's and MySQL's transactions become READ COMMITTED
            unless they are SERIALIZABLE.
        timeout: seconds: the longest wait for a lock, for any statement of a guarded transaction (on PostgreSQL and
            MariaDB), and for a client that stands still in one. A lease that ends earlier shortens it.
        schema: the schema of the mark table (on MariaDB and MySQL a database; on SQLite ``main`` or an attached file).
            None: the only mark table that is there, which must be on the search path. A second one in sight is refused
            (docs/guards/databases.md). Each guard checks that once, with one round trip.

    Raises:
        TypeError: ``engine`` is no ``AsyncEngine``, or ``timeout`` is no number.
        ValueError: ``timeout`` is not finite and above 0.
        GuardNotEnforceable: this database, driver or pool is not supported. The text says which ones are.
    """

    # SYNC "from ``create_async_engine``: ... ``sqlite+aiosqlite``.": PostgreSQL through psycopg 3, MariaDB or MySQL
    #     through PyMySQL, or SQLite.
    # SYNC "no ``AsyncEngine``": no sync engine

    __module__ = "storage_guards"

    def __init__(self, engine: AsyncEngine, *, timeout: float = 10.0, schema: str | None = None) -> None:
        if isinstance(engine, Engine):  # ASYNC
            raise TypeError("this is a sync Engine; use SQLAlchemyGuard")
        # SYNC: if hasattr(engine, "sync_engine"):
        # SYNC:     raise TypeError("this is an AsyncEngine; use AsyncSQLAlchemyGuard")
        if not isinstance(engine, AsyncEngine):
            hint = "use create_async_engine(), or AsyncPsycopgGuard for a pool or connection of psycopg"
            raise TypeError(f"a SQLAlchemy AsyncEngine is needed, not {type(engine).__name__}; {hint}")
        # SYNC: if engine.dialect.is_async:
        # SYNC:     hint = "use create_async_engine() and AsyncSQLAlchemyGuard"
        # SYNC:     raise TypeError(f"{engine.driver} is an asyncio driver; {hint}")
        # SYNC instead: super().__init__(engine, timeout, schema)
        super().__init__(engine.sync_engine, timeout, schema)
        self._engine = engine

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
        """
        transaction = self._transaction(holders, claim=True, writes=0, timeout=timeout)
        async with self._run(transaction):
            pass

    @async_block
    async def begin(
        self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """Run one transaction: its first statement checks and locks the marks, which stay locked until its commit.

        It does **not** protect what was read before the claim. Read and write inside the block, on its connection. The
        block commits at its end. An exception rolls it back and propagates. For the ORM there is :meth:`session`.

        On cancellation a commit that was begun is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`. After a refusal by the database, it is that
        error. With no cause, nothing was written.

        Args:
            holders: leases or fences of all resources that the block writes. Their marks are locked in a fixed order.
            claim: claim and check at once, which saves a commit. It is right only if nothing was read outside the
                block.
            once: a key of what the block does, such as ``"2026-11-23"``: at most one block of this resource with this
                key is ever committed. It needs exactly one lease (docs/guards/once.md). 255 bytes of UTF-8 at most.

        Returns:
            An async context manager; its value is the :class:`~sqlalchemy.ext.asyncio.AsyncConnection`, in its
            transaction.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here: pass ``guards=[guard]`` to the lock, or claim first. Or the
                database was restored, and has lost what it had acknowledged: acquire again.
            AlreadyDone: a block with this ``once`` was committed before. Nothing was read. Go on without it.
            TooOld: this ``once`` was pruned, or lies below one that was. Read the data, and decide.
            OutcomeUnknown: the connection broke during the commit, or an exception of a signal handler interrupted it.
                Or the file of SQLite was replaced meanwhile. Ask :meth:`landed`. A KeyboardInterrupt has it as its
                ``__cause__``.
            GuardUnavailable: the database did not answer, or a mark stayed locked. The block has not run. Retry.
            GuardNotEnforceable: the table is missing, the engine is in autocommit, or the block ended the transaction
                by itself. The text says what to do.
            sqlalchemy.exc.DBAPIError: the database refused the commit, because of a deferred constraint or a
                serialization failure for instance. Nothing was written. Correct the data, or begin a new block.
        """
        # SYNC "On cancellation ...":
        transaction = self._transaction(holders, claim=claim, caller_block=True, once=once)
        try:
            async with self._run(transaction) as connection:
                yield connection
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise

    @overload
    def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: None = None, once: str | None = None
    ) -> AbstractAsyncContextManager[AsyncSession]: ...

    @overload
    def session(
        self,
        *holders: Fence | HasFence,
        claim: bool = False,
        factory: async_sessionmaker[S] | async_scoped_session[S],
        once: str | None = None,
    ) -> AbstractAsyncContextManager[S]: ...

    @async_block
    async def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: Any = None, once: str | None = None
    ) -> AsyncIterator[Any]:
        """Run a :meth:`begin` for the ORM: a new session, whose transaction begins with the check::

            async with guard.session(lease) as session:
                (await session.get_one(Order, 42)).total += 1

        It does **not** protect what was read before the claim, and no caches: a value that you carry into the block is
        written as it is. The session itself serves nothing that is older than the check. An object from another session
        is expired when it is added, so that it is read again. It is refused if it has changes. ``merge`` is refused
        too, because it would write all that was read of the object.

        The session flushes and commits as the block ends, and is then closed. ``commit``, ``rollback`` and ``close``
        inside are refused. ``begin_nested`` is allowed: a failure inside it undoes its savepoint, and never the check.

        Hooks at the block's end run in a task of their own, where an ``async_scoped_session`` by tasks has another
        session. They must use the session that they are given. On cancellation it does the same as :meth:`begin`.

        Args:
            holders: as for :meth:`begin`.
            claim: as for :meth:`begin`.
            factory: your ``async_sessionmaker`` on this guard's engine, with its options, class and events. Or an
                ``async_scoped_session``: inside the block its scope has the guarded session, and no other before and
                after.
            once: as for :meth:`begin`.

        Returns:
            An async context manager; its value is the :class:`~sqlalchemy.ext.asyncio.AsyncSession`.

        Raises:
            TypeError: ``factory`` is none of these. Pass one of them.
            ValueError: the factory makes sessions of another engine, or its scope has a session already; or the block
                was about to write what was read elsewhere. The text says what to do.
            GuardNotEnforceable: as :meth:`begin`; also when the block used another database, or ended the session by
                itself.
            Exception: every error of :meth:`begin`.
        """
        # SYNC "Hooks at the block's end ...":
        # SYNC instead: check_factory(factory, self._engine)
        check_factory(factory, self._engine.sync_engine, MAKERS)
        transaction = self._transaction(holders, claim=claim, caller_block=True, once=once)
        try:
            with transaction:
                async with (
                    async_lend(self._engine, transaction.seconds) as connection,
                    async_session_on(connection, transaction, factory) as session,
                    # SYNC: transaction.on(connection),
                    AsyncGuardedBlock(connection, transaction),  # ASYNC
                ):
                    yield session
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise

    @asynccontextmanager
    async def _run(self, transaction: SQLAlchemyTransaction) -> AsyncIterator[AsyncConnection]:
        with transaction:
            lent = async_lend(self._engine, transaction.seconds, transaction.note_wait)
            # SYNC instead: with lent as connection, transaction.on(connection):
            async with lent as connection, AsyncGuardedBlock(connection, transaction):
                yield connection

    async def run(
        self,
        *holders_then_function: *tuple[AnyFence, *tuple[AnyFence, ...], Callable[[AsyncConnection], Awaitable[T]]],
        claim: bool = False,
        attempts: int = 5,
        once: str | None = None,
    ) -> T:
        """Run ``function(connection)`` in a :meth:`begin`, and repeat all of it where concurrent transactions undid
        it::

            total = await guard.run(lease, move_money)

        The function **may run several times**; at most one of these runs is committed. So it must read inside
        everything that it writes from, and do nothing that a rollback does not undo. It is repeated after a
        serialization failure, a deadlock, a lock wait time-out of MariaDB or MySQL, or a busy SQLite. A short random
        pause comes first, and all of it stays within the guard's ``timeout`` and the lease's remaining time. It is not
        repeated after anything else: no lost connection, no unknown outcome.

        Args:
            holders_then_function: leases or fences as for :meth:`begin`; the function, an ``async def``, comes last.
            claim: as for :meth:`begin`.
            attempts: how often the function runs at most.
            once: as for :meth:`begin`.

        Returns:
            The result of the function in the run that was committed.

        Raises:
            TypeError: the function is not asynchronous. Write it as ``async def``.
            GuardUnavailable: as :meth:`begin`; also when every run was undone. Nothing was written. Retry later.
            Exception: every error of :meth:`begin` or of the function.
        """
        # SYNC "the function, an ``async def``, comes last": the function comes last
        # SYNC "TypeError: ... ``async def``.":
        holders, function = split_arguments(holders_then_function)
        # SYNC: if inspect.iscoroutinefunction(function):
        # SYNC:     raise TypeError("the function is asynchronous; use AsyncSQLAlchemyGuard")
        retries = self._retries(holders, attempts)
        while True:
            left = retries.left()
            transaction = self._transaction(holders, claim=claim, max_seconds=left, caller_block=True, once=once)
            try:
                async with self._run(transaction) as connection:
                    running: Any = function(connection)  # ASYNC
                    if not inspect.isawaitable(running):  # ASYNC
                        raise TypeError("the function is not asynchronous; write it as async def")
                    # SYNC instead: result: T = function(connection)
                    result: T = await running
                return result
            except BaseException as error:
                if not transaction.end_interrupted(error):
                    return result
                if not transaction.lost_race(error):
                    raise
                pause = retries.pause(error)
            await asyncio.sleep(pause)

    async def write(
        self,
        holder: Fence | HasFence,
        statement: Executable,
        parameters: Parameters = None,
        *,
        claim: bool = False,
        once: str | None = None,
    ) -> int:
        """Execute one guarded statement: a :meth:`begin` with nothing else in it.

        With ``claim=True`` it is a **blind** write: right only if its values depend on nothing read before.

        Args:
            holder: a lease or a fence.
            statement: an INSERT, UPDATE, DELETE or ``text()``. A SELECT in a ``text()`` is not noticed.
            parameters: its values; a list of them for several rows.
            claim: claim and write at once.
            once: as for :meth:`begin`.

        Returns:
            How many rows it affected; with RETURNING, how many it returned; -1 where the driver does not know.

        Raises:
            TypeError: ``statement`` is no SQL statement. Wrap a str in ``sqlalchemy.text()``.
            ValueError: it is a SELECT. Read inside :meth:`begin`.
            RuntimeError: it is inside another :meth:`begin` of the same fence, and would wait for itself. Use that
                block's connection.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as
                :meth:`begin`.
        """
        transaction = self._writing(holder, statement, claim, once)
        rows = -1
        try:
            # SYNC: engine, seconds = self._engine, transaction.seconds
            # SYNC instead: with transaction, lend(engine, seconds) as connection, transaction.on(connection):
            async with self._run(transaction) as connection:
                result = await connection.execute(statement, parameters, execution_options=COUNT_ROWS)
                rows = affected(transaction, result)
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise
        return rows

    async def advance(
        self,
        connection_or_session: AsyncConnection | AsyncSession,
        *holders: Fence | HasFence,
        once: str | None = None,
    ) -> None:
        """Check and lock the marks in a transaction of your own, from here to its end.

        It does **not** protect what this transaction, or its session, read before: read again what you write from. It
        never commits. After any error here roll the transaction back. It does not notice a COMMIT that is sent as text,
        and a SAVEPOINT only on PostgreSQL. It does not notice either that a transaction goes on after a deadlock of
        MariaDB or MySQL, which undoes the check too. It notices no file of SQLite that is replaced after the check.

        The objects of a session are expired, so that they are read again. On PostgreSQL the guard's bounds hold for the
        rest of the transaction. On MariaDB and MySQL most of them hold for the check alone. One holds to the end: the
        server ends the session of a client that stands still. SQLAlchemy's commit or rollback first restores the
        session's own setting. There the transaction keeps its isolation level. It is refused if it has read from a
        snapshot that is older than the mark.

        Args:
            connection_or_session: of this guard's database. Its transaction is begun where there is none.
            holders: leases or fences of all resources that the transaction writes.
            once: as for :meth:`begin`. What it notes is committed with your transaction.

        Raises:
            TypeError: it is neither an AsyncConnection nor an AsyncSession.
            ValueError: it is in a nested transaction (a rollback to the savepoint would drop the check), or the session
                has unflushed changes. Advance first.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, GuardUnavailable, GuardNotEnforceable: as :meth:`begin`.
        """
        if not isinstance(connection_or_session, (AsyncConnection, AsyncSession)):
            kind = type(connection_or_session).__name__
            # SYNC instead: raise TypeError(f"advance takes a Connection or a Session, not {kind}")
            raise TypeError(f"advance takes an AsyncConnection or AsyncSession, not {kind}")
        thread = StatementThread()  # ASYNC
        # SYNC instead: self._advance(connection_or_session, holders, once)
        await in_greenlet(
            connection_or_session, lambda target: self._advance(target, holders, once, thread), thread, self._timeout
        )

    async def _operate(self, operation: Operation) -> Any:
        thread = StatementThread()  # ASYNC

        def work(connection: Connection) -> Any:  # ASYNC
            thread.note(connection)
            return self._work(operation, connection)

        with operation.errors:
            async with async_lend(self._engine, operation.errors.seconds) as connection:
                # SYNC instead: return self._work(operation, connection)
                return await in_greenlet(connection, work, thread, operation.errors.seconds)
