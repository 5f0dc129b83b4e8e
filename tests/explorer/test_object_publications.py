"""Publications of object stores: with all rules on none loses an object; with each one off the shortest trace is found.

The plans are those of the guard: claims, appends, restores and collections, in every order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from fencing.kernel.effects import Plan
from storage_guards.objects import collect as object_collect
from storage_guards.objects import publishing
from storage_guards.objects.keys import DataKey
from tests.explorer.object_publications import (
    BROKEN,
    LOST_OBJECT,
    PublicationScenario,
    PublicationWorld,
    appends,
    appends_blindly,
    appends_what_it_read_before,
    collects,
    collects_and_keeps_one,
    collects_unclaimed,
    forget,
    publishes,
    replaces_and_collects,
    restores,
)
from tests.explorer.search import Result, explore

Say = Callable[[object], None]

APPENDS = PublicationScenario("2 append", (appends, appends))
COLLECTED = PublicationScenario("one restores what another collects", (collects, restores))
RESTORED = PublicationScenario("one collects, and another restores", (restores, collects))
SHARED = PublicationScenario("one collects, and a thread of it appends", (appends, collects), same=True)
SHARED_RESTORE = PublicationScenario("one collects, and a thread of it restores", (restores, collects), same=True)
READ_BEFORE = PublicationScenario("one appends to what it read before", (collects, appends_what_it_read_before))
NEWER = PublicationScenario("one collects, and a newer one publishes", (collects, publishes))
ONE = PublicationScenario("one collects, and keeps one", (collects_and_keeps_one, publishes))
SAFE = [COLLECTED, SHARED, NEWER, ONE]
LARGER = [
    APPENDS,
    RESTORED,
    SHARED_RESTORE,
    READ_BEFORE,
    PublicationScenario("appends, restores, collects", (appends, restores, collects)),
    PublicationScenario("restores, collects, appends", (restores, collects, appends)),
    PublicationScenario("collects, appends, restores", (collects, appends, restores)),
    PublicationScenario("appends, collects but one, restores", (appends, collects_and_keeps_one, restores)),
    PublicationScenario("2 collect, one appends", (collects, collects_and_keeps_one, appends)),
    PublicationScenario("appends, restores, collects as a thread", (appends, restores, collects), same=True),
    PublicationScenario("one restores what another collects, 1 lost, 1 late", (collects, restores), lost=1, late=1),
    PublicationScenario("appends, restores, collects, all in manifests", (appends, restores, collects), inline=0),
]
LARGEST = [
    PublicationScenario("publishes, collects, restores, 1 late", (publishes, collects, restores), late=1),
    PublicationScenario("appends, collects, restores, 1 lost", (appends, collects, restores), lost=1),
]


def explored(scenario: PublicationScenario, **options: Any) -> Result:
    forget()
    try:
        return explore(scenario, world_of=PublicationWorld, limit=400_000, **options)
    finally:
        forget()


def _marks(scenario: PublicationScenario) -> Any:
    if scenario in LARGEST:
        return pytest.mark.deep
    return pytest.mark.thorough if scenario in LARGER else ()


@pytest.mark.parametrize(
    "scenario", [pytest.param(each, id=each.name, marks=_marks(each)) for each in SAFE + LARGER + LARGEST]
)
def test_all_rules_on(scenario: PublicationScenario, say: Say) -> None:
    result = explored(scenario)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted


# Rules switched off


def _plan_nothing(*args: Any) -> Plan[bool]:
    return True
    yield


class _AllOlder:
    """No key is of the collector's own fence, or of a newer one."""

    @staticmethod
    def parse(key: str) -> DataKey | None:
        found = DataKey.parse(key)
        return found and replace(found, number=0)


class _EveryId:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@dataclass
class _Named:
    id: Any


_plan_named = object_collect._plan_named


def _plan_current_only(scope: Any, publications: Any, seconds: float) -> Plan[set[str]]:
    return _plan_named(scope, list(publications)[:1], seconds)


def _off(module: Any, **replacements: Any) -> Callable[[], AbstractContextManager[Any]]:
    return partial(mock.patch.multiple, module, **replacements)


UNCLAIMED = PublicationScenario("one appends, another collects without a claim", (appends, collects_unclaimed))
REPLACED = PublicationScenario(
    "one collects what it has replaced, another appends to that", (replaces_and_collects, appends_what_it_read_before)
)
BLIND = PublicationScenario("2 threads append blindly", (appends_blindly, appends_blindly), same=True)

Rule = tuple[PublicationScenario, str, Callable[[], AbstractContextManager[Any]], int]
RULES: dict[str, Rule] = {
    "a pointer that forgets a publication before its data go": (
        COLLECTED,
        BROKEN,
        _off(object_collect, plan_put=_plan_nothing),
        5,
    ),
    "a restore of nothing but what the pointer names": (
        COLLECTED,
        BROKEN,
        _off(publishing, named_by=lambda _: [_Named(_EveryId())]),
        13,
    ),
    "a collection that spares its own fence": (SHARED, BROKEN, _off(object_collect, DataKey=_AllOlder), 10),
    "a collection that spares newer fences": (NEWER, BROKEN, _off(object_collect, DataKey=_AllOlder), 9),
    "a collection that spares what kept publications name": (
        ONE,
        BROKEN,
        _off(object_collect, _plan_named=_plan_current_only),
        5,
    ),
    "entries of nothing but what is current": (
        REPLACED,
        BROKEN,
        _off(publishing.Publishing, _check_carried=lambda *_: None),
        12,
    ),
    "a collector's claim": (
        UNCLAIMED,
        BROKEN,
        _off(
            object_collect,
            admitted=lambda scope, fence, pointer: pointer,
            admit_write=lambda mark, fence: replace(mark, seq=mark.seq + 1),
        ),
        9,
    ),
    "the condition of the put": (replace(APPENDS, ignores_conditions=True), LOST_OBJECT, nullcontext, 10),
    "a thread that replaces only what it has read": (BLIND, LOST_OBJECT, nullcontext, 11),
}


@pytest.mark.parametrize(
    "rule",
    [pytest.param(each, marks=pytest.mark.thorough if number > 2 else ()) for number, each in enumerate(RULES)],
)
def test_one_rule_off(rule: str, say: Say) -> None:
    scenario, violates, off, steps = RULES[rule]
    with off():
        found = explored(scenario, until={violates}).violations.get(violates)
    say(f"without {rule}: {found}")
    assert found is not None
    assert len(found) == steps, str(found)
