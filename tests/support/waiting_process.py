"""A process of its own whose threads, or tasks, wait for a lock: `python -m tests.support.waiting_process`.

Arguments: URL, resource, "sync" or "async", how many wait, how many seconds each holds the lock, ttl, max_waiters or 0.
It prints "granted" and the moment for each grant, "lost" for each lease that was lost, and "refused" for each waiter.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, LeaseLost, NotAcquired, RedisCoordinator


def report(word: str) -> None:
    sys.stdout.write(f"{word} {time.monotonic()}\n")
    sys.stdout.flush()


def main(url: str, resource: str, kind: str, count: int, seconds: float, ttl: float, limit: int | None) -> None:
    if kind == "async":
        asyncio.run(tasks(url, resource, count, seconds, ttl, limit))
        return
    with RedisCoordinator(redis.Redis.from_url(url), ttl=ttl, max_waiters=limit) as coordinator:

        def work() -> None:
            try:
                with coordinator.hold(resource):
                    report("granted")
                    time.sleep(seconds)
            except LeaseLost:
                report("lost")
            except NotAcquired:
                report("refused")

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def tasks(url: str, resource: str, count: int, seconds: float, ttl: float, limit: int | None) -> None:
    client = redis.asyncio.Redis.from_url(url)
    async with AsyncRedisCoordinator(client, ttl=ttl, max_waiters=limit) as coordinator:

        async def work() -> None:
            try:
                async with coordinator.hold(resource):
                    report("granted")
                    await asyncio.sleep(seconds)
            except LeaseLost:
                report("lost")
            except NotAcquired:
                report("refused")

        await asyncio.gather(*(work() for _ in range(count)))


if __name__ == "__main__":
    url, resource, kind, count, seconds, ttl, limit = sys.argv[1:]
    main(url, resource, kind, int(count), float(seconds), float(ttl), int(limit) or None)
