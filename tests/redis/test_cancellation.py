"""Cancelled tasks give back what they hold, and what they were just being granted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, GuardUnavailable, RedisCoordinator
from fencing.kernel.fence import Fence, HasFence
from fencing.redis.scripts import ACQUIRE, RELEASE
from tests.redis.test_lost_replies import asks_for
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.waiters import Queue


def run(url: str, story: Callable[[AsyncRedisCoordinator], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), **settings) as coordinator:
            await asyncio.wait_for(story(coordinator), 30)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def cancel(task: asyncio.Task[Any], times: int = 1) -> None:
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)  # so that each cancellation is delivered by itself
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("times", [1, 2, 5])
def test_cancelling_the_holder_releases(any_redis: RedisServer, times: int) -> None:
    client = any_redis.client()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        async def work() -> None:
            async with coordinator.hold("r"):
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await until(lambda: client.get("r") is not None)
        await cancel(task, times)
        assert client.get("r") is None

    run(any_redis.url, story)


def test_cancelling_during_a_slow_release_does_not_lose_it(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    client = any_redis.client()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        lease = await coordinator.acquire("r")
        loss = through.drop_request_when(lambda request: asks_for(RELEASE, request), times=2)
        task = asyncio.create_task(lease.release())
        await until(lambda: loss.fired >= 1)
        await cancel(task, 3)
        assert client.get("r") is None, "it was repeated until it was done, and only then was the task cancelled"

    run(through.url(any_redis.url), story)


def test_cancelling_an_acquire_that_is_just_being_granted(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    """The request has arrived, the reply has not: who is cancelled now holds a lock and does not know it."""
    through = proxy(any_redis)
    client = any_redis.client()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        await (await coordinator.acquire("warm")).release()
        hold = through.hold_reply_when(lambda request: asks_for(ACQUIRE, request))
        task = asyncio.create_task(coordinator.acquire("r"))
        await until(lambda: client.get("r") is not None)
        assert hold.fired == 1
        await cancel(task)
        through.restore()
        await until(lambda: client.get("r") is None)

    run(through.url(any_redis.url), story, ttl=60)


def test_cancelling_a_waiter_leaves_nothing(any_redis: RedisServer) -> None:
    queue = Queue(any_redis)

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        holder = await coordinator.acquire("r")
        task = asyncio.create_task(coordinator.acquire("r"))
        await until(lambda: len(queue) == 1)
        await cancel(task)
        assert len(queue) == 0
        await holder.release()
        assert not queue.left_behind()

    run(any_redis.url, story)


class SlowGuard:
    """Its claim takes until the end of time, or fails."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.error: Exception | None = None

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        self.entered.set()
        if self.error is not None:
            raise self.error
        await asyncio.sleep(60)

    async def mark(self, resource: str) -> None:
        return None


@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_while_a_guard_claims_gives_the_lock_back(any_redis: RedisServer, times: int) -> None:
    client = any_redis.client()

    async def main() -> None:
        guard = SlowGuard()
        connection = redis.asyncio.Redis.from_url(any_redis.url)
        async with AsyncRedisCoordinator(connection, guards=[guard], ttl=60) as coordinator:
            task = asyncio.create_task(coordinator.acquire("r"))
            await asyncio.wait_for(guard.entered.wait(), 10)
            assert client.get("r") is not None
            await cancel(task, times)
            assert client.get("r") is None
            guard.error = GuardUnavailable("away")
            with pytest.raises(GuardUnavailable):
                await coordinator.acquire("r")
            assert client.get("r") is None

    asyncio.run(main())


def test_cancelling_again_while_the_lock_is_given_back(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    client = any_redis.client()

    async def main() -> None:
        guard = SlowGuard()
        connection = redis.asyncio.Redis.from_url(through.url(any_redis.url))
        async with AsyncRedisCoordinator(connection, guards=[guard], ttl=60) as coordinator:
            task = asyncio.create_task(coordinator.acquire("r"))
            await asyncio.wait_for(guard.entered.wait(), 10)
            loss = through.drop_request_when(lambda request: asks_for(RELEASE, request), times=2)
            task.cancel()
            await until(lambda: loss.fired >= 1)
            await cancel(task, 3)
            assert client.get("r") is None

    asyncio.run(main())


def test_a_time_out_around_acquire_gives_back(any_redis: RedisServer) -> None:
    """asyncio.wait_for cancels: many tasks, each cancelled at another moment, leave no lock behind."""
    client = any_redis.client()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        async def attempt(number: int) -> bool:
            try:
                lease = await asyncio.wait_for(coordinator.acquire(f"r{number}"), 0.0002 * (number % 40))
            except TimeoutError:
                return True
            await lease.release()
            return False

        cancelled = await asyncio.gather(*(attempt(number) for number in range(200)))
        assert any(cancelled)
        await until(lambda: not client.keys("r*"))

    run(any_redis.url, story, ttl=60)


def test_interrupting_a_thread_that_acquires(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    """Ctrl-C while the reply is awaited, sync: the same undo."""
    through = proxy(any_redis)
    client = any_redis.client()
    with RedisCoordinator(redis.Redis.from_url(through.url(any_redis.url)), ttl=60) as coordinator:
        coordinator.acquire("warm").release()
        through.hold_reply_when(lambda request: asks_for(ACQUIRE, request))

        def interrupt() -> None:
            wait_until(lambda: client.get("r") is not None)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            through.restore()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            coordinator.acquire("r")
        thread.join()
        wait_until(lambda: client.get("r") is None)
