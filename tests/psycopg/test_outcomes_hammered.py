"""``landed`` of the psycopg guard under a hammer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from examples.servers import PostgresServer
from tests.support.landed_hammer import Hammer
from tests.support.psycopg_database import ADD, Database
from tests.support.servers import Proxy
from tests.support.sides import Side


@pytest.fixture
def database(
    side: Side, postgres_url: str, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]
) -> Iterator[Database]:
    database = Database(side, postgres_url, proxy(postgres_server), connects=True)
    yield database
    database.close()


class PsycopgHammer(Hammer):
    ERRORS = psycopg.Error
    LONGEST_DELAY = 0.015  # each write connects

    def adding(self, id_: int) -> tuple[Any, Any]:
        return ADD, [id_]

    def kill(self) -> None:
        self.database.direct.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
        )


def test_what_landed_says_is_so(database: Database) -> None:
    PsycopgHammer(database).work()
