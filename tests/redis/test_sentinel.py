"""One Redis behind Sentinel: the primary dies, a replica takes over, and locks and waiters follow."""

from __future__ import annotations

import time
from typing import Any

import pytest

from examples.servers import SentinelServers
from tests.support import wait_until
from tests.support.sentinels import master_for
from tests.support.sides import Account, Side
from tests.support.waiters import Queue, Waiter


@pytest.mark.thorough
@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_leases_and_waiters_follow_the_primary(side: Side, own_sentinels: SentinelServers, account: Account) -> None:
    primary = own_sentinels.primary
    coordinator = side.coordinator(master_for(side, own_sentinels.addresses), ttl=60)
    assert "Sentinel service 'shop'" in coordinator.address
    lock = coordinator.lock("account", guards=[account.guard])
    lease = side.call(lock.acquire)
    account.write(lease, 1)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    Queue(primary).has(3)
    primary.client().wait(2, 5000)  # the replicas have it all
    primary.kill()
    replica: Any = own_sentinels.successor(primary).client()
    wait_until(lambda: replica.pubsub_channels("fencing:1:wake:*"))
    assert side.call(holder.release) is True
    released_at = time.monotonic()
    took = max(waiter.join().granted_at for waiter in waiters) - released_at
    assert [waiter.error for waiter in waiters] == [None] * 3
    print(f"the waiters had it within {1000 * took:.0f} ms")
    assert took < 8, "without a message it takes 10 s, the longest recheck"

    side.call(lease.renew)
    assert side.call(lease.release) is True
    after = side.call(lock.acquire, timeout=30)
    assert after.fence.number > lease.fence.number
    account.write(after, account.balance + 1)
    assert account.balance == 2
    assert side.call(after.release) is True
