"""Waiting until sessions wait for a lock in a database, as its server says."""

from __future__ import annotations

import time

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.support import wait_until

_WAITING = {
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE trx_state = 'LOCK WAIT' AND db = DATABASE()",
}
_INTERVALS = {"postgresql": 0.005, "mysql": 0.12}
"""Seconds between questions. InnoDB shows its table anew only after 0.1 s in which nobody read it."""

_SQLITE_SECONDS = 0.1


def until_locks_are_waited_for(url: str, sessions: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock, so that what comes next finds them waiting."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    name = engine.dialect.name
    if name == "sqlite":
        time.sleep(_SQLITE_SECONDS)  # it tells nobody; most of the time this is long enough, and right in any case
        return
    with engine.connect() as connection:
        wait_until(
            lambda: connection.execute(text(_WAITING[name])).scalar_one() >= sessions, 60, interval=_INTERVALS[name]
        )
