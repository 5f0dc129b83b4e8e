"""Several locks on a real Redis: how many requests they take, and what one request that frees all of them leaves."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import LeaseLost, RedisCoordinator, hold_all
from tests.support.fixtures import RedisFactory
from tests.support.redis_requests import scripts_run
from tests.support.sides import Side

NAMES = ["c", "a", "b"]


def in_block(side: Side, held: Any, body: Any) -> Any:
    def sync() -> Any:
        with held as leases:
            body(leases)
        return leases

    async def asynchronous() -> Any:
        async with held as leases:
            body(leases)
        return leases

    return side.call(asynchronous if side.asynchronous else sync)


def test_a_request_for_each_and_one_to_free_all(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url)
    in_block(side, coordinator.hold_all(NAMES, timeout=5), lambda leases: None)  # connects, and loads the scripts
    before = scripts_run(server)
    in_block(side, coordinator.hold_all(NAMES, timeout=5), lambda leases: None)
    assert scripts_run(server) - before == len(NAMES) + 1
    assert not server.client().exists(*NAMES)


def test_waiters_get_the_locks_that_are_freed_together(side: Side, any_redis: RedisServer) -> None:
    holder, waiter = side.coordinator(any_redis.url), RedisCoordinator(any_redis.client())
    granted: list[Any] = []

    def wait(name: str) -> None:
        granted.append(waiter.acquire(name, timeout=20))

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b")]

    def body(leases: Any) -> None:
        for thread in threads:
            thread.start()
        side.wait_until(lambda: len(any_redis.client().keys("fencing:1:*:waiting:*")) == 2)
        assert granted == []

    in_block(side, holder.hold_all(NAMES, timeout=5), body)
    for thread in threads:
        thread.join(20)
    assert sorted(lease.fence.resource for lease in granted) == ["a", "b"]
    waiter.close()


def test_one_that_was_lost_is_told_and_the_others_are_freed(side: Side, any_redis: RedisServer) -> None:
    direct = any_redis.client()
    coordinator = side.coordinator(any_redis.url)

    def body(leases: Any) -> None:
        direct.set("a", "another holder", ex=60)

    error = side.expect(LeaseLost, in_block, side, coordinator.hold_all(NAMES, timeout=5), body)
    assert (error.fence.resource, error.completed) == ("a", True)
    assert direct.get("a") == b"another holder"
    assert not direct.exists("b", "c")
    direct.delete("a")


def test_a_key_of_another_type_leaves_the_others_free(
    side: Side, any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    direct = any_redis.client()
    coordinator = side.coordinator(any_redis.url)

    def body(leases: Any) -> None:
        direct.delete("a")
        direct.hset("a", "x", "y")

    in_block(side, coordinator.hold_all(NAMES, timeout=5), body)
    assert not direct.exists("b", "c")
    [warning] = [record.getMessage() for record in caplog.records if "could not be released" in record.getMessage()]
    assert "'a'" in warning
    direct.delete("a")


@pytest.mark.thorough
def test_a_redis_that_is_silent_at_the_end_costs_the_time_of_one_release(
    side: Side, freezable_redis: RedisServer
) -> None:
    coordinator = side.coordinator(freezable_redis.url, ttl=30, renew=False)
    names = [f"r{number}" for number in range(12)]
    ended: list[float] = []

    def body(leases: Any) -> None:
        freezable_redis.freeze()
        ended.append(time.monotonic())

    in_block(side, coordinator.hold_all(names, ttl=9, timeout=20), body)
    assert time.monotonic() - ended[0] < 6.0 + 30.0, "two attempts, and not two for each lock: that would be 72 s"
    freezable_redis.thaw()
    side.wait_until(lambda: not freezable_redis.client().exists(*names))


def test_a_generator_inside_keeps_a_re_entrant_lock(side: Side, any_redis: RedisServer) -> None:
    """The lock is released when the last of its blocks ends, also if that is after the outer one."""
    coordinator, direct = side.coordinator(any_redis.url), any_redis.client()
    lock, other, third = coordinator.lock("a").reentrant(), coordinator.lock("b"), coordinator.lock("c")

    def sync() -> None:
        def use() -> Any:
            with lock.hold() as lease:
                yield lease

        with hold_all([lock, other, third]):
            using = use()
            lease = next(using)
        assert (lease.held, direct.exists("a"), direct.exists("b")) == (True, 1, 0)
        using.close()

    async def asynchronous() -> None:
        async def use() -> Any:
            async with lock.hold() as lease:
                yield lease

        async with hold_all([lock, other, third]):
            using = use()
            lease = await anext(using)
        assert (lease.held, direct.exists("a"), direct.exists("b")) == (True, 1, 0)
        await using.aclose()

    side.call(asynchronous if side.asynchronous else sync)
    assert not direct.exists("a", "b")
