"""Cancelled and interrupted requests. What they may have taken is given back.

The cancellation of holders and claims is tested in tests/locks/test_cancellation.py.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, RedisCoordinator
from fencing.redis.scripts import ACQUIRE, RELEASE
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.loops import until
from tests.support.redis_requests import asks_for
from tests.support.waiters import Queue


def run(url: str, story: Callable[[AsyncRedisCoordinator], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), **settings) as coordinator:
            await asyncio.wait_for(story(coordinator), 30)

    asyncio.run(main())


async def cancel(task: asyncio.Task[Any], times: int = 1) -> None:
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)  # so that each cancellation is delivered by itself
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_release_is_repeated_until_it_is_answered(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    client = any_redis.client()

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        lease = await coordinator.acquire("r")
        loss = through.drop_request_when(lambda request: asks_for(RELEASE, request), times=2)
        task = asyncio.create_task(lease.release())
        await until(lambda: loss.fired >= 1)
        await cancel(task, 3)
        assert client.get("r") is None, "the request is repeated until it is answered; then the task is cancelled"

    run(through.url(any_redis.url), story)


@pytest.mark.thorough
def test_an_acquire_that_is_cancelled_before_its_reply_gives_the_lock_back(
    any_redis: RedisServer, proxy: ProxyFactory
) -> None:
    """The request has arrived, and its reply has not: the task does not know that it holds the lock."""
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


def test_a_cancelled_waiter_leaves_no_key_behind(any_redis: RedisServer) -> None:
    queue = Queue(any_redis)

    async def story(coordinator: AsyncRedisCoordinator) -> None:
        holder = await coordinator.acquire("r")
        task = asyncio.create_task(coordinator.acquire("r"))
        await until(lambda: len(queue) == 1)
        await cancel(task)
        await until(lambda: len(queue) == 0)  # at once, or, if the request was under way, when its reply is here
        await holder.release()
        assert not queue.left_behind()

    run(any_redis.url, story)


@pytest.mark.thorough
def test_acquires_that_are_cancelled_at_any_moment_leave_no_lock_behind(any_redis: RedisServer) -> None:
    """asyncio.wait_for cancels many tasks, each at another moment."""
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


def test_an_interrupted_acquire_gives_the_lock_back(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    """Ctrl-C arrives while a thread waits for the reply."""
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
