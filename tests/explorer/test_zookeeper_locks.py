"""The plans of locks in ZooKeeper: with all rules on nothing is found; with each one off its violation is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest

from fencing.zookeeper import plans
from fencing.zookeeper.calls import check
from fencing.zookeeper.layout import BASES, Node, nodes_of
from tests.explorer import zookeeper_locks
from tests.explorer.search import explore
from tests.explorer.zookeeper_locks import (
    LEFT_BEHIND,
    NOT_GROWING,
    ZooKeeperScenario,
    ZooKeeperWorld,
    acquires,
    remints,
)

Say = Callable[[object], None]

TWO = (acquires("a"), acquires("a"))
REMINT = (remints("a", 10), acquires("a"))
SAME_BASE = (remints("a", 0), acquires("a"))
waits = acquires("a", tries=False)
WAITS = (remints("a", 0, tries=False), waits)
SAFE = [
    ZooKeeperScenario("1 that takes two locks in turn, 1 lost", (acquires("a", "b"),), lost=1),
    ZooKeeperScenario("2 that take one lock", TWO),
]
LARGER = [
    ZooKeeperScenario("2, one of which mints above a floor", REMINT),
    ZooKeeperScenario("2, one of which mints again", SAME_BASE),
    ZooKeeperScenario("1 that takes two locks in turn, 2 lost, 1 session ends", (acquires("a", "b"),), 2, 1),
    ZooKeeperScenario("2 that take one lock, 1 lost", TWO, lost=1),
    ZooKeeperScenario("2 that wait for one lock, 1 lost", (waits, acquires("a")), lost=1),
    ZooKeeperScenario("2 that take one lock, 1 session ends", TWO, ends=1),
    ZooKeeperScenario("2, one of which mints again, and one waits, 1 lost", WAITS, lost=1),
    ZooKeeperScenario("2, one of which mints again, and one waits, 1 session ends", WAITS, ends=1),
    ZooKeeperScenario("3 that wait for one lock", (waits, waits, waits)),
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.deep if each in LARGER else ()) for each in SAFE + LARGER],
)
def test_all_rules_on(scenario: ZooKeeperScenario, say: Say) -> None:
    zookeeper_locks._effect_of.cache_clear()
    result = explore(scenario, world_of=ZooKeeperWorld, limit=1_000_000)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted


def is_always_at_once(created: Any, parent: Any, base: Any) -> bool:
    return base is not None


def ignores_the_base(created: Any, parent: Any, base: Any) -> bool:
    return bool(created.czxid == parent.pzxid)


def checks_nothing(self: plans.ZooKeeperPlans, numbers: Any) -> list[Any]:
    return [check(BASES)]


def hides_twins(names: Iterable[str]) -> list[Node]:
    return [*{node.token: node for node in reversed(nodes_of(names))}.values()][::-1]


RULES: list[tuple[str, ZooKeeperScenario, str, Callable[[], Any]]] = [
    (
        "a creation takes the lock only in an empty queue",
        LARGER[1],
        NOT_GROWING,
        lambda: mock.patch.object(plans, "took_at_once", is_always_at_once),
    ),
    (
        "a creation takes the lock only if the base is still there",
        LARGER[0],
        NOT_GROWING,
        lambda: mock.patch.object(plans, "took_at_once", ignores_the_base),
    ),
    (
        "a grant checks the base",
        LARGER[0],
        NOT_GROWING,
        lambda: mock.patch.object(plans.ZooKeeperPlans, "base_operations", checks_nothing),
    ),
    (
        "what a lost creation has left is deleted",
        SAFE[0],
        LEFT_BEHIND,
        lambda: mock.patch.object(plans, "nodes_of", hides_twins),
    ),
]


@pytest.mark.parametrize(
    ("rule", "scenario", "violates", "off"),
    [pytest.param(*each, id=each[0]) for each in RULES],
)
def test_one_rule_off(rule: str, scenario: ZooKeeperScenario, violates: str, off: Callable[[], Any], say: Say) -> None:
    zookeeper_locks._effect_of.cache_clear()
    with off():
        result = explore(scenario, until={violates}, world_of=ZooKeeperWorld, limit=300_000)
    zookeeper_locks._effect_of.cache_clear()
    assert violates in result.violations, f"nothing found: {result}"
    say(f"without {rule}: {result.violations[violates]}")
