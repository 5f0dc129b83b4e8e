"""The mark table on MariaDB and MySQL. Each change of a mark is followed by a reading of it (see ``sql/mysql.py``),
unless the mark is as the guard saw it last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.sql.dialects import MySQL
from storage_guards.sql.mysql import (
    VISIBLE_TABLES,
    Found,
    Tables,
    answer_of,
    binary,
    execute,
    first,
    read_visible,
    require_innodb,
    statements_of,
    values_of,
)
from storage_guards.sql.outcome import REMEMBERED_CHARACTERS, TABLE, Admitted
from storage_guards.sql.plans import Batch, Plan, Statement, is_admitted, plan_batch_of_mysql, plan_check, plan_claim
from storage_guards.sql.pruning import Pruning
from storage_guards.sql.schema import VisibleTables
from storage_guards.sql.sockets import is_readable
from storage_guards.sql.statements import MySQLStatements, is_one_write
from storage_guards.sql.table import DONE, PARTITION_BY
from storage_guards.sql.verify import Finding
from storage_guards.sqlalchemy.direct import ON_EXECUTION, fetch_directly, has_hooks
from storage_guards.sqlalchemy.joined_bounds import bound_to_the_end
from storage_guards.sqlalchemy.mariadb import (
    NO_SAVEPOINT,
    Changed,
    SessionBounds,
    compound,
    savepoint_of,
)
from storage_guards.sqlalchemy.marks import Located, Marks
from storage_guards.sqlalchemy.mysql_bounds import MySQLBounds
from storage_guards.sqlalchemy.mysql_catalog import check_catalog, key_of
from storage_guards.sqlalchemy.table import PLACES, tables_of

MOST_SEEN = 1024
"""How many marks a guard knows as it saw them last."""

_CREATE_LOCK = "fencing_marks.create_tables"

_ENGINE = text(
    "SELECT engine AS engine FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name"
)


@cache
def _located(tables: Tables) -> Located:
    statements = statements_of(tables)
    kept = [compound(change.format(**PLACES)) for change in (statements.stored_check, statements.stored_claim)]
    return Located(tables.schema, tables.marks, statements, statements, *kept)


class MySQLMarks(Marks):
    """The marks of a MariaDB or MySQL database, on connections that a guard opens and bounds."""

    dialect = MySQL()
    database = "mysql"
    seen_before = "snapshot"

    def __init__(self, schema: str | None = None, *, actual_schema: str | None = None) -> None:
        metadata = tables_of(
            self.database,
            schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
            mysql_partition_by=PARTITION_BY.removeprefix("PARTITION BY "),
            mariadb_partition_by=PARTITION_BY.removeprefix("PARTITION BY "),
        )
        super().__init__(metadata, actual_schema or schema)
        self._partitioned: frozenset[str] = frozenset()
        self._done_is_partitioned: frozenset[str] = frozenset()
        self._partitions_are_innodb = False
        self._seen: dict[tuple[str, int, str], Seen] = {}  # the marks of fences, as this guard saw them last

    def create(self, connection: Connection, seconds: float) -> None:
        """Create the table and its floor row where they are missing, as :meth:`Marks.create` does.

        CREATE TABLE commits, so a lock of the server keeps others away until the floor row is committed too.
        """
        got = connection.execute(
            text(f"SELECT GET_LOCK('{_CREATE_LOCK}', :seconds)"), {"seconds": seconds}
        ).scalar_one()
        connection.rollback()
        if got != 1:
            raise GuardUnavailable(f"another process was creating {TABLE} for {seconds:.3g} s; retry")
        try:
            super().create(connection, seconds)
            with connection.begin():
                self._located = None  # to see whether the table has its partition
                self._require_innodb(connection)
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"DO RELEASE_LOCK('{_CREATE_LOCK}')")
                connection.rollback()

    def _visible_tables(self, connection: Connection) -> VisibleTables:
        visible = read_visible(connection.exec_driver_sql(VISIBLE_TABLES).all())
        self._partitioned, self._done_is_partitioned = visible.partitioned, visible.done_partitioned
        version_info = connection.dialect.server_version_info or (0,)
        self._partitions_are_innodb = not MySQL.is_mariadb(connection) and version_info >= (8,)
        return visible.tables

    def _statements_in(self, schema: str) -> Located:
        return _located(self._table_in(schema))

    def _table_in(self, schema: str) -> Tables:
        is_partitioned = schema in self._partitioned
        done_is_partitioned = schema in self._done_is_partitioned
        is_innodb = is_partitioned and done_is_partitioned and self._partitions_are_innodb
        return Tables(schema, is_partitioned, done_is_partitioned, is_innodb)

    def bounded(
        self, connection: Connection, seconds: float, *, caller_block: bool = False
    ) -> AbstractContextManager[Any]:
        """Bound the waits of the connection as :meth:`Marks.bounded` does: together with the first check, where one
        request takes both.

        A hook may execute a statement as the transaction begins, and this must be bounded, too. Then the bounds are set
        before.
        """
        if self._located is None:
            return super().bounded(connection, seconds)
        if MySQL.is_mariadb(connection):
            return SessionBounds(connection, seconds, caller_block)
        return MySQLBounds(connection, seconds, caller_block)

    def bound_joined(self, connection: Connection, seconds: float) -> None:
        bound_to_the_end(connection, seconds)

    def commit(self, bounds: Any) -> bool:
        return bounds is not None and bool(bounds.commit())

    def may_end_the_transaction(self, text: str, engine: Engine) -> bool:
        """Return whether a ``text()`` may end the transaction, as :meth:`Marks.may_end_the_transaction` does.

        One INSERT, UPDATE, DELETE or SELECT cannot, and neither can the functions and triggers that it runs (error
        1422). But a hook could hide that a deadlock has ended the transaction.
        """
        return has_hooks(engine, ON_EXECUTION) or not is_one_write(text)

    def has_unread(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        writer = getattr(driver, "_writer", None)  # aiomysql's; PyMySQL has a socket itself
        socket = driver._sock if writer is None else writer.get_extra_info("socket")
        return socket is None or is_readable(socket.fileno())

    def note_transaction(self, connection: Connection, admitted: Admitted, bounds: Any) -> None:
        """Set a savepoint, unless a compound statement has. It ends with its transaction: by a COMMIT, an implicit
        commit or a deadlock."""
        savepoint = _savepoint_of(admitted)
        if bounds is None or savepoint not in bounds.savepoints:
            fetch_directly(connection, f"SAVEPOINT {savepoint}")

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        """Return True in the transaction that admitted the fence. Error 1305 says that this is another one."""
        fetch_directly(connection, f"RELEASE SAVEPOINT {_savepoint_of(admitted)}")
        return True

    def may_have_changed_session(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        try:
            return not (self.dialect.is_open(connection) and self.is_same_transaction(connection, admitted, seconds))
        except DBAPIError:
            return True

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
        if not isinstance(bounds, SessionBounds):
            return super().admit(connection, fences, seconds, claim=claim, writes=writes, joined=joined, bounds=bounds)
        plan = plan_claim(fences, writes) if claim else plan_check(fences)
        admitted = self.perform(connection, plan, bounds=bounds)
        if not self.dialect.is_open(connection):
            self._require_innodb(connection)
            self.require_open(connection)
        return admitted

    def _execute(self, connection: Connection, sql: Any, statement: Statement, before: Any, bounds: Any) -> Any:
        """Execute a statement as :meth:`Marks._execute` does, past the engine. Those that change something answer with
        no row, so the mark is read after them."""
        name = statement.name
        texts: MySQLStatements = sql
        if isinstance(bounds, SessionBounds) and name in ("check", "claim"):
            changed = self._change(connection, bounds, statement)
            if changed is not None:
                return self._note(statement, changed.seq, changed.recent_writes)
            row = first(fetch_directly(connection, texts.read_locked.format(**values_of(statement))))
            answer = answer_of(statement, row)
        elif isinstance(bounds, MySQLBounds) and name in ("check", "claim"):
            answer = answer_of(statement, self._ask(texts, bounds, statement))
        else:
            answer = execute(partial(fetch_directly, connection), texts, statement, before)
        if name in ("check", "claim", "first_claim") and is_admitted(answer):
            return self._note(statement, *answer)
        return answer

    def _ask(self, texts: MySQLStatements, bounds: MySQLBounds, statement: Statement) -> Found | None:
        """Check or claim as the first statement of the guard's own transaction, and return the mark after it.

        It is not read where it was as this guard saw it last.
        """
        values = values_of(statement)
        seen = self._seen_before(statement) if texts.is_innodb else None
        if seen is None:
            asked = [getattr(texts.rule, statement.name).format(**values), texts.read_locked.format(**values)]
        else:
            asked = [texts.check_as_seen.format(**values, recent=binary(seen.recent_writes))]
        if bounds.takes_several and bounds.caller_block and not bounds.savepoints:
            savepoint = savepoint_of(statement.write)
            bounds.savepoints.add(savepoint)
            asked.append(f"SAVEPOINT {savepoint}")
        answers = bounds.ask(*asked)
        if seen is None:
            return first(answers[1].rows[0] if answers[1].rows else None)
        if answers[0].number == seen.seq + 1:
            return Found(statement.number, statement.token, *seen.after(statement.write), 0, "InnoDB")
        [(rows, _)] = bounds.ask(texts.read_locked.format(**values))
        return first(rows[0] if rows else None)

    def _change(self, connection: Connection, bounds: SessionBounds, statement: Statement) -> Changed | None:
        """Execute the check or the claim as a compound statement. Raise GuardNotEnforceable where the table that it has
        changed has no transactions."""
        located = self.locate(connection)
        seen = self._seen_before(statement)
        expected = None if seen is None else Changed(*seen.after(statement.write), 0)
        try:
            changed = bounds.change(located.claim if statement.name == "claim" else located.check, statement, expected)
        except DBAPIError as error:
            if error.orig is not None and error.orig.args[0] in NO_SAVEPOINT:
                self._require_innodb(connection)
                self.require_open(connection)
            raise
        if changed is not None and changed.warnings:
            self._require_innodb(connection)
        return changed

    def _seen_before(self, statement: Statement) -> Seen | None:
        """Return what this guard saw last of a mark that is to be checked. It may have changed since."""
        if statement.name != "check":
            return None
        return self._seen.get((statement.resource, statement.number, statement.token))

    def _note(self, statement: Statement, seq: int, recent_writes: str) -> Seen:
        """Note what a mark has where it admits the statement. That may be undone, and is only ever compared."""
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        seen = self._seen[statement.resource, statement.number, statement.token] = Seen(seq, recent_writes)
        return seen

    def _require_innodb(self, connection: Connection) -> None:
        """Look up the table's engine, and raise GuardNotEnforceable unless it is InnoDB."""
        require_innodb(
            connection.execute(_ENGINE, {"schema": self.locate(connection).schema, "name": TABLE}).one_or_none()
        )

    def _batch(self, table: str, pruning: Pruning) -> Plan[Batch]:
        return plan_batch_of_mysql(table, pruning)

    def _key_of_done(self, connection: Connection) -> Sequence[str]:
        return key_of(connection, self.locate(connection).schema, DONE)

    def _check_catalog(self, connection: Connection) -> Iterator[Finding]:
        located = self.locate(connection)
        yield from check_catalog(connection, located, is_partitioned=located.schema in self._partitioned)


class Seen(NamedTuple):
    """What a mark had when it was seen."""

    seq: int
    recent_writes: str

    def after(self, write: str) -> Seen:
        """Return what it has after one write more."""
        return Seen(self.seq + 1, f"{write} {self.recent_writes}"[:REMEMBERED_CHARACTERS])


def _savepoint_of(admitted: Admitted) -> str:
    """Return a name that no other transaction has: the random id of this write."""
    return savepoint_of(admitted.recent_writes.partition(" ")[0])
