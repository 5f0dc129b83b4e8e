"""A coordinator's prefix is part of the resource of each of its locks, and is never put there twice."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from fencing import AsyncFencedLock, Fence, FencedLock, Lease, LockTable, MemoryCoordinator, RedisCoordinator
from tests.support.memory_side import MemorySide


@pytest.fixture
def billing(side: MemorySide) -> Any:
    return side.coordinator(prefix="billing:")


def lock_kind(side: MemorySide) -> Any:
    return AsyncFencedLock if side.asynchronous else FencedLock


def test_locks_that_are_made_in_each_way(side: MemorySide, billing: Any) -> None:
    for lock in (
        billing.lock("report"),
        billing.lock("billing:report"),
        billing.lock("report").reentrant(),
        lock_kind(side)(billing, "report"),
        lock_kind(side)(billing, "report", ttl=5),
    ):
        assert lock.resource == "billing:report"
    with pytest.warns(RuntimeWarning, match="never entered"):
        assert repr(billing.lock("report").hold()).endswith("Hold of 'billing:report'>")
    assert repr(billing) == f"<{side.kind.__name__} at memory, prefix 'billing:', ttl 10 s>"
    assert side.coordinator(prefix=None).lock("report").resource == "report"


def test_a_template_names_locks_behind_the_prefix() -> None:
    billing = MemoryCoordinator(prefix="billing:")

    @billing.locked("report:{name}")
    def finish(lease: Lease, name: str) -> str:
        return lease.fence.resource

    assert finish("weekly") == "billing:report:weekly"


def test_two_names_of_one_lock_are_one_lock(side: MemorySide, billing: Any) -> None:
    with pytest.raises(ValueError, match="'billing:report' is given twice"):
        billing.hold_all(["report", "billing:report"])
    held = billing.hold("report", reentrant=True)
    lease = side.call(held.__aenter__ if side.asynchronous else held.__enter__)
    assert lease.fence.resource == "billing:report"
    assert side.holder("report") is None
    side.call(held.__aexit__ if side.asynchronous else held.__exit__, None, None, None)


def test_a_fence_of_another_namespace_is_not_adopted(side: MemorySide, billing: Any) -> None:
    for resource in ("report", "shipping:report"):
        error = side.expect(ValueError, billing.adopt, Fence(resource, 1, "a" * 22))
        assert f"of 'billing:{resource}', but the fence is of '{resource}'" in str(error)


def test_locks_of_a_client_have_no_prefix() -> None:
    client = redis.Redis(host="127.0.0.1", port=1)
    assert RedisCoordinator(client, prefix="billing:").lock("report").resource == "billing:report"
    assert FencedLock(client, "report").resource == "report"


def test_a_listing_has_the_names_of_the_prefix_alone() -> None:
    table = LockTable()
    billing, other = MemoryCoordinator(table, prefix="a.*:"), MemoryCoordinator(table, prefix="a.b:")
    leases = [billing.acquire("report"), other.acquire("report")]
    for pattern in ("*", "rep*", "a.*:*", "??????", "a.*:report"):
        assert [name for name, _ in billing.holders(pattern)] == ["a.*:report"], pattern
    assert [name for name, _ in billing.holders("a.b:*")] == []
    for lease in leases:
        lease.release()
