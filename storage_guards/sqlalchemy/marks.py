"""The marks of a database through SQLAlchemy: it performs the plans of ``sql/plans.py``, a request for each statement.

The differences between databases are in ``postgresql.py``, ``mysql.py`` and ``sqlite.py``.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, MetaData
from sqlalchemy.engine import CursorResult
from sqlalchemy.pool.base import ResetStyle

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence, Mark
from fencing.sql.dialects import Dialect
from storage_guards.sql.listing import Page, page_on, plan_page
from storage_guards.sql.once import plan_prune_done
from storage_guards.sql.outcome import TABLE, Admitted
from storage_guards.sql.plans import (
    Answers,
    Ask,
    Batch,
    Plan,
    Statement,
    is_admitted,
    plan_check,
    plan_claim,
    plan_create,
    plan_floor,
    plan_mark,
    plan_prune,
    plan_settle,
    plan_trial,
)
from storage_guards.sql.pruning import Pruning
from storage_guards.sql.schema import Choice, VisibleTables, other_mark_tables
from storage_guards.sql.statements import ONE_WRITE
from storage_guards.sql.table import DatabaseName
from storage_guards.sql.verify import (
    Finding,
    VerifyReport,
    missing_done,
    other_tables,
    report,
    unfit_done,
)
from storage_guards.sqlalchemy.waits import Bounded

T = TypeVar("T")

_AUTOCOMMIT = (
    "the engine is in autocommit: each statement commits at once, so a check would not hold until the write. Make "
    'the engine without isolation_level="AUTOCOMMIT" and without the driver\'s own autocommit, or make a second one '
    "for the guard"
)

WAITS = 3
"""How often in a transaction of its own a guard may wait for the whole bound."""

MISSING = "call guard.create_tables() once, or give guard.metadata to Alembic"


class Located(NamedTuple):
    """The mark table in one schema.

    Args:
        schema: its name.
        table: the table's full name, as SQL.
        direct: the statements on it: :class:`Prepared`, which answer with rows, as ``UPDATE … RETURNING`` does. A
            database without such statements has others, and overrides :meth:`Marks._execute`.
        calls: the statements where the database enforces, if it can.
        check: the check of ``direct``, in the form in which it goes past the engine. None: it does not.
        claim: the same for the claim.
    """

    schema: str
    table: str
    direct: Any
    calls: Any
    check: Any = None
    claim: Any = None


class Marks(ABC):
    """The marks of one kind of database, on connections that a guard opens and bounds.

    Args:
        metadata: the guards' tables as that database has them, with the schema that the caller named.
        schema: what this schema is at the database, where the engine translates schemas; or None.
    """

    dialect: ClassVar[Dialect]
    database: ClassVar[DatabaseName]
    bounds_sessions: ClassVar[bool] = True
    """Whether bounds are settings of the connection, for :meth:`bounded`, and not of the transaction, for
    :meth:`limit`."""
    seen_before: ClassVar[Literal["", "isolation", "snapshot"]] = ""
    """How a joined transaction may have read before: see ``plan_check``."""

    def __init__(self, metadata: MetaData, schema: str | None) -> None:
        self.metadata = metadata
        self._choice = Choice(self.database, schema, MISSING)
        self._located: Located | None = None

    @property
    def schema(self) -> str | None:
        """The schema that was named, as it is at the database."""
        return self._choice.named

    def locate(self, connection: Connection) -> Located:
        """Look up the mark table's schema, once for each guard. Raise GuardNotEnforceable where it is not clear."""
        if self._located is None:
            self._located = self._statements_in(self._choice.of(self._visible_tables(connection)))
        return self._located

    def to_bring_up_to_date(self, connection: Connection) -> list[str]:
        """Return the statements that bring tables of an earlier program up to date. None are, where they are new."""
        visible = self._visible_tables(connection)
        schema = self._choice.find(visible)
        if schema is None:
            return []
        return self._choice.to_bring_up_to_date(schema, visible.everywhere[schema])

    @abstractmethod
    def _visible_tables(self, connection: Connection) -> VisibleTables:
        """Look for mark tables. It takes no lock and no snapshot."""

    @abstractmethod
    def _statements_in(self, schema: str) -> Located:
        """Return the statements on the mark table of that schema."""

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing. Two processes may do it at once.

        Args:
            connection: idle.
            seconds: how long to retry where another process does the same.
        """
        with self.transaction(connection, seconds):
            self.perform(connection, plan_create(self._choice))

    @contextmanager
    def transaction(self, connection: Connection, seconds: float) -> Iterator[None]:
        """Run the block in a transaction, and bound all of it, COMMIT included. An exception rolls it back."""
        with Bounded(connection, self.dialect, WAITS * seconds), connection.begin():
            yield

    def read(self, connection: Connection, resource: str) -> Mark | None:
        """Read the mark. It locks nothing, so the mark may change at any time."""
        return self.perform(connection, plan_mark(resource))

    def read_within(self, connection: Connection, resource: str, seconds: float) -> Mark | None:
        """Read the mark in a transaction of its own, whose waits are bounded: a migration may have locked the table."""
        with Bounded(connection, self.dialect, seconds), self.dialect.bounded_waits(connection, seconds):
            transaction = connection.begin()
            try:
                self.limit(connection, seconds)
                return self.read(connection, resource)
            finally:
                transaction.rollback()

    def list_page(self, connection: Connection, after: str, seconds: float) -> Page:
        """Read some marks in a transaction of its own, with the bounds of :meth:`read_within`.

        Args:
            connection: idle.
            after: of the page before; "": the first page.
            seconds: the bound of each wait.
        """
        with self.rolled_back(connection, seconds):
            return self.perform(connection, plan_page(page_on(self.database, self.locate(connection).table, after)))

    def bounded(
        self, connection: Connection, seconds: float, *, caller_block: bool = False
    ) -> AbstractContextManager[Any]:
        """Bound the waits of a guarded transaction, BEGIN and COMMIT included, where bounds are settings of the
        connection.

        Its value is what :meth:`admit` takes as ``bounds``.
        """
        return self.dialect.bounded_waits(connection, seconds)

    def bound_joined(  # noqa: B027 - PostgreSQL's are of the transaction, and the others have none
        self, connection: Connection, seconds: float
    ) -> None:
        """Bound how long the client may stand still until the end of a transaction that is joined, where that is a
        setting of the connection."""

    def leave_others_alone(self, connection: Connection) -> None:
        """Close a connection that the pool has handed out in somebody's open transaction, and connect anew.

        Another pool rolls such a transaction back. There it was begun by a hook, for the guard, and is kept.
        """
        # pool_reset_on_return=None, by an attribute of SQLAlchemy (seen in 2.0 and 2.1); without it, it may be so.
        style = getattr(connection.engine.pool, "_reset_on_return", ResetStyle.reset_none)
        if style is ResetStyle.reset_none and self.dialect.is_open(connection):
            connection.invalidate()
            _ = connection.connection

    def files_of(self, connection: Connection) -> Mapping[str, object] | None:
        """Return the files of the connection's database, by their paths; None: a server keeps them."""
        return None

    def require_current(self, connection: Connection) -> None:  # noqa: B027 - a server has no file of the connection's
        """Raise OSError where the connection's database is not the one that others find: a replaced file of SQLite."""

    def commit(self, bounds: Any) -> bool:
        """Commit in another way than the engine does. False: let the engine commit."""
        return False

    def may_end_the_transaction(self, text: str, engine: Engine) -> bool:
        """Return whether a ``text()`` may end the transaction: unless it is one INSERT, UPDATE, DELETE or SELECT.

        PostgreSQL takes several statements, a COMMIT among them, where there are no parameters. On MariaDB and MySQL
        others commit implicitly, also procedures.
        """
        return ONE_WRITE.match(text) is None

    def limit(self, connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
        """Bound the waits of this transaction, and how long others can wait for it, where a transaction has such
        bounds.

        With ``read_committed`` a statement that has waited sees what it waited for, whatever the engine's isolation
        level. On the other databases ``dialect.bounded_waits`` does both.

        Returns:
            Whether the database enforces.
        """
        return False

    def require_open(self, connection: Connection, otherwise: str = _AUTOCOMMIT) -> None:
        """Raise GuardNotEnforceable, with the text ``otherwise``, where the driver reports no open transaction."""
        if not self.dialect.is_open(connection):
            raise GuardNotEnforceable(otherwise)

    @contextmanager
    def rolled_back(self, connection: Connection, seconds: float) -> Iterator[bool]:
        """Run the block in a transaction of its own: bounded, READ COMMITTED, and rolled back at the end.

        Its value is whether the database enforces.
        """
        with Bounded(connection, self.dialect, WAITS * seconds), self.dialect.bounded_waits(connection, seconds):
            transaction = connection.begin()
            try:
                yield self.limit(connection, seconds, read_committed=True)
            finally:
                transaction.rollback()

    def admit(
        self,
        connection: Connection,
        fences: Sequence[Fence],
        seconds: float,
        *,
        claim: bool,
        writes: int = 1,
        joined: bool = False,
        bounds: Any = None,
    ) -> list[Admitted]:
        """Claim or check, and bound what the transaction may wait for.

        These are the first statements of a transaction or, if it is ``joined``, later ones of the caller's own
        transaction. ``bounds`` is the value of :meth:`bounded`.
        """
        enforced = self.limit(connection, seconds)
        plan = plan_claim(fences, writes) if claim else plan_check(fences, seen=self.seen_before if joined else "")
        admitted = self.perform(connection, plan, enforced=enforced, joined=joined, bounds=bounds)
        self.require_open(connection)
        return admitted

    def perform_behind(self, connection: Connection, plan: Plan[T], seconds: float) -> T:
        """Perform a plan in the transaction that has admitted the fence, behind its check. It locks no mark.

        Args:
            connection: in that transaction.
            plan: to perform.
            seconds: the bound of each wait.
        """
        return self.perform(connection, plan)

    def perform(
        self,
        connection: Connection,
        plan: Plan[T],
        *,
        enforced: bool = False,
        joined: bool = False,
        bounds: Any = None,
        begin: Callable[[], AbstractContextManager[object]] | None = None,
        writes: bool = False,
    ) -> T:
        """Perform a plan of ``sql/plans.py``.

        Args:
            connection: in a transaction, which the caller ends, however the plan does.
            plan: to perform.
            enforced: the database enforces.
            joined: the transaction may have begun, and read, before.
            bounds: the value of :meth:`bounded`.
            begin: begins a transaction, and commits it or rolls it back. With it, the connection is idle.
            writes: each transaction of the plan begins with a statement that writes. Where the driver reports no open
                transaction behind it, it was committed already: GuardNotEnforceable.
        """
        answers: Answers = None  # type: ignore[assignment]  # what a generator is first sent
        is_open = begin is None
        with ExitStack() as transaction:
            while True:
                try:
                    asked = plan.send(answers)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if asked.begins and not is_open and begin is not None:
                    transaction.enter_context(begin())
                    is_open = True
                if asked.schema:
                    self._located = self._statements_in(asked.schema)
                sql = None
                answers = []
                answer: Any = ()  # nothing was refused yet
                for each in asked.statements:
                    if isinstance(each, str):
                        answer = _all_of(connection.exec_driver_sql(each))
                    elif each.after and (each.after == "admitted") is not is_admitted(answer):
                        answer = None
                    elif each.name == "visible_tables":
                        answer = self._visible_tables(connection)
                    else:
                        sql = sql or self._statements(connection, enforced, joined)
                        answer = self._execute(connection, sql, each, answer, bounds if asked.begins else None)
                    if writes and asked.begins and not answers:
                        self.require_open(connection)
                    answers.append(answer)
                if asked.ends and begin is not None:
                    transaction.close()
                    is_open = False

    def _execute(self, connection: Connection, sql: Any, statement: Statement, before: Any, bounds: Any) -> Any:
        """Execute a statement, and return its answer as an :class:`Ask` names it.

        Args:
            connection: in a transaction.
            sql: the statements of :class:`Located`.
            statement: to execute.
            before: the answer to the statement before it.
            bounds: of the session, which are still to be set. None: they are set.
        """
        name, resource, number, token, write, writes, _, key = statement
        values = {"resource": resource, "number": number, "token": token, "write": write, "writes": writes}
        if key:
            values["key"] = key
        result = connection.execute(getattr(sql, name), values)
        # It fetches all: SQLite needs RETURNING read to its end.
        return result.one_or_none() if result.returns_rows else result.rowcount

    def is_sound(self, connection: Connection) -> bool:
        """Return whether the driver reports an open transaction, and the server has sent nothing unasked."""
        return self.dialect.is_open(connection) and not self.has_unread(connection)

    def has_unread(self, connection: Connection) -> bool:
        """Return whether the server has sent something unasked, such as the end of the session. It sends nothing."""
        return False

    def note_transaction(  # noqa: B027 - most need nothing
        self, connection: Connection, admitted: Admitted, bounds: Any
    ) -> None:
        """Prepare :meth:`is_same_transaction`, where it needs more than the admitted fence."""

    @abstractmethod
    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Return whether this is the transaction that admitted the fence, or at least no other write has come
        between."""

    def may_have_changed_session(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Return whether a block that failed may have ended the transaction by a statement that changes the session."""
        return False

    def settle(self, connection: Connection, unknown: OutcomeUnknown, seconds: float) -> bool | None:
        """Return whether a write has landed. It changes nothing."""
        with self.rolled_back(connection, seconds) as enforced:
            return self.perform(connection, plan_settle(unknown), enforced=enforced, writes=True)

    def prune(self, connection: Connection, pruning: Pruning, seconds: float) -> int:
        """Delete all marks that may go, and return how many were deleted.

        Args:
            connection: idle.
            pruning: which marks may go.
            seconds: the bound of each wait.
        """
        plan = plan_prune(pruning, partial(self._located_batch, connection))
        return self.perform(connection, plan, begin=partial(self._pruning, connection, seconds), writes=True)

    def prune_done(self, connection: Connection, resource: str, below: str, seconds: float) -> int:
        """Delete what is noted of the keys below this one, and return how many went.

        Args:
            connection: idle.
            resource: the name of the lock.
            below: the first key that stays.
            seconds: the bound of each wait.
        """
        plan = self._located_plan(connection, plan_prune_done(resource, below))
        return self.perform(connection, plan, begin=partial(self._pruning, connection, seconds), writes=True)

    def _located_plan(self, connection: Connection, plan: Plan[T]) -> Plan[T]:
        yield Ask([], begins=True, read_committed=True)  # so that the bounds hold for the look-up, too
        self.locate(connection)
        return (yield from plan)

    def _located_batch(self, connection: Connection, pruning: Pruning) -> Plan[Batch]:
        yield Ask([], begins=True, read_committed=True)  # as in _located_plan
        return (yield from self._batch(self.locate(connection).table, pruning))

    @contextmanager
    def _pruning(self, connection: Connection, seconds: float) -> Iterator[None]:
        if connection.invalidated:  # as the last transaction's bounds were restored, which is silent about it
            raise GuardUnavailable("the connection broke between two transactions; what was deleted stays so; retry")
        bounds = self.dialect.bounded_waits(connection, seconds, read_committed=True)
        with Bounded(connection, self.dialect, WAITS * seconds), bounds, connection.begin():
            self.limit(connection, seconds, read_committed=True)
            yield

    @abstractmethod
    def _batch(self, table: str, pruning: Pruning) -> Plan[Batch]:
        """Return the plan of one transaction of pruning."""

    def verify(self, connection: Connection) -> VerifyReport:
        """Return the report, from trial claims, the catalog and the settings. The caller rolls the transaction back."""
        visible = self._visible_tables(connection)
        self._located = located = self._statements_in(self._choice.of(visible))
        floor = self.perform(connection, plan_floor(located.table), writes=True)
        found = [*floor, *self._check_catalog(connection), *other_tables(other_mark_tables(visible, located.schema))]
        is_done = visible.everywhere[located.schema].done is not None
        found += [*missing_done(is_done), *(unfit_done(self._key_of_done(connection)) if is_done else ())]
        if not floor:  # otherwise the trial claims would be refused
            found += self.perform(connection, plan_trial(f"verify:{secrets.token_hex(8)}"))
        return report(self.dialect.title(connection), found, f"{located.schema}.{TABLE}")

    def execute(self, connection: Connection, statement: str, question: str, seconds: float) -> list[str]:
        """Execute a statement that switches enforcement on or off, in a transaction of its own. Return the texts that
        answer the question."""
        raise GuardNotEnforceable(f"{self.dialect.names[0]} cannot enforce the check by itself; PostgreSQL can")

    def _statements(self, connection: Connection, enforced: bool, joined: bool = False) -> Any:
        located = self.locate(connection)
        return located.calls if enforced else located.direct

    def _key_of_done(self, connection: Connection) -> Sequence[str]:
        """Return the columns of the primary key of the table of what was done once."""
        raise NotImplementedError  # PostgreSQL has a verify of its own

    def _check_catalog(self, connection: Connection) -> Iterable[Finding]:
        """Yield the findings in the catalog and the settings."""
        return ()


def _all_of(result: CursorResult[Any]) -> Any:
    return result.all() if result.returns_rows else result.rowcount
