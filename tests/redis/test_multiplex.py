"""One connection for all calls of an event loop: shared requests, slow replies, and the end of the connection."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, CoordinatorUnavailable
from fencing.kernel.effects import run_async
from fencing.redis import connection_async
from fencing.redis.scripts import ACQUIRE, RELEASE
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.loops import until
from tests.support.redis_requests import scripts_run

each_way = pytest.mark.usefixtures("way_to_redis")
"""For what depends on how connections are written to and read."""

Story = Callable[[AsyncRedisCoordinator], Awaitable[None]]


def run(story: Story, url: str, **settings: Any) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), **settings) as coordinator:
            await asyncio.wait_for(story(coordinator), 60)

    asyncio.run(main())


def connected(server: RedisServer) -> int:
    """Return how many connections it has, with the one that asks."""
    with server.client() as client:
        return len(client.client_list(_type="normal"))


async def pair(coordinator: AsyncRedisCoordinator, name: str) -> bool:
    """Acquire and release; return the result of the release."""
    lease = await coordinator.acquire(name, timeout=30)
    released = await lease.release()
    assert released is True
    return released


@each_way
def test_many_tasks_share_one_connection(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        before = connected(server)
        await asyncio.gather(*(pair(coordinator, f"r{number}") for number in range(300)))
        assert connected(server) == before + 1

    run(story, server.url)


@each_way
def test_replies_find_their_callers(any_redis: RedisServer) -> None:
    async def story(coordinator: AsyncRedisCoordinator) -> None:
        leases = await asyncio.gather(*(coordinator.acquire(f"r{number}") for number in range(200)))
        holders = await asyncio.gather(*(coordinator.lock(f"r{number}").holder() for number in range(200)))
        assert [lease.fence.resource for lease in leases] == [f"r{number}" for number in range(200)]
        assert [holder and holder.number for holder in holders] == [lease.fence.number for lease in leases]
        await asyncio.gather(*(lease.release() for lease in leases))

    run(story, any_redis.url)


@each_way
def test_a_script_that_redis_has_forgotten_is_sent_again(any_redis: RedisServer) -> None:
    async def story(coordinator: AsyncRedisCoordinator) -> None:
        client = any_redis.client()
        for _ in range(3):
            client.script_flush()
            assert client.script_exists(ACQUIRE.sha, RELEASE.sha) == [False, False]
            await asyncio.gather(*(pair(coordinator, f"r{number}") for number in range(50)))
            assert client.script_exists(ACQUIRE.sha, RELEASE.sha) == [True, True]

    run(story, any_redis.url)


@pytest.mark.thorough
@each_way
def test_a_busy_loop_is_not_taken_for_a_silent_server(fresh_redis: RedisFactory) -> None:
    """The reply has long arrived when the loop gets to it, after the call's time."""

    server = fresh_redis()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await pair(coordinator, "warm")
        before = scripts_run(server)
        acquiring = asyncio.ensure_future(coordinator.try_acquire("r"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent
        time.sleep(0.5)  # noqa: ASYNC251 - it keeps the loop busy on purpose, past the end of the attempt
        lease = await acquiring
        assert scripts_run(server) == before + 1
        if lease is not None:  # its deadline may have passed meanwhile
            await lease.release()

    run(story, server.url, ttl=0.9, renew=False)


def test_a_call_whose_time_is_up_does_not_break_the_connection_of_the_others(
    freezable_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_async, "STALL_SECONDS", 60)  # on a busy machine the server is frozen for long

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await pair(coordinator, "warm")
        client = freezable_redis.client()
        mine = client.client_list(_type="normal")
        freezable_redis.freeze()
        deadline = coordinator._backend.clock() + 0.002
        plan = coordinator._backend.plan_acquire(
            "hasty", "t" * 22, coordinator._backend.settings, floor=0, deadline=deadline
        )
        patient = asyncio.ensure_future(coordinator.acquire("patient"))
        with pytest.raises(CoordinatorUnavailable):
            await run_async(plan, coordinator._backend.perform)
        freezable_redis.thaw()
        await (await patient).release()
        assert {each["id"] for each in client.client_list(_type="normal")} <= {each["id"] for each in mine}
        wait_until(lambda: client.get("hasty") is None)  # what it took all the same was given back

    run(story, freezable_redis.url, ttl=60)


@pytest.mark.thorough
def test_a_call_that_was_given_up_is_not_checked_again_and_again(
    freezable_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    check = connection_async.LoopConnection._check

    def counted(line: connection_async.LoopConnection, **again: bool) -> None:
        checks.append(1)
        check(line, **again)

    monkeypatch.setattr(connection_async.LoopConnection, "_check", counted)

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await pair(coordinator, "warm")
        freezable_redis.freeze()
        patient = asyncio.ensure_future(coordinator.acquire("patient"))
        await asyncio.sleep(0)
        deadline = coordinator._backend.clock() + 0.002
        plan = coordinator._backend.plan_acquire(
            "hasty", "t" * 22, coordinator._backend.settings, floor=0, deadline=deadline
        )
        with pytest.raises(CoordinatorUnavailable):
            await run_async(plan, coordinator._backend.perform)
        await asyncio.sleep(0.5)  # time for checks that must not come
        freezable_redis.thaw()
        await (await patient).release()
        assert len(checks) < 20

    run(story, freezable_redis.url, ttl=60)


@pytest.mark.thorough
@each_way
def test_a_silent_connection_is_replaced_and_all_its_calls_are_repeated(
    any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    slow, quick = proxy(any_redis), proxy(any_redis)

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await pair(coordinator, "warm")
        slow.silence()
        coordinator._backend._connections.factory.options["port"] = quick.port
        started = time.monotonic()
        await asyncio.gather(*(pair(coordinator, f"r{number}") for number in range(50)))
        assert time.monotonic() - started < 20, "all at once; one time-out after the other takes 50 s"

    run(story, slow.url(any_redis.url), ttl=3)


@each_way
def test_calls_survive_a_cut_connection(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        for _ in range(10):
            pairs = asyncio.gather(*(pair(coordinator, f"r{number}") for number in range(20)))
            await asyncio.sleep(0.001)  # somewhere in the middle; anywhere is right
            await asyncio.to_thread(through.cut)
            assert await pairs == [True] * 20

    run(story, through.url(any_redis.url), ttl=30)


@each_way
def test_a_coordinator_that_is_collected_closes_its_connection(any_redis: RedisServer) -> None:
    async def main() -> None:
        before = connected(any_redis)
        coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), renew=False)
        await pair(coordinator, "r")
        del coordinator
        gc.collect()
        await until(lambda: connected(any_redis) <= before)
        assert connected(any_redis) <= before

    asyncio.run(main())


def test_a_cancelled_reader_is_started_again(any_redis: RedisServer) -> None:
    """An application cancels all tasks of its loop."""

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await pair(coordinator, "r")
        [reader] = [task for task in asyncio.all_tasks() if task.get_name() == "fencing-redis"]
        reader.cancel()
        await asyncio.gather(*(pair(coordinator, f"r{number}") for number in range(20)))
        [another] = [task for task in asyncio.all_tasks() if task.get_name() == "fencing-redis"]
        assert another is not reader
        assert reader.done()

    run(story, any_redis.url)


def test_a_reader_that_is_cancelled_before_its_first_step_is_started_again(any_redis: RedisServer) -> None:
    async def story(coordinator: AsyncRedisCoordinator) -> None:
        first = asyncio.ensure_future(pair(coordinator, "r"))
        await asyncio.sleep(0)
        [opening] = [task for task in asyncio.all_tasks() if task.get_name() == "fencing-redis"]
        opening.cancel()  # it is to take its first step next
        await first
        assert opening.cancelled()
        await pair(coordinator, "r")
        assert any_redis.client().get("r") is None

    run(story, any_redis.url)


def test_connecting_to_a_frozen_server_is_bounded(freezable_redis: RedisServer) -> None:

    async def main() -> None:
        coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(freezable_redis.url))
        freezable_redis.freeze()
        deadline = coordinator._backend.clock() + 0.2
        plan = coordinator._backend.plan_acquire(
            "r", "t" * 22, coordinator._backend.settings, floor=0, deadline=deadline
        )
        started = time.monotonic()
        with pytest.raises(CoordinatorUnavailable):
            await run_async(plan, coordinator._backend.perform)
        assert time.monotonic() - started < 10, "its time is 0.2 s"
        await coordinator.close()

    asyncio.run(main())
