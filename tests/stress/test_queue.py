"""A few seconds of the stress; `python -m tests.stress` runs it for longer."""

from __future__ import annotations

import os
import random

import pytest

from tests.stress.queue import run
from tests.support.fixtures import RedisFactory

SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)


@pytest.mark.parametrize("faults", [False, True], ids=["without faults", "with faults"])
def test_many_wait(fresh_redis: RedisFactory, faults: bool) -> None:
    print(f"FENCING_SEED={SEED}")
    outcome = run(fresh_redis(), 4, SEED, faults=faults)
    print(outcome)
    assert len(outcome.grants) > 100
    if not faults:
        assert outcome.out_of_order <= len(outcome.grants) / 100, "an offer may lapse, on a machine that is busy enough"
