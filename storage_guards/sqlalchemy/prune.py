"""``prune`` through SQLAlchemy: one transaction after the other, each of which is right by itself. See ``pruning``."""

from __future__ import annotations

from sqlalchemy import Connection

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.pruning import BATCH, NO_FLOOR, Pruning, Statements, condition
from storage_guards.sqlalchemy.drivers import (
    AUTOCOMMIT,
    bounded_waits,
    family,
    limit_transaction,
    require_open_transaction,
)

__all__ = ["prune"]

_LOCK_FLOOR = f"UPDATE {TABLE} SET seq = seq WHERE resource = '{FLOOR}'"


def prune(connection: Connection, what: Pruning, seconds: float) -> int:
    """Delete all that may go, and return how many that were.

    Args:
        connection: idle.
        what: which may go.
        seconds: the bound of each wait.
    """
    deleted = 0
    while True:
        with bounded_waits(connection, seconds, read_committed=True), connection.begin():
            limit_transaction(connection, seconds, read_committed=True)
            if family(connection.dialect.name) == "mysql":
                floor, count = _one_batch_on_mysql(connection, what)
            else:
                floor, count = _one_batch(connection, what)
        deleted += count
        if count < BATCH:
            return deleted
        what = what.up_to(floor)


def _one_batch(connection: Connection, what: Pruning) -> tuple[int, int]:
    statements = Statements.on(connection.dialect.name, what)
    floor: int | None = connection.exec_driver_sql(statements.raise_floor).scalar_one_or_none()
    require_open_transaction(connection, AUTOCOMMIT)
    if floor is None:
        raise GuardNotEnforceable(NO_FLOOR)
    return floor, connection.exec_driver_sql(statements.delete).rowcount


def _one_batch_on_mysql(connection: Connection, what: Pruning) -> tuple[int, int]:
    """No statement there can change a table and ask the same table which rows, so names come here and go back."""
    old = condition("mysql", what)
    connection.exec_driver_sql(_LOCK_FLOOR)
    require_open_transaction(connection, AUTOCOMMIT)
    highest = connection.exec_driver_sql(f"SELECT COALESCE(MAX(number), 0) FROM {TABLE} WHERE {old}").scalar_one()
    connection.exec_driver_sql(
        f"UPDATE {TABLE} SET number = GREATEST(number, {int(highest)}) WHERE resource = '{FLOOR}'"
    )
    floor: int | None = connection.exec_driver_sql(
        f"SELECT number FROM {TABLE} WHERE resource = '{FLOOR}' FOR UPDATE"
    ).scalar_one_or_none()
    if floor is None:
        raise GuardNotEnforceable(NO_FLOOR)
    may_go = f"{old} AND number <= {int(floor)}"
    names = connection.exec_driver_sql(
        f"SELECT HEX(resource) FROM {TABLE} WHERE {may_go} LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
    ).scalars()
    listed = ", ".join(f"x'{name}'" for name in names)
    if not listed:
        return floor, 0
    # They are locked since, so none of them has risen.
    return floor, connection.exec_driver_sql(f"DELETE FROM {TABLE} WHERE resource IN ({listed})").rowcount
