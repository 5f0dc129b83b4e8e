"""The locks that people write by hand, on a real Redis: what each does wrong, and what it does right."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from examples.stories.hand_made import AlwaysFreed, AlwaysTaken, ExpiryAsValue, FreedAsText, Right, TakenAsText

TTL = 10.0


class Locks:
    """Makes locks of the same key. `now`: the wall clock of all that have no other."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now = time.time()

    def expiry_as_value(self, *, ahead: float = 0.0) -> ExpiryAsValue:
        return ExpiryAsValue(self.client, "r", TTL, clock=lambda: self.now + ahead)

    @property
    def value(self) -> Any:
        return self.client.get("r")


@pytest.fixture
def locks(any_redis: RedisServer) -> Locks:
    return Locks(any_redis.client())


def test_an_expiry_as_value_has_one_winner_where_two_take_over(locks: Locks) -> None:
    first, second = locks.expiry_as_value(), locks.expiry_as_value()
    locks.client.set("r", locks.now - 1)
    got = []
    first.step = lambda: got.append(second.acquire())
    assert not first.acquire()
    assert got == [True]


def test_the_one_that_loses_replaces_the_expiry_of_the_winner(locks: Locks) -> None:
    slow, winner, third = (locks.expiry_as_value() for _ in range(3))
    locks.client.set("r", locks.now - 1)

    def be_slow() -> None:
        locks.now += TTL + 1
        assert winner.acquire()

    slow.step = be_slow
    assert not slow.acquire()
    assert float(locks.value) == slow.ends < locks.now < winner.ends
    assert third.acquire()


@pytest.mark.parametrize(("ahead", "got"), [(TTL + 1, True), (TTL - 1, False)])
def test_clocks_that_differ_by_more_than_a_ttl_make_two_holders(locks: Locks, ahead: float, got: bool) -> None:
    assert locks.expiry_as_value().acquire()
    assert locks.expiry_as_value(ahead=ahead).acquire() is got


def test_a_late_release_of_an_expiry_as_value_is_not_sent_but_one_that_looked_before_frees_the_next(
    locks: Locks,
) -> None:
    late, holder = locks.expiry_as_value(), locks.expiry_as_value()
    assert late.acquire()

    def be_late() -> None:
        locks.now += TTL + 1
        assert holder.acquire()

    late.step = be_late
    assert late.release() is None
    assert not locks.client.exists("r")
    assert holder.acquire()
    locks.now += TTL + 1
    assert holder.release() is False
    assert float(locks.value) == holder.ends


def test_an_acquire_that_ends_in_true_says_so_of_a_refusal(locks: Locks) -> None:
    holder, other = Right(locks.client, "r", TTL), AlwaysTaken(locks.client, "r", TTL)
    assert holder.acquire()
    assert other.acquire()
    assert locks.value == holder.token


def test_a_grant_that_is_compared_with_a_text_counts_as_a_refusal(locks: Locks) -> None:
    lock = TakenAsText(locks.client, "r", TTL)
    assert not lock.acquire()
    assert locks.value == lock.token


@pytest.mark.parametrize(("kind", "after_mine", "after_none"), [(Right, True, False), (AlwaysFreed, True, True)])
def test_a_release_says_what_it_freed_or_always_true(
    locks: Locks, kind: type[Right], after_mine: bool, after_none: bool
) -> None:
    lock = kind(locks.client, "r", TTL)
    assert lock.acquire()
    assert lock.release() is after_mine
    assert lock.release() is after_none


def test_a_release_that_compares_a_number_with_a_text_says_false_of_a_lock_that_it_freed(locks: Locks) -> None:
    lock = FreedAsText(locks.client, "r", TTL)
    assert lock.acquire()
    assert lock.release() is False
    assert locks.value is None
