"""A process that holds a lock until it is lost: `python -m tests.support.stopped_holder URL ttl sync|async`.

It prints "held", and then the error's text.
"""

from __future__ import annotations

import asyncio
import sys

import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, LeaseLost, RedisCoordinator


def main(url: str, ttl: float) -> None:
    lease = RedisCoordinator(redis.Redis.from_url(url), ttl=ttl).acquire("r")
    print("held", flush=True)
    lease.lost.wait(60)
    try:
        lease.ensure_held()
    except LeaseLost as error:
        print(error, flush=True)


async def main_async(url: str, ttl: float) -> None:
    lease = await AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), ttl=ttl).acquire("r")
    print("held", flush=True)
    await asyncio.wait_for(lease.lost.wait(), 60)
    try:
        lease.ensure_held()
    except LeaseLost as error:
        print(error, flush=True)


if __name__ == "__main__":
    if sys.argv[3] == "async":
        asyncio.run(main_async(sys.argv[1], float(sys.argv[2])))
    else:
        main(sys.argv[1], float(sys.argv[2]))
