"""Redis is flushed, or a failover goes back in time, while the database keeps its marks."""

from __future__ import annotations

import pytest

from examples.servers import RedisServer
from fencing import LeaseLost, StaleFence
from tests.support.sides import Account, Side


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
@pytest.mark.parametrize("clock_floor", [True, False], ids=["clock-floor", "no-clock-floor"])
def test_the_first_new_holder_repairs_the_counter(
    side: Side, any_redis: RedisServer, account: Account, clock_floor: bool
) -> None:
    client = any_redis.client()
    coordinator = side.coordinator(any_redis.url, guards=[account.guard], clock_floor=clock_floor)
    for number in range(5):
        lease = side.call(coordinator.acquire, "r")
        account.write(lease, number)
        side.call(lease.release)
    before = lease.fence.number
    client.flushall()
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert lease.fence.number > before, "above the mark that the database kept"
    account.write(lease, account.balance + 1)
    side.call(lease.release)
    following = side.call(side.coordinator(any_redis.url, clock_floor=clock_floor).acquire, "r")
    assert following.fence.number > lease.fence.number, "and the counter is repaired, not just this fence"
    side.call(following.release)
    assert account.balance == 5


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_two_holders_at_once(side: Side, any_redis: RedisServer, account: Account) -> None:
    """Both leases are believed to be held. The newer claim decides, in whatever order they write."""
    coordinator = side.coordinator(any_redis.url, guards=[account.guard], clock_floor=False)
    a = side.call(coordinator.acquire, "r")
    any_redis.client().flushall()
    b = side.call(coordinator.acquire, "r", timeout=5)
    assert a.held, "the premise: two leases"
    assert b.held
    side.expect(StaleFence, account.write, a, 1)
    account.write(b, 10)
    side.expect(StaleFence, account.write, a, 1)
    assert account.balance == 10
    error = side.expect(LeaseLost, a.renew)
    assert error.reason == "gone"
    assert side.call(a.release) is False
    side.call(b.renew)
    assert side.call(b.release) is True


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_more_holders_of_slots_than_there_are(side: Side, any_redis: RedisServer, account: Account) -> None:
    """Four leases are believed to be held, of two slots. The guard admits the newest of each slot, and no others."""
    coordinator = side.coordinator(any_redis.url, guards=[account.guard], clock_floor=False)
    before = [side.call(coordinator.slots("gpu", 2).acquire, timeout=10) for _ in range(2)]
    any_redis.client().flushall()
    after = [side.call(coordinator.slots("gpu", 2).acquire, timeout=10)]
    [kept] = [lease for lease in before if lease.slot != after[0].slot]
    account.write(kept, 1)  # nobody else has claimed this slot
    after.append(side.call(coordinator.slots("gpu", 2).acquire, timeout=10))
    assert all(lease.held for lease in (*before, *after)), "the premise: four leases"
    for lease in before:
        side.expect(StaleFence, account.write, lease, 2)
    for lease in after:
        account.write(lease, 10)
    assert account.balance == 10
    assert [side.call(lease.release) for lease in (*before, *after)] == [False, False, True, True]
