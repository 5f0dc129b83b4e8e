"""The mark table on MariaDB and MySQL. Each change of a mark is followed by a reading of it (see
``statements_on_mysql``), unless the mark is as the guard saw it last.

Columns that must be exact are VARBINARY: collations treat different names as equal, and some pad them with blanks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.sql.dialects import MySQL
from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS, TABLE, Admitted
from storage_guards.sql.plans import Batch, Plan, Refused, Statement, plan_batch_of_mysql, plan_check, plan_claim
from storage_guards.sql.pruning import Pruning
from storage_guards.sql.schema import Versions, VisibleTables, quoted
from storage_guards.sql.sockets import is_readable
from storage_guards.sql.statements import MySQLStatements, is_one_write, statements_on_mysql
from storage_guards.sql.table import ADDED, DONE, PARTITION, PARTITION_BY
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


class _Table(NamedTuple):
    """A mark table that was found.

    Args:
        schema: of it.
        is_partitioned: it has the partition. Tables of earlier versions do not.
        done_is_partitioned: the table of what is done once has it.
        is_innodb: no engine need be looked up, because each statement names the partition. On MySQL 8 and later,
            InnoDB and NDB alone have partitions, and both have transactions:
            https://dev.mysql.com/doc/refman/8.4/en/partitioning-limitations-storage-engines.html
    """

    schema: str
    is_partitioned: bool
    done_is_partitioned: bool
    is_innodb: bool


@cache
def _located(found: _Table) -> Located:
    done = _full_name(found.schema, DONE, found.done_is_partitioned)
    table = _full_name(found.schema, TABLE, found.is_partitioned)
    statements = statements_on_mysql(table, done, found.schema, is_innodb=found.is_innodb)
    kept = [compound(change.format(**PLACES)) for change in (statements.stored_check, statements.stored_claim)]
    return Located(found.schema, table, statements, statements, *kept)


def _full_name(schema: str, table: str, is_partitioned: bool) -> str:
    name = f"{quoted(schema, mark='`')}.{table}"
    return f"{name} PARTITION ({PARTITION})" if is_partitioned else name


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
        # A temporary table has no partition, so it is not taken for the mark table where the server lists it, too.
        rows = connection.exec_driver_sql(
            f"SELECT 'path', DATABASE(), '' "
            f"UNION ALL SELECT table_name, table_schema, '' FROM information_schema.tables "
            f"WHERE table_name IN ('{TABLE}', '{DONE}') "
            f"UNION ALL SELECT CONCAT('partition of ', table_name), table_schema, '' "
            f"FROM information_schema.partitions "
            f"WHERE table_name IN ('{TABLE}', '{DONE}') AND partition_name = '{PARTITION}' "
            f"UNION ALL SELECT CONCAT('version of ', table_name), table_schema, column_default "
            f"FROM information_schema.columns WHERE table_name IN ('{TABLE}', '{DONE}') AND column_name = 'version' "
            f"UNION ALL SELECT CONCAT('column ', column_name), table_schema, '' FROM information_schema.columns "
            f"WHERE table_name = '{TABLE}' AND column_name IN ({', '.join(map(repr, ADDED))})"
        ).all()
        found: dict[str, dict[str, str]] = {}
        for kind, schema, value in rows:
            if schema:
                found.setdefault(str(kind), {})[str(schema)] = str(value or "")

        def version(table: str, schema: str) -> str | None:
            if schema not in found.get(table, {}):
                return None
            return found.get(f"version of {table}", {}).get(schema, "")

        self._partitioned = frozenset(found.get(f"partition of {TABLE}", ()))
        self._done_is_partitioned = frozenset(found.get(f"partition of {DONE}", ()))
        version_info = connection.dialect.server_version_info or (0,)
        self._partitions_are_innodb = not MySQL.is_mariadb(connection) and version_info >= (8,)
        everywhere = {
            name: Versions(
                version(TABLE, name),
                version(DONE, name),
                lacks=[column for column in ADDED if name not in found.get(f"column {column}", {})],
            )
            for name in sorted(found.get(TABLE, ()))
        }
        return VisibleTables(everywhere, tuple(found.get("path", ())))

    def _statements_in(self, schema: str) -> Located:
        return _located(self._table_in(schema))

    def _table_in(self, schema: str) -> _Table:
        is_partitioned = schema in self._partitioned
        done_is_partitioned = schema in self._done_is_partitioned
        is_innodb = is_partitioned and done_is_partitioned and self._partitions_are_innodb
        return _Table(schema, is_partitioned, done_is_partitioned, is_innodb)

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
        if statement.key:
            return self._execute_once(connection, texts, statement)
        if name == "read_mark":
            row = _first(fetch_directly(connection, texts.rule.read_mark.format(**_values_of(statement))))
            return None if row is None else row[:5]
        if name in ("read_floor", "lock_floor"):
            values = _values_of(statement._replace(resource=FLOOR))
            row = _first(fetch_directly(connection, getattr(texts.rule, name).format(**values)))
            if row is None:
                return None
            floor = row.number, row.recent_writes
            return Refused(floor) if name == "lock_floor" and row.number >= statement.number else floor
        if isinstance(bounds, SessionBounds) and name in ("check", "claim"):
            changed = self._change(connection, bounds, statement)
            if changed is not None:
                return self._note(statement, changed.seq, changed.recent_writes)
            row = _first(fetch_directly(connection, texts.read_locked.format(**_values_of(statement))))
        elif isinstance(bounds, MySQLBounds) and name in ("check", "claim"):
            row = self._ask(texts, bounds, statement)
        else:
            values = _values_of(statement)
            if name == "first_claim":
                values["table"] = _binary(before[1])  # of the floor, which is locked
            fetch_directly(connection, getattr(texts.rule, name).format(**values))
            # No lock on an absent mark: a locking read deadlocks where two insert it.
            row = _first(fetch_directly(connection, texts.read_locked.format(**values)))
        if row is None:
            return None if name == "lock_mark" else Refused(None)
        if name == "lock_mark":
            return (row.recent_writes,)
        number, token = statement.number, statement.token
        written = row.recent_writes.partition(" ")[0] == statement.write
        if (row.number, row.token) == (number, token) and row.readers < number and (written or not statement.writes):
            return self._note(statement, row.seq, row.recent_writes)
        return Refused((row.seq, row.recent_writes, None, None, row.number, row.token, row.readers))

    def _execute_once(self, connection: Connection, texts: MySQLStatements, statement: Statement) -> Any:
        """Execute a statement on what is done once. An INSERT tells by no number whether there was a row already, so
        that is read behind it: it has the id of this write, or of another."""
        values = {**_values_of(statement), "key": f"'{statement.key.encode().hex()}'"}
        if statement.name == "note_done":
            fetch_directly(connection, texts.make_key_floor.format(**values))
        row = fetch_directly(connection, getattr(texts.rule, statement.name).format(**values))
        if statement.name not in ("note_done", "read_done"):
            return row
        if statement.name == "note_done":
            row = fetch_directly(connection, texts.rule.read_done.format(**values))
        if row is not None:
            _require_innodb(_Done._make(row), DONE)
        if statement.name == "note_done" and row is not None and row[1] != statement.write:
            return None
        return row

    def _ask(self, texts: MySQLStatements, bounds: MySQLBounds, statement: Statement) -> Found | None:
        """Check or claim as the first statement of the guard's own transaction, and return the mark after it.

        It is not read where it was as this guard saw it last.
        """
        values = _values_of(statement)
        seen = self._seen_before(statement) if texts.is_innodb else None
        if seen is None:
            asked = [getattr(texts.rule, statement.name).format(**values), texts.read_locked.format(**values)]
        else:
            asked = [texts.check_as_seen.format(**values, recent=_binary(seen.recent_writes))]
        if bounds.takes_several and bounds.caller_block and not bounds.savepoints:
            savepoint = savepoint_of(statement.write)
            bounds.savepoints.add(savepoint)
            asked.append(f"SAVEPOINT {savepoint}")
        answers = bounds.ask(*asked)
        if seen is None:
            return _first(answers[1].rows[0] if answers[1].rows else None)
        if answers[0].number == seen.seq + 1:
            return Found(statement.number, statement.token, *seen.after(statement.write), 0, "InnoDB")
        [(rows, _)] = bounds.ask(texts.read_locked.format(**values))
        return _first(rows[0] if rows else None)

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
        _require_innodb(
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


class Found(NamedTuple):
    """A mark as it was read, or the floor."""

    number: int
    token: str
    seq: int
    recent_writes: str
    readers: int
    engine: str | None


class _Done(NamedTuple):
    """What is noted of a key."""

    number: int
    write_id: str
    second: int
    engine: str | None


def _first(row: Any) -> Found | None:
    """Return a mark that was read, if there is one. Raise GuardNotEnforceable where its table has no transactions."""
    if row is None:
        return None
    found = Found._make(row)
    _require_innodb(found)
    return found


def _values_of(statement: Statement) -> dict[str, Any]:
    """Return the values of a statement as SQL. The driver adds none, so no setting of the session changes them."""
    return {
        "resource": f"'{statement.resource.encode().hex()}'",
        "number": statement.number,
        "token": f"'{statement.token}'",
        "write": f"'{statement.write}'",
        "writes": statement.writes,
    }


def _binary(found: str) -> str:
    """Return a text that was read as SQL, whatever is in it."""
    return f"x'{found.encode().hex()}'"


def _savepoint_of(admitted: Admitted) -> str:
    """Return a name that no other transaction has: the random id of this write."""
    return savepoint_of(admitted.recent_writes.partition(" ")[0])


def _require_innodb(row: Any, table: str = TABLE) -> None:
    if row is None or row.engine != "InnoDB":
        engine = "of a temporary table" if row is None else row.engine
        raise GuardNotEnforceable(
            f"the table {table} has the engine {engine}, which has no transactions: a check would not hold until "
            f"the write; ALTER TABLE {table} ENGINE = InnoDB, and do the same for the data"
        )
