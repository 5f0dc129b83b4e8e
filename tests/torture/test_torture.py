"""A short torture run; ``make torture`` runs it for longer. And the parts of it that need no servers."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.torture.faults import kinds_for, plan
from tests.torture.run import Outcome, torture
from tests.torture.services import SERVICES
from tests.torture.steps import run, run_async
from tests.torture.worker import Worker

SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)


@pytest.mark.thorough
def test_what_the_guards_promise_holds_under_faults(tmp_path: Path) -> None:
    print(f"FENCING_SEED={SEED}")
    outcome = torture(SEED, 20, folder=tmp_path)
    print(outcome)
    assert not outcome.violations
    assert_something_was_tried(outcome)


def assert_something_was_tried(outcome: Outcome) -> None:
    counters = {event.counter for event in outcome.history if event.kind == "final"}
    assert len(counters) == 6
    for counter in counters:
        assert outcome.writes(counter)["acknowledged"] >= 5, counter
    assert sum(outcome.faults.values()) >= 10


def test_the_seed_alone_decides_which_faults_happen_when() -> None:
    kinds = kinds_for(SERVICES)
    faults = list(plan(7, 60, kinds, 1.5))
    assert faults == list(plan(7, 60, kinds, 1.5))
    assert faults != list(plan(8, 60, kinds, 1.5))
    assert faults == sorted(faults, key=lambda fault: fault.at)
    assert faults[-1].at < 60
    assert faults[:20] == list(plan(7, 600, kinds, 1.5))[:20], "a longer run begins in the same way"


def test_each_kind_of_fault_happens_in_a_run_of_five_minutes() -> None:
    for services in (SERVICES, ("redis", "sqlite")):
        kinds = kinds_for(services)
        assert Counter(fault.kind for fault in plan(7, 300, kinds, 1.5)).keys() == set(kinds)


def body(first: Any, second: Any) -> Generator[Any, Any, list[Any]]:
    seen = [(yield first())]
    try:
        yield second()
    except KeyError as error:
        seen.append(error.args[0])
    return seen


def test_a_body_is_the_same_over_values_and_over_awaitables() -> None:
    async def one() -> int:
        return 1

    async def fails() -> None:
        raise KeyError("gone")

    def fails_at_once() -> None:
        raise KeyError("gone")

    assert run(body(lambda: 1, fails_at_once)) == [1, "gone"]
    assert asyncio.run(run_async(body(one, fails))) == [1, "gone"]


def test_the_choices_of_a_turn_do_not_depend_on_earlier_turns(tmp_path: Path) -> None:
    setup = {"seed": 7, "process": 1, "mode": "threads", "places": [], "with": "", "log": str(tmp_path / "log")}
    careful, hasty = (Worker(setup).chances(0) for _ in range(2))
    next(careful).random()  # one more choice in the first turn
    next(hasty)
    assert next(careful).random() == next(hasty).random()
    assert next(careful).random() != next(Worker({**setup, "process": 2}).chances(0)).random()
