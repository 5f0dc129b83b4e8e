"""A few seconds of the stress; `python -m tests.stress` runs it for longer."""

from __future__ import annotations

import os
import random

import pytest

from tests.stress.queue import run
from tests.support.fixtures import RedisFactory

SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        pytest.param(False, 0.5, id="without faults", marks=pytest.mark.thorough),
        pytest.param(True, 2.0, id="with faults", marks=pytest.mark.thorough),
        pytest.param(False, 10.0, id="without faults, for longer", marks=pytest.mark.deep),
        pytest.param(True, 20.0, id="with faults, for longer", marks=pytest.mark.deep),
    ],
)
def test_exclusion_order_and_progress_hold(fresh_redis: RedisFactory, faults: bool, seconds: float) -> None:
    print(f"FENCING_SEED={SEED}")
    outcome = run(fresh_redis(), seconds, SEED, faults=faults)
    print(outcome)
    assert outcome.grants
    if not faults:
        assert outcome.out_of_order <= len(outcome.grants) / 10, "offers may lapse on a busy machine"
