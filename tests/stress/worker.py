"""A process of the stress: threads, or tasks, that acquire and release until a line comes on its standard input.

Arguments: URL, "threads" or "tasks", seed, names of the resources with blanks between them. It writes what it was
granted: name, number, ticket or "-", when it waited from, when it was granted, when it released, and whether the lease
was held until then.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from typing import Any

import redis
import redis.asyncio

from fencing import AsyncCoordinator, AsyncLease, Coordinator, CoordinatorUnavailable, NotAcquired
from fencing.kernel.effects import Plan
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant
from fencing.redis.coordinator import RedisBackend
from fencing.redis.coordinator_async import AsyncRedisBackend
from fencing.redis.plans import RedisPlans

WORKERS = 4
TTL = 1.0


class Noting(RedisPlans):
    """Notes with which ticket each number was granted."""

    tickets: dict[int, str]

    def plan_acquire(self, *args: Any, **options: Any) -> Plan[Grant | Taken]:
        reply = yield from super().plan_acquire(*args, **options)
        if isinstance(reply, Grant):
            self.tickets[reply.number] = "-"
        return reply

    def plan_queue(self, *args: Any, **options: Any) -> Plan[Grant | Taken]:
        place = options.get("place")
        reply = yield from super().plan_queue(*args, **options)
        if isinstance(reply, Grant):
            self.tickets[reply.number] = place.ticket if place is not None else "-"
        return reply


class ThreadBackend(Noting, RedisBackend):
    pass


class TaskBackend(Noting, AsyncRedisBackend):
    pass


class Log:
    def __init__(self, names: list[str], seed: str) -> None:
        self.chance = random.Random(seed)
        self.names = names
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    def wish(self) -> tuple[str, float | None, float]:
        """Return a resource, how long to wait for it, and how long to hold it."""
        name = self.chance.choice(self.names)
        timeout = self.chance.choice([None, None, None, 0.0, 0.01, 0.1])
        return name, timeout, self.chance.choice([0.0, 0.001, 0.003])

    def granted(
        self,
        backend: Noting,
        lease: Any,
        began: float,
        got: float,
        left: float,
        held: bool,
    ) -> None:
        ticket = backend.tickets.pop(lease.fence.number, "-")
        words = [lease.fence.resource, lease.fence.number, ticket, began, got, left, int(held)]
        with self._lock:
            sys.stdout.write(" ".join(map(str, words)) + "\n")
            sys.stdout.flush()


def with_threads(url: str, log: Log) -> None:
    backend = ThreadBackend(redis.Redis.from_url(url), clock_floor=True, replicas=0)
    backend.tickets = {}
    coordinator = Coordinator(backend, ttl=TTL)

    def work() -> None:
        while not log.stopping.is_set():
            name, timeout, seconds = log.wish()
            began = time.monotonic()
            try:
                lease = coordinator.acquire(name, timeout)
            except (NotAcquired, CoordinatorUnavailable):
                continue  # cut off, or stopped, for as long as it would wait
            got = time.monotonic()
            time.sleep(seconds)
            left = time.monotonic()
            try:
                held = lease.release()
            except CoordinatorUnavailable:
                held = False
            log.granted(backend, lease, began, got, left, held)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    log.stopping.set()
    for thread in threads:
        thread.join()
    coordinator.close()


async def released(lease: AsyncLease) -> bool:
    try:
        return await lease.release()
    except CoordinatorUnavailable:
        return False


async def with_tasks(url: str, log: Log) -> None:
    backend = TaskBackend(redis.asyncio.Redis.from_url(url), clock_floor=True, replicas=0)
    backend.tickets = {}
    coordinator = AsyncCoordinator(backend, ttl=TTL)
    async with coordinator:

        async def work() -> None:
            while not log.stopping.is_set():
                name, timeout, seconds = log.wish()
                began = time.monotonic()
                try:
                    if timeout == 0.01:  # cancelled, at any moment
                        lease = await asyncio.wait_for(coordinator.acquire(name), timeout)
                    else:
                        lease = await coordinator.acquire(name, timeout)
                except (TimeoutError, NotAcquired, CoordinatorUnavailable):
                    continue
                got = time.monotonic()
                await asyncio.sleep(seconds)
                left = time.monotonic()
                log.granted(backend, lease, began, got, left, await released(lease))

        async def stop() -> None:
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            log.stopping.set()

        await asyncio.gather(stop(), *(work() for _ in range(WORKERS)))


if __name__ == "__main__":
    if sys.argv[2] == "threads":
        with_threads(sys.argv[1], Log(sys.argv[4].split(), sys.argv[3]))
    else:
        asyncio.run(with_tasks(sys.argv[1], Log(sys.argv[4].split(), sys.argv[3])))
