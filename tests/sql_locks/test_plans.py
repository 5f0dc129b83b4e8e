"""The meaning of a row, step by step, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import CoordinatorUnavailable, Fence, MarkImplausible
from fencing.kernel.fence import MAX_NUMBER, new_token
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import Wake
from fencing.locks.backend import Holder, Taken
from fencing.locks.holding import GrantOrFence
from fencing.locks.settings import Settings
from fencing.sql.plans import SQLPlans
from fencing.sql.table import LockRow
from fencing.sql.waiters import LONGEST_WAIT_SECONDS, Waiter, Waiters

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


def test_a_remint_that_is_repeated_after_its_grant_has_ended_is_no_grant() -> None:
    """Nothing has given it its ttl again, and others may take the lock."""
    plan = PLANS.plan_remint(Fence("r", 6, ANOTHER), MINE, SETTINGS, floor=0, deadline=PLANS.clock() + 5)
    assert result(plan, row(MINE, -1)) is None


class Unanswered(SQLPlans):
    """Notes the tokens that are given back in the background."""

    address = location = "nowhere"

    def __init__(self) -> None:
        self.given_back: list[str] = []

    def give_back_later(self, fence: GrantOrFence, settings: Settings, free_at: float | None = None) -> None:
        self.given_back.append(fence.token)


def test_a_remint_without_an_answer_gives_nothing_back() -> None:
    """It is repeated with its token, which a release that arrives late would free."""
    backend, holder = Unanswered(), Holder("them", 7, 1.0, 1.0)
    options: dict[str, Any] = {"floor": 0, "deadline": backend.clock()}
    remint = backend.plan_remint(Fence("r", 7, ANOTHER), MINE, SETTINGS, **options)
    force = backend.plan_force("r", MINE, SETTINGS, holder=holder, **options)
    for plan, given_back in ((remint, []), (force, [MINE])):
        next(plan)
        with pytest.raises(CoordinatorUnavailable):
            plan.throw(NoReply(TimeoutError(), may_have_run=True))
        assert backend.given_back == given_back


class Noted(Waiter):
    """A waiter that counts how often it is woken."""

    woken = 0

    def wake(self) -> None:
        self.woken += 1


def waiters(count: int) -> tuple[Waiters, list[Noted]]:
    all_, made = Waiters(lambda: 100.0), [Noted("r", f"token {number}", Wake()) for number in range(count)]
    for each in made:
        all_.add(each)
        all_.schedule(each, recheck=1.0)
    return all_, made


def test_a_notification_wakes_the_first_waiter_alone() -> None:
    all_, made = waiters(3)
    all_.on_notification("r")
    all_.on_notification("another")
    assert [each.is_notified for each in made] == [True, False, False]


def test_the_first_waiter_alone_asks_when_the_lease_ends() -> None:
    _, made = waiters(2)
    assert [100 < each.recheck_at < 101.1 for each in made] == [True, False]
    assert made[1].recheck_at <= 100 + LONGEST_WAIT_SECONDS


def test_the_next_waiter_asks_after_the_first_one_gave_up() -> None:
    """It may have been notified just then."""
    all_, made = waiters(3)
    all_.on_notification("r")
    all_.remove(made[0], None)
    all_.remove(made[0], None)
    assert [each.is_notified for each in made[1:]] == [True, False]


def test_the_next_waiter_asks_when_the_lease_of_the_first_one_ends() -> None:
    all_, made = waiters(2)
    all_.remove(made[0], free_at=100.5)
    assert not made[1].is_notified
    assert made[1].woken == 1
    assert 100.5 < made[1].recheck_at < 100.6


def test_a_waiter_that_nobody_refers_to_gets_nothing() -> None:
    all_, made = waiters(2)
    del made[0]
    assert "r" in all_
    all_.on_notification("r")
    assert made[0].is_notified
    del made[:]
    assert "r" not in all_
    all_.on_notification("r")


def test_waiters_ask_again_when_notifications_end_and_the_next_attempt_comes_later() -> None:
    all_, made = waiters(2)
    all_.started()
    assert all_.may_start()
    all_.ended(failed=True)
    assert all(each.is_notified for each in made)
    assert not all_.may_start()
    assert not all_.is_listening
