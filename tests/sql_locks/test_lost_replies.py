"""A reply, or a request, that is lost: each request is repeated, and comes to the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencing import Fence
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant
from tests.support import wait_until
from tests.support.sql_locks import OVER_A_NETWORK, LockDatabase, through

MOST_REQUESTS = 8
"""More than any plan sends."""


class NthLost:
    """A block in which the n-th request, or its reply, is lost. Nothing is lost after it."""

    def __init__(self, locks: LockDatabase, what: str, n: int) -> None:
        self._proxy, self._what, self._left = locks.proxy, what, n
        self.happened = False

    def __enter__(self) -> None:
        self._loss = getattr(self._proxy, f"drop_{self._what}_when")(self._is_the_one)

    def __exit__(self, *_: object) -> None:
        self._proxy.restore()
        self.happened = self._loss.fired > 0

    def _is_the_one(self, request: bytes) -> bool:
        self._left -= 1
        return self._left == 0


def plan(locks: LockDatabase, coordinator: Any, made: Any) -> Any:
    return locks.side.call(run_async if locks.side.asynchronous else run, made, coordinator._backend.perform)


def deadline(coordinator: Any) -> dict[str, float]:
    return {"deadline": coordinator._backend.clock() + 5}


def acquire(locks: LockDatabase, coordinator: Any, name: str, token: str, floor: int = 0) -> Any:
    made = coordinator._backend.plan_acquire(
        name, token, coordinator._backend.settings, floor=floor, **deadline(coordinator)
    )
    return plan(locks, coordinator, made)


def check_acquire(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    token = new_token()
    with loss:
        fence = acquire(locks, coordinator, "free", token).fence
    assert acquire(locks, coordinator, "free", token).fence == fence
    assert locks.sql("SELECT number FROM fencing_locks WHERE resource = 'free'") == [(fence.number,)]


def check_taken(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    with loss:
        taken = acquire(locks, coordinator, "held", new_token())
    assert isinstance(taken, Taken)
    assert 0 < taken.remaining <= 10


def check_queue(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    """A waiter, which is told of the next release: its first request finds the lock held, its second one free."""
    token = new_token()

    def queue(place: Any) -> Any:
        settings = coordinator._backend.settings
        made = coordinator._backend.plan_queue("held", token, settings, floor=0, place=place, **deadline(coordinator))
        return plan(locks, coordinator, made)

    if locks.driver.database == "postgres":
        wait_until(lambda: queue(None).place is not None)
    with loss:
        taken = queue(None)
        assert isinstance(taken, Taken)
        assert plan(
            locks,
            coordinator,
            coordinator._backend.plan_release(held, coordinator._backend.settings, **deadline(coordinator)),
        )
        fence = queue(taken.place).fence
    assert fence.number > held.number
    assert acquire(locks, coordinator, "held", token).fence == fence


def check_remint(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    token, floor = new_token(), held.number + 1000
    made = coordinator._backend.plan_remint(
        held, token, coordinator._backend.settings, floor=floor, **deadline(coordinator)
    )
    with loss:
        fence = plan(locks, coordinator, made).fence
    assert fence.number > floor
    assert acquire(locks, coordinator, "held", token).fence == fence


def check_force(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    token = new_token()
    holder = locks.side.call(coordinator.holder, "held")
    made = coordinator._backend.plan_force(
        "held", token, coordinator._backend.settings, floor=0, holder=holder, **deadline(coordinator)
    )
    with loss:
        fence = plan(locks, coordinator, made).fence
    assert fence.number > held.number
    assert acquire(locks, coordinator, "held", token).fence == fence


def check_renew(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    grants = [Grant("held", held.number, held.token, 0.0), Grant("free", 1, new_token(), 0.0)]
    made = coordinator._backend.plan_renew(grants, coordinator._backend.settings, **deadline(coordinator))
    with loss:
        renewed = plan(locks, coordinator, made)
    assert [until is not None for until in renewed] == [True, False]


def check_release(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    with loss:
        freed = plan(
            locks,
            coordinator,
            coordinator._backend.plan_release(held, coordinator._backend.settings, **deadline(coordinator)),
        )
    assert freed
    assert locks.side.call(coordinator.holder, "held") is None


def check_release_later(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    backend = coordinator._backend
    free_at = backend.clock() + 600
    made = backend.plan_release_later(held, backend.settings, free_at=free_at, **deadline(coordinator))
    with loss:
        released = plan(locks, coordinator, made)
    assert released
    assert locks.side.call(coordinator.holder, "held").released


def check_holder(locks: LockDatabase, coordinator: Any, held: Fence, loss: Any) -> None:
    made = coordinator._backend.plan_holder("held", coordinator._backend.settings, **deadline(coordinator))
    with loss:
        holder = plan(locks, coordinator, made)
    assert holder.number == held.number


CHECKS = [
    check_acquire,
    check_taken,
    check_queue,
    check_remint,
    check_force,
    check_renew,
    check_release,
    check_release_later,
    check_holder,
]


@pytest.mark.thorough
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@through("psycopg", of=OVER_A_NETWORK)
def test_what_is_lost_is_asked_again(locks: LockDatabase, check: Callable[..., None]) -> None:
    """The first, second … request is lost, or its reply, until the plan has not so many."""
    for what in ("reply", "request"):
        for n in range(1, MOST_REQUESTS):
            locks.sql("DELETE FROM fencing_locks")
            coordinator = locks.coordinator()
            for name in ("warm", "held"):  # a driver prepares a statement at its first use
                fence = acquire(locks, coordinator, name, new_token()).fence
            loss = NthLost(locks, what, n)
            check(locks, coordinator, fence, loss)
            locks.side.call(coordinator.close)
            if not loss.happened:
                break
        assert 1 < n < MOST_REQUESTS - 1
