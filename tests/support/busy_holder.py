"""A process whose tasks take one lock after the other: `python -m tests.support.busy_holder URL [hangs]`.

It prints "works". With "hangs" its event loop then stands still, for longer than any test lasts.
"""

from __future__ import annotations

import asyncio
import sys
import time

import redis.asyncio

from fencing import AsyncRedisCoordinator, on_sigterm

TTL = 300.0


async def main(url: str) -> None:
    coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), ttl=TTL)
    on_sigterm(coordinator)

    async def work(number: int) -> None:
        while True:
            async with coordinator.hold(f"busy:{number}"):
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(work(number))
        await asyncio.sleep(0.1)
        print("works", flush=True)
        if "hangs" in sys.argv:
            time.sleep(600)  # noqa: ASYNC251 - it hangs


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
