"""A short torture run; ``make torture`` runs it for longer. And the parts of it that need no servers."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.torture.faults import kinds, named, plan
from tests.torture.run import Outcome, torture
from tests.torture.services import KINDS, USES, Services, places_on
from tests.torture.services.base import SLOTS
from tests.torture.steps import run, run_async
from tests.torture.turn import key_of
from tests.torture.worker import Worker

SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)

SECONDS = 12
SHORT = ("redis", "redlock", "postgresql", "sqlite", "redis-data", "files", "s3", "http")
"""Those that start in a second or two."""


@pytest.mark.thorough
def test_what_the_guards_promise_holds_under_faults(tmp_path: Path) -> None:
    print(f"FENCING_SEED={SEED}")
    outcome = torture(SEED, SECONDS, SHORT, folder=tmp_path)
    print(outcome)
    assert not outcome.violations
    assert_something_was_tried(outcome)


def assert_something_was_tried(outcome: Outcome) -> None:
    counters = {event.counter for event in outcome.history if event.kind == "final"}
    assert len(counters) == 7 + 2 + 2 + SLOTS
    for counter in counters:
        assert outcome.writes(counter)["acknowledged"] >= 2, counter
    assert sum(outcome.faults.values()) >= 10


EVERY = kinds()


def test_the_seed_alone_decides_which_faults_happen_when() -> None:
    faults = list(plan(7, 60, EVERY, 1.5))
    assert faults == list(plan(7, 60, EVERY, 1.5))
    assert faults != list(plan(8, 60, EVERY, 1.5))
    assert faults == sorted(faults, key=lambda fault: fault.at)
    assert faults[-1].at < 60
    assert faults[:20] == list(plan(7, 600, EVERY, 1.5))[:20], "a longer run begins in the same way"


def test_each_fault_has_a_name_of_its_own_and_services_that_exist() -> None:
    assert len(set(EVERY)) == len(EVERY)
    for kind in EVERY:
        fault, service = named(kind)
        assert f"{fault.name} {service}".rstrip() == kind
        assert service in {*KINDS, ""}
    with pytest.raises(ValueError, match=r"there is no fault 'flood'; choose among .*flush redis"):
        named("flood")


def test_consecutive_seeds_have_every_storage_under_every_kind_of_locks() -> None:
    locks = [name for name, kind in KINDS.items() if kind.has_locks]
    storages = [storage for kind in KINDS.values() for storage in kind.storages]
    for first in (1, 12345):
        places = [place for seed in range(first, first + len(locks)) for place in places_on(list(KINDS), seed)]
        assert {(place.storage, place.coordinator) for place in places if place.use == "lock"} == {
            (storage, lock) for storage in storages for lock in locks
        }


def test_a_small_run_has_every_storage_under_every_kind_of_locks() -> None:
    names = [place.name for place in places_on(["redis", "postgresql", "sqlite"], 5) if place.use == "lock"]
    assert names == [
        *("postgresql/redis", "postgresql/postgresql", "postgresql/sqlite"),
        *("sqlite/redis", "sqlite/postgresql", "sqlite/sqlite"),
    ]


def test_consecutive_seeds_have_each_other_use_under_every_kind_of_locks() -> None:
    locks = {name for name, kind in KINDS.items() if kind.has_locks}
    storages = {storage for kind in KINDS.values() for storage in kind.storages}
    places = [place for seed in range(len(locks) * len(storages)) for place in places_on(list(KINDS), seed)]
    for use in USES:
        pairs = {(place.storage, place.coordinator) for place in places if place.use == use}
        able = storages if use != "once" else {each for kind in KINDS.values() for each in kind.done_once}
        assert pairs == {(storage, lock) for storage in able for lock in locks}


def test_keys_of_later_days_sort_behind() -> None:
    days = [0, 9, 10, 99_999, 100_000]
    assert sorted(key_of(day) for day in reversed(days)) == [key_of(day) for day in days]
    assert key_of(-1) == key_of(0) < key_of(0, 1) < key_of(1)


def test_a_wrong_choice_of_services_is_told() -> None:
    with pytest.raises(ValueError, match="there is no oracle; choose among redis, "):
        Services(["oracle"], 1.5, 1)
    with pytest.raises(ValueError, match="redis can hold locks, and no data"):
        Services(["redis"], 1.5, 1)


@pytest.mark.usefixtures("any_redis")  # there is one here
def test_a_server_that_was_started_in_between_is_ended_too() -> None:
    with Services(["redis", "sqlite"], 1.5, 1) as services:
        service: Any = services["redis"]
        former, later = service.server, service.start_server()
        assert None not in (former.pid, later.pid)
    assert (former.pid, later.pid) == (None, None)


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
    setup = {
        "seed": 7,
        "process": 1,
        "mode": "threads",
        "places": [],
        "services": {},
        "ttl": 1.5,
        "with": "",
        "log": str(tmp_path / "log"),
    }
    careful, hasty = (Worker(setup).chances(0) for _ in range(2))
    next(careful).random()  # one more choice in the first turn
    next(hasty)
    assert next(careful).random() == next(hasty).random()
    assert next(careful).random() != next(Worker({**setup, "process": 2}).chances(0)).random()
