"""A worker of a fleet, old or new, in a process of its own: `python -m tests.support.fleet_worker URL KIND`.

KIND is "old" (the lock of redis-py) or "new" (ours), with "-async" or without. Each line of the input is a command:
"try", "acquire", "release", or "count N": N times, under the lock, read a number, and write it back one higher.
After each it prints the result.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock

from fencing.compat import AsyncRedisPyLock, RedisPyLock

KINDS: dict[str, type] = {
    "old": redis.lock.Lock,
    "new": RedisPyLock,
    "old-async": redis.asyncio.lock.Lock,
    "new-async": AsyncRedisPyLock,
}
PAUSE = {"sleep": 0.002}
"""Between two tries of an old worker: with redis-py's 0.1 s it would hardly ever get the lock."""


def main(url: str, kind: str) -> None:
    asynchronous = kind.endswith("-async")
    loop = asyncio.new_event_loop()

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return loop.run_until_complete(_await(result)) if asynchronous else result

    client = (redis.asyncio.Redis if asynchronous else redis.Redis).from_url(url)
    options: dict[str, Any] = PAUSE if kind.startswith("old") else {}
    lock = client.lock("r", timeout=30, lock_class=KINDS[kind], **options)
    for line in sys.stdin:
        command, _, count = line.strip().partition(" ")
        if command == "count":
            for _ in range(int(count)):
                call(lock.acquire)
                number = int(call(client.get, "number") or 0)
                call(client.set, "number", number + 1)
                call(lock.release)
            result: Any = "counted"
        else:
            result = call(lock.acquire, blocking=False) if command == "try" else call(getattr(lock, command))
        sys.stdout.write(f"{result}\n")
        sys.stdout.flush()


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
