"""The calendar of renewals, moved by hand: when a lease is checked, renewed and lost."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest

from fencing.locks.holding import Grant
from fencing.locks.renewal import YOUNG_SHARE, _Calendar, _Renewal
from fencing.locks.settings import Settings
from fencing.redis.plans import RedisPlans

TTL = 60.0
BELIEVED = TTL - 1.3  # so that a deadline lies between two moments of the calendar


class Calendar(_Renewal):
    """A calendar whose timer is a list, and whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        plans = RedisPlans()
        plans.clock = lambda: self.now
        super().__init__(plans)
        self.calls: list[tuple[float, Callable[[], None], Callable[[], bool]]] = []
        self.submitted: list[Grant] = []

    @property
    def one(self) -> _Calendar:
        return self._calendar

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        if method.__name__ == "_on_moment":
            assert wanted(), "a timer may ask that at once, on its own thread, and drops the call if it is not wanted"
        self.calls.append((when, partial(method, *args), wanted))

    def _submit(self, holdings: list[Grant]) -> None:
        self.submitted += holdings

    def hold(self, name: str = "r", **settings: Any) -> Grant:
        holding = Grant(name, 7, "t" * 22, self.now + BELIEVED)
        holding.begin(Settings(ttl=TTL, **settings), self.now)
        self.track(holding)
        return holding

    def wait(self, seconds: float) -> None:
        """Let time pass, from call to call."""
        until = self.now + seconds
        while due := sorted((call for call in self.calls if call[0] <= until), key=itemgetter(0)):
            self.calls.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = until


def test_leases_of_one_moment_share_a_few_calls() -> None:
    calendar = Calendar()
    holdings = [calendar.hold(f"r{number}") for number in range(1000)]
    assert len(calendar.calls) < 15
    calendar.wait(TTL * 0.4)
    assert set(calendar.submitted) == set(holdings)
    assert len(calendar.submitted) == 1000
    assert len(calendar.calls) < 15, "and so do their deadlines"


