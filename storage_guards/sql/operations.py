"""What every SQL guard can do besides claims and guarded blocks: methods and their documentation, once for all guards,
sync and async. Each is one piece of work on a connection of its own; how that is done is each guard's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, Mark, check_resource
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds
from storage_guards.sql.enforcement import enforce, unenforce
from storage_guards.sql.errors import ASK_AGAIN, NOTHING_WRITTEN, ErrorContext
from storage_guards.sql.pruning import Pruning, check_pruning
from storage_guards.sql.verify import VerifyReport

_REPEAT = "what was deleted until then stays so, repeat it"


class Operation(NamedTuple):
    """Work on an idle connection, which it leaves idle.

    Args:
        errors: what errors mean there, and the bound of each wait.
        work: does it on a connection; with psycopg it returns the plan.
        waits: how often the server may keep silent for the bound.
    """

    errors: ErrorContext
    work: Callable[[Any], Any]
    waits: int = 1


class OperationsBase(ABC):
    """The operations as values, and the guard's own work behind them."""

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)

    def enforcement_sql(self, table: str, *, resource: str, role: str) -> str:
        """The statement that ``enforce`` executes, for a migration. It makes the same demands, and fails as ``enforce``
        does; after it a ``GRANT`` to another role, or a new partition, is not looked at: run it again then.

        Args:
            table: as for ``enforce``.
            resource: as for ``enforce``.
            role: as for ``enforce``.
        """
        return enforce(table, resource, role)

    def _creation(self) -> Operation:
        return Operation(self._errors(), self._create)

    def _reading(self, resource: str) -> Operation:
        check_resource(resource)
        return Operation(self._errors(), lambda connection: self._read(connection, resource))

    def _inquiry(self, error: object, timeout: float | None) -> Operation:
        unknown = check_unknown(error)
        seconds = wait_seconds((), self._timeout, timeout)
        errors = self._errors([unknown.fence], seconds, ASK_AGAIN)
        return Operation(errors, lambda connection: self._settle(connection, unknown, seconds), waits=3)

    def _pruning(self, below: object, older_than: object) -> Operation:
        pruning = check_pruning(below, older_than)
        return Operation(self._errors(then=_REPEAT), lambda connection: self._prune(connection, pruning))

    def _verification(self) -> Operation:
        return Operation(self._errors(), self._verify)

    def _change(self, statement: str) -> Operation:
        return Operation(self._errors(), lambda connection: self._execute(connection, statement))

    @abstractmethod
    def _errors(
        self, fences: Sequence[Fence] = (), seconds: float | None = None, then: str = NOTHING_WRITTEN
    ) -> ErrorContext:
        """The driver's; ``seconds`` are the guard's own where nothing else is said."""

    @abstractmethod
    def _create(self, connection: Any) -> Any:
        """Make the table and its floor row where they are missing; two processes may do it at once."""

    @abstractmethod
    def _read(self, connection: Any, resource: str) -> Any:
        """The mark as it is; locks nothing, so nothing follows from it."""

    @abstractmethod
    def _settle(self, connection: Any, unknown: OutcomeUnknown, seconds: float) -> Any:
        """The verdict: lock, look, and leave everything as it was."""

    @abstractmethod
    def _prune(self, connection: Any, pruning: Pruning) -> Any:
        """Delete what may go: one transaction after the other, each right by itself. How many there were."""

    @abstractmethod
    def _verify(self, connection: Any) -> Any:
        """The report."""

    @abstractmethod
    def _execute(self, connection: Any, statement: str) -> Any:
        """Execute it in a transaction of its own, within the guard's bounds, on PostgreSQL alone."""


