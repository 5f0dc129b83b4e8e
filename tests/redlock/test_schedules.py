"""A few of the schedules that ``make redlock`` runs by the hundred."""

from __future__ import annotations

import os
import random

import pytest

from tests.redlock.schedules import Counts, Schedule
from tests.support.load import starved

RUNS = 8


@pytest.mark.thorough
def test_under_a_guard_nothing_is_lost_in_any_schedule() -> None:
    seed = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**31)
    print(f"FENCING_SEED={seed}")
    total = Counts()
    for each in range(seed, seed + RUNS):
        total.add(Schedule(each).run())
    print(total)
    if total.grants <= 10 * RUNS:
        starved(f"{total.grants} grants in {RUNS} schedules")
    assert total.faults >= RUNS
    assert total.refused > 0
    assert total.lost_under_guard == 0
    assert total.numbers_not_higher == 0
