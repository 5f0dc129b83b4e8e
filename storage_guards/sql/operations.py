# Made from operations_async.py by `make faces`: change that file, not this one.
"""The operations that all sync SQL guards share with their documentation, besides claims and guarded blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Mark
from fencing.kernel.patterns import Pattern
from storage_guards.sql.base import Operation, OperationsBase
from storage_guards.sql.enforcement import unenforce
from storage_guards.sql.listing import ListedMark, Page
from storage_guards.sql.verify import VerifyReport


class Operations(OperationsBase):
    """The operations of a guard."""

    @abstractmethod
    def _operate(self, operation: Operation) -> Any:
        """Do the work on a connection of its own."""

    def create_tables(self) -> None:
        """Create the mark table where it is missing. It may be called at each start, by several processes at once.

        Where the table exists it needs no privilege to create one. It never makes a second mark table in a database
        unless the guard was given a ``schema``. Without one the new table is in the first schema of the search path.
        Where the table has lost its floor row, it makes one that shuts out all fences that are older than now.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: there would be two mark tables, or the database refused, because of a missing privilege
                for instance. A migration can create the table instead: docs/guards/databases.md.
        """
        self._operate(self._creation())

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        Args:
            resource: the name of the lock.

        Raises:
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: the table is missing, or the role may not read it. The text says what to do.
        """
        found: Mark | None = self._operate(self._reading(resource))
        return found

    def marks(self, pattern: str = "*") -> Iterator[ListedMark]:
        """Return the marks of all names that match, in the order of their bytes. It is for people and tests: do not
        base a write on them.

        It asks page by page, and no transaction lasts between two pages. A mark that is there all the time comes once,
        as it was when its page was read. It reads through all marks, whatever the pattern is.

        Args:
            pattern: ``*`` stands for any characters, ``?`` for one, such as ``"orders:*"``.

        Raises:
            TypeError: ``pattern`` is no text, or is empty.
            GuardUnavailable: the database did not answer. Retry.
            GuardNotEnforceable: the table is missing, or the role may not read it. The text says what to do.
        """
        return self._listed(Pattern(pattern))

    def _listed(self, pattern: Pattern) -> Iterator[ListedMark]:
        after: str | None = ""
        while after is not None:
            page: Page = self._operate(self._listing(after))
            for each in page.marks:
                if pattern.matches(each.resource):
                    yield each
            after = page.after

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return whether a write with an unknown outcome happened, at this guard's database. It changes nothing there.

        It does **not** say whether the write still stands: others may have written since. True and False are never
        wrong, also after a crash, a failover or a restore: they describe the data that are there now. Ask soon, because
        a mark remembers its last 16 writes. Another process may ask too (the error can be pickled), with any guard of
        this database.

        Args:
            error: the error that ``begin`` or ``write`` raised. After Ctrl-C, the ``__cause__`` of that.
            timeout: seconds to wait for a transaction that is still under way, at most the guard's own. None: the
                guard's own.

        Returns:
            True: it happened. False: it did not, and never will; it may be written again, under a lease that still
            holds. None: it cannot be known here any more (many writes came after it, or it was sent to another
            database); read the data under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the one that the write raised.
            GuardUnavailable: the database did not answer, or a transaction still holds the mark. Ask again.
            GuardNotEnforceable: the table is missing, or the set-up cannot enforce the rules. The text says what to do.
        """
        verdict: bool | None = self._operate(self._inquiry(error, timeout))
        return verdict

    def prune(self, *, below: int | None = None, older_than: float | None = None) -> int:
        """Delete marks that are not needed any more, and shut out every older fence instead.

        A table has one mark for each name ever used. Deleting a mark must not admit its old holders again. So the
        highest number among the deleted marks becomes the **floor**: from then on a claim on *any* name without a mark
        must be above it. This also shuts out old fences of names whose marks were not touched. That is right where
        numbers follow the clock, as they do unless a coordinator has ``clock_floor=False``: a number at or below the
        floor was granted before that time. A coordinator without a clock floor is refused once, and then mints above
        the floor.

        A holder whose mark was deleted cannot write any more (``UnclaimedFence``), even if it renews its lease. So
        choose an age that no lease reaches: days, not minutes. Marks that an open transaction uses stay. So do marks
        whose number no coordinator can have minted: :meth:`verify` names them.

        Each transaction deletes 1000 marks at most, so claims on new names wait only shortly. The role needs the
        privilege to DELETE.

        Args:
            below: delete marks with a lower number than this.
            older_than: delete marks that were not claimed for so many seconds. With both arguments, marks that meet
                both.

        Returns:
            How many marks were deleted.

        Raises:
            TypeError, ValueError: no argument was given, or one is no number in range.
            GuardUnavailable: the database did not answer, or a claim held the floor for too long. The marks deleted
                until then stay deleted. Call it again.
            GuardNotEnforceable: the table, its floor row or the privilege is missing, or the engine is in autocommit.
                The text says what to do.
        """
        count: int = self._operate(self._pruning(below, older_than))
        return count

    def prune_done(self, resource: str, *, below: str) -> int:
        """Delete what is noted as done once, of the keys below this one, and refuse these keys for ever instead.

        A block with ``once=`` leaves a row for its key. To delete it must not let the block run again. So the highest
        key that was deleted becomes the **floor** of the resource's keys: an absent key at or below it is refused
        (``TooOld``). Keys are compared byte by byte, so prune only keys that sort by time: dates such as
        ``"2026-11-23"``. Rows of other resources stay.

        Each transaction locks the resource's mark, and deletes 1000 rows at most. The role needs the privilege to
        DELETE from ``fencing_done``.

        Args:
            resource: the name of the lock.
            below: delete the rows of the keys below this one. Choose it so old that nobody comes with such a key any
                more.

        Returns:
            How many rows were deleted.

        Raises:
            TypeError, ValueError: an argument is no text, or is empty or too long.
            GuardUnavailable: the database did not answer, or the mark stayed locked. The rows deleted until then stay
                deleted. Call it again.
            GuardNotEnforceable: the table or the privilege is missing. The text says what to do.
        """
        count: int = self._operate(self._done_pruning(resource, below))
        return count

    def verify(self) -> VerifyReport:
        """Inspect the table and the database's settings, and report what to change. It changes nothing.

        It does **not** prove that all is well: proxies, replicas and backups cannot be seen from here. Call it at
        deployment, and print the report.

        Returns:
            The findings, each with what it threatens and what to do about it.

        Raises:
            GuardNotEnforceable: a finding breaks safety. The text names all of these.
            GuardUnavailable: the database did not answer. Retry.
        """
        found: VerifyReport = self._operate(self._verification())
        return found

    def enforce(self, table: str, *, resource: str, role: str) -> None:
        """Make PostgreSQL itself refuse every write of ``table`` in a transaction that has not passed the check.

        This covers raw SQL, psql, old workers, and ORM code that bypasses the guard. It does **not** stop a client that
        claims with an invented fence on purpose. It does not stop the table's owner or a superuser either: they are
        refused, but can switch it off, so the application must not be one of them. *Reads* of the table are not
        checked.

        Call it with a guard of the role that owns the table and ``fencing_marks``: the role that runs the migrations.
        From then on INSERT, UPDATE, DELETE, MERGE and COPY of a row need a guard's check for this row's resource,
        earlier in the same transaction. An UPDATE that changes the resource needs both checks. TRUNCATE is refused. The
        application's role and every other role lose the right to change ``fencing_marks`` directly. The guards of the
        application's role use functions instead, and find that out by themselves. Enforce the table for each role that
        uses a guard. A role that keeps the right by other means, such as ``pg_write_all_data``, can forge marks. It is
        logged as a warning, and :meth:`verify` reports it.

        It may be repeated, for another role, another expression, or new partitions. (Rows of a new partition are
        checked at once, but TRUNCATE of this partition alone is not.) A row that breaks the rule now is not checked
        until it is written.

        Args:
            table: as in SQL: ``orders``, ``shop.orders``, ``"Orders"``. Ordinary or partitioned.
            resource: an SQL expression over the table's columns that gives the name of the row's resource, such as
                ``'orders:' || id``. It may use columns and immutable functions. Write functions outside ``pg_catalog``
                with their schema.
            role: the exact name of the application's role.

        Raises:
            GuardNotEnforceable: the role could bypass the check (as an owner, a superuser, a member of either, or by
                the privilege TRIGGER). Or the expression is not usable, or this is not PostgreSQL. Nothing was changed.
                The text says what to do.
            GuardUnavailable: the database did not answer, or the table was in use for the guard's ``timeout``. Retry.
            TypeError, ValueError: an argument is no text, or is empty.
        """
        self._warn_of(self._operate(self._enforcement(table, resource, role)))

    def unenforce(self, table: str) -> None:
        """Let ``table`` be written without a check again. The marks and their functions stay, and guards still use
        them.

        Args:
            table: as for :meth:`enforce`.

        Raises:
            GuardNotEnforceable: the database refused. The text says what to do.
            GuardUnavailable: the database did not answer, or the table was in use for the guard's ``timeout``. Retry.
            TypeError, ValueError: ``table`` is no text, or is empty.
        """
        self._operate(self._change(unenforce(table)))