class Operations(OperationsBase):
    """The operations of a sync guard."""

    @abstractmethod
    def _operate(self, operation: Operation) -> Any:
        """Do the work on a connection of its own."""

    def create_tables(self) -> None:
        """Create the mark table where it is missing. May be called at each start, by several processes at once.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: the database refused, for want of a privilege say. A migration can make the table
                instead: docs/databases.md.
        """
        self._operate(self._creation())

    def mark(self, resource: str) -> Mark | None:
        """The newest fence claimed for ``resource``; None: none. For people and tests: no basis for a write."""
        found: Mark | None = self._operate(self._reading(resource))
        return found

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Whether the write whose outcome was unknown happened, at this guard's database. Changes nothing there.

        It does **not** say whether it still stands: others may have written since. True and False are never wrong, also
        after a crash, a failover or a restore of the database: they are said of the data that are there now. Ask soon:
        a mark remembers its last 16 writes. The answer may be had by another process (the error can be pickled), and
        with any guard of this database.

        Args:
            error: as :meth:`begin` or :meth:`write` raised it; after a cancellation the ``__cause__`` of that.
            timeout: seconds to wait for a transaction that is still under way, at most the guard's own, which is the
                default.

        Returns:
            True: it happened. False: it did not, and never will; it may be written again, under a lease that still
            holds. None: it cannot be known here any more (many writes came after it, or it was sent to another
            database); read the data under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown.
            GuardUnavailable: no answer, or the transaction, or another one, still holds the mark. Ask again.
            GuardNotEnforceable: as :meth:`claim`.
        """
        verdict: bool | None = self._operate(self._inquiry(error, timeout))
        return verdict

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
        count: int = self._operate(self._pruning(below, older_than))
        return count

    def verify(self) -> VerifyReport:
        """Look through the table and the database's settings, and say what to change. Changes nothing.

        It does **not** prove that all is well: what a proxy, a replica or a backup does cannot be seen from here. Call
        it at deployment, and print the report.

        Returns:
            What was found: each finding with what it threatens, and what to do about it.

        Raises:
            GuardNotEnforceable: for what breaks safety, and only for that. The text names all of it.
            GuardUnavailable: no answer. Retry.
        """
        found: VerifyReport = self._operate(self._verification())
        return found

    def enforce(self, table: str, *, resource: str, role: str) -> None:
        """Make PostgreSQL itself refuse every write of ``table`` whose transaction has not passed the check: raw SQL,
        psql, an old worker, an ORM that forgot.

        It does **not** stop somebody who claims with an invented fence on purpose; nor the table's owner or a
        superuser, who are refused, but can switch it off: that must not be the application. Nor is what the table's
        *readers* see checked.

        For a guard of the role that owns the table and ``fencing_marks``, the one that runs the migrations. From then
        on INSERT, UPDATE, DELETE, MERGE and COPY of a row need, earlier in the same transaction, the check of a guard
        for this row's resource; an UPDATE that changes the resource needs both; TRUNCATE is refused. The application's
        role loses all rights to change ``fencing_marks`` but those that its guards have through functions, and so does
        every other role: enforce for each that uses a guard. Guards find that out by themselves.

        May be repeated, for another role, another expression, or new partitions (whose rows are checked at once, but
        TRUNCATE of a single one is not). A row that breaks the rule now is let alone until it is written.

        Args:
            table: as in SQL: ``orders``, ``shop.orders``, ``"Orders"``. Ordinary or partitioned.
            resource: SQL over the table's columns, the name of the row's resource, such as ``'orders:' || id``. Of
                columns and immutable functions; those outside ``pg_catalog`` with their schema.
            role: the application's, by its exact name.

        Raises:
            GuardNotEnforceable: the role could get round it, as an owner, a superuser, a member of either, or by the
                privilege TRIGGER; the expression does not do; no PostgreSQL. The text says what to change. Nothing was
                changed.
            GuardUnavailable: no answer, or the table was in use for the guard's ``timeout``. Retry.
            TypeError, ValueError: an argument is no text, or empty.
        """
        self._operate(self._change(enforce(table, resource, role)))

    def unenforce(self, table: str) -> None:
        """Let the table be written unchecked again. The marks and their functions stay, guards go on to use these.

        Raises:
            GuardNotEnforceable, GuardUnavailable: as :meth:`enforce`.
        """
        self._operate(self._change(unenforce(table)))


class AsyncOperations(OperationsBase):
    """:class:`Operations` for asyncio."""

    @abstractmethod
    async def _operate(self, operation: Operation) -> Any:
        """See :meth:`Operations._operate`."""

    async def create_tables(self) -> None:
        """See :meth:`Operations.create_tables`."""
        await self._operate(self._creation())

    async def mark(self, resource: str) -> Mark | None:
        """See :meth:`Operations.mark`."""
        found: Mark | None = await self._operate(self._reading(resource))
        return found

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """See :meth:`Operations.landed`."""
        verdict: bool | None = await self._operate(self._inquiry(error, timeout))
        return verdict

    async def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """See :meth:`Operations.prune`."""
        count: int = await self._operate(self._pruning(below, older_than))
        return count

    async def verify(self) -> VerifyReport:
        """See :meth:`Operations.verify`."""
        found: VerifyReport = await self._operate(self._verification())
        return found

    async def enforce(self, table: str, *, resource: str, role: str) -> None:
        """See :meth:`Operations.enforce`."""
        await self._operate(self._change(enforce(table, resource, role)))

    async def unenforce(self, table: str) -> None:
        """See :meth:`Operations.unenforce`."""
        await self._operate(self._change(unenforce(table)))
