"""A coordinator of the kind that etcd and ZooKeeper need: numbers of a log, one session, whole steps of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fencing import Holder, LeaseLost, MarkImplausible, NotAcquired
from fencing.kernel.effects import run
from fencing.kernel.fence import MAX_NUMBER
from fencing.locks.backend import PLAUSIBLE_STEP
from fencing.locks.numbers import LogBase, log_base
from fencing.testing import CoordinatorContract
from tests.support.log_service import AsyncLogCoordinator, LogCoordinator, LogService, Request
from tests.support.memory_side import MemorySide

CLOCK = 1_800_000_000_000_000


# Numbers


def test_the_base_of_a_new_installation_is_the_clock() -> None:
    assert log_base("r", stored=None, position=7, floor=0, clock_us=CLOCK) == LogBase(None, CLOCK - 7)
    assert log_base("r", stored=None, position=7, floor=0, clock_us=CLOCK, clock_floor=False) == LogBase(None, 0)
    assert log_base("r", stored=None, position=7, floor=0, clock_us=CLOCK).is_new


def test_a_stored_base_stays_whatever_the_clock_says() -> None:
    for stored in (0, 5, CLOCK, CLOCK + 2 * PLAUSIBLE_STEP):
        numbers = log_base("r", stored=stored, position=7, floor=stored + 7, clock_us=CLOCK)
        assert (numbers.base, numbers.is_new, numbers.number_at(8)) == (stored, False, stored + 8)


def test_a_floor_lifts_the_base_by_what_is_missing_and_no_more() -> None:
    """Not by the position, too: that may be a billion, and each remint would jump by it."""
    numbers = log_base("r", stored=CLOCK, position=10**9, floor=CLOCK + 10**9 + 5, clock_us=CLOCK)
    assert numbers == LogBase(CLOCK, CLOCK + 5)
    assert numbers.number_at(10**9 + 1) == CLOCK + 10**9 + 6


def test_an_implausible_base_is_compared_with_the_clock() -> None:
    """Not with the last number: marks could raise that step by step."""
    ceiling = CLOCK + PLAUSIBLE_STEP + 7
    most = log_base("r", stored=CLOCK, position=7, floor=ceiling, clock_us=CLOCK)
    assert most.base == CLOCK + PLAUSIBLE_STEP
    for stored in (CLOCK, most.base):
        with pytest.raises(MarkImplausible) as caught:
            log_base("r", stored=stored, position=7, floor=ceiling + 1, clock_us=CLOCK)
        assert (caught.value.number, caught.value.ceiling) == (ceiling + 1, ceiling)
    with pytest.raises(MarkImplausible) as caught:
        log_base("r", stored=MAX_NUMBER - 7, position=7, floor=0, clock_us=CLOCK)
    assert caught.value.number == MAX_NUMBER


# What a holder does not tell


def test_a_time_that_is_not_known_is_no_never() -> None:
    assert Holder("me", 7, 1.0, None).expires is False
    assert Holder("me", 7, 1.0, 2.5).expires is True
    assert Holder("me", 7, None, None, expires=True) == Holder("me", 7, None, None, expires=True)
    assert Holder("me", 7, None, None, expires=True) != Holder("me", 7, None, None)
    with pytest.raises(ValueError, match=r"frees itself in 2.5 s expires; leave expires out"):
        Holder("me", 7, 1.0, 2.5, expires=False)


# One session


def kind_of(side: MemorySide) -> Any:
    return AsyncLogCoordinator if side.asynchronous else LogCoordinator


def test_a_renewal_finds_that_the_session_is_over(side: MemorySide) -> None:
    log = LogService(1.0)
    coordinator = kind_of(side)(log, ttl=60)
    lease = side.call(coordinator.acquire, "a", timeout=5)
    side.call(lease.renew)
    coordinator._backend.is_frozen = True  # so that the session itself notices nothing
    log.ask(Request("end", (coordinator._backend.session,)))
    assert side.expect(LeaseLost, lease.renew).reason == "gone"
    again = side.call(coordinator.acquire, "a", timeout=5)
    assert again.fence.number > lease.fence.number
    side.call(coordinator.close)


def test_an_earlier_waiter_is_named(side: MemorySide) -> None:
    log = LogService(None)
    coordinator = kind_of(side)(log, ttl=60, owner="the first")
    held = side.call(coordinator.acquire, "r", timeout=5)
    backend = coordinator._backend
    for token in ("b" * 22, "c" * 22):
        plan = backend.plan_queue("r", token, backend.settings, floor=0, deadline=backend.clock() + 5, place=None)
        assert run(plan, backend._answer).kept_by is None
    side.call(held.release)
    error = side.expect(NotAcquired, coordinator.acquire, "r", timeout=0)
    assert (error.kept_by, error.owner) == ("waiter", "the first")
    side.call(coordinator.close)


# The contract


class _OnALog(CoordinatorContract):
    kind: Any
    log: LogService

    def make(self, **options: Any) -> Any:
        return self.kind(self.log, **options)

    def make_expiring(self, ttl: float) -> Any:
        coordinator = self.make(ttl=ttl)
        coordinator._backend.is_frozen = True
        return coordinator

    def end_session(self, coordinator: Any) -> None:
        self.log.ask(Request("end", (coordinator._backend.session,)))

    def make_unreachable(self, **options: Any) -> Any:
        coordinator = self.make(**options)
        coordinator._backend.is_cut_off = True
        return coordinator

    def take_as_another_program(self, name: str) -> Callable[[], object]:
        return self.log.take_as_another_program(name)


@pytest.mark.thorough
class TestOnALogWithSteps(_OnALog):
    kind = LogCoordinator
    log = LogService(0.1)
    short_ttl = 0.3
    time_step = 0.1


@pytest.mark.thorough
class TestOnALogWithWholeSeconds(_OnALog):
    kind = AsyncLogCoordinator
    log = LogService(1.0)
    short_ttl = 0.3
    time_step = 1.0


@pytest.mark.thorough
class TestOnALogWithoutTimes(_OnALog):
    kind = AsyncLogCoordinator
    log = LogService(None)
    short_ttl = 0.3


@pytest.mark.parametrize("kind", [LogCoordinator, AsyncLogCoordinator])
def test_the_marks_of_the_contract_do_not_lift_an_installation_by_hours(kind: Any) -> None:
    """All names of a log have one base, and what lifts that lifts it for ever."""
    suite = type("OnALog", (_OnALog,), {"kind": kind, "log": LogService(1.0), "time_step": 1.0})()
    clock_us = time.time_ns() // 1000
    for story in (
        suite.test_a_floor_is_exceeded,
        suite.test_an_implausible_floor_is_refused_and_nothing_changed,
        suite.test_a_counter_that_fell_behind_the_mark_is_repaired,
        suite.test_a_poisoned_mark_is_an_operators_job_and_poisons_nothing,
        suite.test_a_coordinator_of_another_kind_took_over,
    ):
        story()
        suite.teardown_method()
    assert 0 < suite.log.base - clock_us < 5 * 60 * 1_000_000
