"""The mark table on PostgreSQL, through any driver."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, TextClause, text

from fencing.sql.dialects import PostgreSQL
from storage_guards.sql.outcome import TABLE, Admitted
from storage_guards.sql.plans import Batch, Plan, plan_batch, plan_create, plan_facts
from storage_guards.sql.pruning import Pruning, on_postgresql
from storage_guards.sql.schema import POSTGRESQL_VISIBLE_TABLES, VisibleTables, quoted, read_visible_tables
from storage_guards.sql.sockets import is_readable
from storage_guards.sql.statements import LOCK_CREATION, calls_in, enforced_in, statements_on
from storage_guards.sql.table import DONE
from storage_guards.sql.verify import VerifyReport, assess_postgresql
from storage_guards.sqlalchemy.marks import Located, Marks
from storage_guards.sqlalchemy.table import Prepared, prepare, tables_of

_LIMITS = text(f"SELECT {PostgreSQL.LIMITS}")
_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_IS_SAME_TRANSACTION = text("SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM :transaction")


class PostgreSQLMarks(Marks):
    """The marks of a PostgreSQL database, on connections that a guard opens."""

    dialect = PostgreSQL()
    database = "postgresql"
    bounds_sessions = False
    seen_before = "isolation"

    def __init__(self, schema: str | None = None, *, actual_schema: str | None = None) -> None:
        super().__init__(tables_of(self.database, schema), actual_schema or schema)

    def limit(self, connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
        if read_committed:
            connection.exec_driver_sql(_READ_COMMITTED)
        limit = PostgreSQL.limit(seconds)
        if self._located is None:
            connection.execute(_LIMITS, limit)
        schema = self.locate(connection).schema
        return bool(connection.execute(_limits_in(schema), limit).one()[0])

    def _statements(self, connection: Connection, enforced: bool, joined: bool = False) -> Any:
        # Where the database enforces, it refuses itself what is written after a rollback to a savepoint.
        if joined and not enforced:
            return _joining_in(self.locate(connection).schema)
        return super()._statements(connection, enforced)

    def has_unread(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        if PostgreSQL.is_psycopg(connection):
            return is_readable(driver.pgconn.socket)
        return driver.is_closed() or is_readable(driver._transport.get_extra_info("socket").fileno())

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        return bool(connection.execute(_IS_SAME_TRANSACTION, {"transaction": admitted.transaction}).scalar())

    def verify(self, connection: Connection) -> VerifyReport:
        schema, facts = self.perform(connection, plan_facts(self._choice))
        self.require_open(connection)
        driver: Any = connection.connection.driver_connection
        if not PostgreSQL.is_psycopg(connection):
            return assess_postgresql(facts, schema, pid=driver.get_server_pid(), parameters=None)
        return assess_postgresql(
            facts,
            schema,
            pid=driver.info.backend_pid,
            parameters=None if driver.info.host.startswith("/") else driver.info.get_parameters(),
        )

    def execute(self, connection: Connection, statement: str, question: str, seconds: float) -> list[str]:
        with self.transaction(connection, seconds):
            connection.execute(_LIMITS, PostgreSQL.limit(seconds))
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
            return [str(row[0]) for row in connection.exec_driver_sql(question)]

    def create(self, connection: Connection, seconds: float) -> None:
        with self.transaction(connection, seconds):
            connection.exec_driver_sql(_READ_COMMITTED)  # the query must see what it has waited for
            connection.execute(_LIMITS, PostgreSQL.limit(seconds))
            self.perform(connection, plan_create(self._choice, [LOCK_CREATION]))

    def _visible_tables(self, connection: Connection) -> VisibleTables:
        return read_visible_tables(connection.exec_driver_sql(POSTGRESQL_VISIBLE_TABLES).scalar_one())

    def _statements_in(self, schema: str) -> Located:
        return _located_in(schema)

    def _batch(self, table: str, pruning: Pruning) -> Plan[Batch]:
        return plan_batch(table, on_postgresql(table, pruning))


@cache
def _located_in(schema: str) -> Located:
    table = f"{quoted(schema)}.{TABLE}"
    direct = statements_on(table, f"{quoted(schema)}.{DONE}")
    return Located(schema, table, prepare(direct), prepare(calls_in(schema)))


@cache
def _joining_in(schema: str) -> Prepared:
    """Return the statements whose answers also say whether they were outside any savepoint."""
    home = quoted(schema)
    return prepare(statements_on(f"{home}.{TABLE}", f"{home}.{DONE}", outermost=True))


@cache
def _limits_in(schema: str) -> TextClause:
    return text(f"SELECT {enforced_in(schema)}, {PostgreSQL.LIMITS}")
