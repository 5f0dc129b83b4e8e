"""Waiting until sessions wait for a lock in a database, as its server says."""

from __future__ import annotations

import re
import time

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from tests.support import wait_until

_WAITING_ON_POSTGRES = (
    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
_INNODB_SESSION = re.compile(r"\n(?:MySQL|MariaDB) thread id (\d+),")

_SQLITE_SECONDS = 0.1


def until_locks_are_waited_for(url: str, sessions: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock, so that what comes next finds them waiting."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        time.sleep(_SQLITE_SECONDS)  # it tells nobody; most of the time this is long enough, and right in any case
        return
    waiting = _waiting_on_postgres if engine.dialect.name == "postgresql" else _waiting_in_innodb
    with engine.connect() as connection:
        wait_until(lambda: waiting(connection) >= sessions, 60)


def innodb_sessions(connection: Connection) -> dict[int, bool]:
    """Each session of this database with an open transaction of InnoDB, and whether it waits for a lock.

    From the text of its status. The tables that say the same, of `information_schema`, are made anew only after 0.1 s
    in which nobody read them: two tests that ask one server by turns would both see the old ones for ever.
    """
    status = connection.execute(text("SHOW ENGINE INNODB STATUS")).one()[2]
    transactions = status[status.rindex("\nTRANSACTIONS\n") :].split("\n---TRANSACTION ")[1:]
    found = {
        int(session[1]): "\nLOCK WAIT " in one
        for one in transactions
        if ", ACTIVE " in one.partition("\n")[0] and (session := _INNODB_SESSION.search(one))
    }
    here = connection.execute(text("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")).scalars()
    return {session: found[session] for session in here if session in found}


def _waiting_on_postgres(connection: Connection) -> int:
    waiting: int = connection.execute(text(_WAITING_ON_POSTGRES)).scalar_one()
    return waiting


def _waiting_in_innodb(connection: Connection) -> int:
    return sum(innodb_sessions(connection).values())
