"""docs/guide/jobs.md and examples/jobs.py: each job's effect comes once, whoever dies, freezes or comes late."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples import jobs
from fencing import Lease, SQLCoordinator, StaleFence
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "jobs.md").read_text("utf-8"), re.DOTALL)
SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)


def test_the_page_shows_the_example() -> None:
    example = (ROOT / "examples" / "jobs.py").read_text("utf-8")
    assert [part.strip() in example for part in BLOCKS[0].split("\n\n\n")] == [True, True]


class Side:
    """One job that waits, and what two workers of one process need."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.guard = SQLAlchemyGuard(engine)
        self.guard.create_tables()
        self.coordinator = SQLCoordinator(engine, ttl=10, guards=[self.guard])
        self.coordinator.create_tables()
        with engine.begin() as connection:
            for table in (*jobs.TABLES, *jobs.OF_THE_DEMO):
                connection.execute(text(table))
            jobs.add_jobs(connection, 1)

    def make_due(self) -> None:
        """Let the job be looked at, as after a second."""
        with self.engine.begin() as connection:
            connection.execute(text("UPDATE job SET looked_at = NULL"))

    def effects(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT worker FROM effect")).scalars())


@pytest.fixture
def side(postgres_url: str) -> Iterator[Side]:
    engine = create_engine(postgres_url)
    side = Side(engine)
    yield side
    side.coordinator.close()
    engine.dispose()


def test_a_stale_worker_cannot_finish_a_job(side: Side) -> None:
    def others_take_over(given: str) -> str:
        with SQLCoordinator(side.engine) as plain:  # without guards it only frees the lock, as the end of the ttl does
            plain.force_release("job:1")
        side.make_due()
        assert jobs.work_on_one(side.engine, side.coordinator, side.guard, "the next one", str.upper)
        return given.upper()

    frozen = SQLCoordinator(side.engine, renew=False, guards=[side.guard])
    with frozen, pytest.raises(StaleFence):
        jobs.work_on_one(side.engine, frozen, side.guard, "the frozen one", others_take_over)
    assert side.effects() == ["the next one"]
    with side.engine.connect() as connection:
        assert jobs.outcome(connection) == jobs.Outcome(jobs=1, effects=1, not_once=0, turned_away={})
    exec(BLOCKS[1], {"guard": side.guard, "coordinator": side.coordinator})


def test_a_job_of_a_living_worker_is_left_alone(side: Side) -> None:
    def another_tries(given: str) -> str:
        assert not jobs.work_on_one(side.engine, side.coordinator, side.guard, "another one", str.upper)  # not yet
        side.make_due()
        assert jobs.work_on_one(side.engine, side.coordinator, side.guard, "another one", str.upper)
        return given.upper()

    assert jobs.work_on_one(side.engine, side.coordinator, side.guard, "the first one", another_tries)
    side.make_due()
    assert not jobs.work_on_one(side.engine, side.coordinator, side.guard, "another one", str.upper)  # none waits
    assert side.effects() == ["the first one"]


def test_a_job_that_was_finished_after_the_look_is_not_done_again(side: Side) -> None:
    asked, finished = threading.Event(), threading.Event()

    class Slow:
        """Asks for the lock when the first worker has finished."""

        def try_acquire(self, name: str) -> Lease | None:
            asked.set()
            assert finished.wait(30)
            return side.coordinator.try_acquire(name)

    slow: Any = Slow()
    with ThreadPoolExecutor(1) as pool:

        def another_tries(given: str) -> str:
            side.make_due()
            others.append(pool.submit(jobs.work_on_one, side.engine, slow, side.guard, "a second one", str.upper))
            assert asked.wait(30)
            return given.upper()

        others: list[Any] = []
        jobs.work_on_one(side.engine, side.coordinator, side.guard, "the first one", another_tries)
        finished.set()
        assert others[0].result()
    assert side.effects() == ["the first one"]


@pytest.mark.parametrize(
    ("processes", "threads", "count", "faults"),
    [
        pytest.param(3, 3, 30, 1, id="9 workers", marks=pytest.mark.thorough),
        pytest.param(10, 10, 1000, 3, id="100 workers", marks=pytest.mark.deep),
    ],
)
def test_each_effect_comes_once(postgres_url: str, processes: int, threads: int, count: int, faults: int) -> None:
    print(f"FENCING_SEED={SEED}")
    outcome = jobs.run(postgres_url, processes=processes, threads=threads, jobs=count, faults=faults, seed=SEED)
    print(outcome)
    assert outcome.jobs >= count
    assert outcome.effects == outcome.jobs
    assert outcome.not_once == 0
    late = outcome.turned_away.keys() & {"StaleFence", "LeaseLost"}
    assert late, "no worker that was frozen came too late, so nothing was tried"
