"""One guarded transaction on a SQLAlchemy connection: begin, check first, run the block, see that it is still open.

Written once, for a plain :class:`~sqlalchemy.Connection`. An asyncio guard runs the two ends of :meth:`on` with
``AsyncConnection.run_sync``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from fencing.errors import OutcomeUnknown
from fencing.fence import Fence
from storage_guards.sql_drivers import bounded_waits, limit_transaction, require_open_transaction
from storage_guards.sql_errors import explain, reply_was_lost
from storage_guards.sql_marks import Admitted, Marks

__all__ = ["GuardedTransaction"]

_AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits by itself, so a check would not hold until the write. Make it "
    'without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one for the guard'
)
_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end: either a statement failed and its error was swallowed "
    "(then nothing was written; put connection.begin_nested() around what may fail), or it sent COMMIT or ROLLBACK as "
    "text (then what it wrote after that was not guarded)"
)


class GuardedTransaction:
    """One use: a claim, a guarded block, or a check in a transaction of the caller's own.

    Args:
        marks: of the database.
        fences: sorted by resource, one each.
        seconds: the bound of every wait for a lock; on PostgreSQL of every statement of the transaction, too.
        claim: raise the marks; else they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
    """

    def __init__(self, marks: Marks, fences: Sequence[Fence], seconds: float, *, claim: bool, writes: int = 1) -> None:
        self._marks = marks
        self._fences = fences
        self.seconds = seconds
        self._claim = claim
        self._writes = writes
        self._admitted: list[Admitted] | None = None
        self._body_error: BaseException | None = None

    @contextmanager
    def on(self, connection: Connection) -> Iterator[Connection]:
        """The whole transaction: begun and admitted on entry, committed or rolled back on exit."""
        with bounded_waits(connection, self.seconds), connection.begin():
            self.admit(connection)
            try:
                yield connection
            except BaseException as error:
                self._body_error = error
                raise
            if connection.in_transaction():  # else the block ended it through SQLAlchemy, which refuses what follows
                require_open_transaction(connection, _ENDED_INSIDE)

    def admit(self, connection: Connection) -> None:
        """Claim or check, as the first statements of a transaction or at a later point of the caller's own."""
        limit_transaction(connection, self.seconds)
        if self._claim:
            admitted = self._marks.claim(connection, self._fences, writes=self._writes)
        else:
            admitted = self._marks.check(connection, self._fences)
        require_open_transaction(connection, _AUTOCOMMIT)
        self._admitted = admitted

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around all of it, connecting included: give database errors the meaning they have at the point reached."""
        try:
            yield
        except (DBAPIError, PoolTimeoutError) as error:
            meaning = self._meaning(error)
            if meaning is error:
                raise
            raise meaning from error

    def _meaning(self, error: DBAPIError | PoolTimeoutError) -> BaseException:
        if self._body_error is not None:
            return self._body_error  # a rollback that failed after it changes nothing: the transaction is gone
        if self._admitted is None or not self._writes:
            return explain(error, self._fences, self.seconds)
        if isinstance(error, DBAPIError) and reply_was_lost(error):
            fence, seq, transaction = self._admitted[0]
            return OutcomeUnknown(fence=fence, seq=seq, transaction=transaction)
        return error
