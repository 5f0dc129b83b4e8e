"""Every coordinator behaviour, sync and async, on each Redis there is, and in memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncMemoryCoordinator, AsyncRedisCoordinator, LockTable, MemoryCoordinator, RedisCoordinator
from fencing.testing import CoordinatorContract


class _OnRedis(CoordinatorContract):
    url: str

    def connect(self, url: str, **settings: Any) -> Any:
        raise AssertionError("override connect()")

    def make(self, **settings: Any) -> Any:
        return self.connect(self.url, **settings)

    def make_unreachable(self, **settings: Any) -> Any:
        return self.connect(self.silent, **settings)

    @pytest.fixture(autouse=True)
    def _silent(self) -> Iterator[None]:
        with socket.socket() as silent:  # which is connected to, and never answers
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            self.silent = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            yield


class _OnEachRedis(_OnRedis):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url


class _OnNewestRedis(_OnRedis):
    """For what concerns the client alone."""

    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> None:
        self.url = any_redis.url


class TestRedisCoordinator(_OnEachRedis):
    def connect(self, url: str, **settings: Any) -> RedisCoordinator:
        return RedisCoordinator(redis.Redis.from_url(url), **settings)


class TestAsyncRedisCoordinator(_OnEachRedis):
    def connect(self, url: str, **settings: Any) -> AsyncRedisCoordinator:
        return AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), **settings)


class TestRedisCoordinatorDecodingResponses(_OnNewestRedis):
    def connect(self, url: str, **settings: Any) -> RedisCoordinator:
        return RedisCoordinator(redis.Redis.from_url(url, decode_responses=True, encoding="latin-1"), **settings)


class TestAsyncRedisCoordinatorWithoutClockFloor(_OnNewestRedis):
    def connect(self, url: str, **settings: Any) -> AsyncRedisCoordinator:
        client = redis.asyncio.Redis.from_url(url, decode_responses=True)
        return AsyncRedisCoordinator(client, clock_floor=False, **settings)


class TestMemoryCoordinator(CoordinatorContract):
    table = LockTable()

    def make(self, **options: Any) -> MemoryCoordinator:
        return MemoryCoordinator(self.table, **options)


class TestAsyncMemoryCoordinator(CoordinatorContract):
    table = LockTable()

    def make(self, **options: Any) -> AsyncMemoryCoordinator:
        return AsyncMemoryCoordinator(self.table, **options)