class Answering(Calendar):
    """A calendar whose renewals are answered a few milliseconds later, and noted: the moments, and how late each is."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: set[float] = set()
        self.shares: list[float] = []

    def hold_for(self, name: str, ttl: float) -> Grant:
        holding = Grant(name, 7, "t" * 22, self.now + ttl * 0.98)
        holding.begin(Settings(ttl=ttl), self.now)
        self.track(holding)
        return holding

    def _submit(self, holdings: list[Grant]) -> None:
        self.moments.add(self.now)
        answered_at = self.now + 0.003
        for holding in holdings:
            assert holding.settings.ttl is not None
            self.shares.append((self.now - holding.renewed_at) / holding.settings.ttl)
            holding.renewed(self.now + holding.settings.ttl * 0.98, answered_at)
            self._schedule(holding)


@pytest.mark.parametrize(("ttl", "most"), [(10.0, 1.0), (9.9, 2.0), (5.1, 2.0), (19.9, 1.0)])
def test_a_hundred_leases_share_a_few_moments(ttl: float, most: float) -> None:
    """However spread the grants are. Each is renewed after 0.3 of its ttl, and before 0.4 of it are over."""
    calendar, chance = Answering(), random.Random(7)
    held = []
    for number in range(100):
        held.append(calendar.hold_for(f"r{number}", ttl))
        calendar.wait(chance.uniform(0, 2 * ttl / 100))
    calendar.wait(2 * ttl)
    began = calendar.now
    calendar.moments.clear()
    calendar.wait(4 * ttl)
    assert len(calendar.moments) <= most * (calendar.now - began) + 1
    assert len(calendar.moments) <= 20 * 4 + 1, "twenty a ttl, whatever that is"
    assert all(0.3 <= share <= 0.4 for share in calendar.shares)
    assert len(calendar.shares) > 100 * 6 / 0.41
    assert not any(each.has_ended for each in held)


def test_leases_of_similar_ttls_share_moments_too() -> None:
    calendar = Answering()
    held = [calendar.hold_for(f"r{number}", 10 + number / 20) for number in range(100)]
    calendar.wait(20)
    calendar.moments.clear()
    calendar.wait(60)
    assert len(calendar.moments) <= 60 + 1
    assert not any(each.has_ended for each in held)


def test_a_lease_that_has_ended_is_not_renewed() -> None:
    calendar = Calendar()
    holding = calendar.hold()
    [(_, _, wanted)] = calendar.calls
    assert wanted()
    holding.end("released")
    assert not wanted()
    calendar.wait(TTL)
    assert calendar.submitted == []
    assert calendar.calls == []


def test_what_is_not_renewed_is_lost_at_its_deadline_and_not_before() -> None:
    calendar = Calendar()
    silent, renewed = calendar.hold("silent"), calendar.hold("renewed")
    calendar.wait(TTL * 0.4)
    renewed.renewed(calendar.now + BELIEVED, calendar.now)
    calendar._schedule(renewed)
    calendar.wait(silent.deadline - calendar.now - 0.001)
    assert silent.lost is None
    calendar.wait(0.002)
    assert silent.lost == "expired"
    assert renewed.lost is None
    assert renewed in calendar.submitted[2:], "its next renewal was due by then"


@pytest.mark.parametrize("renewed_after", [TTL / 2, BELIEVED - 0.1], ids=["in time", "at the last moment"])
def test_without_renewal_the_deadline_is_watched(renewed_after: float) -> None:
    calendar = Calendar()
    holding = calendar.hold(renew=False)
    calendar.wait(renewed_after)
    holding.renewed(calendar.now + BELIEVED, calendar.now)  # its user did it
    calendar.wait(BELIEVED - 0.001)
    assert holding.lost is None
    calendar.wait(0.002)
    assert holding.lost == "expired"
    assert calendar.submitted == []


def test_a_lease_that_its_user_renewed_is_due_later() -> None:
    calendar = Calendar()
    holding = calendar.hold()
    calendar.wait(TTL * 0.25)
    holding.renewed(calendar.now + BELIEVED, calendar.now)
    calendar.wait(TTL * 0.25)
    assert calendar.submitted == []
    calendar.wait(TTL * 0.2)
    assert calendar.submitted == [holding]


def test_a_lease_that_is_added_as_its_moment_comes_is_not_missed() -> None:
    """Another thread takes the holdings out after this one has found their set, and before it adds to it."""
    calendar = Calendar()
    first = calendar.hold()
    calendar.wait(first.settings.attempt_seconds * YOUNG_SHARE)
    when = first.moment
    moment = calendar.one.moments[when]

    class Late(set[weakref.ref[Grant]]):
        def add(self, holding: weakref.ref[Grant]) -> None:
            calendar.wait(when - calendar.now)
            super().add(holding)

    moment.holdings = Late(moment.holdings)
    late = Grant("late", 7, "t" * 22, calendar.now + BELIEVED)
    late.begin(Settings(ttl=TTL), calendar.now)
    late.due = when
    calendar._schedule(late)
    calendar.wait(TTL * 0.4)
    assert calendar.submitted[1:] == [late]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lease_that_comes_as_the_young_ones_are_entered_is_not_missed(when: str) -> None:
    """The timer enters the young ones while this thread adds one: right before, or before the call is noted."""
    calendar = Calendar()
    first = calendar.hold("first")

    class Late(set[Grant]):
        def add(self, holding: Grant) -> None:
            if when == "before":
                calendar.wait(first.settings.attempt_seconds)
            super().add(holding)
            if when == "after":
                calendar.wait(first.settings.attempt_seconds)

    calendar.one.young = Late(calendar.one.young)
    late = calendar.hold("late")
    calendar.wait(TTL * 0.4)
    assert set(calendar.submitted) == {first, late}


def test_a_call_of_the_timer_that_comes_at_once_does_not_stop_later_ones() -> None:
    calendar = Calendar()
    first = calendar.one.sorting

    def call_at_once(when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: object) -> None:
        del calendar._call_at
        method(*args)

    calendar._call_at = call_at_once  # type: ignore[method-assign]
    calendar.hold("first").end("released")
    assert calendar.one.sorting is not first
    second = calendar.hold("second")
    calendar.wait(TTL * 0.4)
    assert calendar.submitted == [second]


def test_a_lease_that_ends_young_costs_nothing_later() -> None:
    calendar = Calendar()
    for number in range(1000):
        calendar.hold(f"r{number}").end("released")
    assert len(calendar.calls) == 1
    calendar.wait(TTL)
    assert not calendar.calls
    assert not calendar.one.moments
    assert not calendar.held()


def test_after_closing_nothing_is_renewed_and_deadlines_still_count() -> None:
    calendar = Calendar()
    holding = calendar.hold()
    calendar.close()
    calendar.wait(TTL)
    assert calendar.submitted == []
    assert holding.lost == "expired"


def test_a_call_that_is_lost_costs_no_later_lease() -> None:
    """An exception of a signal handler can hit the event loop itself, which then drops the call."""
    calendar = Calendar()
    calendar.hold("first")
    calendar.calls.clear()
    calendar.now += TTL
    calendar.hold("second")
    assert [when for when, _, _ in calendar.calls] == [pytest.approx(calendar.now + YOUNG_SHARE * 10)]


def test_an_interruption_while_a_holding_joins_the_calendar() -> None:
    calendar = Calendar()
    holding = calendar.hold()

    class Interrupted(set[Any]):
        def add(self, each: Any) -> None:
            calendar._alive = set()
            raise KeyboardInterrupt

    calendar._alive = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        calendar.wait(TTL / 6)
    calendar.wait(TTL)
    assert calendar.submitted == [holding]


def test_a_renewal_that_cannot_be_begun_is_tried_again() -> None:
    calendar = Calendar()
    holding = calendar.hold()
    submit, calendar._submit = calendar._submit, no_thread  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="new thread"):
        calendar.wait(TTL / 2)
    calendar._submit = submit  # type: ignore[method-assign]
    calendar.wait(TTL / 10)
    assert calendar.submitted == [holding]
    assert holding.unanswered_since is not None


def no_thread(holdings: list[Grant]) -> None:
    raise RuntimeError("can't start new thread")
