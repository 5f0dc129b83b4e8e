"""How a transaction ended whose commit got no answer: what ``landed`` says, and why it is never wrong.

Each guarded write puts a random id of its own in front of the mark's ``recent_writes``, in its own transaction, under
the mark's row lock. So what is committed there is the end of the history of the mark's writes, without a gap, and an
:class:`~fencing.errors.OutcomeUnknown` carries what it would be if the write had been the last. At any later time:

- **Locked means over.** The unknown transaction has held the lock of the mark's row since its check, whose reply came
  before anything else was sent. Who gets that lock later knows that it has ended, and cannot land any more.
- **Its id is there: True.** Nobody else has used that id.
- **An older write is there, but not its id: False.** Had it landed, it would stand between the two.
- **Neither: None.** Too many writes came after it, or this is not the database that it was sent to.

The oldest entry of all is the table's id, for the first write of a mark. It counts only above the floor: below, the
mark may have been pruned with the write in it, and begun anew.

Nothing else is used. Not ``seq``: after a rollback the next write gets the same one. Not ``pg_xact_status``: a server
that crashes gives the transaction ids it had not yet flushed to others, and so does a replica that takes over without
them; "committed" is then said of another transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from fencing.errors import OutcomeUnknown
from storage_guards.sql_drivers import AUTOCOMMIT, bounded_waits, limit_transaction, require_open_transaction
from storage_guards.sql_errors import DATABASE_ERRORS, explain
from storage_guards.sql_marks import Marks, Settled

__all__ = ["Inquiry", "verdict"]


def verdict(unknown: OutcomeUnknown, settled: Settled) -> bool | None:
    """Whether the write has landed, from what is stored now that its transaction is over; None: it cannot be known."""
    if not unknown.recent_writes:
        return None
    mine, *older = unknown.recent_writes.split()
    now = [settled.table] if settled.recent_writes is None else settled.recent_writes.split()
    if mine in now:
        return True
    shared = set(older) & set(now)
    if shared == {settled.table}:
        return False if unknown.fence.number > settled.floor else None
    return False if shared else None


class Inquiry:
    """One use of ``landed``."""

    def __init__(self, marks: Marks, unknown: OutcomeUnknown, seconds: float) -> None:
        self._marks = marks
        self._unknown = unknown
        self._seconds = seconds

    def ask(self, connection: Connection) -> bool | None:
        """Lock, look, and leave everything as it was."""
        with bounded_waits(connection, self._seconds):
            transaction = connection.begin()
            try:
                limit_transaction(connection, self._seconds, read_committed=True)
                settled = self._marks.settle(
                    connection, self._unknown.fence, lambda: require_open_transaction(connection, AUTOCOMMIT)
                )
            finally:
                transaction.rollback()
        return verdict(self._unknown, settled)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around all of it, connecting included."""
        try:
            yield
        except DATABASE_ERRORS as error:
            meaning = explain(error, [self._unknown.fence], self._seconds, then="the outcome is still open, ask again")
            if meaning is error:
                raise
            raise meaning from error
