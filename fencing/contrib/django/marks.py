"""The marks of one of Django's databases: the plans of ``storage_guards/sql/plans.py`` on Django's own cursors.

So Django's log, its debug toolbar and ``assertNumQueries`` see the guard's statements, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from django.db import Error

from fencing.contrib.django.errors import number_of
from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.mysql import VISIBLE_TABLES, Tables, execute, read_visible, statements_of
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.plans import Answers, Plan, Statement, is_admitted, plan_create
from storage_guards.sql.schema import (
    POSTGRESQL_VISIBLE_TABLES,
    Choice,
    Versions,
    VisibleTables,
    quoted,
    read_visible_tables,
)
from storage_guards.sql.statements import LOCK_CREATION, Statements, calls_in, enforced_in, statements_on
from storage_guards.sql.table import ADDED, DONE, DatabaseName

T = TypeVar("T")

MISSING = 'put "fencing.contrib.django" into INSTALLED_APPS and run manage.py migrate, or call guard.create_tables()'

_PLACES = {name: f"%({name})s" for name in ("resource", "number", "token", "write", "writes", "key")}

_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_HAS_BEGUN = 1568  # "Transaction characteristics can't be changed while a transaction is in progress"
_BOUNDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout")
"""PostgreSQL's bounds of a transaction: of each statement, of each wait for a lock, and of a client that stands still
between two statements, or while it is sent rows."""
_IDLE = 0
"""TransactionStatus.IDLE of psycopg, and TRANSACTION_STATUS_IDLE of psycopg2."""
_RETURNING_SINCE = (3, 35, 0)


class Marks(ABC):
    """The marks of one kind of database.

    Args:
        schema: that the caller named, or None.
    """

    database: ClassVar[DatabaseName]
    before_creation: ClassVar[Sequence[str]] = ()
    """What is executed before the tables are looked for, and made where they are missing."""

    def __init__(self, schema: str | None) -> None:
        self.choice = Choice(self.database, schema, MISSING)
        self._schema: str | None = None

    def perform(self, connection: Any, plan: Plan[T], *, joined: bool = False) -> T:
        """Perform a plan in the connection's transaction, which the caller ends.

        Args:
            connection: Django's, in a transaction.
            plan: to perform.
            joined: whether the database says that a check is in a savepoint, where it can.
        """
        answers: Answers = None  # type: ignore[assignment]  # what a generator is first sent
        with connection.cursor() as cursor:
            while True:
                try:
                    asked = plan.send(answers)
                except StopIteration as done:
                    result: T = done.value
                    return result
                if asked.schema:
                    self._schema = asked.schema
                answers = []
                answer: Any = ()  # nothing was refused yet
                for each in asked.statements:
                    if isinstance(each, str):
                        answer = _all(cursor, each)
                    elif each.after and (each.after == "admitted") is not is_admitted(answer):
                        answer = None
                    elif each.name == "visible_tables":
                        answer = self.visible_tables(cursor)
                    else:
                        answer = self._execute(cursor, self._locate(cursor), each, answer, joined)
                    answers.append(answer)

    def create(self, connection: Any) -> None:
        """Create the tables and the floor row where they are missing."""
        self.perform(connection, plan_create(self.choice, self.before_creation))

    def _locate(self, cursor: Any) -> str:
        """Look up the mark table's schema, once for each guard. Raise GuardNotEnforceable where it is not clear."""
        if self._schema is None:
            self._schema = self.choice.of(self.visible_tables(cursor))
        return self._schema

    @abstractmethod
    def visible_tables(self, cursor: Any) -> VisibleTables:
        """Look for mark tables. It takes no lock."""

    @abstractmethod
    def _execute(self, cursor: Any, schema: str, statement: Statement, before: Any, joined: bool) -> Any:
        """Execute a statement, and return its answer as an ``Ask`` names it."""

    @abstractmethod
    def may_have_read(self, connection: Any) -> bool:
        """Return whether the transaction may have read what is not current any more when it is checked."""

    @abstractmethod
    def bounded(self, connection: Any, seconds: float) -> Any:
        """Bound the waits for locks while a block runs. On PostgreSQL all bounds of a guard stay until the
        transaction's end."""

    def use_read_committed(self, connection: Any) -> None:
        """Make the transaction, which has not begun yet, READ COMMITTED."""
        with connection.cursor() as cursor:
            cursor.execute(_READ_COMMITTED)


