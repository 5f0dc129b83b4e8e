"""The common part of the sync and the async guard through SQLAlchemy: everything but ``with`` and ``await``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Executable, MetaData, Select, TextClause
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import UpdateBase

from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.kernel.retry import LEAST_SECONDS
from fencing.sql.dialects import unsupported
from fencing.sql.files import follow
from fencing.sql.statement_thread import StatementThread
from storage_guards.bounds import fences_of, wait_seconds
from storage_guards.continuity import Continuity
from storage_guards.once import check_once
from storage_guards.sql.base import Operation, OperationsBase
from storage_guards.sql.errors import NOTHING_WRITTEN
from storage_guards.sql.listing import Page
from storage_guards.sql.plans import NESTED
from storage_guards.sql.pruning import Pruning
from storage_guards.sql.schema import check_schema
from storage_guards.sql.statements import NO_SELECT, refuse_select
from storage_guards.sql.verify import VerifyReport
from storage_guards.sqlalchemy.errors import SQLAlchemyErrors
from storage_guards.sqlalchemy.forks import renew_pool_in_children
from storage_guards.sqlalchemy.marks import WAITS, Marks
from storage_guards.sqlalchemy.mysql import MySQLMarks
from storage_guards.sqlalchemy.postgresql import PostgreSQLMarks
from storage_guards.sqlalchemy.retry import Retries
from storage_guards.sqlalchemy.sqlite import SQLiteMarks
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction
from storage_guards.sqlalchemy.waits import Bounded

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

COUNT_ROWS = {"preserve_rowcount": True}
"""Execution options with which SQLAlchemy also keeps the row count of an INSERT."""

_MARKS: dict[str, Callable[..., Marks]] = {
    name: kind for kind in (PostgreSQLMarks, MySQLMarks, SQLiteMarks) for name in kind.dialect.names
}


class SQLAlchemyBase(OperationsBase):
    """The base of both guards. It makes transactions of arguments, and runs operations on a connection."""

    def __init__(self, engine: Engine, timeout: float, schema: str | None) -> None:
        reason = unsupported(engine)
        if reason is not None:
            raise GuardNotEnforceable(reason)
        super().__init__(timeout, schema)
        self._sync_engine = engine
        follow(engine)
        renew_pool_in_children(engine)
        self._marks = _marks_of(engine, schema)
        self._given_schema, self._schema = schema, self._marks.schema
        self._continuity = Continuity(engine.dialect, schema)  # which an engine with other options shares

    def _where(self) -> str:
        return self._sync_engine.url.render_as_string(hide_password=True)

    @property
    def metadata(self) -> MetaData:
        """The mark table's metadata, for Alembic: ``target_metadata = [my_metadata, guard.metadata]``."""
        return self._marks.metadata

    def upgrade_sql(self, connection: Connection) -> list[str]:
        """Return the statements that bring the tables of an earlier program up to date, for a migration::

            for statement in guard.upgrade_sql(op.get_bind()):
                op.execute(statement)

        It looks at the tables, and changes nothing. There is nothing to do where they are of this version, or are not
        there yet. Alembic's autogenerate finds the new columns and the new table, but no CHECK constraint. A guard that
        meets earlier tables prints the same statements.

        Args:
            connection: of the guard's database, as the owner of the tables. For asyncio, the one of ``run_sync``.

        Raises:
            GuardNotEnforceable: it is not clear which mark table is meant, or there is one of a newer version.
        """
        return self._marks.to_bring_up_to_date(connection)

    def _transaction(
        self,
        holders: Sequence[Fence | HasFence],
        *,
        claim: bool,
        writes: int = 1,
        timeout: float | None = None,
        max_seconds: float = math.inf,
        caller_block: bool = False,
        joined: bool = False,
        once: str | None = None,
    ) -> SQLAlchemyTransaction:
        if len(holders) == 1 and type(holders[0]) is Fence and timeout is None:  # the usual case, without calls
            fences, seconds = [holders[0]], self._timeout
        else:
            fences, seconds = fences_of(holders), wait_seconds(holders, self._timeout, timeout)
        if max_seconds < seconds:
            seconds = max(max_seconds, LEAST_SECONDS)
        if once is not None:
            check_once(once, holders)
        errors = SQLAlchemyErrors(fences, seconds)
        return SQLAlchemyTransaction(
            self._marks,
            errors,
            claim=claim,
            writes=writes,
            caller_block=caller_block,
            joined=joined,
            holders=holders,
            continuity=self._continuity,
            once=once,
        )

    def _writing(
        self, holder: Fence | HasFence, statement: Executable, claim: bool, once: str | None
    ) -> SQLAlchemyTransaction:
        """Return the transaction of one statement. It is the caller's block if the statement may end it."""
        if type(statement) is TextClause:
            refuse_select(statement.text)
            caller_block = self._marks.may_end_the_transaction(statement.text, self._sync_engine)
        elif isinstance(statement, UpdateBase):
            caller_block = False
        else:
            caller_block = True
            check_writes(statement)
        return self._transaction((holder,), claim=claim, caller_block=caller_block, once=once)

    def _retries(self, holders: Sequence[Fence | HasFence], attempts: int) -> Retries:
        return Retries(holders, attempts, wait_seconds(holders, self._timeout))

    def _errors(
        self, fences: Sequence[Fence] = (), seconds: float | None = None, then: str = NOTHING_WRITTEN
    ) -> SQLAlchemyErrors:
        return SQLAlchemyErrors(fences, self._timeout if seconds is None else seconds, then)

    def _work(self, operation: Operation, connection: Connection) -> Any:
        self._marks.leave_others_alone(connection)
        result = operation.work(connection)
        self._marks.require_current(connection)
        return result

    def _create(self, connection: Connection) -> None:
        dialect = self._marks.dialect
        bounds = dialect.bounded_waits(connection, self._timeout)
        with Bounded(connection, dialect, WAITS * self._timeout), bounds:
            self._marks.create(connection, self._timeout)

    def _read(self, connection: Connection, resource: str) -> Mark | None:
        return self._marks.read_within(connection, resource, self._timeout)

    def _list(self, connection: Connection, after: str) -> Page:
        return self._marks.list_page(connection, after, self._timeout)

    def _settle(self, connection: Connection, unknown: OutcomeUnknown, seconds: float) -> bool | None:
        return self._marks.settle(connection, unknown, seconds)

    def _prune(self, connection: Connection, pruning: Pruning) -> int:
        return self._marks.prune(connection, pruning, self._timeout)

    def _prune_done(self, connection: Connection, resource: str, below: str) -> int:
        return self._marks.prune_done(connection, resource, below, self._timeout)

    def _verify(self, connection: Connection) -> VerifyReport:
        with self._marks.rolled_back(connection, self._timeout):
            return self._marks.verify(connection)

    def _execute(self, connection: Connection, statement: str, question: str) -> list[str]:
        return self._marks.execute(connection, statement, question, self._timeout)

    def _advance(
        self,
        target: Connection | Session,
        holders: Sequence[Fence | HasFence],
        once: str | None,
        thread: StatementThread | None = None,
    ) -> None:
        transaction = self._transaction(holders, claim=False, joined=True, once=once)
        session = target if isinstance(target, Session) else None
        if session is not None and (session.new or session.dirty or session.deleted):
            raise ValueError(
                "the session has unflushed changes, which come from before the check; advance before you change objects"
            )
        nested = target.in_nested_transaction()
        with transaction:
            connection = target.connection() if isinstance(target, Session) else target
            if thread is not None:
                thread.note(connection)
            dialect = self._marks.dialect
            if not dialect.serves(connection):
                raise ValueError(
                    f"the connection goes to {connection.dialect.name}, but this guard's marks are in "
                    f"{dialect.names[0]}; pass a connection to that database"
                )
            if self._marks.schema != translate(connection, self._given_schema):
                raise ValueError(
                    "the connection's schema_translate_map leads to another mark table than this guard's; give the "
                    "guard the right schema="
                )
            if nested or connection.in_nested_transaction():
                raise ValueError(NESTED)
            self._require_current(connection)
            self._marks.bound_joined(connection, transaction.seconds)
            with dialect.bounded_waits(connection, transaction.seconds, begins=False):
                transaction.admit(connection)
            if connection.invalidated:  # as the bounds were restored, which is silent about it
                raise transaction.errors.unanswered("the connection broke after the check", reached=True)
        if session is not None:
            session.expire_all()

    def _require_current(self, connection: Connection) -> None:
        try:
            self._marks.require_current(connection)
        except OSError:
            connection.invalidate()  # after its rollback the caller gets a connection to the file that is there now
            raise


