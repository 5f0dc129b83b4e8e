"""The network breaks between a guard and its database: unknown is said where it is unknown, and nowhere else.

What became of a lost commit is in test_outcomes.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from fencing import Fence, GuardUnavailable
from tests.support import wait_until
from tests.support.sql_ways import ADD, MINE, OVER_A_NETWORK, Way, WayLender, is_commit, ways

ERRORS = (DBAPIError, psycopg.Error)
"""What drivers raise."""


@pytest.fixture(params=ways("psycopg", "aiomysql", "PsycopgGuard", "AsyncPsycopgGuard", of=OVER_A_NETWORK))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        if way.name == "asyncpg":
            way.side.call(way.guard._engine.dispose)  # what its connections have prepared is not seen on the wire
            way.spoil()  # for the next test likewise
        yield way


def changes_a_mark(request: bytes) -> bool:
    return re.search(rb"fencing_marks( PARTITION \(fencing\))?\s+SET|EXECUTE fencing", request) is not None


@pytest.mark.parametrize("is_first", [True, False], ids=["first claim", "later claim"])
@pytest.mark.parametrize("sent", ["the claim", "COMMIT"])
def test_a_lost_claim_may_be_repeated(way: Way, sent: str, is_first: bool) -> None:
    if not is_first:
        way.beside.claim(Fence("orders:1", 1, "d" * 22))
    loss = way.proxy.drop_reply_when(is_commit if sent == "COMMIT" else changes_a_mark)
    way.side.expect(GuardUnavailable, way.guard.claim, MINE)
    assert loss.fired == 1
    way.claim(MINE)
    assert way.write(MINE, ADD) == 1


def test_a_lost_check_has_written_nothing(way: Way) -> None:
    way.beside.claim(MINE)
    loss = way.proxy.drop_reply_when(changes_a_mark)
    way.side.expect(GuardUnavailable, way.guard.write, MINE, *way.statement(ADD))
    assert loss.fired == 1
    assert way.total == 0


def test_a_lost_statement_is_the_blocks_own_error(way: Way) -> None:
    way.claim(MINE)
    loss = way.proxy.drop_reply_when(lambda request: b"UPDATE orders" in request)
    with pytest.raises(ERRORS):
        way.write(MINE, ADD)
    assert loss.fired == 1
    assert way.total == 0


@pytest.mark.thorough
def test_a_server_that_refuses(way: Way) -> None:
    way.claim(MINE)
    way.proxy.refuse()
    way.side.expect(GuardUnavailable, way.guard.claim, MINE, timeout=0.3)  # on a broken connection of the pool

    def has_no_connection_left() -> bool:
        error = way.side.expect(GuardUnavailable, way.guard.claim, MINE, timeout=0.3)
        return ("the pool gave no connection" if way.is_psycopg else "did not answer") in str(error)

    wait_until(has_no_connection_left)
    way.proxy.restore()

    def is_claimed() -> bool:
        try:
            way.claim(MINE)
        except GuardUnavailable:
            assert way.is_psycopg, "SQLAlchemy's pool connects anew at once"
            return False
        return True

    wait_until(is_claimed)  # psycopg's pool connects in the background
