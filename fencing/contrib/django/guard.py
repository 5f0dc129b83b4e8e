"""The guard on Django's own connections: PostgreSQL, MariaDB, MySQL, SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections, transaction

from fencing.contrib.django.errors import DjangoErrors
from fencing.contrib.django.marks import marks_of
from fencing.contrib.django.transactions import (
    IN_ATOMIC,
    NOT_ATOMIC,
    DjangoTransaction,
    State,
    require_autocommit,
    use_read_committed,
)
from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from fencing.locks.lease import Lease
from storage_guards.blocks import block
from storage_guards.bounds import check_timeout, check_unknown, fences_of, wait_seconds
from storage_guards.continuity import Continuity
from storage_guards.once import check_once
from storage_guards.sql.errors import ASK_AGAIN
from storage_guards.sql.plans import plan_mark, plan_settle
from storage_guards.sql.schema import check_schema


class DjangoGuard:
    """A guard that keeps the marks in the table ``fencing_marks`` of one of Django's databases.

    The table is that of ``SQLAlchemyGuard`` and ``PsycopgGuard``, so programs with any of them exclude each other.

    It does **not** protect what was read before the claim, before ``hold``: acquire the lock before you open a
    transaction of your own. So it refuses to join a transaction that has sent statements. It keeps out only writers
    that use the guard, and not the other databases of ``DATABASES``. It does not cover replicas and caches.

    It promises this of an acknowledged write: everything that the same fence read at this database since its claim was
    still current when the write committed. That holds whatever Redis, clocks and pauses did.

    It uses the connection of the calling thread, as the ORM does. In a ``TestCase`` it takes the blocks that Django
    opens around a test for none, and does not see what was read before.

    Args:
        using: the alias of the database whose data the locks protect.
        timeout: seconds: the longest wait for the lock of a mark. On PostgreSQL it is also the bound of each statement
            of the transaction, and of a client that stands still in it. A lease that ends earlier shortens it.
        schema: the schema of the mark table (on MariaDB and MySQL a database; on SQLite ``main`` or an attached file).
            None: the only mark table that is there, which must be on the search path.

    Raises:
        TypeError, ValueError: ``timeout`` or ``schema`` is wrong. Correct it as the message says.
        django.db.ConnectionDoesNotExist: there is no such alias in ``DATABASES``.
        GuardNotEnforceable: this database is not supported, such as Oracle.
    """

    def __init__(self, using: str = "default", *, timeout: float = 10.0, schema: str | None = None) -> None:
        self._using = using
        self._timeout = check_timeout(timeout)
        self._marks = marks_of(connections[using], check_schema(schema))
        self._continuity = Continuity(connections.settings[using], schema)

    def __repr__(self) -> str:
        return f"<DjangoGuard on {self._using!r}, timeout {self._timeout:g} s>"

    @property
    def using(self) -> str:
        """The alias of its database."""
        return self._using

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence, all or none. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error. Inside ``atomic()`` it is
        a part of that transaction, and must be its first statement.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait for locks, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed, and nothing was changed. Stop.
            UnclaimedFence: the database was restored, and has lost what it had acknowledged. Acquire again.
            ValueError: it is inside ``atomic()``, behind other statements or in a savepoint. The text says what to do.
            GuardUnavailable: the database did not answer, or a mark stayed locked. Retry; the claim may have happened.
            GuardNotEnforceable: the table is missing, or the set-up cannot enforce the rules. The text says what to do.
        """
        connection = connections[self._using]
        joined = State(connection).is_joined
        claiming = self._transaction(holders, claim=True, writes=0, timeout=timeout, joined=joined)
        try:
            with claiming:
                if joined:
                    claiming.join(connection)
                else:
                    with claiming.on(connection):
                        pass
        except BaseException as error:
            if claiming.end_interrupted(error):
                raise

    @block
    def begin(self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None) -> Iterator[Any]:
        """Run one transaction: its first statement checks and locks the marks, which stay locked until its commit.

        It is ``transaction.atomic(durable=True)`` of the guard's database. It does **not** protect what was read before
        the claim: read and write inside the block, by the ORM or by cursors. An exception rolls it back and propagates.
        ``atomic()`` inside makes savepoints.

        Args:
            holders: leases or fences of all resources that the block writes. Their marks are locked in a fixed order.
            claim: claim and check at once, which saves a commit. It is right only if nothing was read outside the
                block.
            once: a key of what the block does, such as ``"2026-11-23"``: at most one block of this resource with this
                key is ever committed. It needs exactly one lease (docs/guards/once.md). 255 bytes of UTF-8 at most.

        Returns:
            A context manager; its value is Django's connection.

        Raises:
            ValueError: it is inside ``atomic()``. The text says what to do.
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here: pass ``guards=[guard]`` to the lock, or claim first. Or the
                database was restored, and has lost what it had acknowledged: acquire again.
            AlreadyDone: a block with this ``once`` was committed before. Nothing was read. Go on without it.
            TooOld: this ``once`` was pruned, or lies below one that was. Read the data, and decide.
            OutcomeUnknown: the connection broke during the commit, or an exception of a signal handler interrupted it.
                Ask :meth:`landed`. A KeyboardInterrupt has it as its ``__cause__``.
            GuardUnavailable: the database did not answer, or a mark stayed locked. The block has not run. Retry.
            GuardNotEnforceable: the table is missing, the connection has autocommit off, or the block ended the
                transaction by itself. The text says what to do.
            django.db.Error: the database refused the commit, because of a deferred constraint for instance. Nothing was
                written. Correct the data, or begin a new block.
        """
        connection = connections[self._using]
        if State(connection).is_joined:
            raise ValueError(IN_ATOMIC)
        guarded = self._transaction(holders, claim=claim, caller_block=True, once=once)
        try:
            with guarded, guarded.on(connection):
                yield connection
        except BaseException as error:
            if guarded.end_interrupted(error):
                raise

    def advance(self, *holders: Fence | HasFence, once: str | None = None) -> None:
        """Check and lock the marks in a transaction of your own, from here to its end: the outermost ``atomic()``.

        It must be the first statement of that transaction, but for other calls of a guard of this database. It never
        commits. After any error here leave the block with the error, which rolls it back. It does not notice a COMMIT
        that is sent as text, or an implicit one of MariaDB and MySQL.

        On PostgreSQL the guard's bounds hold for the rest of the transaction. On the others they hold for the check
        alone.

        Args:
            holders: leases or fences of all resources that the transaction writes.
            once: as for :meth:`begin`. What it notes is committed with your transaction.

        Raises:
            ValueError: the transaction has sent statements before, or this is in a savepoint. With
                ``ATOMIC_REQUESTS``, decorate the view with ``transaction.non_atomic_requests``.
            GuardNotEnforceable: it is outside ``atomic()``; or as :meth:`begin`.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, GuardUnavailable: as :meth:`begin`.
        """
        connection = connections[self._using]
        if not State(connection).is_joined:
            raise GuardNotEnforceable(NOT_ATOMIC)
        checking = self._transaction(holders, claim=False, joined=True, once=once)
        with checking:
            checking.join(connection)

    def _check_first(self, lease: Lease) -> None:
        """Check the lease where the transaction of this thread has sent nothing yet, without bounds for the rest."""
        connection = connections[self._using]
        note = State(connection).note()
        if note is None or lease.fence not in note.fences:
            lease.ensure_held()
            checking = self._transaction((lease,), claim=False, joined=True)
            with checking:
                checking.join(connection, bounded=False)

    def create_tables(self) -> None:
        """Create the mark table where it is missing, as the app's migration does. Several processes may do it at once.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: there would be two mark tables, or the database refused. The text says what to do.
        """
        with DjangoErrors((), self._timeout), transaction.atomic(using=self._using, savepoint=False):
            self._marks.create(connections[self._using])

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        Args:
            resource: the name of the lock.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: the table is missing, or the role may not read it. The text says what to do.
        """
        check_resource(resource)
        with DjangoErrors((), self._timeout), transaction.atomic(using=self._using, savepoint=False):
            return self._marks.perform(connections[self._using], plan_mark(resource))

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return whether a write with an unknown outcome happened, at this guard's database. It changes nothing there.

        It does **not** say whether the write still stands: others may have written since. Ask soon, because a mark
        remembers its last 16 writes. Another guard of this database may be asked, too, such as ``SQLAlchemyGuard``.

        Args:
            error: the error that ``begin`` raised. After Ctrl-C, the ``__cause__`` of that.
            timeout: seconds to wait for a transaction that is still under way, at most the guard's own. None: the
                guard's own.

        Returns:
            True: it happened. False: it did not, and never will. None: it cannot be known here any more; read the data
            under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the one that the write raised.
            RuntimeError: it is inside ``atomic()``. Ask outside.
            GuardUnavailable: the database did not answer, or a transaction still holds the mark. Ask again.
        """
        unknown = check_unknown(error)
        seconds = wait_seconds((), self._timeout, timeout)
        connection = connections[self._using]
        require_autocommit(connection)
        errors = DjangoErrors([unknown.fence], seconds, ASK_AGAIN)
        with errors, transaction.atomic(using=self._using, durable=True):
            use_read_committed(self._marks, connection)
            with self._marks.bounded(connection, seconds):
                verdict = self._marks.perform(connection, plan_settle(unknown))
            transaction.set_rollback(True, using=self._using)
            return verdict

    def _transaction(
        self,
        holders: Sequence[Fence | HasFence],
        *,
        claim: bool,
        writes: int = 1,
        timeout: float | None = None,
        caller_block: bool = False,
        joined: bool = False,
        once: str | None = None,
    ) -> DjangoTransaction:
        if once is not None:
            check_once(once, holders)
        seconds = wait_seconds(holders, self._timeout, timeout)
        return DjangoTransaction(
            self._marks,
            DjangoErrors(fences_of(holders), seconds),
            claim=claim,
            writes=writes,
            caller_block=caller_block,
            joined=joined,
            holders=holders,
            continuity=self._continuity,
            once=once,
        )
