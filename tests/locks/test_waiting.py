"""What all backends share that wake their waiters: the list of a listener, and the places."""

from __future__ import annotations

import gc
import time
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.waking import Wake
from fencing.locks.settings import Settings
from fencing.locks.waiting import Leave, Wait, Waiter, WaiterList, WaiterPlace


class Waiters(WaiterList[Waiter]):
    """A backend's list."""

    def tokens(self) -> list[str]:
        return [waiter.token for waiter in self._all()]

    def take_out(self, waiter: Waiter) -> bool:
        return self._take_out(waiter)


def add(waiters: Waiters, *tokens: str, resource: str = "r") -> list[Waiter]:
    made = [Waiter(resource, token, Wake()) for token in tokens]
    for waiter in made:
        waiters.add(waiter)
    return made


def test_waiters_stand_in_the_order_in_which_they_came() -> None:
    waiters = Waiters(time.monotonic)
    one, two, three = add(waiters, "one", "two", "three")
    assert waiters.first("r") is one
    waiters.add(one)  # it asks again
    assert waiters.first("r") is one
    assert waiters.take_out(one)
    assert waiters.first("r") is two
    assert waiters.tokens() == ["two", "three"]
    assert three.token == "three"


def test_a_waiter_is_taken_out_once_and_the_last_one_ends_its_resource() -> None:
    waiters = Waiters(time.monotonic)
    [waiter], [other] = add(waiters, "one"), add(waiters, "two", resource="other")
    assert waiters
    assert "r" in waiters
    assert waiters.take_out(waiter)
    assert not waiters.take_out(waiter)
    assert "r" not in waiters
    assert "other" in waiters
    assert waiters.take_out(other)
    assert not waiters
    assert waiters.first("r") is None


def test_a_waiter_whose_plan_is_gone_is_no_waiter() -> None:
    waiters = Waiters(time.monotonic)
    made = add(waiters, "one", "two")
    del made[0]
    gc.collect()
    assert waiters.tokens() == ["two"]
    made.clear()
    gc.collect()
    assert not waiters
    assert "r" not in waiters


def test_a_place_waits_and_leaves_before_anything_is_withdrawn() -> None:
    waiter, withdrawn = Waiter("r", "token", Wake()), []

    class Plans:
        def plan_leave_place(self, place: WaiterPlace, *, deadline: float) -> Plan[None]:
            withdrawn.append((place.ticket, deadline))
            yield from ()

    place = WaiterPlace(Plans(), Settings(), waiter, "7", 2.5)
    assert list(place.plan_wait(9.0)) == [Wait(waiter, 9.0, 2.5)]
    leaving = place.plan_leave(deadline=100.0)
    assert next(leaving) == Leave(waiter)
    assert withdrawn == [], "a message that comes now finds no waiter, and is declined"
    assert next(leaving, "ended") == "ended"
    assert withdrawn == [("7", 100.0)]


def test_a_waiter_sets_what_it_waits_on() -> None:
    class Flag:
        sets = 0

        def set(self) -> None:
            self.sets += 1

    flag: Any = Flag()
    Waiter("r", "token", flag).wake()
    assert flag.sets == 1
