"""The plan of slots: with all rules on nothing is found; with each one off its shortest violation is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence, Mark
from fencing.kernel.retry import NoReply
from fencing.locks.backend import Taken
from fencing.locks.settings import Settings
from tests.explorer import slot_locks
from tests.explorer.search import Result, explore
from tests.explorer.simulated_redis import SimulatedRedis
from tests.explorer.slot_locks import (
    NOT_OUT,
    REFUSED,
    TWO,
    OneByOne,
    SlotScenario,
    SlotWorld,
)

Say = Callable[[object], None]

ANY = SlotScenario("2 that take any of 2 slots, 1 lost", 2, 2, lost=1)
EACH = SlotScenario("2 that try 2 slots one by one, 1 lost", 2, 2, plans=OneByOne, lost=1)
ANY_TWICE = replace(ANY, name="2 that take any of 2 slots, 2 lost", lost=2)
EXPIRES = SlotScenario("3 that take any of 2 slots, 1 expires", 3, 2, expiries=1)
SAFE = [ANY, EACH, ANY_TWICE, replace(EACH, name="2 that try 2 slots one by one, 2 lost", lost=2)]
LARGER = [
    EXPIRES,
    SlotScenario("3 that take any of 2 slots, 2 lost", 3, 2, lost=2),
    SlotScenario("3 that take any of 2 slots, 1 lost, 1 expires", 3, 2, lost=1, expiries=1),
    SlotScenario("3 that take any of 2 slots, 1 late", 3, 2, late=1),
    SlotScenario("2 that take any of 2 slots, 1 late, 1 lost", 2, 2, late=1, lost=1),
    SlotScenario("3 that try 2 slots one by one, 1 lost", 3, 2, plans=OneByOne, lost=1),
    SlotScenario("3 that try 2 slots one by one, 1 expires", 3, 2, plans=OneByOne, polls=3, expiries=1),
    SlotScenario("2 that try 2 slots one by one, 1 late, 1 lost", 2, 2, plans=OneByOne, late=1, lost=1),
]


def explored(scenario: SlotScenario, **options: Any) -> Result:
    slot_locks._effect_of.cache_clear()
    try:
        return explore(scenario, world_of=SlotWorld, limit=300_000, **options)
    finally:
        slot_locks._effect_of.cache_clear()


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.thorough if each in LARGER else ()) for each in SAFE + LARGER],
)
def test_all_rules_on(scenario: SlotScenario, say: Say) -> None:
    result = explored(scenario)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted


class TakesTheFirstFree(SimulatedRedis):
    """It does not look for the caller's own token."""

    def _held_by(self, key: str) -> bytes | None:
        found = super()._held_by(key)
        return None if found is None else found + b"!"


class SkipsUnanswered(OneByOne):
    """A try without an answer is taken for a refusal, and given back at some later time."""

    def plan_acquire(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Any]:
        plan = super().plan_acquire(resource, token, settings, floor=floor, deadline=deadline)
        try:
            reply = yield next(plan)
        except NoReply:
            self.give_back_later(Fence(resource, 1, token), settings)
            return Taken(0.0, None)
        try:
            plan.send(reply)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it asks once")


def one_mark(resource: str) -> str:
    return "{s}"


def any_write(mark: Mark | None, fence: Fence) -> Mark:
    assert mark is not None
    return mark


RULES = [
    ("the own token is looked for first", replace(ANY, redis=TakesTheFirstFree), TWO),
    ("a try without an answer is settled before the next slot", replace(EACH, plans=SkipsUnanswered), TWO),
    ("a mark for each slot", replace(ANY, mark_of=one_mark), REFUSED),
    ("a check of each write", replace(EXPIRES, admit_write=any_write), NOT_OUT),
]


@pytest.mark.parametrize(("rule", "scenario", "violates"), [pytest.param(*each, id=each[0]) for each in RULES])
def test_one_rule_off(rule: str, scenario: SlotScenario, violates: str, say: Say) -> None:
    result = explored(scenario, until={violates})
    assert violates in result.violations, f"nothing found: {result}"
    say(f"without {rule}: {result.violations[violates]}")
