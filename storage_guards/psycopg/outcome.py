"""``landed`` in PostgreSQL: a plan, as in ``wire``. What an answer means: ``sql/outcome.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.abc import PQGen

from fencing.kernel.errors import GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import MAX_NUMBER
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.errors import explain
from storage_guards.psycopg.statements import AnyConnection, Way
from storage_guards.psycopg.wire import ask, either_way, first_row
from storage_guards.sql.outcome import Settled, verdict

__all__ = ["Inquiry"]

_ROUNDS = 3


class Inquiry:
    """One use of ``landed``."""

    def __init__(self, way: Way, unknown: OutcomeUnknown, seconds: float) -> None:
        self._way = way
        self._unknown = unknown
        self.seconds = seconds
        self._connected = False

    @property
    def silence(self) -> float:
        """How long the server may be silent: three statements may wait."""
        return 3 * self.seconds

    def ask(self, connection: AnyConnection) -> PQGen[bool | None]:
        """Lock, look, and leave everything as it was: one round trip, unless the mark comes or goes meanwhile."""
        self._connected = True
        return (yield from either_way(connection, self._way, lambda: self._ask(connection)))

    def _ask(self, connection: AnyConnection) -> PQGen[bool | None]:
        opening = [sql.begin(connection, read_committed=True), *sql.limits(self.seconds, idle=False)]
        values = sql.values_of(connection, self._unknown.fence)
        marks = self._way.sql
        look = [text.format(**values) for text in (marks.lock_mark, marks.lock_absence, marks.lock_floor)]
        for _ in range(_ROUNDS):
            results = yield from ask(connection, [*opening, *look, sql.ROLLBACK])
            mark, absent, floor = map(first_row, results[len(opening) : -1])
            if mark is not None or absent is not None:
                settled = Settled(
                    recent_writes=None if mark is None else mark[0],
                    table="" if floor is None else floor[1] or "",
                    floor=MAX_NUMBER if floor is None else int(floor[0] or 0),
                )
                return verdict(self._unknown, settled)
        resource = self._unknown.fence.resource
        raise GuardUnavailable(
            f"the mark of {resource!r} changed at each of {_ROUNDS} attempts; the outcome is still open, ask again",
            resource=resource,
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around all of it, connecting included."""
        try:
            yield
        except psycopg.Error as error:
            then = "the outcome is still open, ask again"
            meaning = explain(error, [self._unknown.fence], self.seconds, connected=self._connected, then=then)
            if meaning is error:
                raise
            raise meaning from error
