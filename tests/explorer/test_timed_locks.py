"""Exclusion with time: it holds as far as clocks may err, and each rule is needed. Beyond that the guard refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fencing.kernel.fence import Fence
from fencing.locks.holding import Grant
from tests.explorer.redlock_storage import LOST
from tests.explorer.search import Result, explore
from tests.explorer.timed_locks import ACCEPTED, BELIEF_US, BOTH, LAST_CHECK, SETTINGS, TTL_US, Timed, TimedWorld
from tests.explorer.timed_scenarios import BROKEN, DEEP, MARGIN_US, PAUSED, RULES, SAFE, UNGUARDED

Say = Callable[[object], None]

SLOW = {
    *(name for name in (*BROKEN, *PAUSED, *RULES) if "Redlock" in name),
    "a shorter ttl without an answer is remembered",
    "the clock of a node that waits does not jump",
}


def marked(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in names]


def visited(scenario: Timed, *until: str) -> Result:
    return explore(scenario, until=until or None, world_of=TimedWorld, limit=400_000)


def deeper() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.deep if "Redlock" in name else pytest.mark.thorough) for name in DEEP]


@pytest.mark.parametrize("name", [*SAFE, *deeper()])
def test_no_two_believe_to_hold_the_lock(name: str, say: Say) -> None:
    result = visited((SAFE | DEEP)[name])
    say(f"exclusion, {result}")
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted
    assert result.states > 200, "the bounds leave little to explore"


@pytest.mark.parametrize("name", marked(BROKEN))
def test_two_believe_where_clocks_err_further(name: str, say: Say) -> None:
    scenario, length = BROKEN[name]
    violation = visited(scenario).violations[BOTH]
    say(f"exclusion, {name}: {violation}")
    assert len(violation) == length, str(violation)


@pytest.mark.parametrize("rule", marked(RULES))
def test_without_the_rule_two_believe(rule: str, say: Say) -> None:
    scenario, length, off = RULES[rule]
    with nullcontext() if off is None else off():
        violation = visited(scenario).violations[BOTH]
    say(f"exclusion without '{rule}': {violation}")
    assert len(violation) == length, str(violation)


@pytest.mark.parametrize("name", marked(PAUSED))
def test_a_guard_refuses_who_acts_after_its_last_check(name: str, say: Say) -> None:
    scenario, length = PAUSED[name]
    result = visited(scenario, LOST, ACCEPTED)
    say(f"exclusion, {name}: {result.violations[LAST_CHECK]}; no such write was accepted in {result.states:,} states")
    assert set(result.violations) == {LAST_CHECK}
    assert result.exhausted
    assert result.violations[LAST_CHECK].trace[-1] == "A writes, and the guard refuses it"
    assert len(result.violations[LAST_CHECK]) == length


def test_without_a_guard_the_late_write_is_accepted(say: Say) -> None:
    scenario, expected = UNGUARDED
    found = visited(scenario, LOST).violations
    say(f"exclusion, without a guard: {found[LOST]}")
    assert {kind: len(violation) for kind, violation in found.items()} == expected


def test_the_margin_is_that_of_the_settings() -> None:
    grant = Grant("r", 1, Fence("r", 1, "t" * 22).token, SETTINGS.deadline(0.0))
    assert grant.deadline == pytest.approx(BELIEF_US / 1e6)
    assert MARGIN_US == TTL_US - 999 - BELIEF_US
    assert replace(SETTINGS, ttl=1.0).believed_seconds == pytest.approx(0.988)
