"""``enforce`` through SQLAlchemy, in both colours. What it does: ``sql/enforcement.py``."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql import operations as enforcing
from storage_guards.sqlalchemy.base import SQLGuard
from storage_guards.sqlalchemy.drivers import limit_transaction
from storage_guards.sqlalchemy.greenlet import in_greenlet

__all__ = ["AsyncEnforcing", "Enforcing"]


class _Executing(SQLGuard):
    def _execute(self, connection: Connection, statement: str) -> None:
        if connection.dialect.name != "postgresql":
            raise GuardNotEnforceable(f"{connection.dialect.name} cannot enforce the check by itself, PostgreSQL can")
        with connection.begin():
            limit_transaction(connection, self._timeout)
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


class Enforcing(_Executing, enforcing.Enforcing):
    """``enforce`` and its counterpart."""

    _engine: Engine

    def _change(self, statement: str) -> None:
        with self._without_fence().explained(), self._engine.connect() as connection:
            self._execute(connection, statement)


class AsyncEnforcing(_Executing, enforcing.AsyncEnforcing):
    """:class:`Enforcing` for asyncio."""

    _engine: AsyncEngine

    async def _change(self, statement: str) -> None:
        with self._without_fence().explained():
            async with self._engine.connect() as connection:
                await in_greenlet(connection, lambda plain: self._execute(plain, statement))
