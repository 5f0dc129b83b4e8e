"""What a later version of the library may keep in Redis: it is shown, or refused, and never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, NotAcquired
from fencing.redis.keys import keys_of
from tests.support.sides import Side

KEYS = keys_of("r")
NEWER = b"2:1795313443589306 now with fields"


def all_keys(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter()}


def listed(side: Side, coordinator: Any) -> dict[str, Any]:
    async def collect() -> dict[str, Any]:
        return {resource: holder async for resource, holder in coordinator.holders()}

    return side.call(collect) if side.asynchronous else dict(coordinator.holders())


@pytest.mark.parametrize("call", ["acquire", "wait", "try", "remint", "force"])
def test_the_counter_of_a_newer_version_is_refused_and_stays(side: Side, any_redis: RedisServer, call: str) -> None:
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=30)
    lease = None
    if call not in ("acquire", "try"):
        lease = side.call(coordinator.acquire, "r")
        side.call(lease.detach)
    client.set(KEYS.counter, NEWER)
    before = all_keys(client)
    calls: dict[str, Callable[[], Any]] = {
        "acquire": lambda: coordinator.acquire("r", timeout=60),
        "wait": lambda: coordinator.acquire("r", timeout=8),
        "try": lambda: coordinator.try_acquire("r"),
        "remint": lambda: coordinator.adopt(lease.fence),  # type: ignore[union-attr]
        "force": lambda: coordinator.force_release("r"),
    }
    said = str(side.expect(CoordinatorUnavailable, calls[call]))
    assert f"the counter {KEYS.counter} does not hold a number" in said
    assert "it is damaged, or of a newer version of this library: then upgrade this program" in said
    assert all_keys(client) == before
    if lease is not None:
        assert side.call(coordinator.holder, "r"), "a lock that is held is shown"
    client.delete(KEYS.counter)


def test_a_waiter_is_refused_before_a_lock_is_handed_over(side: Side, any_redis: RedisServer) -> None:
    """The lock is free, and others are in the queue."""
    client: Any = any_redis.client()
    client.set(KEYS.counter, NEWER)
    client.zadd(KEYS.queue, {"elsewhere " + "w" * 22: 1})
    client.hset(KEYS.listeners, "elsewhere", 1)
    before = all_keys(client)
    side.expect(CoordinatorUnavailable, side.coordinator(any_redis.url).acquire, "r", timeout=60)
    assert all_keys(client) == before


def test_a_lock_is_renewed_and_released_whatever_the_counter_holds(side: Side, any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r")
    client.set(KEYS.counter, NEWER)
    side.call(lease.renew)
    assert side.call(lease.release) is True
    assert all_keys(client).keys() == {KEYS.counter.encode()}
    assert client.get(KEYS.counter) == NEWER


def test_a_holder_that_has_released_and_stays_is_shown(side: Side, any_redis: RedisServer) -> None:
    """As with ``hold(at_least=...)``, or another program's."""
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=30, owner="me")
    lease = side.call(coordinator.acquire, "r")
    number, token, granted, owner = client.get(KEYS.holder).decode().split(" ")
    assert side.call(coordinator.holder, "r").released is False
    assert listed(side, coordinator)["r"].released is False
    record = f"{number} {token} {granted}-{int(granted) + 1} {owner}"
    client.set(KEYS.holder, record, keepttl=True)
    for holder in (side.call(coordinator.holder, "r"), listed(side, coordinator)["r"]):
        assert (holder.released, holder.owner, holder.number) == (True, "me", int(number))
        assert 0 <= holder.held_for < 60
        assert 0 < holder.remaining <= 30
    side.call(lease.detach)
    forced = side.call(coordinator.force_release, "r")
    assert forced.holder.released is True
    assert forced.fence.number > int(number)
    assert client.get("r") is None


@pytest.mark.parametrize("times", ["{granted}-", "{granted}-x", "-5", "{granted}-5-6", "{granted}+5"])
def test_a_record_of_any_other_form_is_that_of_another_library(side: Side, any_redis: RedisServer, times: str) -> None:
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=30)
    lease = side.call(coordinator.acquire, "r")
    client.set(KEYS.holder, f"7 {lease.fence.token} {times.format(granted=5)} me", keepttl=True)
    holder = side.call(coordinator.holder, "r")
    assert (holder.owner, holder.number, holder.released) == (None, None, False)
    assert listed(side, coordinator) == {}
    assert side.call(lease.release) is True


def test_a_lock_that_stays_is_refused_and_can_be_adopted(side: Side, any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=30)
    lease = side.call(coordinator.acquire, "r")
    number, token, granted, owner = client.get(KEYS.holder).decode().split(" ")
    client.set(KEYS.holder, f"{number} {token} {granted}-{granted} {owner}", px=30_000)
    side.call(lease.renew)
    other = side.coordinator(any_redis.url, ttl=30)
    assert owner in str(side.expect(NotAcquired, other.acquire, "r", timeout=0))
    side.call(lease.detach)
    adopted = side.call(other.adopt, lease.fence)
    assert adopted.fence.number > lease.fence.number
    assert side.call(coordinator.holder, "r").released is False
    assert side.call(adopted.release) is True
