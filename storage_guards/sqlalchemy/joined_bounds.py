"""The bound of a transaction that a guard has joined, on MariaDB and MySQL: how long its client may stand still.

A transaction has no settings of its own there. So the session gets the bound, and gets its own value back as the last
statement of the transaction: a hook sends it before COMMIT or ROLLBACK. Only between these two there is no bound.

Both servers look at the setting each time when they begin to wait for the client. In a transaction that has written,
MariaDB asks for ``idle_write_transaction_timeout`` before all others (seen in 10.11). MySQL has ``wait_timeout`` only,
which counts inside a transaction, too (seen in 9.7).
"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Connection, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError

from fencing.sql.client import ask
from fencing.sql.connecting import listen_once
from fencing.sql.dialects import MySQL

_RESTORED_BY = "fencing_restored_by"
"""The key of the statement in what SQLAlchemy keeps for each connection of the driver, as long as it lives."""

_IDLE = {True: "idle_write_transaction_timeout", False: "wait_timeout"}
"""The setting: of MariaDB, and of MySQL."""

# All expressions of a SET are evaluated before the first assignment. MySQL takes an integer only from CAST.
_OWN = "CAST(IFNULL(@fencing_idle, @@SESSION.{name}) AS UNSIGNED)"
# A stricter bound of the session's own stays. 0 is none.
_OWN_OR_NONE = f"NULLIF({_OWN}, 0), NULLIF(@@SESSION.idle_transaction_timeout, 0)"
_STRICTER = {
    True: f"LEAST({{seconds}}, COALESCE({_OWN_OR_NONE}, {{seconds}}))",
    False: f"LEAST({{seconds}}, {_OWN})",
}
_BOUND = f"SET SESSION {{name}} = CAST({{stricter}} AS UNSIGNED), @fencing_idle = {_OWN}"
_RESTORE = f"SET SESSION {{name}} = {_OWN}, @fencing_idle = NULL"


def bound_to_the_end(connection: Connection, seconds: float) -> None:
    """Have the server end the session if its client stands still for so long, from here to the transaction's end.

    Args:
        connection: to a MariaDB or a MySQL. Its transaction is begun where there is none.
        seconds: the bound.
    """
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        listen_once(connection, "prepare_twophase", _before_commit)
        listen_once(connection, "rollback_twophase", _before_rollback)
    else:
        listen_once(connection, "commit", _before_commit)
        listen_once(connection, "rollback", _before_rollback)
    listen_once(connection.engine.pool, "reset", _as_it_goes_back)
    is_mariadb = MySQL.is_mariadb(connection)
    name, whole_seconds = _IDLE[is_mariadb], max(1, math.ceil(seconds))
    stricter = _STRICTER[is_mariadb].format(name=name, seconds=whole_seconds)
    connection.info[_RESTORED_BY] = _RESTORE.format(name=name)
    connection.exec_driver_sql(_BOUND.format(name=name, stricter=stricter))


def _before_commit(connection: Connection, *_: Any) -> None:
    """Restore the session's own value. If that fails, COMMIT is not sent."""
    if connection.closed or connection.invalidated or _RESTORED_BY not in connection.info:
        return
    try:
        ask(connection, connection.info[_RESTORED_BY])
    except BaseException:
        connection.invalidate()  # a connection with changed settings must not return to the pool
        raise
    connection.info.pop(_RESTORED_BY)


def _before_rollback(connection: Connection, *arguments: Any) -> None:
    """Do the same. A connection that is lost needs no rollback, and its error must not hide the end of the block."""
    try:
        _before_commit(connection, *arguments)
    except DBAPIError:
        return


def _as_it_goes_back(driver_connection: Any, record: Any, state: Any) -> None:
    """Do the same where nobody has ended the transaction, as where its connection was forgotten. The pool closes a
    connection if this fails."""
    if _RESTORED_BY not in record.info or state.terminate_only or not state.asyncio_safe:
        return
    cursor = driver_connection.cursor()
    try:
        cursor.execute(record.info[_RESTORED_BY])
    finally:
        cursor.close()
    record.info.pop(_RESTORED_BY)