def _marks_of(engine: Engine, schema: str | None) -> Marks:
    actual_schema = check_schema(translate(engine, schema))
    if engine.dialect.driver != "psycopg":
        return _MARKS[engine.dialect.name](schema, actual_schema=actual_schema)
    from storage_guards.sqlalchemy.over_psycopg import PsycopgMarks  # only users of psycopg have it

    return PsycopgMarks(schema, actual_schema=actual_schema)


def translate(target: Engine | Connection, schema: str | None) -> str | None:
    """Return what the schema is at the database, for this engine or connection."""
    translations: Mapping[str | None, str | None] | None = target.get_execution_options().get("schema_translate_map")
    return schema if not translations else translations.get(schema, schema)


def check_writes(statement: object) -> None:
    if not isinstance(statement, Executable):
        hint = "; wrap it in sqlalchemy.text()" if isinstance(statement, str) else ""
        if isinstance(statement, Fence) or isinstance(getattr(statement, "fence", None), Fence):
            hint = "; the lease comes first"
        raise TypeError(f"write takes a SQL statement, not {type(statement).__name__}{hint}")
    if isinstance(statement, Select):
        raise ValueError(NO_SELECT)  # noqa: TRY004


def affected(transaction: SQLAlchemyTransaction, result: CursorResult[Any]) -> int:
    """Return how many rows a write affected, or returned. Note if it may have been several statements."""
    if ";" in (result.context.statement or ""):  # a construct may have text in it
        transaction.caller_block = True
    return len(result.all()) if result.returns_rows else result.rowcount
