"""One guarded transaction on a SQLAlchemy connection: begin, check first, run the block, see that it is still open.

Written once, for a plain :class:`~sqlalchemy.Connection`. An asyncio guard runs the two ends of :meth:`on` with
``AsyncConnection.run_sync``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards.sql.nesting import not_inside_another
from storage_guards.sql.outcome import Admitted
from storage_guards.sqlalchemy.drivers import bounded_waits, require_it_for_each_statement, require_open_transaction
from storage_guards.sqlalchemy.errors import (
    DATABASE_ERRORS,
    commit_was_refused,
    explain,
    has_lost_a_race,
    transaction_is_gone,
)
from storage_guards.sqlalchemy.marks import Marks

__all__ = ["GuardedTransaction"]

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end: either a statement failed and its error was swallowed "
    "(then nothing was written; put connection.begin_nested() around what may fail), or it sent COMMIT or ROLLBACK as "
    "text or through the driver, or what commits implicitly (on MariaDB and MySQL each CREATE, ALTER, TRUNCATE …; then "
    "what it wrote until that is committed or not, and nothing after it was written but, unchecked, the rest of the "
    "same text)"
)

_ENDED_BY_SQLALCHEMY = (
    "the block ended the checked transaction itself: after a rollback() or close() nothing was written, after a "
    "commit() what was written until then is committed. Leave the end to the block, and put "
    "connection.begin_nested() around what may be rolled back"
)


class GuardedTransaction:
    """One use: a claim, a guarded block, or a check in a transaction of the caller's own.

    Args:
        marks: of the database.
        fences: sorted by resource, one each.
        seconds: the bound of every wait for a lock; on PostgreSQL of every statement of the transaction, too.
        claim: raise the marks; else they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        foreign_body: the block is the caller's, who can send anything, a COMMIT included: look again at its end.
    """

    def __init__(
        self,
        marks: Marks,
        fences: Sequence[Fence],
        seconds: float,
        *,
        claim: bool,
        writes: int = 1,
        foreign_body: bool = False,
    ) -> None:
        self._marks = marks
        self._fences = fences
        self.seconds = seconds
        self._claim = claim
        self._writes = writes
        self._foreign_body = foreign_body
        self.unit_of_work: AbstractContextManager[None] = nullcontext()
        self.commit_is_over = False  # what the unit of work raises now is no answer to the commit
        self._connection: Connection
        self._admitted: list[Admitted] | None = None
        self._body_error: BaseException | None = None
        self._committing = False
        self._committed = False

    @contextmanager
    def on(self, connection: Connection) -> Iterator[Connection]:
        """The whole transaction: begun and admitted on entry, committed or rolled back on exit.

        The block runs in ``unit_of_work``, which may commit at its end, but not before :meth:`about_to_commit`.
        """
        self._connection = connection
        with bounded_waits(connection, self.seconds):
            with connection.begin():
                self.admit(connection)
                if self._foreign_body:
                    require_it_for_each_statement(connection, _ENDED_INSIDE)
                try:
                    with self.unit_of_work:
                        yield connection
                    if not self._committing:
                        self.about_to_commit(connection)
                except BaseException as error:
                    if not self._committing:
                        self._body_error = error
                    raise
            self._committed = True

    def about_to_commit(self, connection: Connection) -> None:
        """The end of the block's own work: from here on no answer means an unknown outcome. GuardNotEnforceable where
        this is not the checked transaction any more."""
        if not connection.in_transaction():
            raise GuardNotEnforceable(_ENDED_BY_SQLALCHEMY)
        if self._writes:  # a mere claim may be committed already
            require_open_transaction(connection, _ENDED_INSIDE)
        self._committing = True
        self._require_same(connection)

    def _is_over(self) -> bool:
        """SQLAlchemy lets go of a transaction as it is committed or rolled back, and calls hooks after that."""
        return self._admitted is not None and self._connection.get_transaction() is None

    def _require_same(self, connection: Connection) -> None:
        """GuardNotEnforceable where the block has put another transaction in the place of the checked one."""
        if not self._foreign_body or not self._admitted:
            return
        try:
            same = self._marks.is_still(connection, self._admitted[0], self.seconds)
        except DBAPIError as error:
            if not transaction_is_gone(error):
                raise
            same = False
        if not same:
            self._body_error = GuardNotEnforceable(_ENDED_INSIDE)
            raise self._body_error

    def admit(self, connection: Connection, *, joined: bool = False) -> None:
        """Claim or check, as the first statements of a transaction or, ``joined``, at a later point of the caller's
        own."""
        admitted = self._marks.admit(
            connection, self._fences, self.seconds, claim=self._claim, writes=self._writes, joined=joined
        )
        if self._foreign_body:
            self._marks.note_transaction(connection)
        self._admitted = admitted

    @contextmanager
    def explained(self, *, joined: bool = False) -> Iterator[None]:
        """Around all of it, connecting included: give database errors the meaning they have at the point reached.

        An interruption (CancelledError, KeyboardInterrupt) stays what it is. If it came during the commit, so that the
        outcome is not known, its ``__cause__`` says so.

        Raises:
            RuntimeError: it would wait for a guarded block of the same thread or task; not asked of a check that is
                ``joined`` to a transaction of the caller's own.
        """
        try:
            with nullcontext() if joined else not_inside_another(self._marks, self._fences, self._is_over):
                yield
        except DATABASE_ERRORS as error:
            meaning = self.meaning(error)
            if meaning is error:
                raise
            if meaning is not None and meaning is self._body_error:
                raise meaning  # noqa: B904 - with the cause that it has
            if meaning is not None:
                raise meaning from error
        except Exception:
            raise
        except BaseException as interruption:
            if self._committing and not self._committed and self._writes and interruption.__cause__ is None:
                raise interruption from self.meaning(interruption)
            raise

    def meaning(self, error: BaseException) -> BaseException | None:
        """What ``error``, which ended the transaction, says of it; None: nothing, for it is committed."""
        if self._committed:
            return None
        if self._body_error is not None:
            return self._body_error  # a rollback that failed after it changes nothing: the transaction is gone
        if self._admitted is None or not self._writes:
            if isinstance(error, DATABASE_ERRORS):
                return explain(error, self._fences, self.seconds)
            return GuardUnavailable("the database did not answer a claim in time; no data was written, retry")
        refused = isinstance(error, DBAPIError) and commit_was_refused(error) and not self.commit_is_over
        if self._committing and not refused:
            return self._admitted[0].unknown()
        return error

    def lost_a_race(self, error: Exception) -> bool:
        """Whether ``error`` undid the transaction only because of others at the same time: it may be tried again, as a
        whole."""
        if isinstance(error, GuardUnavailable) and error is not self._body_error:
            return has_lost_a_race(error.__cause__)
        return has_lost_a_race(error)
