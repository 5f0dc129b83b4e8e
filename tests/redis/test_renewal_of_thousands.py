"""Five thousand leases of a few seconds in one process: none is lost, and there is time left for work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, RedisCoordinator
from tests.support.load import starved

LEASES = 5000
TTL = 6.0
SECONDS = 10.0

pytestmark = pytest.mark.thorough


def all_are_held(leases: Sequence[Any]) -> None:
    """They are renewed in time by a process that has a CPU for itself."""
    if lost := sum(not lease.held for lease in leases):
        starved(f"{lost} of {LEASES} leases with a ttl of {TTL} s were not renewed in time")


def report(capsys: pytest.CaptureFixture[str], kind: str, busy: float) -> None:
    with capsys.disabled():
        print(f"\n{LEASES} leases of {TTL} s ({kind}): renewing took {busy:.1%} of a core", end=" ")


def test_threads(any_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        leases = [coordinator.acquire(f"r{number}") for number in range(LEASES)]
        before = time.process_time()
        time.sleep(SECONDS)
        busy = (time.process_time() - before) / SECONDS
        all_are_held(leases)
        assert all(lease.release() for lease in leases)
    report(capsys, "threads", busy)
    assert busy < 0.5


def test_asyncio(any_redis: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> float:
        client = redis.asyncio.Redis.from_url(any_redis.url)
        async with AsyncRedisCoordinator(client, ttl=TTL) as coordinator:
            leases = [await coordinator.acquire(f"r{number}") for number in range(LEASES)]
            before = time.process_time()
            await asyncio.sleep(SECONDS)
            busy = (time.process_time() - before) / SECONDS
            all_are_held(leases)
            for lease in leases:
                assert await lease.release()
        return busy

    busy = asyncio.run(main())
    report(capsys, "asyncio", busy)
    assert busy < 0.5
