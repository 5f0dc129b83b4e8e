"""The waiters of a listener: which message wakes which, which one rechecks when, what is declined. No I/O, no clock."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from fencing.kernel.waking import Wake
from fencing.redis.waiters import LONGEST_RECHECK_SECONDS, SLACK_SECONDS, Waiter, Waiters


class Woken(Waiter):
    """Counts how often it was woken."""

    wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class Book:
    """A listener whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[tuple[float, Callable[[], object]]] = []
        self.waiters = Waiters(lambda: self.now, lambda when, call, wanted: self.calls.append((when, call)))

    def add(self, token: str, resource: str = "r", *, recheck: float | None = None) -> Woken:
        waiter = Woken(resource, token, Wake(), "hub")
        self.waiters.add(waiter)
        if recheck is not None:
            self.waiters.schedule_recheck(waiter, recheck)
        return waiter

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [call for when, call in self.calls if when <= self.now]
        self.calls = [each for each in self.calls if each[0] > self.now]
        for call in due:
            call()


@pytest.fixture
def book() -> Book:
    return Book()


def test_an_offer_wakes_its_waiter_only(book: Book) -> None:
    first, second = book.add("a", recheck=10), book.add("b", recheck=10)
    assert book.waiters.on_message(b"grant b r") is None
    assert (first.wakes, second.wakes) == (0, 1)


def test_an_offer_for_nobody_is_to_be_declined(book: Book) -> None:
    waiter = book.add("a", recheck=10)
    assert book.waiters.on_message(b"grant b r") == ("r", "b")
    assert book.waiters.on_message(b"grant a other name") == ("other name", "a")
    book.waiters.remove(waiter, None)
    assert book.waiters.on_message(b"grant a r") == ("r", "a")


def test_a_collected_waiter_is_forgotten(book: Book) -> None:
    gone = weakref.ref(book.add("a", recheck=10))
    gc.collect()
    assert gone() is None
    assert not book.waiters
    assert book.waiters.on_message(b"grant a r") == ("r", "a")


def test_a_waiter_that_was_passed_over_asks_again(book: Book) -> None:
    waiter = book.add("a", recheck=10)
    assert book.waiters.on_message(b"passed a r") is None
    assert waiter.wakes == 1
    assert book.waiters.on_message(b"passed b r") is None, "there is nothing to decline"


@pytest.mark.parametrize("moments", [(3, 1), (1, 3)])
def test_only_the_first_waiter_rechecks_and_at_the_earliest_moment(book: Book, moments: tuple[int, int]) -> None:
    """The second one may be new, and nobody is told of an offer because it will ask again."""
    first, second = (book.add(token, recheck=recheck) for token, recheck in zip("ab", moments, strict=True))
    book.pass_time(0.9)
    assert (first.wakes, second.wakes) == (0, 0)
    book.pass_time(0.1)
    assert (first.wakes, second.wakes) == (1, 0)


def test_a_recheck_for_one_waiter_leaves_that_of_another(book: Book) -> None:
    """The first one is told a late moment. It may be gone before the third one is new no more."""
    first, second = book.add("a", recheck=10), book.add("b", recheck=0.25)
    book.pass_time(0.2)
    third = book.add("c", recheck=0.25)
    book.pass_time(0.05)
    book.waiters.schedule_recheck(first, 10)
    assert first.wakes == 1
    for gone in (first, second):
        book.waiters.remove(gone, book.now + 10)
    book.pass_time(0.2)
    assert third.wakes == 1


def test_rechecks_of_many_waiters_are_few(book: Book) -> None:
    first = book.add("a", recheck=0.25)
    others = []
    for number in range(100):
        book.pass_time(0.001)
        others.append(book.add(f"b{number}", recheck=0.25))
    while book.now < 1001:
        book.pass_time(0.001)
        if first.must_recheck:
            book.waiters.schedule_recheck(first, 10)
    assert 2 <= first.wakes <= 4
    assert not any(waiter.wakes for waiter in others)


