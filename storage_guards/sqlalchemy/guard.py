# Made from guard_async.py by `make faces`: change that file, not this one.
"""The sync guard for SQL databases through SQLAlchemy 2: PostgreSQL, MariaDB, MySQL, SQLite."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, overload

from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencing.kernel.fence import Fence, HasFence
from storage_guards.blocks import block
from storage_guards.sql.base import Operation
from storage_guards.sql.operations import Operations
from storage_guards.sqlalchemy.base import COUNT_ROWS, Parameters, SQLAlchemyBase, affected
from storage_guards.sqlalchemy.retry import split_arguments
from storage_guards.sqlalchemy.session import check_factory, session_on
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction, lend

T = TypeVar("T")
S = TypeVar("S", bound=Session)
AnyFence = Fence | HasFence


class SQLAlchemyGuard(SQLAlchemyBase, Operations):
    """A guard that keeps the marks in the table ``fencing_marks`` of the database whose data they protect.

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
        engine: PostgreSQL through psycopg 3, MariaDB or MySQL through PyMySQL, or SQLite. Not in autocommit. Every
            isolation level is right; on PostgreSQL with REPEATABLE READ and above more claims end in
            ``GuardUnavailable``. MariaDB's and MySQL's transactions become READ COMMITTED unless they are SERIALIZABLE.
        timeout: seconds: the longest wait for a lock, for any statement of a guarded transaction (on PostgreSQL and
            MariaDB), and for a client that stands still in one. A lease that ends earlier shortens it.
        schema: the schema of the mark table (on MariaDB and MySQL a database; on SQLite ``main`` or an attached file).
            None: the only mark table that is there, which must be on the search path. A second one in sight is refused
            (docs/guards/databases.md). Each guard checks that once, with one round trip.

    Raises:
        TypeError: ``engine`` is no sync engine, or ``timeout`` is no number.
        ValueError: ``timeout`` is not finite and above 0.
        GuardNotEnforceable: this database, driver or pool is not supported. The text says which ones are.
    """

    __module__ = "storage_guards"

    def __init__(self, engine: Engine, *, timeout: float = 10.0, schema: str | None = None) -> None:
        if hasattr(engine, "sync_engine"):
            raise TypeError("this is an AsyncEngine; use AsyncSQLAlchemyGuard")
        if not isinstance(engine, Engine):
            hint = "use create_engine(), or PsycopgGuard for a pool or connection of psycopg"
            raise TypeError(f"a SQLAlchemy Engine is needed, not {type(engine).__name__}; {hint}")
        if engine.dialect.is_async:
            hint = "use create_async_engine() and AsyncSQLAlchemyGuard"
            raise TypeError(f"{engine.driver} is an asyncio driver; {hint}")
        super().__init__(engine, timeout, schema)
        self._engine = engine

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
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
        with self._run(transaction):
            pass

    @block
    def begin(self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None) -> Iterator[Connection]:
        """Run one transaction: its first statement checks and locks the marks, which stay locked until its commit.

        It does **not** protect what was read before the claim. Read and write inside the block, on its connection. The
        block commits at its end. An exception rolls it back and propagates. For the ORM there is :meth:`session`.

        Args:
            holders: leases or fences of all resources that the block writes. Their marks are locked in a fixed order.
            claim: claim and check at once, which saves a commit. It is right only if nothing was read outside the
                block.
            once: a key of what the block does, such as ``"2026-11-23"``: at most one block of this resource with this
                key is ever committed. It needs exactly one lease (docs/guards/once.md). 255 bytes of UTF-8 at most.

        Returns:
            A context manager; its value is the :class:`~sqlalchemy.Connection`, in its transaction.

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
        transaction = self._transaction(holders, claim=claim, caller_block=True, once=once)
        try:
            with self._run(transaction) as connection:
                yield connection
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise

    @overload
    def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: None = None, once: str | None = None
    ) -> AbstractContextManager[Session]: ...

    @overload
    def session(
        self,
        *holders: Fence | HasFence,
        claim: bool = False,
        factory: sessionmaker[S] | scoped_session[S],
        once: str | None = None,
    ) -> AbstractContextManager[S]: ...

    @block
    def session(
        self, *holders: Fence | HasFence, claim: bool = False, factory: Any = None, once: str | None = None
    ) -> Iterator[Any]:
        """Run a :meth:`begin` for the ORM: a new session, whose transaction begins with the check::

            with guard.session(lease) as session:
                session.get_one(Order, 42).total += 1

        It does **not** protect what was read before the claim, and no caches: a value that you carry into the block is
        written as it is. The session itself serves nothing that is older than the check. An object from another session
        is expired when it is added, so that it is read again. It is refused if it has changes. ``merge`` is refused
        too, because it would write all that was read of the object.

        The session flushes and commits as the block ends, and is then closed. ``commit``, ``rollback`` and ``close``
        inside are refused. ``begin_nested`` is allowed: a failure inside it undoes its savepoint, and never the check.

        Args:
            holders: as for :meth:`begin`.
            claim: as for :meth:`begin`.
            factory: your ``sessionmaker`` on this guard's engine, with its options, class and events. Or a
                ``scoped_session``: inside the block its scope has the guarded session, and no other before and after.
            once: as for :meth:`begin`.

        Returns:
            A context manager; its value is the :class:`~sqlalchemy.orm.Session`.

        Raises:
            TypeError: ``factory`` is none of these. Pass one of them.
            ValueError: the factory makes sessions of another engine, or its scope has a session already; or the block
                was about to write what was read elsewhere. The text says what to do.
            GuardNotEnforceable: as :meth:`begin`; also when the block used another database, or ended the session by
                itself.
            Exception: every error of :meth:`begin`.
        """
        check_factory(factory, self._engine)
        transaction = self._transaction(holders, claim=claim, caller_block=True, once=once)
        try:
            with (
                transaction,
                lend(self._engine, transaction.seconds) as connection,
                session_on(connection, transaction, factory) as session,
                transaction.on(connection),
            ):
                yield session
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise

    @contextmanager
    def _run(self, transaction: SQLAlchemyTransaction) -> Iterator[Connection]:
        with transaction:
            lent = lend(self._engine, transaction.seconds, transaction.note_wait)
            with lent as connection, transaction.on(connection):
                yield connection

    def run(
        self,
        *holders_then_function: *tuple[AnyFence, *tuple[AnyFence, ...], Callable[[Connection], T]],
        claim: bool = False,
        attempts: int = 5,
        once: str | None = None,
    ) -> T:
        """Run ``function(connection)`` in a :meth:`begin`, and repeat all of it where concurrent transactions undid
        it::

            total = guard.run(lease, move_money)

        The function **may run several times**; at most one of these runs is committed. So it must read inside
        everything that it writes from, and do nothing that a rollback does not undo. It is repeated after a
        serialization failure, a deadlock, a lock wait time-out of MariaDB or MySQL, or a busy SQLite. A short random
        pause comes first, and all of it stays within the guard's ``timeout`` and the lease's remaining time. It is not
        repeated after anything else: no lost connection, no unknown outcome.

        Args:
            holders_then_function: leases or fences as for :meth:`begin`; the function comes last.
            claim: as for :meth:`begin`.
            attempts: how often the function runs at most.
            once: as for :meth:`begin`.

        Returns:
            The result of the function in the run that was committed.

        Raises:
            GuardUnavailable: as :meth:`begin`; also when every run was undone. Nothing was written. Retry later.
            Exception: every error of :meth:`begin` or of the function.
        """
        holders, function = split_arguments(holders_then_function)
        if inspect.iscoroutinefunction(function):
            raise TypeError("the function is asynchronous; use AsyncSQLAlchemyGuard")
        retries = self._retries(holders, attempts)
        while True:
            left = retries.left()
            transaction = self._transaction(holders, claim=claim, max_seconds=left, caller_block=True, once=once)
            try:
                with self._run(transaction) as connection:
                    result: T = function(connection)
                return result
            except BaseException as error:
                if not transaction.end_interrupted(error):
                    return result
                if not transaction.lost_race(error):
                    raise
                pause = retries.pause(error)
            time.sleep(pause)

    def write(
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
            engine, seconds = self._engine, transaction.seconds
            with transaction, lend(engine, seconds) as connection, transaction.on(connection):
                result = connection.execute(statement, parameters, execution_options=COUNT_ROWS)
                rows = affected(transaction, result)
        except BaseException as error:
            if transaction.end_interrupted(error):
                raise
        return rows

    def advance(
        self,
        connection_or_session: Connection | Session,
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
            TypeError: it is neither a Connection nor a Session.
            ValueError: it is in a nested transaction (a rollback to the savepoint would drop the check), or the session
                has unflushed changes. Advance first.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, GuardUnavailable, GuardNotEnforceable: as :meth:`begin`.
        """
        if not isinstance(connection_or_session, (Connection, Session)):
            kind = type(connection_or_session).__name__
            raise TypeError(f"advance takes a Connection or a Session, not {kind}")
        self._advance(connection_or_session, holders, once)

    def _operate(self, operation: Operation) -> Any:
        with operation.errors, lend(self._engine, operation.errors.seconds) as connection:
            return self._work(operation, connection)
