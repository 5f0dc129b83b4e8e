"""The moments that renewals share: pure functions."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fencing.locks import grid
from fencing.locks.grid import PER_SECOND, shared_moment


@pytest.fixture
def origin_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_origin", 0)


@pytest.mark.usefixtures("origin_0")
@pytest.mark.parametrize(
    ("after", "until", "moment"),
    [
        (1003.0, 1004.0, 1004),
        (1002.9, 1003.9, 1003),
        (1005.1, 1008.9, 1008),
        (1000.1, 1000.9, 1000.5),
        (1000.01, 1000.02, 1000 + 1 / 64),
        (0.0, 1000.0, 512),
    ],
)
def test_the_roundest_moment_is_chosen(after: float, until: float, moment: float) -> None:
    assert shared_moment(after, until) == moment


def test_it_is_after_the_one_and_up_to_the_other() -> None:
    chance = random.Random(7)
    for _ in range(300):
        after = chance.uniform(0, 10 ** chance.randint(0, 9))
        until = after + 10 ** chance.uniform(-3, 6.5)
        assert after < shared_moment(after, until) <= until


def test_of_equal_windows_no_two_moments_are_closer_than_half_a_window() -> None:
    chance = random.Random(7)
    for width in (0.001, 0.003, 0.7, 1.0, 1.9, 300.0):
        moments = set()
        for _ in range(100):
            after = 1e6 + chance.uniform(0, 30 * width)
            moments.add(shared_moment(after, after + width))
        ordered = sorted(moments)
        apart = min(later - earlier for earlier, later in pairwise(ordered))
        assert apart > width / 2 - 2 / PER_SECOND


def test_a_window_without_width_has_a_moment() -> None:
    assert shared_moment(1000.0, 1000.0) == pytest.approx(1000.0, abs=1 / PER_SECOND)


def test_each_process_has_a_grid_of_its_own() -> None:
    """Processes of one host have one clock. Without this, all would renew at the same moments."""
    origins = set()
    for _ in range(3):
        grid._draw_origin()
        origins.add(grid._origin)
    assert len(origins) == 3
    assert all(float(origin + 10**9 * PER_SECOND) == origin + 10**9 * PER_SECOND for origin in origins)