def test_a_recheck_without_a_request_is_repeated(book: Book) -> None:
    waiter = book.add("a", recheck=1)
    book.pass_time(1)
    book.pass_time(LONGEST_RECHECK_SECONDS)
    assert waiter.wakes == 2


def test_the_next_waiter_rechecks_when_the_first_has_left(book: Book) -> None:
    first, second = book.add("a", recheck=3), book.add("b", recheck=3)
    book.waiters.remove(first, None)
    book.pass_time(3)
    assert second.wakes == 1


@pytest.mark.parametrize(
    ("lasts", "recheck", "after"),
    [(1.0, 5.0, 1.0 + SLACK_SECONDS), (60.0, 20.0, LONGEST_RECHECK_SECONDS), (60.0, 0.25, 0.25)],
)
def test_a_grant_moves_the_recheck_to_the_end_of_its_lease(
    book: Book, lasts: float, recheck: float, after: float
) -> None:
    """But to no later moment: the lock may be offered to another process before, which is stopped."""
    first, second = book.add("a", recheck=recheck), book.add("b", recheck=recheck)
    book.waiters.remove(first, book.now + lasts)
    book.pass_time(after - 0.001)
    assert second.wakes == 0
    book.pass_time(0.001)
    assert second.wakes == 1


def test_a_message_moves_the_recheck(book: Book) -> None:
    waiter = book.add("a", recheck=10)
    assert book.waiters.on_message(b"recheck 252 r") is None
    assert book.waiters.on_message(b"recheck 252 of nobody") is None
    book.pass_time(0.252)
    assert waiter.wakes == 1


def test_a_message_that_overtakes_the_answer_counts(book: Book) -> None:
    """It belongs to an offer that was made just after the answer. This waiter may be the only one to notice its end."""
    waiter = book.add("a")
    assert book.waiters.on_message(b"recheck 252 r") is None
    book.waiters.schedule_recheck(waiter, 10)
    book.pass_time(0.252)
    assert waiter.wakes == 1
    book.waiters.schedule_recheck(waiter, 1)
    book.pass_time(1)
    assert waiter.wakes == 2


def test_an_old_call_of_the_timer_does_not_remove_a_waiter_that_is_asking(book: Book) -> None:
    """The last waiter has left, and the next one has not begun to wait, when the timer calls for the former."""
    old = book.add("a", recheck=1)
    book.waiters.remove(old, None)
    new = book.add("b")
    book.pass_time(1)
    assert book.waiters.on_message(b"grant b r") is None
    assert new.wakes == 1
    book.waiters.schedule_recheck(new, 2)
    book.pass_time(2)
    assert new.wakes == 2


def test_many_grants_leave_few_calls_behind(book: Book) -> None:
    for number in range(1000):
        waiter = book.add(str(number), recheck=10)
        book.pass_time(0.001)
        book.waiters.remove(waiter, book.now + 10)
    assert len(book.calls) < 5


def test_all_waiters_ask_when_the_connection_breaks(book: Book) -> None:
    waiters = [book.add("a", recheck=10), book.add("b"), book.add("a", "other", recheck=10)]
    book.waiters.wake_all()
    assert [waiter.wakes for waiter in waiters] == [1, 1, 1]


def test_a_waiter_that_gives_up_at_its_recheck_leaves_it_to_the_next(book: Book) -> None:
    first, second = book.add("a", recheck=1), book.add("b", recheck=1)
    book.pass_time(1.1)
    assert (first.wakes, second.wakes) == (1, 0)
    book.waiters.remove(first, None)
    assert second.wakes == 1
    book.waiters.schedule_recheck(second, 5)  # it has asked
    third = book.add("c", recheck=5)
    book.waiters.remove(second, None)
    assert third.wakes == 0, "no recheck was left undone"
