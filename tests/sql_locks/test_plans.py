"""The meaning of a row, step by step, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import Fence, MarkImplausible
from fencing.kernel.fence import MAX_NUMBER
from fencing.locks.backend import Taken
from fencing.locks.plans import new_token
from fencing.locks.settings import Settings
from fencing.sql.plans import SQLPlans
from fencing.sql.table import LockRow

NOW = 1_700_000_000_000_000
PLANS = SQLPlans()
SETTINGS = Settings()
MINE, ANOTHER = new_token(), new_token()


def result(plan: Any, *replies: Any) -> Any:
    """The result of a plan that is sent these replies."""
    next(plan)
    for reply in replies[:-1]:
        plan.send(reply)
    with pytest.raises(StopIteration) as ended:
        plan.send(replies[-1])
    return ended.value.value


def acquire(row: LockRow) -> Any:
    return result(PLANS.plan_acquire("r", MINE, SETTINGS, floor=0, deadline=PLANS.clock() + 5), row)


def row(token: str, seconds: float = 5, number: int | None = 7) -> LockRow:
    return LockRow(NOW, number, token, "them", NOW - 1, NOW + round(seconds * 1e6))


def test_a_holder_is_named_with_the_time_that_is_left() -> None:
    assert acquire(row(ANOTHER)) == Taken(5.0, "them")


@pytest.mark.parametrize("found", [row(ANOTHER, -1), row(""), row("", number=None)])
def test_a_row_that_has_become_free_since_is_asked_for_again_soon(found: LockRow) -> None:
    taken = acquire(found)
    assert taken.owner is None
    assert 0 < taken.remaining < 0.1


def test_my_row_is_a_grant_even_if_the_reply_was_late() -> None:
    assert acquire(row(MINE, -1)).fence == Fence("r", 7, MINE)


def test_used_up_numbers_are_told_from_a_lock_that_is_held() -> None:
    assert isinstance(acquire(row(ANOTHER, number=MAX_NUMBER)), Taken)
    plan = PLANS.plan_acquire("r", MINE, SETTINGS, floor=0, deadline=PLANS.clock() + 5)
    next(plan)
    with pytest.raises(MarkImplausible):
        plan.send(row("", number=MAX_NUMBER))


def test_a_fence_that_does_not_hold_the_lock_is_not_replaced() -> None:
    old = Fence("r", 7, ANOTHER)
    for found in (row(""), row("x" * 22), row(ANOTHER, -1), row("", number=None)):
        plan = PLANS.plan_remint(old, MINE, SETTINGS, floor=0, deadline=PLANS.clock() + 5)
        assert result(plan, found) is None
