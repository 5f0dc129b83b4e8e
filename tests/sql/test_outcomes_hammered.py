"""``landed`` under a hammer, with each driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.sql.test_outcomes import ADD, Database, FlakyCommit
from tests.support.landed_hammer import Hammer
from tests.support.servers import Proxy
from tests.support.sides import Side
from tests.support.sql_ways import WAYS, Way


@pytest.fixture(params=[*WAYS, "sqlite", "aiosqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path, proxy: Callable[[Any], Proxy]) -> Iterator[Database]:
    if request.param in WAYS:
        way = Way(request, request.param, proxy)
        made = Database(way.side, way.url, way, pool_size=2, max_overflow=0)
    else:
        made = Database(Side(request.param == "aiosqlite"), f"sqlite:///{tmp_path}/data.db")
    yield made
    made.close()


KILL = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
)
SESSIONS = text("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")


class SQLHammer(Hammer):
    ERRORS = DBAPIError
    LONGEST_DELAY = 0.006

    def adding(self, id_: int) -> tuple[Any, Any]:
        return ADD, {"id": id_}

    def kill(self) -> None:
        with self.database.direct.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(KILL)
                return
            for session in connection.execute(SESSIONS).scalars().all():
                with suppress(DBAPIError):  # it has gone by itself
                    connection.exec_driver_sql(f"KILL {session}")

    def clear(self) -> None:
        FlakyCommit.fault = ""
        super().clear()


def test_what_landed_says_is_so(database: Database) -> None:
    SQLHammer(database).work()
