"""``landed`` through SQLAlchemy. What an answer means: ``sql/outcome.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from fencing.kernel.errors import OutcomeUnknown
from storage_guards.sql.outcome import verdict
from storage_guards.sqlalchemy.drivers import AUTOCOMMIT, bounded_waits, limit_transaction, require_open_transaction
from storage_guards.sqlalchemy.errors import DATABASE_ERRORS, explain
from storage_guards.sqlalchemy.marks import Marks

__all__ = ["Inquiry"]


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
                enforced = limit_transaction(connection, self._seconds, read_committed=True)
                settled = self._marks.on_database(enforced=enforced).settle(
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
