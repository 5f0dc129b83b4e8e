"""The contract of guards on data in a real Redis, sync and async; in the thorough run on each version there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing.kernel.fence import Fence
from storage_guards import AsyncRedisGuard
from tests.support.redis_guards import RedisGuardContract


class TestRedisGuard(RedisGuardContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        self.direct = redis_server.client()


class TestAsyncRedisGuard(TestRedisGuard):
    def make(self) -> Any:
        return AsyncRedisGuard(redis.asyncio.Redis.from_url(self.server.url))

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as transaction:
            value = int(await transaction.read("GET", f"data:{resource}") or 0)
            await asyncio.to_thread(between)
            transaction.write("SET", f"data:{resource}", value + 1)
