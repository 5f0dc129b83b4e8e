"""The guards' plans for SQL: with all rules on nothing is found; with each one off its shortest violation is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fencing import Fence, OutcomeUnknown
from fencing.kernel.admission import admit_write
from fencing.kernel.fence import Mark
from storage_guards.sql import plans
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Ask, Batch, Plan, Statement
from storage_guards.sql.pruning import PruningStatements
from tests.explorer.search import explore
from tests.explorer.sql_plans import RESOURCE, Row, SQLProgram, SQLScenario, SQLWorld, assert_safe, pruner, writer
from tests.explorer.state import CLAIM_BACK, LOST_UPDATE, VERDICT

Say = Callable[[object], None]


def two(**options: Any) -> tuple[SQLProgram, SQLProgram]:
    return SQLProgram(writer, 2, **options), SQLProgram(writer, 3, **options)


def once(number: int, **options: Any) -> SQLProgram:
    return SQLProgram(writer, number, attempts=1, **options)


PRUNER = SQLProgram(pruner, 3)
SAFE = [
    SQLScenario("2 that claim, and write", two()),
    SQLScenario("2 that claim as they write, 1 lost reply", two(claims="at once"), lost=1),
    SQLScenario("1 that claims as it writes, 2 lost replies", (two(claims="at once")[0],), lost=2),
    SQLScenario("1, 2 lost replies", (two()[0],), lost=2),
    SQLScenario("2, one that prunes", (once(2), once(3, claims="at once"), PRUNER)),
]
LARGER = [
    SQLScenario("2, 1 lost reply", two(), lost=1),
    SQLScenario("2, one that prunes, 1 lost reply", (once(2), once(3, claims="at once"), PRUNER), lost=1),
    SQLScenario("3 that claim as they write", (once(1, claims="at once"), *two(claims="at once"))),
]


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name, marks=pytest.mark.thorough if each in LARGER else ()) for each in SAFE + LARGER],
)
def test_all_rules_on(scenario: SQLScenario, say: Say) -> None:
    assert_safe(scenario, say)


# Rules switched off


def unlocked(plan: Callable[..., Plan[Any]], *names: str) -> Callable[..., Plan[Any]]:
    """The plan with statements that look at what these lock."""
    others = {"lock_floor": "read_floor", "lock_mark": "peek_mark", "lock_absence": "peek_absence"}

    def changed(*args: Any) -> Plan[Any]:
        asking, answers = plan(*args), None
        while True:
            try:
                asked = asking.send(answers)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            statements = [
                each._replace(name=others[each.name]) if isinstance(each, Statement) and each.name in names else each
                for each in asked.statements
            ]
            answers = yield asked._replace(statements=statements)

    return changed


def check_by_reading(fences: Sequence[Fence]) -> Plan[list[Admitted]]:
    """A check that takes no lock."""
    [fence] = fences
    [row] = yield Ask([Statement("read_mark", fence.resource)], begins=True)
    admit_write(None if row is None else Mark(row[0], row[1]), fence)
    return [Admitted(fence, 0, row[3], None)]


def without_a_floor(_: str, __: PruningStatements) -> Plan[Batch]:
    [deleted] = yield Ask(["DELETE ANY"], begins=True, ends="COMMIT")
    return Batch(0, deleted, 0)


def the_floor_later(_: str, __: PruningStatements) -> Plan[Batch]:
    [floor] = yield Ask(["RAISE"], begins=True, ends="ROLLBACK")
    [deleted] = yield Ask(["DELETE ANY"], begins=True, ends="COMMIT")
    yield Ask(["RAISE"], begins=True, ends="COMMIT")
    return Batch(floor[0][0], deleted, 0)


def never_asked(_: OutcomeUnknown) -> Plan[bool | None]:
    yield from ()
    return False


@dataclass(frozen=True)
class Rule:
    name: str
    scenario: SQLScenario
    violates: str
    found: int

    def __str__(self) -> str:
        return self.name


def _pruned(claim: Callable[..., Plan[Any]] = plans.plan_claim, **options: Any) -> SQLScenario:
    return SQLScenario("", (once(2, claim=claim), once(3, claims="at once"), replace(PRUNER, **options)))


WITHIN = SQLScenario("", two(reads="within", claims="at once"), rows=((RESOURCE, Row(1, "Z" * 22, ("table",))),))
RULES = [
    Rule("a check locks the mark", SQLScenario("", two(check=check_by_reading)), LOST_UPDATE, 42),
    Rule(
        "the claim comes before what is read", SQLScenario("", two(claims="at once", reads="before")), LOST_UPDATE, 32
    ),
    Rule(
        "… and not in one statement with it",
        WITHIN,
        LOST_UPDATE,
        21,
    ),
    Rule(
        "no COMMIT behind a check that nobody has read", SQLScenario("", two(writes="in one request")), LOST_UPDATE, 38
    ),
    Rule("the check is a statement of its own", SQLScenario("", two(writes="where it exists")), LOST_UPDATE, 36),
    Rule("no savepoint around the check", SQLScenario("", two(writes="rolled back")), LOST_UPDATE, 48),
    Rule("a first claim locks the floor", _pruned(unlocked(plans.plan_claim, "lock_floor")), CLAIM_BACK, 33),
    Rule("pruning raises the floor", _pruned(batch=without_a_floor), CLAIM_BACK, 30),
    Rule("… in the transaction that deletes", _pruned(batch=the_floor_later), CLAIM_BACK, 35),
    Rule("an unknown outcome is asked for", SQLScenario("", (two(settle=never_asked)[0],), lost=1), VERDICT, 24),
    Rule(
        "the mark is locked for that",
        SQLScenario("", (two(settle=unlocked(plans.plan_settle, "lock_mark"))[0],), lost=1),
        VERDICT,
        31,
    ),
    Rule(
        "… or its absence",
        SQLScenario(
            "", (two(claims="at once", settle=unlocked(plans.plan_settle, "lock_mark", "lock_absence"))[0],), lost=1
        ),
        VERDICT,
        24,
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_rule_off(rule: Rule, say: Say) -> None:
    result = explore(rule.scenario, until={rule.violates}, world_of=SQLWorld)
    assert rule.violates in result.violations, f"nothing found: {result}"
    violation = result.violations[rule.violates]
    say(f"without {rule}: {violation}")
    assert len(violation) == rule.found
