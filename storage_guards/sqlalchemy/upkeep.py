"""The upkeep of SQL guards through SQLAlchemy, in both colours: old marks are pruned, the set-up is looked through."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from storage_guards.sql.pruning import pruning
from storage_guards.sql.verify import Report
from storage_guards.sqlalchemy.base import SQLGuard
from storage_guards.sqlalchemy.greenlet import in_greenlet
from storage_guards.sqlalchemy.prune import prune
from storage_guards.sqlalchemy.verify import verify

__all__ = ["AsyncUpkeep", "Upkeep"]


class Upkeep(SQLGuard):
    """``prune`` and ``verify``."""

    _engine: Engine

    def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """Delete marks that are not needed any more, and shut out every older fence instead.

        A table has one mark for each name ever used. Deleting one must not let its old holders back in. So the highest
        number among the deleted marks becomes the **floor**: from then on a claim on *any* name without a mark must be
        above it. That shuts out old fences of all such names, also of those whose marks were not touched, and that is
        right where numbers follow the clock, as the coordinators' do unless ``clock_floor=False``: what is at or under
        the floor was granted before then. If not, a coordinator that is refused once mints above the floor.

        A holder whose mark was deleted cannot write any more (``UnclaimedFence``), however long it renews its lease. So
        choose an age that no lease reaches, days rather than minutes. Marks that an open transaction uses stay.

        Each 1000 marks are one transaction, so claims on new names wait little. Needs the privilege to DELETE.

        Args:
            below: marks with a lower number than this.
            older_than: marks not claimed for so many seconds. With both, marks of which both is true.

        Returns:
            How many marks were deleted.

        Raises:
            TypeError, ValueError: neither was given, or no number in range.
            GuardUnavailable: no answer, or a claim has held the floor for too long. What was deleted until then is;
                repeat it.
            GuardNotEnforceable: the table, its floor row or the privilege is missing, or the engine is in autocommit.
        """
        what = pruning(below, older_than)
        with self._without_fence().explained(), self._engine.connect() as connection:
            return prune(connection, what, self._timeout)

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
        with self._without_fence().explained(), self._engine.connect() as connection:
            return verify(connection, self._marks, self._timeout)


class AsyncUpkeep(SQLGuard):
    """:class:`Upkeep` for asyncio."""

    _engine: AsyncEngine

    async def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """See :meth:`Upkeep.prune`."""
        what = pruning(below, older_than)
        with self._without_fence().explained():
            async with self._engine.connect() as connection:
                return await in_greenlet(connection, lambda plain: prune(plain, what, self._timeout))

    async def verify(self) -> Report:
        """See :meth:`Upkeep.verify`."""
        with self._without_fence().explained():
            async with self._engine.connect() as connection:
                return await in_greenlet(connection, lambda plain: verify(plain, self._marks, self._timeout))
