"""A process of its own whose threads, or tasks, wait for a lock: `python -m tests.support.waiting_process`.

Arguments: URL, resource, "sync" or "async", how many wait, how many seconds each holds the lock, ttl. It prints
"granted" and the moment for each grant, and "lost" for each lease that was lost.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, LeaseLost, RedisCoordinator


def report(word: str) -> None:
    sys.stdout.write(f"{word} {time.monotonic()}\n")
    sys.stdout.flush()


def main(url: str, resource: str, kind: str, count: int, seconds: float, ttl: float) -> None:
    if kind == "async":
        asyncio.run(tasks(url, resource, count, seconds, ttl))
        return
    with RedisCoordinator(redis.Redis.from_url(url), ttl=ttl) as coordinator:

        def work() -> None:
            try:
                with coordinator.hold(resource):
                    report("granted")
                    time.sleep(seconds)
            except LeaseLost:
                report("lost")

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def tasks(url: str, resource: str, count: int, seconds: float, ttl: float) -> None:
    async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), ttl=ttl) as coordinator:

        async def work() -> None:
            try:
                async with coordinator.hold(resource):
                    report("granted")
                    await asyncio.sleep(seconds)
            except LeaseLost:
                report("lost")

        await asyncio.gather(*(work() for _ in range(count)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
