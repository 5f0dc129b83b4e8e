"""The mark table as such, in PostgreSQL: made, and looked at. Plans, as in ``wire``."""

from __future__ import annotations

from psycopg.abc import PQGen
from psycopg.errors import InsufficientPrivilege

from fencing.kernel.fence import Mark
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.claims import to_mark
from storage_guards.psycopg.statements import AnyConnection
from storage_guards.psycopg.wire import ask, first_row
from storage_guards.sql.statements import POSTGRESQL

__all__ = ["create_tables", "read_mark"]


def create_tables(connection: AnyConnection, seconds: float) -> PQGen[None]:
    """Create the table and its floor row where they are missing; two processes may do it at once. A database that
    enforces has them, and lets only their owner do it."""
    opening = [sql.begin(connection), *sql.limits(seconds, idle=False)]
    try:
        yield from ask(connection, [*opening, *sql.create(), sql.COMMIT])
    except InsufficientPrivilege:
        [_, enforced] = yield from ask(connection, [sql.ROLLBACK, sql.IS_ENFORCED])
        if first_row(enforced) != ("t",):
            raise


def read_mark(connection: AnyConnection, resource: str, seconds: float) -> PQGen[Mark | None]:
    """The mark as it is; locks nothing, so nothing follows from it."""
    read = POSTGRESQL.read_mark.format(resource=sql.literal(connection, resource))
    results = yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), read, sql.COMMIT])
    return to_mark(results[-2])
