"""The traces that break weaker rules, step by step, on real Redis and a real database: here each is refused.

A step is "A acquires", "A's lease expires", "A reads". A late holder is refused. An admitted one
has read what is current.
"""

from __future__ import annotations

from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import Fence, StaleFence, UnclaimedFence
from fencing.kernel.fence import new_token
from tests.support.sides import Account, Side
from tests.support.sql_ways import SIDES_AND_DATABASES

pytestmark = pytest.mark.parametrize(("side", "account"), SIDES_AND_DATABASES, indirect=True)


@pytest.fixture
def lock(side: Side, any_redis: RedisServer, account: Account) -> Any:
    return side.coordinator(any_redis.url, guards=[account.guard], clock_floor=False).lock("r")


def expire(any_redis: RedisServer) -> None:
    """The lease runs out, as if its ttl had passed while its holder was paused."""
    assert any_redis.client().delete("r") == 1


def test_the_newer_holder_has_only_read(side: Side, any_redis: RedisServer, account: Account, lock: Any) -> None:
    """Seven steps, with perfectly monotone fences, that lose A's update where only writes are checked."""
    a = side.call(lock.acquire)  # 1
    expire(any_redis)  # 2
    seen_by_a = account.balance  # 3
    b = side.call(lock.acquire)  # 4: and B claims here
    assert b.fence.number > a.fence.number
    seen_by_b = account.balance  # 5
    error = side.expect(StaleFence, account.write, a, seen_by_a + 1)  # 6: nothing newer has written, and yet
    assert error.mark is not None
    assert error.mark.number == b.fence.number
    account.write(b, seen_by_b + 10)  # 7
    assert account.balance == 10, "B's update, and no acknowledged one was lost"
    side.call(a.release)
    side.call(b.release)


def test_a_reads_only_after_b_has_claimed(side: Side, any_redis: RedisServer, account: Account, lock: Any) -> None:
    a = side.call(lock.acquire)
    expire(any_redis)
    b = side.call(lock.acquire)
    seen_by_a = account.balance
    account.write(b, account.balance + 10)
    side.expect(StaleFence, account.write, a, seen_by_a + 1)
    assert account.balance == 10
    side.call(a.release)
    side.call(b.release)


def test_fences_repeat_after_redis_lost_its_data(
    side: Side, any_redis: RedisServer, account: Account, lock: Any
) -> None:
    """Nine steps: equal numbers, told apart by the token alone."""
    a = side.call(lock.acquire)
    any_redis.client().flushall()
    seen_by_a = account.balance
    unguarded = side.coordinator(any_redis.url, clock_floor=False).lock("r")
    b = side.call(unguarded.acquire)
    assert b.fence.number == a.fence.number, "the premise: the same number twice"
    side.expect(StaleFence, account.guard.claim, b)
    side.expect(StaleFence, account.write, b, 99)
    account.write(a, seen_by_a + 1)
    assert account.balance == 1
    side.call(a.release)
    side.call(b.release)


def test_a_holder_that_forgets_to_claim_is_refused(side: Side, any_redis: RedisServer, account: Account) -> None:
    """Eight steps where the check is `>=`; with equality the guard itself enforces the discipline."""
    forgetful = side.coordinator(any_redis.url).lock("r")
    lease = side.call(forgetful.acquire)
    error = side.expect(UnclaimedFence, account.write, lease, 5)
    assert "pass guards=[guard]" in str(error)
    assert error.mark is None
    side.call(account.guard.claim, Fence("r", lease.fence.number - 1, new_token()))
    error = side.expect(UnclaimedFence, account.write, lease, 5)
    assert error.mark is not None
    assert account.balance == 0
    side.call(lease.release)


def test_a_stale_holder_may_write_until_a_newer_one_claims(
    side: Side, any_redis: RedisServer, account: Account, lock: Any
) -> None:
    """The end of a lease shuts nobody out; the newer claim does. Nothing is lost by that: nobody has read meanwhile."""
    a = side.call(lock.acquire)
    expire(any_redis)
    account.write(a, account.balance + 1)
    b = side.call(lock.acquire)
    account.write(b, account.balance + 10)
    assert account.balance == 11
    side.expect(StaleFence, account.write, a, 99)
    side.call(a.release)
    side.call(b.release)


def test_two_resources_in_one_transaction(side: Side, any_redis: RedisServer, account: Account) -> None:
    """A transfer: if either lease is stale, neither account is touched."""
    coordinator = side.coordinator(any_redis.url, guards=[account.guard])
    one, two = side.call(coordinator.acquire, "r"), side.call(coordinator.acquire, "s")

    def transfer() -> None:
        with account.guard.begin(one, two) as connection:
            connection.exec_driver_sql("UPDATE account SET balance = balance + 1 WHERE name = 'r'")

    async def transfer_async() -> None:
        async with account.guard.begin(one, two) as connection:
            await connection.exec_driver_sql("UPDATE account SET balance = balance + 1 WHERE name = 'r'")

    chosen = transfer_async if side.asynchronous else transfer
    side.call(chosen)
    assert account.balance == 1
    assert side.call(coordinator.lock("s").force_release).fenced
    side.expect(StaleFence, chosen)
    assert account.balance == 1
    side.call(one.release)
    side.call(two.release)
