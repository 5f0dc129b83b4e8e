"""``enforce`` through psycopg, in both colours. What it does: ``sql/enforcement.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg.abc import PQGen

from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.running import once, once_async
from storage_guards.psycopg.statements import AnyConnection
from storage_guards.psycopg.transaction import GuardedTransaction
from storage_guards.psycopg.wire import ask
from storage_guards.sql import operations as enforcing

__all__ = ["AsyncEnforcing", "Enforcing"]


class _Executing:
    _timeout: float
    _lend: Any
    _without_fence: Callable[[], GuardedTransaction]


class Enforcing(_Executing, enforcing.Enforcing):
    """``enforce`` and its counterpart, for a guard that has a bound and lends connections."""

    def _change(self, statement: str) -> None:
        with self._without_fence(), self._lend(self._timeout) as connection:
            once(connection, _execute(connection, statement, self._timeout), self._timeout)


class AsyncEnforcing(_Executing, enforcing.AsyncEnforcing):
    """:class:`Enforcing` for asyncio."""

    async def _change(self, statement: str) -> None:
        with self._without_fence():
            async with self._lend(self._timeout) as connection:
                await once_async(connection, _execute(connection, statement, self._timeout), self._timeout)


def _execute(connection: AnyConnection, statement: str, seconds: float) -> PQGen[None]:
    yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), statement, sql.COMMIT])
