"""The marks of PostgreSQL through SQLAlchemy and psycopg 3, by the psycopg guard's plans.

One round trip begins the transaction, bounds all waits and checks. It bypasses the engine, which would need a round
trip for each of these, and more work than the round trip itself. So the engine's hooks and log do not see these
statements. Where a hook has already begun the transaction, everything goes through the engine, as with other drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencing.kernel.fence import Fence
from fencing.sql.errors import is_an_answer
from storage_guards.psycopg.plans import locate
from storage_guards.psycopg.statements import MarkAccess
from storage_guards.psycopg.wire import ask, first_row, hang_up, is_idle, perform, run, run_async
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Plan, plan_check, plan_claim
from storage_guards.sql.sockets import is_readable
from storage_guards.sqlalchemy.postgresql import PostgreSQLMarks

T = TypeVar("T")

_DRIVERS = (psycopg.Connection, psycopg.AsyncConnection)

_IS_SAME_TRANSACTION = "SELECT pg_current_xact_id_if_assigned()::text IS NOT DISTINCT FROM '{}'"


class PsycopgMarks(PostgreSQLMarks):
    """The marks of a PostgreSQL database through psycopg, on connections that a guard opens."""

    def __init__(self, schema: str | None = None, *, actual_schema: str | None = None) -> None:
        super().__init__(schema, actual_schema=actual_schema)
        self._access = MarkAccess(self._choice)

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
        """Claim or check, as :meth:`Marks.admit` does. A mere claim is also committed."""
        if joined and not connection.in_transaction():
            connection.begin()  # otherwise SQLAlchemy would not roll it back
        driver: Any = connection.connection.driver_connection
        # A transaction of the caller's own may go through another driver.
        if not isinstance(driver, _DRIVERS) or driver.autocommit or not is_idle(driver):
            return super().admit(connection, fences, seconds, claim=claim, writes=writes, joined=joined)
        if self._access.located is None:
            _perform(connection, driver, locate(driver, self._access, seconds), seconds)
        plan = plan_claim(fences, writes) if claim else plan_check(fences)
        return _perform(connection, driver, perform(driver, self._access, plan, seconds), seconds * len(fences))

    def perform_behind(self, connection: Connection, plan: Plan[T], seconds: float) -> T:
        driver: Any = connection.connection.driver_connection
        if self._access.located is None or not isinstance(driver, _DRIVERS):
            return super().perform_behind(connection, plan, seconds)
        return _perform(connection, driver, perform(driver, self._access, plan, seconds), seconds)

    def is_sound(self, connection: Connection) -> bool:
        pgconn: Any = connection.connection.driver_connection.pgconn  # type: ignore[union-attr]
        return pgconn.transaction_status == TransactionStatus.INTRANS and not is_readable(pgconn.socket)

    def has_unread(self, connection: Connection) -> bool:
        """Return whether the server has sent something unasked. After a mere claim, no COMMIT is sent any more."""
        driver: Any = connection.connection.driver_connection
        if not isinstance(driver, _DRIVERS):
            return super().has_unread(connection)
        return not is_idle(driver) and is_readable(driver.pgconn.socket)

    def is_same_transaction(self, connection: Connection, admitted: Admitted, seconds: float) -> bool:
        driver: Any = connection.connection.driver_connection
        statement = _IS_SAME_TRANSACTION.format(admitted.transaction)
        [same] = _perform(connection, driver, ask(driver, [statement]), seconds)
        return first_row(same) == ("t",)


def _perform(connection: Connection, driver: Any, plan: PQGen[T], seconds: float) -> T:
    """Perform a plan on the connection's driver. Its errors become SQLAlchemy's.

    psycopg stops an interrupted statement itself, or else this closes the connection.
    """
    try:
        if connection.dialect.is_async:
            adapted: Any = connection.connection.dbapi_connection
            result: T = adapted.run_async(lambda _: run_async(driver, plan, seconds))
            return result
        return run(driver, plan, seconds)
    except psycopg.Error as error:
        if error.sqlstate is None or not is_an_answer(error.sqlstate):  # otherwise the connection is broken
            hang_up(driver)
        if driver.closed:
            with suppress(Exception):
                connection.exec_driver_sql("")  # the engine notices, tells its pool, and rolls nothing back
        raise DBAPIError.instance(
            "the guard's statements",
            None,
            error,
            psycopg.Error,
            connection_invalidated=driver.closed,
            dialect=connection.dialect,
        ) from error
    except BaseException as interruption:  # also an Exception of a signal handler
        if driver.closed or driver.pgconn.transaction_status == TransactionStatus.ACTIVE:
            hang_up(driver)
            connection.invalidate(interruption)  # otherwise a failed rollback would hide the interruption
        raise
