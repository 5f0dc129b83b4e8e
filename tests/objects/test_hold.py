"""The lock and the object-store guard together."""

from __future__ import annotations

from typing import Any

from obstore.store import MemoryStore

from examples.servers import RedisServer
from fencing import StaleFence
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from tests.support.sides import Side


def test_a_late_holder_is_refused_and_the_newer_one_publishes(side: Side, any_redis: RedisServer) -> None:
    store = MemoryStore()
    guard: Any = AsyncObjectStoreGuard(store) if side.asynchronous else ObjectStoreGuard(store)
    lock = side.coordinator(any_redis.url, guards=[guard]).lock("orders:42")
    a = side.call(lock.acquire, timeout=5)
    side.call(guard.publish, a, {"report.csv": b"by a"})
    assert any_redis.client().delete("orders:42") == 1  # the lease runs out, as if A had been paused
    b = side.call(lock.acquire, timeout=5)
    assert b.fence.number > a.fence.number
    refused = side.expect(StaleFence, guard.publish, a, {"report.csv": b"late"})
    assert refused.mark is not None
    assert refused.mark.is_of(b.fence)
    side.call(guard.publish, b, {"report.csv": b"by b"})
    current = side.call(guard.read, "orders:42")
    assert side.call(current.read, "report.csv") == b"by b"
    assert [each.number for each in side.call(guard.collect, b)] == [a.fence.number]
    side.call(a.release)
    side.call(b.release)


def test_a_counter_that_fell_behind_is_repaired_from_the_pointer(side: Side, any_redis: RedisServer) -> None:
    store = MemoryStore()
    guard: Any = AsyncObjectStoreGuard(store) if side.asynchronous else ObjectStoreGuard(store)
    coordinator = side.coordinator(any_redis.url, guards=[guard], clock_floor=False)
    numbers = []
    for _ in range(3):
        lease = side.call(coordinator.lock("orders:42").acquire, timeout=5)
        numbers.append(lease.fence.number)
        side.call(guard.publish, lease, {"x": b"%d" % lease.fence.number})
        side.call(lease.release)
        any_redis.client().flushall()
    assert numbers == sorted(set(numbers))
