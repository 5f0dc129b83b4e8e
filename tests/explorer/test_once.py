"""``once=``, statement by statement: with all rules on it is done at most once; with each one off the shortest trace
is found that does it twice, or never."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fencing import Fence
from storage_guards.sql.once import plan_once
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Ask, Plan, Statement
from tests.explorer.search import explore
from tests.explorer.sql_plans import (
    KEY,
    SQLProgram,
    SQLScenario,
    SQLWorld,
    assert_safe,
    once_writer,
    pruner_of_keys,
    writer,
)
from tests.explorer.state import NEVER_DONE, TWICE

Say = Callable[[object], None]


def two(**options: Any) -> tuple[SQLProgram, SQLProgram]:
    return SQLProgram(once_writer, 2, **options), SQLProgram(once_writer, 3, **options)


def one_try(number: int, **options: Any) -> SQLProgram:
    return SQLProgram(once_writer, number, **{"attempts": 1, "claims": "at once", **options})


PRUNER = SQLProgram(pruner_of_keys)
SAFE = [
    SQLScenario("2 that claim, and do it once", two()),
    SQLScenario("1 that tries again, 1 lost reply", (two(asks=False)[0],), lost=1),
    SQLScenario("2 in one step each, one that prunes", (one_try(2), one_try(3), PRUNER)),
]
LARGER = [
    SQLScenario("1 that tries again, 2 lost replies", (two(asks=False)[0],), lost=2),
    SQLScenario(
        "1 that asks, 1 lost reply, and one that writes", (two()[0], SQLProgram(writer, 2, attempts=1)), lost=1
    ),
    SQLScenario("2 that try again, 1 lost reply", two(claims="at once", asks=False), lost=1),
    SQLScenario("2 that ask, 1 lost reply", two(claims="at once"), lost=1),
    SQLScenario("1 that tries again, one that prunes, 1 lost reply", (two(asks=False)[0], PRUNER), lost=1),
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.thorough if each in LARGER else ()) for each in SAFE + LARGER],
)
def test_all_rules_on(scenario: SQLScenario, say: Say) -> None:
    assert_safe(scenario, say)


# Rules switched off


def on(name: str, fence: Fence, write: str = "") -> Statement:
    return Statement(name, fence.resource, fence.number, fence.token, write, key=KEY)


def conflict_ignored(admitted: Admitted, key: str, holder: Fence) -> Plan[None]:
    yield Ask([on("note_done", admitted.fence, admitted.write_id), on("key_floor", admitted.fence)])


def looked_for_before(program: SQLProgram, fence: Fence) -> Plan[Any]:
    """The row is looked for before the lock, and what came meanwhile is not noticed."""
    [done] = yield Ask([on("read_done", fence)], begins=True)
    if done is not None:
        yield from plan_once(Admitted(fence, 0, "", None), KEY, fence)
    [admitted] = yield from program.claim([fence], 1)
    yield from conflict_ignored(admitted, KEY, fence)
    return admitted


def noted_in_its_own_transaction(program: SQLProgram, fence: Fence) -> Plan[Any]:
    [admitted] = yield from program.check([fence])
    yield from plan_once(admitted, KEY, fence)
    yield Ask([], ends="COMMIT")
    [admitted] = yield from program.check([fence])
    return admitted


def floor_first(admitted: Admitted, key: str, holder: Fence) -> Plan[None]:
    [floor] = yield Ask([on("key_floor", admitted.fence)])
    [noted, done] = yield Ask([on("note_done", admitted.fence, admitted.write_id), on("read_done", admitted.fence)])
    understand = plan_once(admitted, key, holder)
    next(understand)
    with suppress(StopIteration):
        understand.send([noted, done, floor])


def without_the_mark(resource: str, below: str) -> Plan[int]:
    """Pruning that locks no mark."""
    raised, deleted = Statement("raise_key_floor", resource, key=KEY), Statement("delete_done", resource, key=KEY)
    [found] = yield Ask([Statement("last_done", resource, key=below)], begins=True)
    yield Ask([raised, deleted] if found[1] else [], ends="COMMIT")
    return int(found[1])


def without_a_floor(resource: str, below: str) -> Plan[int]:
    yield Ask(
        [Statement("lock_mark", resource), Statement("delete_done", resource, key=KEY)], begins=True, ends="COMMIT"
    )
    return 1


def floor_in_another_transaction(resource: str, below: str) -> Plan[int]:
    deleted, raised = Statement("delete_done", resource, key=KEY), Statement("raise_key_floor", resource, key=KEY)
    yield Ask([Statement("lock_mark", resource), deleted], begins=True, ends="COMMIT")
    yield Ask([raised], begins=True, ends="COMMIT")
    return 1


@dataclass(frozen=True)
class Rule:
    name: str
    scenario: SQLScenario
    violates: str
    found: int

    def __str__(self) -> str:
        return self.name


def _pruned(first: dict[str, Any] = {}, **options: Any) -> SQLScenario:  # noqa: B006 - it is not changed
    return SQLScenario(
        "2 in one step each, one that prunes otherwise",
        (one_try(2, **first), one_try(3, **first), replace(PRUNER, **options)),
    )


RULES = [
    Rule(
        "the row is in the transaction of the data",
        SQLScenario("", (two(enter=noted_in_its_own_transaction, asks=False)[0],), lost=1),
        NEVER_DONE,
        32,
    ),
    Rule("the row is looked for after the lock", _pruned({"enter": looked_for_before}), TWICE, 44),
    Rule("a conflict at the insert is AlreadyDone", SQLScenario("", two(once=conflict_ignored)), TWICE, 48),
    Rule(
        "the row comes before the floor, or pruning locks the mark",
        _pruned({"once": floor_first}, prune_keys=without_the_mark),
        TWICE,
        50,
    ),
    Rule("pruning raises the floor", _pruned(prune_keys=without_a_floor), TWICE, 43),
    Rule("… in the transaction that deletes", _pruned(prune_keys=floor_in_another_transaction), TWICE, 43),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_rule_off(rule: Rule, say: Say) -> None:
    result = explore(rule.scenario, until={rule.violates}, world_of=SQLWorld)
    assert rule.violates in result.violations, f"nothing found: {result}"
    violation = result.violations[rule.violates]
    say(f"without {rule}: {violation}")
    assert len(violation) == rule.found


@pytest.mark.parametrize(
    "options",
    [{"first": {"once": floor_first}}, {"prune_keys": without_the_mark}],
    ids=["the floor is looked at first", "pruning locks no mark"],
)
def test_one_of_two_rules_is_enough(options: dict[str, Any], say: Say) -> None:
    """The row before the floor, or the mark's lock for pruning: each one alone is enough."""
    result = explore(_pruned(**options), world_of=SQLWorld)
    say(result)
    assert result.exhausted
    assert not result.violations, "\n".join(map(str, result.violations.values()))
