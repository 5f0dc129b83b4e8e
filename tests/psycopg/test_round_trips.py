"""How often each operation of the psycopg guard goes to the server and back, counted on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from examples.servers import PostgresServer
from fencing import OutcomeUnknown
from tests.support.psycopg_database import ADD, MINE, NEWER, OTHER, Database
from tests.support.servers import Proxy
from tests.support.sides import Side
from tests.support.sql_ways import Wire


@pytest.fixture
def database(
    side: Side, postgres_url: str, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]
) -> Iterator[Database]:
    database = Database(side, postgres_url, proxy(postgres_server), size=1)
    database.side.call(database.guard.mark, "orders:1")  # and is connected now
    yield database
    database.close()


def test_claims(database: Database) -> None:
    assert database.proxy is not None
    wire, guard = Wire(database.proxy), database.guard
    assert wire.count(database.side, guard.claim, MINE) == 2  # there is no mark yet
    assert wire.count(database.side, guard.claim, MINE) == 1
    assert wire.count(database.side, guard.claim, NEWER) == 1
    database.beside.claim(OTHER)
    assert wire.count(database.side, guard.claim, NEWER, OTHER) == 2


def test_writes(database: Database) -> None:
    assert database.proxy is not None
    database.beside.claim(MINE)
    wire = Wire(database.proxy)
    for id_ in range(10):  # also when the driver prepares the statement
        trips = 4 if id_ == 5 else 3
        assert wire.count(database.side, database.guard.write, MINE, ADD, [id_]) == trips
    assert wire.count(database.side, database.guard.write, MINE, ADD, [10], claim=True) == 3
    assert wire.count(database.side, database.block(MINE, body=lambda _: None)) == 2
    assert wire.count(database.side, database.block(MINE, body=lambda _: None, claim=True)) == 2


def test_what_only_looks(database: Database) -> None:
    assert database.proxy is not None
    database.beside.claim(MINE)
    wire = Wire(database.proxy)
    unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes="x y")
    assert wire.count(database.side, database.guard.landed, unknown) == 1
    assert wire.count(database.side, database.guard.mark, "orders:1") == 1
    assert wire.count(database.side, database.guard.create_tables) == 2


def test_the_same_write_without_a_guard(database: Database) -> None:
    """What the driver itself needs for BEGIN, the statement and COMMIT: as many."""
    assert database.proxy is not None
    with psycopg.connect(database.proxy.url(database.dsn)) as connection:
        wire = Wire(database.proxy)

        def write() -> None:
            connection.execute(ADD, [1])
            connection.commit()

        assert wire.count(database.side, write) == 3


def test_prepared_statements_that_vanish_cost_two_more_once(database: Database) -> None:
    assert database.proxy is not None
    database.beside.claim(MINE)
    database.write(1)
    wire = Wire(database.proxy)
    assert wire.count(database.side, database.block(MINE, body=lambda c: c.execute("DEALLOCATE ALL"))) == 3
    assert wire.count(database.side, database.guard.write, MINE, ADD, [2]) == 5
    assert wire.count(database.side, database.guard.write, MINE, ADD, [3]) == 3
    assert database.done == {1, 2, 3}
