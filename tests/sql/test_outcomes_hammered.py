"""``landed`` under random faults, with each guard and each driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.landed_hammer import Hammer
from tests.support.sql_ways import EACH_DATABASE, Way, WayLender, ways


@pytest.fixture(params=ways(*EACH_DATABASE))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        way.spoil()  # its sessions are killed
        yield way


@pytest.mark.thorough
def test_what_landed_says_is_so(way: Way, pytestconfig: pytest.Config) -> None:
    hammer = Hammer(way)
    hammer.work(seconds=2.0 if pytestconfig.getoption("--thorough") else 0.7)
    assert hammer.has_seen_all, hammer.seen
