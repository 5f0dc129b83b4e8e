"""``enforce`` through psycopg, in both colours. What it does: ``enforcement.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg.abc import PQGen

from storage_guards import psycopg_statements as sql
from storage_guards.enforcement import Printed, enforce, unenforce
from storage_guards.psycopg_running import once, once_async
from storage_guards.psycopg_statements import AnyConnection
from storage_guards.psycopg_transaction import GuardedTransaction
from storage_guards.psycopg_wire import ask

__all__ = ["AsyncEnforcing", "Enforcing"]


class _Executing(Printed):
    _timeout: float
    _lend: Any
    _without_fence: Callable[[], GuardedTransaction]


class Enforcing(_Executing):
    """``enforce`` and its counterpart, for a guard that has a bound and lends connections."""

    def enforce(self, table: str, *, resource: str, role: str) -> None:
        """Make PostgreSQL itself refuse every write of ``table`` whose transaction has not passed the check.

        It does **not** stop somebody who claims with an invented fence on purpose; nor the table's owner or a
        superuser, who can switch it off: that must not be the application. See ``SQLAlchemyGuard.enforce``, which is
        the same.

        Args:
            table: as in SQL: ``orders``, ``shop.orders``, ``"Orders"``. Ordinary or partitioned.
            resource: SQL over the table's columns, the name of the row's resource, such as ``'orders:' || id``.
            role: the application's, by its exact name.

        Raises:
            GuardNotEnforceable: the role could get round it, or the expression does not do. The text says what to
                change. Nothing was changed.
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
        with self._without_fence(), self._lend(self._timeout) as connection:
            once(connection, _execute(connection, statement, self._timeout), self._timeout)


class AsyncEnforcing(_Executing):
    """:class:`Enforcing` for asyncio."""

    async def enforce(self, table: str, *, resource: str, role: str) -> None:
        """See :meth:`Enforcing.enforce`."""
        await self._change(enforce(table, resource, role))

    async def unenforce(self, table: str) -> None:
        """See :meth:`Enforcing.unenforce`."""
        await self._change(unenforce(table))

    async def _change(self, statement: str) -> None:
        with self._without_fence():
            async with self._lend(self._timeout) as connection:
                await once_async(connection, _execute(connection, statement, self._timeout), self._timeout)


def _execute(connection: AnyConnection, statement: str, seconds: float) -> PQGen[None]:
    yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), statement, sql.COMMIT])
