"""The contract of guards on data in a real Redis, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing.kernel.fence import Fence
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.testing import GuardContract


class TestRedisGuard(GuardContract):
    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> None:
        self.server = any_redis
        self.direct = any_redis.client()

    def make(self) -> Any:
        return RedisGuard(self.server.client())

    def read(self, resource: str) -> int:
        return int(self.direct.get(f"data:{resource}") or 0)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        return self.guard.write(fence, ("SET", f"data:{resource}", value), **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        self.direct.set(f"data:{resource}", value)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with self.guard.begin(fence, **options) as transaction:
            value = int(transaction.read("GET", f"data:{resource}") or 0)
            between()
            transaction.write("SET", f"data:{resource}", value + 1)


class TestAsyncRedisGuard(TestRedisGuard):
    def make(self) -> Any:
        return AsyncRedisGuard(redis.asyncio.Redis.from_url(self.server.url))

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as transaction:
            value = int(await transaction.read("GET", f"data:{resource}") or 0)
            await asyncio.to_thread(between)
            transaction.write("SET", f"data:{resource}", value + 1)
