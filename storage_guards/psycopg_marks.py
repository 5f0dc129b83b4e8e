"""The mark table as such, in PostgreSQL: made, and looked at. Plans, as in ``psycopg_wire``."""

from __future__ import annotations

from psycopg.abc import PQGen

from fencing.fence import Mark
from storage_guards import psycopg_statements as sql
from storage_guards.psycopg_claims import to_mark
from storage_guards.psycopg_statements import AnyConnection
from storage_guards.psycopg_wire import ask

__all__ = ["create_tables", "read_mark"]


def create_tables(connection: AnyConnection, seconds: float) -> PQGen[None]:
    """Create the table and its floor row where they are missing; two processes may do it at once."""
    yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), *sql.create(), sql.COMMIT])


def read_mark(connection: AnyConnection, resource: str, seconds: float) -> PQGen[Mark | None]:
    """The mark as it is; locks nothing, so nothing follows from it."""
    read = sql.read_mark(sql.literal(connection, resource))
    results = yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), read, sql.COMMIT])
    return to_mark(results[-2])
