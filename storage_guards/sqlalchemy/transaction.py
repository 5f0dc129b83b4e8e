"""One guarded transaction on a SQLAlchemy connection: begin, check first, run the block, and see that it is still open.

It is written once, for a plain :class:`~sqlalchemy.Connection`. An async guard runs the two ends of
:meth:`SQLAlchemyTransaction.on` with ``AsyncConnection.run_sync``, the second one shielded from cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from storage_guards.sql.transaction import GuardedTransaction
from storage_guards.sqlalchemy.errors import DATABASE_ERRORS, commit_was_refused, lost_race, transaction_is_gone
from storage_guards.sqlalchemy.marks import Marks

T = TypeVar("T")

_UNBOUNDED: AbstractContextManager[Any] = nullcontext()

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end. Perhaps a statement failed and its error was "
    "swallowed: then nothing was written; put connection.begin_nested() around what may fail. Perhaps the block sent "
    "COMMIT or ROLLBACK as text or through the driver, or a statement that commits implicitly (on MariaDB and MySQL "
    "each CREATE, ALTER, TRUNCATE …): then what it wrote before is committed or not, and the rest of the same text may "
    "be written unchecked, but nothing later; leave the end to the guard"
)

_ENDED_BY_SQLALCHEMY = (
    "the block ended the checked transaction itself. After a rollback() or close() nothing was written; after a "
    "commit() all earlier writes are committed. Leave the end to the guard, and put connection.begin_nested() around "
    "what may be rolled back"
)


class SQLAlchemyTransaction(GuardedTransaction[Marks]):
    """A :class:`GuardedTransaction` on a SQLAlchemy connection."""

    unit_of_work: AbstractContextManager[None] = nullcontext()
    """The context in which the block runs. It may commit at its end, but not before :meth:`about_to_commit`."""
    commit_is_over = False
    """The commit was answered, so an error of the unit of work is no answer to it."""
    _connection: Connection | None = None

    @contextmanager
    def on(self, connection: Connection) -> Iterator[Connection]:
        """Begin and admit the transaction on entry; commit it or roll it back on exit."""
        self._connection = connection
        marks = self._marks
        marks.leave_others_alone(connection)
        bounds_of_session = _UNBOUNDED
        if marks.bounds_sessions:
            bounds_of_session = marks.bounded(connection, self.seconds, caller_block=self.caller_block)
        with bounds_of_session as bounds:
            root = connection.begin().__enter__()
            committed = False
            try:
                self.admit(connection, bounds)
                if self.caller_block and not marks.dialect.begins_by_itself(connection):
                    # Otherwise what follows a COMMIT in the block would be committed without a check.
                    event.listen(connection, "before_cursor_execute", lambda *_: self._require_open(connection))
                try:
                    with self.unit_of_work:
                        yield connection
                    if not self._committing:
                        self.about_to_commit(connection)
                        committed = bounds is not None and marks.commit(bounds)
                except BaseException as error:
                    self.body_failed(error)
                    raise
            except BaseException as error:
                if self._may_have_changed_session(connection, error):
                    connection.invalidate(error)
                root.__exit__(type(error), error, error.__traceback__)
                raise
            if not committed:
                root.__exit__(None, None, None)
            marks.require_current(connection)
            self.note_commit()

    def admit(self, connection: Connection, bounds: Any = None) -> None:
        """Claim or check.

        These are the first statements of a transaction or, if it is ``joined``, later ones of the caller's own
        transaction.
        """
        admitted = self._marks.admit(
            connection,
            self.fences,
            self.seconds,
            claim=self.claims,
            writes=self.writes,
            joined=self.joined,
            bounds=bounds,
        )
        self.files = self._marks.files_of(connection)
        self.check_continuity(admitted)
        if self.caller_block:
            self._marks.note_transaction(connection, admitted[0], bounds)
        self._admitted = admitted

    def _may_have_changed_session(self, connection: Connection, error: BaseException) -> bool:
        """Return whether the block may have changed the connection's session, together with the end of the checked
        transaction: as LOCK TABLES and ``SET autocommit`` do. In the pool, it would surprise its next user."""
        if not self.caller_block or self._admitted is None or connection.closed or connection.invalidated:
            return False
        if isinstance(error, GuardNotEnforceable):
            return True
        return not lost_race(error) and self._marks.may_have_changed_session(
            connection, self._admitted[0], self.seconds
        )

    def about_to_commit(self, connection: Connection) -> None:
        """End the block's own work: from here on a missing answer means an unknown outcome.

        Raise GuardNotEnforceable where this is no longer the checked transaction.
        """
        if not connection.in_transaction():
            raise GuardNotEnforceable(_ENDED_BY_SQLALCHEMY)
        if not self.caller_block and self._marks.is_sound(connection):
            self._committing = True
            return
        if self.writes and not self._marks.dialect.is_open(connection):  # a mere claim may be committed already
            raise GuardNotEnforceable(_ENDED_INSIDE)
        try:
            if self.caller_block and self._admitted and not self._is_same_transaction(connection):
                self.refuse(_ENDED_INSIDE)
            # Perhaps the end of the session: ask, before COMMIT is sent.
            if not self.caller_block and self._marks.has_unread(connection):
                connection.exec_driver_sql("SELECT 1").close()
        except DBAPIError as error:
            self.note_not_sent(error)
            raise
        self._committing = True

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks.

        SQLAlchemy drops a transaction when it is committed or rolled back, and calls hooks after that.
        """
        if super().is_over() or self._committed:
            return True
        connection = self._connection
        return self._admitted is not None and connection is not None and connection.get_transaction() is None

    def end_interrupted(self, error: BaseException) -> bool:
        """End what an interruption has left, as :meth:`GuardedTransaction.end_interrupted` does: also the connection's
        transaction."""
        connection = self._connection
        if connection is not None and not connection.closed:
            self.hang_up(connection)
            if not connection.dialect.is_async:
                with suppress(*DATABASE_ERRORS):
                    connection.invalidate(error)
                    connection.close()
        return super().end_interrupted(error)

    def hang_up(self, connection: Connection | None) -> None:
        """Close the connection's socket."""
        self._marks.dialect.hang_up(connection)

    def lost_race(self, error: BaseException) -> bool:
        """Return whether ``error`` came only from concurrent transactions, so that the whole block may be repeated."""
        if isinstance(error, GuardUnavailable) and error is not self._body_error:
            return lost_race(error.__cause__)
        return lost_race(error)

    def _require_open(self, connection: Connection) -> None:
        self._marks.require_open(connection, _ENDED_INSIDE)

    def _is_same_transaction(self, connection: Connection) -> bool:
        """Return whether this still is the checked transaction, and the block has not begun another one."""
        assert self._admitted is not None
        try:
            return self._marks.is_same_transaction(connection, self._admitted[0], self.seconds)
        except DBAPIError as error:
            if not transaction_is_gone(error):
                raise
            return False

    def _commit_was_refused(self, error: BaseException) -> bool:
        return commit_was_refused(error) and not self.commit_is_over
