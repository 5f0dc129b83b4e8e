"""The comparison of lock services: what it makes of a history, and a real fault on a real Redis."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tests.outages import deployments, faults, load
from tests.outages.deployments import DEPLOYMENTS, KILLED, REPLACED, TTL, TWO_KILLED
from tests.outages.faults import HOLDER_FROZEN, HOLDER_KILLED, play
from tests.outages.tables import FAULTS, fault_table, load_table, loss_table, picture


def outcome(**values: float) -> dict[str, Any]:
    return {"gap": 2.0, "double": 0.0, "fell": 0, "lost": 0, "lost_guarded": 0, "refused": 0, "grants": 9, **values}


CROWDS = {"2": {"grants": 500.0, "median": 1.5, "longest": 80.0, "jain": 0.5}}
RESULTS = {
    "redis": {
        "loads": {"fencing": {"pair": 120.0, "crowds": CROWDS}, "redis-py Lock": {"pair": 300.0, "crowds": CROWDS}},
        "faults": {KILLED: outcome(gap=4.0, lost=3), REPLACED: outcome(double=0.7, fell=1, lost=4, refused=1)},
    },
    "memory": {"loads": {"fencing": {"pair": 12.0, "crowds": CROWDS}}, "faults": {}},
}


def test_the_tables_say_what_was_measured() -> None:
    assert "| Redis, no AOF | **fencing** | 120 | 500; 1.50, 80.0; 0.50 |" in list(load_table(RESULTS))
    [_, _, line] = fault_table(RESULTS)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1 + FAULTS.index(KILLED)] == "4.0 s"
    assert cells[1 + FAULTS.index(TWO_KILLED)] == "-"
    assert cells[1 + FAULTS.index(REPLACED)] == "2.0 s, **two holders** for 0.7 s"
    assert f"| {REPLACED} | 1 | 1 | 4 | 0 | 1 |" in list(loss_table(RESULTS))


def test_the_picture_has_a_bar_for_each_of_them() -> None:
    drawn = ElementTree.fromstring(picture(RESULTS))
    assert sum("dot" in each.get("class", "") for each in drawn) == 2
    assert "Redis, no AOF: 2.0 s, two holders" in "".join(drawn.itertext())


def test_two_believe_for_as_long_as_their_times_overlap() -> None:
    def times(*each: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"granted": granted, "believed": believed} for granted, believed in each]

    assert faults._overlap(times((1, 2), (5, 6)), times((2, 5))) == 0
    assert faults._overlap(times((1, 3), (5, 6)), times((2, 5.5))) == 1.5


def test_each_service_has_a_title_of_its_own() -> None:
    titles = [each.title for each in DEPLOYMENTS.values()]
    assert len(set(titles)) == len(titles)
    assert deployments.FAULT_SECONDS > TTL, "a lock ends while its server is away"


@pytest.mark.deep
@pytest.mark.parametrize("fault", [HOLDER_KILLED, HOLDER_FROZEN, REPLACED])
def test_under_a_guard_no_update_is_lost(fault: str) -> None:
    found = play(DEPLOYMENTS["redis"], fault)
    assert found is not None
    assert found.lost_guarded == 0
    assert found.grants > faults.WARM_GRANTS
    if fault == HOLDER_KILLED:
        assert found.gap > TTL / 2, "the lock of a dead holder lasts"
        assert not found.refused
    else:
        assert found.refused, "a late write"
        assert found.lost, "which costs others their updates without a guard"


@pytest.mark.thorough
def test_ours_and_another_lock_are_loaded_in_turn() -> None:
    found = load.measure(DEPLOYMENTS["redis"], (2,), 0.2)
    assert set(found) == {"fencing", "redis-py Lock"}
    for its in found.values():
        assert its.pair > 0
        assert its.crowds[2].grants > 0
        assert 0.5 <= its.crowds[2].jain <= 1
