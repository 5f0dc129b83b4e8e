"""A network that falls silent: psycopg's guard gives up within its bound, although nobody cancels anything."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from fencing import GuardUnavailable, OutcomeUnknown
from tests.support import wait_until
from tests.support.sql_ways import DONE, MINE, Way, WayLender

DRIVER = tuple(map(int, psycopg.__version__.split(".")[:2]))


@pytest.fixture(params=["PsycopgGuard", "AsyncPsycopgGuard"])
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


@pytest.mark.thorough
@pytest.mark.skipif(DRIVER < (3, 3), reason="older drivers do not say that nothing has come")
def test_silence_ends(way: Way) -> None:
    """Without a bound of its own each call would wait for ever, and the story would end as hung."""
    way.claim(MINE)
    guard = way.new_guard(timeout=1.0)
    way.side.call(guard.claim, MINE)  # and is connected now
    for use, error, arguments in (
        (guard.claim, GuardUnavailable, ()),
        (guard.write, OutcomeUnknown, way.statement(DONE, id=1)),
    ):
        awaited = b"EXECUTE fencing_claim" if error is GuardUnavailable else b"COMMIT"
        silence = way.proxy.hold_reply_when(lambda request, awaited=awaited: awaited in request)  # type: ignore[misc]
        way.side.expect(error, use, MINE, *arguments)
        assert silence.fired == 1
        way.proxy.restore()


@pytest.mark.thorough
def test_a_pool_that_checks_its_connections(way: Way) -> None:
    """Its time-out does not count while it checks one. What it gives too late goes back to it."""
    pool = way.new_checking_pool()
    guard = way.guard_class(pool, timeout=1.0)
    way.side.call(guard.claim, MINE)
    way.proxy.silence()
    began = time.monotonic()
    for _ in range(2):
        way.side.expect(GuardUnavailable, guard.claim, MINE)
    assert time.monotonic() - began < 15
    way.proxy.restore()

    wait_until(lambda: way.serves(guard))
    assert pool.get_stats()["pool_size"] == 1
