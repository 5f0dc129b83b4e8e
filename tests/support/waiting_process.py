"""A process of its own whose threads, or tasks, wait for a lock: `python -m tests.support.waiting_process`.

Arguments: URL, resource, "sync" or "async", how many wait, how many seconds each holds the lock, ttl. It says "got"
and the moment, for each grant, and "lost" when a lease turns out to be lost.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, LeaseLost, RedisCoordinator


def say(word: str) -> None:
    sys.stdout.write(f"{word} {time.monotonic()}\n")
    sys.stdout.flush()


def main(url: str, resource: str, colour: str, count: int, seconds: float, ttl: float) -> None:
    if colour == "async":
        asyncio.run(tasks(url, resource, count, seconds, ttl))
        return
    with RedisCoordinator(redis.Redis.from_url(url), ttl=ttl) as coordinator:

        def work() -> None:
            try:
                with coordinator.hold(resource):
                    say("got")
                    time.sleep(seconds)
            except LeaseLost:
                say("lost")

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
                    say("got")
                    await asyncio.sleep(seconds)
            except LeaseLost:
                say("lost")

        await asyncio.gather(*(work() for _ in range(count)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
