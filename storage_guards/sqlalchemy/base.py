"""What the sync and the asyncio SQL guard share: everything but ``with`` and ``await``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Executable, MetaData, Select, TextClause
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import UpdateBase

from fencing.kernel.fence import Fence, HasFence
from storage_guards.bounds import LEAST_SECONDS, check_timeout, check_unknown, fences_of, wait_seconds
from storage_guards.sqlalchemy.drivers import bounded_waits, check_engine, family
from storage_guards.sqlalchemy.marks import Marks
from storage_guards.sqlalchemy.mysql import MySQLMarks
from storage_guards.sqlalchemy.outcome import Inquiry
from storage_guards.sqlalchemy.retry import Retries
from storage_guards.sqlalchemy.transaction import GuardedTransaction

__all__ = ["COUNT_ROWS", "Parameters", "SQLGuard", "affected", "check_writes"]

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

COUNT_ROWS = {"preserve_rowcount": True}
"""Execution options: SQLAlchemy keeps the row count of an INSERT, too."""


class SQLGuard:
    """The base of both guards: arguments become transactions."""

    def __init__(self, engine: Engine, timeout: float) -> None:
        check_engine(engine)
        self._timeout = check_timeout(timeout)
        self._family = family(engine.dialect.name)
        self._marks = _marks(self._family, engine.dialect.driver)

    @property
    def metadata(self) -> MetaData:
        """The mark table's metadata, for Alembic: ``target_metadata = [my_metadata, guard.metadata]``."""
        return self._marks.metadata

    def _transaction(
        self,
        holders: Sequence[Fence | HasFence],
        *,
        claim: bool,
        writes: int = 1,
        timeout: float | None = None,
        at_most: float = math.inf,
        foreign_body: bool = False,
    ) -> GuardedTransaction:
        fences = fences_of(holders)
        seconds = min(wait_seconds(holders, self._timeout, timeout), max(at_most, LEAST_SECONDS))
        return GuardedTransaction(self._marks, fences, seconds, claim=claim, writes=writes, foreign_body=foreign_body)

    def _retries(self, holders: Sequence[Fence | HasFence], attempts: int) -> Retries:
        return Retries(holders, attempts, wait_seconds(holders, self._timeout))

    def _may_end_the_transaction(self, statement: Executable) -> bool:
        """Whether it may be several statements, a COMMIT among them, as PostgreSQL takes where there are no parameters;
        or on MariaDB and MySQL anything that commits implicitly, a procedure included."""
        if self._family == "mysql":
            return not isinstance(statement, UpdateBase)
        return isinstance(statement, TextClause) and ";" in statement.text

    def _without_fence(self) -> GuardedTransaction:
        return GuardedTransaction(self._marks, (), self._timeout, claim=False)

    def _inquiry(self, error: object, timeout: float | None) -> Inquiry:
        return Inquiry(self._marks, check_unknown(error), wait_seconds((), self._timeout, timeout))

    def _create_tables(self, connection: Connection) -> None:
        with bounded_waits(connection, self._timeout):
            self._marks.create(connection, self._timeout)

    def _advance(self, target: Connection | Session, holders: Sequence[Fence | HasFence]) -> None:
        transaction = self._transaction(holders, claim=False)
        session = target if isinstance(target, Session) else None
        if session is not None and (session.new or session.dirty or session.deleted):
            raise ValueError(
                "the session has unflushed changes, made from what was read before the check; advance first"
            )
        nested = target.in_nested_transaction()
        with transaction.explained(joined=True):
            connection = target.connection() if isinstance(target, Session) else target
            if family(connection.dialect.name) != self._family:
                raise ValueError(
                    f"the connection goes to {connection.dialect.name}, this guard's marks are in {self._family}"
                )
            if nested or connection.in_nested_transaction():
                raise ValueError("a rollback to the savepoint would drop the check; advance before begin_nested()")
            with bounded_waits(connection, transaction.seconds, begins=False):
                transaction.admit(connection, joined=True)
        if session is not None:
            session.expire_all()


def _marks(family: str, driver: str) -> Marks:
    if family == "mysql":
        return MySQLMarks()
    if driver != "psycopg":
        return Marks(family)
    from storage_guards.sqlalchemy.over_psycopg import PsycopgMarks  # only who uses psycopg has it

    return PsycopgMarks()


def check_writes(statement: object) -> None:
    if not isinstance(statement, Executable):
        hint = "; wrap it in sqlalchemy.text()" if isinstance(statement, str) else ""
        if isinstance(statement, Fence) or isinstance(getattr(statement, "fence", None), Fence):
            hint = "; the lease comes first"
        raise TypeError(f"write takes a SQL statement, not {type(statement).__name__}{hint}")
    if isinstance(statement, Select):
        raise ValueError("write takes no SELECT; read inside begin(), where what is read is current")  # noqa: TRY004


def affected(result: CursorResult[Any]) -> int:
    return len(result.all()) if result.returns_rows else result.rowcount
