"""The plans of locks in etcd: with all rules on nothing is found; with each one off its shortest violation is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from fencing.etcd import plans
from fencing.etcd.calls import Reply, compare
from fencing.etcd.leases import Leases
from tests.explorer import etcd_locks
from tests.explorer.etcd_locks import LEFT_BEHIND, NOT_GROWING, EtcdScenario, EtcdWorld, acquires, remints, renews
from tests.explorer.search import explore
from tests.explorer.state import OVERLAP

Say = Callable[[object], None]

TWO = (acquires("a"), acquires("a"))
SAFE = [
    EtcdScenario("1 that takes two locks in turn, 1 lost", (acquires("a", "b"),), lost=1),
    EtcdScenario("2 that take one lock", TWO),
    EtcdScenario("2, one of which mints above a floor", (remints("a", 10), acquires("a"))),
]
FROZEN = EtcdScenario("2 while the leader is frozen", (renews("a"), acquires("a")), times=2, elects=True)
LARGER = [
    EtcdScenario("1 that takes two locks in turn, 2 lost", (acquires("a", "b"),), lost=2),
    EtcdScenario("2 that take one lock, 1 lost", TWO, lost=1),
    EtcdScenario("2, one of which mints above a floor, 1 lost", (remints("a", 10), acquires("a")), lost=1),
    EtcdScenario("3 that take one lock", (*TWO, acquires("a"))),
    FROZEN,
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.thorough if each in LARGER else ()) for each in SAFE + LARGER],
)
def test_all_rules_on(scenario: EtcdScenario, say: Say) -> None:
    etcd_locks._effect_of.cache_clear()
    result = explore(scenario, world_of=EtcdWorld, limit=300_000)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted


def anything_serves(self: Leases, lease: Any) -> bool:
    return True


NOTHING = compare("", "CREATE", 0)
"""A condition that always holds."""

RULES: list[tuple[str, EtcdScenario, str, Callable[[], Any]]] = [
    (
        "a lease serves another lock only if all of its requests were answered",
        SAFE[0],
        LEFT_BEHIND,
        lambda: mock.patch.object(Leases, "has_room", anything_serves),
    ),
    (
        "a grant checks the base",
        SAFE[2],
        NOT_GROWING,
        lambda: mock.patch.object(plans, "unchanged", return_value=NOTHING),
    ),
    (
        "a grant checks that nobody is before",
        SAFE[1],
        OVERLAP,
        lambda: mock.patch.object(plans, "queue_of", return_value="elsewhere/"),
    ),
    (
        "a renewal counts only if its leader still leads behind it",
        FROZEN,
        OVERLAP,
        lambda: mock.patch.object(Reply, "terms", {"any"}),
    ),
]


@pytest.mark.parametrize(
    ("rule", "scenario", "violates", "off"),
    [pytest.param(*each, id=each[0], marks=pytest.mark.thorough if each[1] in LARGER else ()) for each in RULES],
)
def test_one_rule_off(rule: str, scenario: EtcdScenario, violates: str, off: Callable[[], Any], say: Say) -> None:
    etcd_locks._effect_of.cache_clear()
    with off():
        result = explore(scenario, until={violates}, world_of=EtcdWorld, limit=300_000)
    etcd_locks._effect_of.cache_clear()
    assert violates in result.violations, f"nothing found: {result}"
    say(f"without {rule}: {result.violations[violates]}")