class PostgreSQLMarks(Marks):
    """The marks of a PostgreSQL database, through psycopg or psycopg2."""

    database = "postgresql"
    before_creation = (LOCK_CREATION,)
    _enforced: bool | None = None

    def visible_tables(self, cursor: Any) -> VisibleTables:
        return read_visible_tables(_all(cursor, POSTGRESQL_VISIBLE_TABLES)[0][0])

    def _execute(self, cursor: Any, schema: str, statement: Statement, before: Any, joined: bool) -> Any:
        if self._enforced is None:  # a refusal would undo the caller's transaction, so ask first, once
            self._enforced = bool(_all(cursor, f"SELECT {enforced_in(schema)}")[0][0])
        texts = _calls_in(schema) if self._enforced else _on_postgresql(schema, outermost=joined)
        return _first(cursor, getattr(texts, statement.name), _values(statement))

    def may_have_read(self, connection: Any) -> bool:
        # Django begins a transaction by the driver, which sends BEGIN with the first statement.
        return int(connection.connection.info.transaction_status) != _IDLE

    @contextmanager
    def bounded(self, connection: Any, seconds: float) -> Iterator[None]:
        limit = max(1, round(seconds * 1000))
        with connection.cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(f"set_config('{name}', '{limit}', true)" for name in _BOUNDS))
        yield


class MySQLMarks(Marks):
    """The marks of a MariaDB or MySQL database, through mysqlclient or PyMySQL."""

    database = "mysql"
    _tables: Callable[[str], Tables] | None = None

    def visible_tables(self, cursor: Any) -> VisibleTables:
        visible = read_visible(_all(cursor, VISIBLE_TABLES))
        self._tables = lambda schema: Tables(
            schema, schema in visible.partitioned, schema in visible.done_partitioned, is_innodb=False
        )
        return visible.tables

    def _execute(self, cursor: Any, schema: str, statement: Statement, before: Any, joined: bool) -> Any:
        assert self._tables is not None, "the tables were not looked for"
        return execute(partial(_first, cursor), statements_of(self._tables(schema)), statement, before)

    def may_have_read(self, connection: Any) -> bool:
        # Both servers refuse this in a transaction, and only there. It changes nothing that a guard could do without.
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ WRITE")
        except Error as error:
            if number_of(error) != _HAS_BEGUN:
                raise
            return True
        return False

    @contextmanager
    def bounded(self, connection: Any, seconds: float) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET @fencing_joined_wait = @@SESSION.innodb_lock_wait_timeout, "
                f"SESSION innodb_lock_wait_timeout = {max(1, math.ceil(seconds))}"
            )
        with _restored(connection, "SET SESSION innodb_lock_wait_timeout = @fencing_joined_wait"):
            yield


