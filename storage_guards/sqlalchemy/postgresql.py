"""The mark table on PostgreSQL, through any driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Text, text

from fencing.kernel.errors import UnclaimedFence
from fencing.kernel.fence import Fence
from fencing.sql.dialects import PostgreSQL
from storage_guards.sql import errors as sql_errors
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.pruning import Pruning, on_postgresql
from storage_guards.sql.statements import CALLS, CREATE_LOCK, ENFORCED, POSTGRESQL
from storage_guards.sql.verify import POSTGRESQL_FACTS, VerifyReport, assess_postgresql
from storage_guards.sqlalchemy.alembic import XID8
from storage_guards.sqlalchemy.marks import Marks
from storage_guards.sqlalchemy.table import fetch_one, mark_table

_LIMITS = text(f"SELECT {ENFORCED}, {PostgreSQL.LIMITS}")
_IS_ENFORCED = text(f"SELECT {ENFORCED}")
_CREATE_LOCK = text("SELECT pg_advisory_xact_lock(:lock)")
_IS_SAME_TRANSACTION = text("SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM :transaction")


class PostgreSQLMarks(Marks):
    """The marks of a PostgreSQL database, on connections that a guard opens."""

    dialect = PostgreSQL()

    def __init__(self) -> None:
        exact = Text(collation="C")
        xact = Column("xact", XID8, nullable=True)
        super().__init__(mark_table(xact, resource=exact, token=exact, recent_writes=exact), POSTGRESQL, CALLS)

    def limit(self, connection: Connection, seconds: float, *, read_committed: bool = False) -> bool:
        if read_committed:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return bool(connection.execute(_LIMITS, PostgreSQL.limit(seconds)).one()[0])

    def check(
        self, connection: Connection, fences: Sequence[Fence], *, joined: bool = False, enforced: bool = False
    ) -> list[Admitted]:
        """Admit a write under each fence, as :meth:`Marks.check` does. A mark that is younger than the transaction's
        snapshot cannot be seen."""
        try:
            return super().check(connection, fences, joined=joined, enforced=enforced)
        except UnclaimedFence as error:
            if joined and connection.exec_driver_sql(sql_errors.ISOLATION).scalar_one() != "read committed":
                raise sql_errors.old_snapshot(error.fence) from error
            raise

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        row = fetch_one(connection, _IS_SAME_TRANSACTION, {"transaction": admitted.transaction})
        return row is not None and bool(row[0])

    def verify(self, connection: Connection) -> VerifyReport:
        facts = connection.exec_driver_sql(POSTGRESQL_FACTS).scalar_one()
        self.require_open(connection)
        driver: Any = connection.connection.driver_connection
        if not PostgreSQL.is_psycopg(connection):
            return assess_postgresql(facts, pid=driver.get_server_pid(), parameters=None)
        return assess_postgresql(
            facts,
            pid=driver.info.backend_pid,
            parameters=None if driver.info.host.startswith("/") else driver.info.get_parameters(),
        )

    def execute(self, connection: Connection, statement: str, seconds: float) -> None:
        with connection.begin():
            self.limit(connection, seconds)
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def _create(self, connection: Connection) -> None:
        if connection.execute(_IS_ENFORCED).scalar_one():
            return  # the table exists, and only its owner may create it
        connection.execute(_CREATE_LOCK, {"lock": CREATE_LOCK})
        super()._create(connection)

    def _prune_batch(self, connection: Connection, pruning: Pruning) -> tuple[int, int]:
        return self._prune_with(connection, on_postgresql(pruning))
