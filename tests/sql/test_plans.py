"""The rule of an Ask, on each plan of ``sql/plans.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencing import Fence, OutcomeUnknown
from fencing.kernel.errors import FencingError
from storage_guards.sql.plans import Ask, Statement, plan_check, plan_claim, plan_settle

ONE, TWO = Fence("a", 5, "a" * 22), Fence("b", 5, "b" * 22)
UNKNOWN = OutcomeUnknown(fence=ONE, seq=1, recent_writes="x y")
RULE = (
    "It holds statements of ours only, never the caller's. No statement in it depends on an earlier answer. After a "
    "refused check the rest has no effect. An error anywhere ends the transaction. COMMIT stands in an Ask only behind "
    "a mere claim, never behind the check of a write: a refused check is no error, and the COMMIT would run."
)
PLANS: dict[str, Callable[[], Any]] = {
    "check": lambda: plan_check([ONE]),
    "check two": lambda: plan_check([ONE, TWO]),
    "claim to write": lambda: plan_claim([ONE], 1),
    "claim": lambda: plan_claim([ONE], 0),
    "claim two": lambda: plan_claim([ONE, TWO], 0),
    "settle": lambda: plan_settle(UNKNOWN),
}
ADMITTED, MARK, FLOOR = ("1", "x", None), (4, "a" * 22, 0, "", 0), (0, "t")


def asks_of(make: Callable[[], Any], refusals: tuple[bool, ...]) -> Iterator[Ask]:
    """Perform a plan on a database that refuses, or does not, at each of its first statements."""
    plan, left = make(), list(refusals)
    answers: Any = None
    while True:
        try:
            ask = plan.send(answers)
        except (StopIteration, FencingError):
            return
        yield ask
        answers = []
        for each in ask.statements:
            row: Any = {"read_mark": MARK, "lock_floor": FLOOR, "lock_mark": ("x y",)}.get(named(each), ADMITTED)
            answers.append(None if left and left.pop(0) else row)


def named(statement: Statement | str) -> str:
    assert isinstance(statement, Statement)
    return statement.name


def test_the_rule_is_said() -> None:
    assert RULE in " ".join((Ask.__doc__ or "").split())


@pytest.mark.parametrize("name", PLANS)
def test_a_commit_stands_behind_a_mere_claim_alone(name: str) -> None:
    """Whatever is refused; and a transaction begins once before it ends."""
    for refusals in itertools.product((False, True), repeat=4):
        is_open = False
        for ask in asks_of(PLANS[name], refusals):
            assert all(type(each) is Statement for each in ask.statements)
            assert not (ask.begins and is_open)
            assert ask.begins or is_open
            is_open = not ask.ends
            if ask.ends == "COMMIT" and ask.statements:
                assert {named(each) for each in ask.statements} <= {"claim", "lock_floor", "first_claim", "read_mark"}
                assert all(each[5] == 0 for each in ask.statements if named(each) in ("claim", "first_claim"))
