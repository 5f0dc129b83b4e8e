"""``enforce`` and its counterpart as every SQL guard has them. What they do: ``sql/enforcement.py``; how a statement is
executed is each guard's own."""

from __future__ import annotations

from abc import ABC, abstractmethod

from storage_guards.sql.enforcement import enforce, unenforce

__all__ = ["AsyncEnforcing", "Enforcing"]


class _Printing:
    """For migration tools."""

    def enforcement_sql(self, table: str, *, resource: str, role: str) -> str:
        """The statement that ``enforce`` executes, for a migration. It makes the same demands, and fails as ``enforce``
        does; after it a ``GRANT`` to another role, or a new partition, is not looked at: run it again then.

        Args:
            table: as for ``enforce``.
            resource: as for ``enforce``.
            role: as for ``enforce``.
        """
        return enforce(table, resource, role)


class Enforcing(_Printing, ABC):
    """``enforce`` and ``unenforce``."""

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
        self._change(enforce(table, resource, role))

    def unenforce(self, table: str) -> None:
        """Let the table be written unchecked again. The marks and their functions stay, guards go on to use these.

        Raises:
            GuardNotEnforceable, GuardUnavailable: as :meth:`enforce`.
        """
        self._change(unenforce(table))

    @abstractmethod
    def _change(self, statement: str) -> None:
        """Execute it in a transaction of its own, within the guard's bounds."""


class AsyncEnforcing(_Printing, ABC):
    """:class:`Enforcing` for asyncio."""

    async def enforce(self, table: str, *, resource: str, role: str) -> None:
        """See :meth:`Enforcing.enforce`."""
        await self._change(enforce(table, resource, role))

    async def unenforce(self, table: str) -> None:
        """See :meth:`Enforcing.unenforce`."""
        await self._change(unenforce(table))

    @abstractmethod
    async def _change(self, statement: str) -> None:
        """See :meth:`Enforcing._change`."""
