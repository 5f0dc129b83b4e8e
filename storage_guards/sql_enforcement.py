"""``enforce`` through SQLAlchemy, in both colours. What it does: ``enforcement.py``."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.errors import GuardNotEnforceable
from storage_guards.enforcement import Printed, enforce, unenforce
from storage_guards.sql_asyncio import in_greenlet
from storage_guards.sql_drivers import limit_transaction
from storage_guards.sql_guard import SQLGuard

__all__ = ["AsyncEnforcing", "Enforcing"]


class _Executing(Printed, SQLGuard):
    def _execute(self, connection: Connection, statement: str) -> None:
        if connection.dialect.name != "postgresql":
            raise GuardNotEnforceable(f"{connection.dialect.name} cannot enforce the check by itself, PostgreSQL can")
        with connection.begin():
            limit_transaction(connection, self._timeout)
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


class Enforcing(_Executing):
    """``enforce`` and its counterpart."""

    _engine: Engine

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

    def _change(self, statement: str) -> None:
        with self._without_fence().explained(), self._engine.connect() as connection:
            self._execute(connection, statement)


class AsyncEnforcing(_Executing):
    """:class:`Enforcing` for asyncio."""

    _engine: AsyncEngine

    async def enforce(self, table: str, *, resource: str, role: str) -> None:
        """See :meth:`Enforcing.enforce`."""
        await self._change(enforce(table, resource, role))

    async def unenforce(self, table: str) -> None:
        """See :meth:`Enforcing.unenforce`."""
        await self._change(unenforce(table))

    async def _change(self, statement: str) -> None:
        with self._without_fence().explained():
            async with self._engine.connect() as connection:
                await in_greenlet(connection, lambda plain: self._execute(plain, statement))
