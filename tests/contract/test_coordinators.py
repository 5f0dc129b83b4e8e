"""Every coordinator behaviour, sync and async, on each Redis there is, and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncMemoryCoordinator, AsyncRedisCoordinator, LockTable, MemoryCoordinator, RedisCoordinator
from fencing.testing import CoordinatorContract


class _OnRedis(CoordinatorContract):
    def connect(self, **settings: Any) -> Any:
        raise AssertionError("override connect()")

    def make(self, **settings: Any) -> Any:
        self.made.append(self.connect(**settings))
        return self.made[-1]

    def use(self, server: RedisServer) -> Iterator[None]:
        self.url = server.url
        self.made: list[Any] = []
        yield
        for coordinator in self.made:
            self.call(coordinator.close)


class _OnEachRedis(_OnRedis):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> Iterator[None]:
        yield from self.use(redis_server)


class _OnNewestRedis(_OnRedis):
    """For what concerns the client alone."""

    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> Iterator[None]:
        yield from self.use(any_redis)


class TestRedisCoordinator(_OnEachRedis):
    def connect(self, **settings: Any) -> RedisCoordinator:
        return RedisCoordinator(redis.Redis.from_url(self.url), **settings)


class TestAsyncRedisCoordinator(_OnEachRedis):
    def connect(self, **settings: Any) -> AsyncRedisCoordinator:
        return AsyncRedisCoordinator(redis.asyncio.Redis.from_url(self.url), **settings)


class TestRedisCoordinatorDecodingResponses(_OnNewestRedis):
    def connect(self, **settings: Any) -> RedisCoordinator:
        return RedisCoordinator(redis.Redis.from_url(self.url, decode_responses=True, encoding="latin-1"), **settings)


class TestAsyncRedisCoordinatorWithoutClockFloor(_OnNewestRedis):
    def connect(self, **settings: Any) -> AsyncRedisCoordinator:
        client = redis.asyncio.Redis.from_url(self.url, decode_responses=True)
        return AsyncRedisCoordinator(client, clock_floor=False, **settings)


class TestMemoryCoordinator(CoordinatorContract):
    table = LockTable()

    def make(self, **options: Any) -> MemoryCoordinator:
        return MemoryCoordinator(self.table, **options)


class TestAsyncMemoryCoordinator(CoordinatorContract):
    table = LockTable()

    def make(self, **options: Any) -> AsyncMemoryCoordinator:
        return AsyncMemoryCoordinator(self.table, **options)
