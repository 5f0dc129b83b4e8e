"""A replica of a service that elects a leader: `python -m tests.support.replica URL NAME ttl sync|async [HANDLER]`.

It prints "campaigns", "leads NUMBER" for each term, "refused" when a guard refuses the leader, and "ends" before it
ends by itself. HANDLER is what it has for SIGTERM before `on_sigterm`: "exit" ends it in Python, "goes-on" ends
nothing. With "hangs" it ends nothing either, and its leader writes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from types import FrameType

import redis
import redis.asyncio

from fencing import AsyncLease, AsyncRedisCoordinator, Lease, RedisCoordinator, StaleFence, on_sigterm
from storage_guards import AsyncRedisGuard, RedisGuard

COUNT = "{scheduler}:ticks"
TICK_SECONDS = 0.05
HANGS = "hangs" in sys.argv


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def handle(number: int, frame: FrameType | None) -> None:
    say("handler")
    if "exit" in sys.argv:
        sys.exit(7)


def main(url: str, name: str, ttl: float) -> None:
    client = redis.Redis.from_url(url)
    guard = RedisGuard(client)
    coordinator = RedisCoordinator(client, ttl=ttl, guards=[guard])
    on_sigterm(coordinator)
    election = coordinator.election("scheduler", value=name)

    def lead(lease: Lease) -> None:
        say("leads", lease.fence.number)
        while HANGS or not election.stopped:
            try:
                guard.write(lease.fence, ("INCR", COUNT))  # the fence alone: nothing here knows that the lease is over
            except StaleFence:
                say("refused")
                if not HANGS:
                    raise
            time.sleep(TICK_SECONDS)

    say("campaigns")
    election.run(lead)
    say("ends")


async def main_async(url: str, name: str, ttl: float) -> None:
    client = redis.asyncio.Redis.from_url(url)
    guard = AsyncRedisGuard(client)
    async with AsyncRedisCoordinator(client, ttl=ttl, guards=[guard]) as coordinator:
        on_sigterm(coordinator)
        election = coordinator.election("scheduler", value=name)

        async def lead(lease: AsyncLease) -> None:
            say("leads", lease.fence.number)
            while True:
                try:
                    await guard.write(lease.fence, ("INCR", COUNT))
                except StaleFence:
                    say("refused")
                    raise
                await asyncio.sleep(TICK_SECONDS)

        say("campaigns")
        await election.run(lead)
        say("ends")


if __name__ == "__main__":
    url, name, ttl, kind = sys.argv[1:5]
    if len(sys.argv) > 5:
        signal.signal(signal.SIGTERM, handle)
    if kind == "async":
        asyncio.run(main_async(url, name, float(ttl)))
    else:
        main(url, name, float(ttl))
