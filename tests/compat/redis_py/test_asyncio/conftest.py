"""The fixtures of redis-py's tests of its lock for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio

CreateRedis = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture(params=["single", "pool"])
async def create_redis(request: pytest.FixtureRequest) -> AsyncIterator[CreateRedis]:
    """Makes clients, with one connection or with a pool."""
    made: list[Any] = []

    async def create(**options: Any) -> Any:
        client = redis.asyncio.Redis.from_url(request.config.getoption("--redis-url"), **options)
        made.append(client)
        if request.param == "single":
            client = client.client()
            await client.initialize()
            made.append(client)
        return client

    yield create
    for client in reversed(made):
        await client.flushdb()
        await client.aclose()


@pytest_asyncio.fixture
async def r(create_redis: CreateRedis) -> Any:
    return await create_redis()
