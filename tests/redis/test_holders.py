"""What `holder()` and `holders()` tell of the queue of a lock."""

from __future__ import annotations

from typing import Any

from examples.servers import RedisServer
from fencing.redis.keys import keys_of
from tests.support.sides import Side

KEYS = keys_of("r")
TWO = {f"elsewhere {letter * 22}": 1 for letter in "ab"}


def waiting(side: Side, coordinator: Any) -> list[int | None]:
    """Return what the holder of "r" tells, and what the list of holders does."""

    async def list_async() -> list[Any]:
        return [holder async for _, holder in coordinator.holders("r")]

    listed = side.call(list_async) if side.asynchronous else [each for _, each in coordinator.holders("r")]
    return [each.waiting for each in (side.call(coordinator.holder, "r"), *listed)]


def test_holder_tells_how_many_wait(side: Side, any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=30)
    lease = side.call(coordinator.acquire, "r")
    assert waiting(side, coordinator) == [0, 0]
    client.zadd(KEYS.queue, TWO)
    assert waiting(side, coordinator) == [2, 2]
    client.zrem(KEYS.queue, next(iter(TWO)))
    assert waiting(side, coordinator) == [1, 1]
    client.delete(KEYS.queue)
    side.call(lease.release)


def test_a_queue_that_cannot_be_read_leaves_the_rest_of_the_answer(side: Side, any_redis: RedisServer) -> None:
    """Another kind of data has its name; then the user may not ask for its size."""
    admin: Any = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r")
    admin.execute_command("ACL SETUSER limited on >secret ~* &* +@all")
    try:
        limited = side.coordinator(side.client(any_redis.url, username="limited", password="secret"))
        admin.set(KEYS.queue, "no queue")
        assert waiting(side, limited) == [None, None]
        admin.delete(KEYS.queue)
        admin.zadd(KEYS.queue, TWO)
        assert waiting(side, limited) == [2, 2]
        admin.execute_command("ACL SETUSER limited -zcard")
        assert waiting(side, limited) == [None, None]
        assert side.call(limited.holder, "r").number == lease.fence.number
    finally:
        admin.execute_command("ACL DELUSER limited")
        admin.delete(KEYS.queue)
    side.call(lease.release)


def test_it_takes_one_request(side: Side, any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    client.set("r", "of another library", px=60_000)
    client.zadd(KEYS.queue, TWO)
    coordinator = side.coordinator(any_redis.url)
    assert side.call(coordinator.holder, "r").waiting == 2
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    side.call(coordinator.holder, "r")
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 1
    client.delete(KEYS.queue)
