"""The upkeep of the psycopg guards: old marks are pruned, the set-up is looked through. Plans, as in ``wire``,
and the methods of both colours."""

from __future__ import annotations

import psycopg
from psycopg.abc import PQGen

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.errors import explain
from storage_guards.psycopg.running import once, once_async
from storage_guards.psycopg.sources import AsyncLend, Lend
from storage_guards.psycopg.statements import AnyConnection
from storage_guards.psycopg.wire import ask, first_row
from storage_guards.sql.pruning import BATCH, NO_FLOOR, Pruning, Statements, pruning
from storage_guards.sql.verify import Report
from storage_guards.sql.verify_postgresql import FACTS, judge

__all__ = ["AsyncUpkeep", "Upkeep"]


class Upkeep:
    """``prune`` and ``verify``, for a guard that has a bound and lends connections."""

    _timeout: float
    _lend: Lend

    def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """Delete marks that are not needed any more, and shut out every older fence instead.

        The highest number among the deleted marks becomes the **floor**: from then on a claim on *any* name without a
        mark must be above it. See ``SQLAlchemyGuard.prune``, which is the same, for what that means to other names, and
        to holders of long leases.

        Args:
            below: marks with a lower number than this.
            older_than: marks not claimed for so many seconds. With both, marks of which both is true.

        Returns:
            How many marks were deleted.

        Raises:
            TypeError, ValueError: neither was given, or no number in range.
            GuardUnavailable: no answer, or a claim has held the floor for too long. What was deleted until then is;
                repeat it.
            GuardNotEnforceable: the table, its floor row or the privilege is missing.
        """
        what = pruning(below, older_than)
        with _Explained(self._timeout) as explained, self._lend(self._timeout) as connection:
            explained.connected = True
            return once(connection, _prune(connection, what, self._timeout), self._timeout)

    def verify(self) -> Report:
        """Look through the table and the database's settings, and say what to change. Changes nothing.

        It does **not** prove that all is well: what a proxy, a replica or a backup does cannot be seen from here. Call
        it at deployment, and print the report.

        Returns:
            What was found: each finding with what it threatens, and what to do about it.

        Raises:
            GuardNotEnforceable: for what breaks safety, and only for that. The text names all of it.
            GuardUnavailable: no answer. Retry.
        """
        with _Explained(self._timeout) as explained, self._lend(self._timeout) as connection:
            explained.connected = True
            return once(connection, _verify(connection, self._timeout), self._timeout)


class AsyncUpkeep:
    """:class:`Upkeep` for asyncio."""

    _timeout: float
    _lend: AsyncLend

    async def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """See :meth:`Upkeep.prune`."""
        what = pruning(below, older_than)
        with _Explained(self._timeout) as explained:
            async with self._lend(self._timeout) as connection:
                explained.connected = True
                return await once_async(connection, _prune(connection, what, self._timeout), self._timeout)

    async def verify(self) -> Report:
        """See :meth:`Upkeep.verify`."""
        with _Explained(self._timeout) as explained:
            async with self._lend(self._timeout) as connection:
                explained.connected = True
                return await once_async(connection, _verify(connection, self._timeout), self._timeout)


class _Explained:
    """Around all of it, connecting included: what a database error means here."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.connected = False

    def __enter__(self) -> _Explained:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error):
            meaning = explain(error, (), self._seconds, connected=self.connected, then="repeat it")
            if isinstance(meaning, (GuardUnavailable, GuardNotEnforceable)):
                raise meaning from error


def _prune(connection: AnyConnection, what: Pruning, seconds: float) -> PQGen[int]:
    """One round trip for each transaction. DELETE, a statement after the floor was locked, sees what is there then."""
    deleted = 0
    while True:
        statements = Statements.on("postgresql", what)
        opening = [sql.begin(connection, read_committed=True), *sql.limits(seconds, idle=False)]
        results = yield from ask(connection, [*opening, statements.raise_floor, statements.delete, sql.COMMIT])
        floor = first_row(results[-3])
        if floor is None:
            raise GuardNotEnforceable(NO_FLOOR)
        count = int(results[-2].command_tuples or 0)
        deleted += count
        if count < BATCH:
            return deleted
        what = what.up_to(int(floor[0] or 0))


def _verify(connection: AnyConnection, seconds: float) -> PQGen[Report]:
    opening = [sql.begin(connection), *sql.limits(seconds, idle=False)]
    results = yield from ask(connection, [*opening, FACTS, sql.ROLLBACK])
    facts = (results[-2].get_value(0, 0) or b"").decode(connection.info.encoding)
    info = connection.info
    parameters = None if info.host.startswith("/") else info.get_parameters()
    return judge(facts, pid=info.backend_pid, parameters=parameters)
