"""Under trio: the async classes refuse in words, before they ask for anything, and the sync ones work in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import redis
import redis.asyncio
from obstore.store import MemoryStore
from sqlalchemy.ext.asyncio import create_async_engine

from examples.servers import RedisServer
from fencing import (
    AsyncMemoryCoordinator,
    AsyncRedisCoordinator,
    AsyncRedlockCoordinator,
    AsyncSQLCoordinator,
    Fence,
    MemoryCoordinator,
    RedisCoordinator,
)
from storage_guards import (
    AsyncFileGuard,
    AsyncHTTPGuard,
    AsyncObjectStoreGuard,
    AsyncPsycopgGuard,
    AsyncRedisGuard,
    AsyncSQLAlchemyGuard,
    FileGuard,
)

pytestmark = pytest.mark.thorough

trio = pytest.importorskip("trio")

FENCE = Fence("orders:42", 7, "t" * 22)


async def no_connection() -> psycopg.AsyncConnection[Any]:
    raise AssertionError("it was asked for a connection")


@pytest.fixture
def coordinators(any_redis: RedisServer, tmp_path: Path) -> dict[str, Any]:
    clients = [redis.asyncio.Redis.from_url(f"redis://127.0.0.1:{port}") for port in (any_redis.port, 1, 2, 3)]
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/locks.db")
    return {
        "memory": AsyncMemoryCoordinator(ttl=10),
        "redis": AsyncRedisCoordinator(clients[0], ttl=10),
        "redlock": AsyncRedlockCoordinator(clients[1:], ttl=10),
        "sql": AsyncSQLCoordinator(engine, ttl=10),
    }


@pytest.fixture
def guards(any_redis: RedisServer, tmp_path: Path) -> dict[str, Any]:
    return {
        "sqlalchemy": AsyncSQLAlchemyGuard(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")),
        "psycopg": AsyncPsycopgGuard(no_connection),
        "redis": AsyncRedisGuard(redis.asyncio.Redis.from_url(any_redis.url)),
        "objects": AsyncObjectStoreGuard(MemoryStore()),
        "files": AsyncFileGuard(tmp_path),
        "http": AsyncHTTPGuard("http://127.0.0.1:9/fences", httpx2.AsyncClient()),
    }


def refusal(call: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(RuntimeError) as raised:
        trio.run(call)
    return str(raised.value)


@pytest.mark.parametrize("kind", ["memory", "redis", "redlock", "sql"])
def test_a_coordinator(coordinators: dict[str, Any], kind: str) -> None:
    coordinator = coordinators[kind]

    async def hold() -> None:
        async with coordinator.hold("orders:42", timeout=1):
            raise AssertionError("it holds")

    async def hold_several() -> None:
        async with coordinator.hold_all(["a", "b"], timeout=1):
            raise AssertionError("it holds")

    async def use() -> None:
        async with coordinator:
            raise AssertionError("it is open")

    for call in (
        use,
        coordinator.close,
        hold,
        hold_several,
        lambda: coordinator.acquire("orders:42", timeout=1),
        lambda: coordinator.holder("orders:42"),
        lambda: coordinator.force_release("orders:42"),
    ):
        assert "trio.to_thread.run_sync" in refusal(call)


def test_nothing_was_taken() -> None:
    coordinator = AsyncMemoryCoordinator(ttl=10)
    refusal(lambda: coordinator.acquire("orders:42"))
    assert MemoryCoordinator(coordinator.table, ttl=10).holder("orders:42") is None


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg", "redis", "objects", "files", "http"])
def test_a_guard(guards: dict[str, Any], kind: str) -> None:
    guard = guards[kind]

    async def begin() -> None:
        async with guard.begin(FENCE):
            raise AssertionError("it is a transaction")

    calls = [lambda: guard.claim(FENCE), lambda: guard.mark("orders:42")]
    for call in [*calls, begin] if hasattr(guard, "begin") else calls:
        assert "no event loop of asyncio" in refusal(call)


def test_as_the_error_says(any_redis: RedisServer, tmp_path: Path) -> None:
    """A block of the sync classes in one thread, and several of them at a time."""
    client = redis.Redis.from_url(any_redis.url)
    coordinator, guard = RedisCoordinator(client, ttl=10), FileGuard(tmp_path)

    def add() -> None:
        with coordinator.hold("total", timeout=60) as lease:
            guard.claim(lease)
            guard.write(lease, str(int(guard.read("total") or b"0") + 1).encode())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(trio.to_thread.run_sync, add)

    trio.run(main)
    assert guard.read("total") == b"8"
    client.close()
