"""Clients of Valkey's own library are refused, with what to pass instead."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import (
    AsyncFencedLock,
    AsyncRedisCoordinator,
    AsyncRedlockCoordinator,
    FencedLock,
    RedisCoordinator,
    RedlockCoordinator,
)
from storage_guards import AsyncRedisGuard, RedisGuard

valkey: Any = pytest.importorskip("valkey")
pytest.importorskip("valkey.sentinel")
pytest.importorskip("valkey.asyncio.sentinel")

TAKERS: list[tuple[Any, str]] = [
    (RedisCoordinator, "redis.Redis"),
    (lambda client: FencedLock(client, "r"), "redis.Redis"),
    (lambda client: RedlockCoordinator([client] * 3, ttl=1, longest_ttl=1), "redis.Redis"),
    (RedisGuard, "redis.Redis"),
    (AsyncRedisCoordinator, "redis.asyncio.Redis"),
    (lambda client: AsyncFencedLock(client, "r"), "redis.asyncio.Redis"),
    (lambda client: AsyncRedlockCoordinator([client] * 3, ttl=1, longest_ttl=1), "redis.asyncio.Redis"),
    (AsyncRedisGuard, "redis.asyncio.Redis"),
]


@pytest.mark.parametrize(("take", "instead"), TAKERS)
def test_a_client_of_valkey_is_refused_with_what_to_pass(take: Any, instead: str) -> None:
    client = valkey.asyncio.Valkey() if "asyncio" in instead else valkey.Valkey()
    with pytest.raises(TypeError) as refused:
        take(client)
    assert f"redis-py works with a Valkey server: write {instead}(host=..., port=...)" in str(refused.value)
    with pytest.raises(TypeError, match=f"write {instead}\\(host"):
        take(client.pipeline())


@pytest.mark.parametrize(("take", "instead"), TAKERS)
def test_a_class_of_valkey_or_its_sentinel_is_refused_with_what_to_pass(take: Any, instead: str) -> None:
    package, home = instead.removesuffix(".Redis"), valkey.asyncio if "asyncio" in instead else valkey
    for kind, wanted in (("Valkey", instead), ("ValkeyCluster", f"{package}.RedisCluster")):
        with pytest.raises(TypeError, match=f"write {wanted}\\(host"):
            take(getattr(home, kind))
    with pytest.raises(TypeError, match=rf"write {package}.sentinel.Sentinel\(\.\.\.\).master_for\("):
        take(home.sentinel.Sentinel([("127.0.0.1", 1)]))
