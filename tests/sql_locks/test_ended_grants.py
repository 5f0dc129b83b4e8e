"""Grants that have ended stay ended, although a request of theirs arrives late.

A proxy keeps the request, and delivers it after the client went on over a new connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fencing import Fence, LeaseLost
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.locks import plans
from fencing.locks.holding import Grant
from tests.support.sql_locks import OVER_A_NETWORK, LockDatabase, through

OWNER = "who-takes-it"


def perform(locks: LockDatabase, coordinator: Any, plan: Any) -> Any:
    return locks.side.call(run_async if locks.side.asynchronous else run, plan, coordinator._backend.perform)


class Late:
    """A client through the proxy, which keeps its next request that takes the lock. The others are not disturbed."""

    def __init__(self, locks: LockDatabase) -> None:
        self.locks = locks
        self.others = locks.coordinator(direct=True, ttl=30)
        self.client = locks.coordinator(ttl=30, renew=False, owner=OWNER)
        owner = OWNER.encode()

        def takes(sent: bytes) -> bool:
            return owner in sent or owner.hex().encode() in sent

        self._kept = locks.proxy.stall_connection_when(takes, cut_when=takes)

    def deliver(self) -> None:
        """Deliver what was kept, and return when the database has done it."""
        self._kept.deliver()


def renew(late: Late, fence: Fence) -> Any:
    backend, grant = late.client._backend, Grant(fence.resource, fence.number, fence.token, 0.0)
    return perform(late.locks, late.client, plans.renew(backend, grant, backend.settings))


def adopt(late: Late, fence: Fence) -> Any:
    return perform(late.locks, late.client, plans.adopt(late.client._backend, fence, late.client._backend.settings))


@pytest.mark.parametrize("go_on", [renew, pytest.param(adopt, marks=pytest.mark.thorough)])
@through("psycopg", of=OVER_A_NETWORK)
def test_an_acquire_that_arrives_late_revives_no_lease(locks: LockDatabase, go_on: Callable[..., Any]) -> None:
    """The lock was forced free, given to another client and released meanwhile."""
    side, late = locks.side, Late(locks)
    lease = side.call(late.client.acquire, "r", timeout=20)
    assert side.call(late.others.force_release, "r").holder.number == lease.fence.number
    newer = side.call(late.others.acquire, "r")
    side.call(newer.release)
    late.deliver()
    [[token, number]] = locks.sql("SELECT token, number FROM fencing_locks WHERE resource = 'r'")
    assert token in (lease.fence.token, lease.fence.token.encode()), "it took the free lock"
    side.expect(LeaseLost, go_on, late, lease.fence)
    assert number > newer.fence.number
    side.call(lease.release)


@pytest.mark.thorough
@through("aiomysql", of=OVER_A_NETWORK)
def test_a_force_that_arrives_late_takes_the_lock_from_nobody_else(locks: LockDatabase) -> None:
    side, late = locks.side, Late(locks)
    forced = side.call(late.others.acquire, "r")
    assert side.call(late.client.force_release, "r").holder.number == forced.fence.number
    lease = side.call(late.others.acquire, "r")
    late.deliver()
    side.call(lease.renew)
    assert side.call(late.others.holder, "r").number == lease.fence.number
    assert side.call(lease.release) is True
    assert side.call(forced.release) is False


@through("sqlite")
def test_a_remint_that_is_repeated_after_its_grant_has_ended(locks: LockDatabase) -> None:
    """Its lock is as free as any other, so nobody is told to hold it."""
    side, coordinator = locks.side, locks.coordinator(ttl=30)
    lease, token = side.call(coordinator.acquire, "r"), new_token()

    def remint() -> Any:
        options: dict[str, Any] = {"floor": 0, "deadline": coordinator._backend.clock() + 5}
        return perform(
            locks,
            coordinator,
            coordinator._backend.plan_remint(lease.fence, token, coordinator._backend.settings, **options),
        )

    assert remint().fence == remint().fence
    locks.sql("UPDATE fencing_locks SET expires_at = granted_at WHERE resource = 'r'")
    assert remint() is None
    side.call(lease.release)


@through("aiomysql", "aiosqlite")
def test_a_renewal_extends_the_very_grant(locks: LockDatabase) -> None:
    """A late request of the same token has another number, also where it is that of another lease of the request."""
    coordinator, fences = locks.coordinator(ttl=30), []
    locks.side.call(locks.side.call(coordinator.acquire, "b").release)
    # So that the numbers of the two differ: SQLite's clock gives the same one to all of a millisecond.
    locks.sql("UPDATE fencing_locks SET number = number + 60000000 WHERE resource = 'b'")
    for name in ("a", "b"):
        lease = locks.side.call(coordinator.acquire, name)
        fences.append(lease.fence)
        lease.detach()

    def renew_all(numbers: Iterable[int]) -> list[bool]:
        grants = [Grant(each.resource, number, each.token, 0.0) for each, number in zip(fences, numbers, strict=True)]
        plan = coordinator._backend.plan_renew(
            grants, coordinator._backend.settings, deadline=coordinator._backend.clock() + 5
        )
        return [until is not None for until in perform(locks, coordinator, plan)]

    numbers = [fence.number for fence in fences]
    assert numbers[0] < numbers[1]
    locks.sql("UPDATE fencing_locks SET expires_at = expires_at + 60000000")
    ends = locks.sql("SELECT expires_at FROM fencing_locks ORDER BY resource")
    assert renew_all([numbers[0] - 1, numbers[1] - 1]) == [False, False]
    assert locks.sql("SELECT expires_at FROM fencing_locks ORDER BY resource") == ends, "nothing was extended"
    assert renew_all(reversed(numbers)) == [False, False]
    assert renew_all(numbers) == [True, True]