class SQLiteMarks(Marks):
    """The marks of a SQLite database."""

    database = "sqlite"

    def _locate(self, cursor: Any) -> str:
        # To look at the catalog first would begin the transaction with a snapshot.
        return self._schema or self.choice.named or "main"

    def visible_tables(self, cursor: Any) -> VisibleTables:
        names = [row[1] for row in _all(cursor, "PRAGMA database_list")]
        found = {}
        for name in names:
            marks, done = _columns_of(cursor, name, TABLE), _columns_of(cursor, name, DONE)
            if marks:
                lacks = [column for column in ADDED if column not in marks]
                version = marks.get("version", "")
                found[name] = Versions(version, done.get("version", "") if done else None, lacks=lacks)
        return VisibleTables(found, tuple(name for name in ("main", "temp") if name in names))

    def _execute(self, cursor: Any, schema: str, statement: Statement, before: Any, joined: bool) -> Any:
        answer = _first(cursor, getattr(_on_sqlite(schema), statement.name), _values(statement))
        if self._schema is None:
            self._schema = self.choice.of(self.visible_tables(cursor))
        return answer

    def may_have_read(self, connection: Any) -> bool:
        # SQLite itself refuses the check's write where the transaction has an old snapshot.
        return False

    @contextmanager
    def bounded(self, connection: Any, seconds: float) -> Iterator[None]:
        with connection.cursor() as cursor:
            before = _all(cursor, "PRAGMA busy_timeout")[0][0]
            cursor.execute(f"PRAGMA busy_timeout = {max(1, round(seconds * 1000))}")
        with _restored(connection, f"PRAGMA busy_timeout = {before}"):
            yield

    def use_read_committed(self, connection: Any) -> None:
        """Do nothing: there is one writer at a time."""


_KINDS: dict[str, type[Marks]] = {"postgresql": PostgreSQLMarks, "mysql": MySQLMarks, "sqlite": SQLiteMarks}


def marks_of(connection: Any, schema: str | None) -> Marks:
    """Return the marks of a connection's database. Raise GuardNotEnforceable where it is not supported."""
    kind = _KINDS.get(connection.vendor)
    if kind is None:
        raise GuardNotEnforceable(
            f"the database {connection.alias!r} is {connection.display_name}, which no guard supports: keep the data "
            f"that locks protect in PostgreSQL, MariaDB, MySQL or SQLite"
        )
    if kind is SQLiteMarks and connection.Database.sqlite_version_info < _RETURNING_SINCE:
        raise GuardNotEnforceable(f"SQLite {connection.Database.sqlite_version} has no RETURNING; use 3.35 or later")
    return kind(schema)


@contextmanager
def _restored(connection: Any, restore: str) -> Iterator[None]:
    """Execute a statement behind a block. An error of the block counts more than one of the statement."""
    try:
        yield
    except BaseException:
        with suppress(Error), connection.cursor() as cursor:
            cursor.execute(restore)
        raise
    with connection.cursor() as cursor:
        cursor.execute(restore)


def _prepared(texts: Statements) -> Statements:
    return Statements(*(text.replace("%", "%%").format(**_PLACES) for text in texts))


@cache
def _on_postgresql(schema: str, outermost: bool) -> Statements:
    home = quoted(schema)
    return _prepared(statements_on(f"{home}.{TABLE}", f"{home}.{DONE}", outermost=outermost))


@cache
def _calls_in(schema: str) -> Statements:
    return _prepared(calls_in(schema))


@cache
def _on_sqlite(schema: str) -> Statements:
    home = quoted(schema)
    return _prepared(statements_on(f"{home}.{TABLE}", f"{home}.{DONE}", postgresql=False))


def _values(statement: Statement) -> dict[str, Any]:
    values = statement._asdict()
    del values["name"], values["after"]
    return values


def _all(cursor: Any, text: str, values: Any = None) -> Any:
    """Execute a statement, and return its rows; where it has none, how many were changed."""
    cursor.execute(text, values)
    return cursor.rowcount if cursor.description is None else cursor.fetchall()


def _first(cursor: Any, text: str, values: Any = None) -> Any:
    """Execute a statement, and return its first row, or None. All are read: SQLite needs that for RETURNING."""
    rows = _all(cursor, text, values)
    return rows[0] if isinstance(rows, Sequence) and rows else None


def _columns_of(cursor: Any, home: str, table: str) -> dict[str, str]:
    """Return the columns of a table of SQLite, with their defaults. There are none where it is not there."""
    name = '"' + home.replace('"', '""') + '"'
    return {row[1]: str(row[4] or "") for row in _all(cursor, f"PRAGMA {name}.table_info({table})")}
