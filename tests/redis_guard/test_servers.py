"""Servers and clients that cannot keep the promise of the Redis guard, and what the error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from fencing import (
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
)
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.redis.commands import MOST_DONE, done_key, mark_key
from tests.support.redis_guards import guard_of
from tests.support.sides import Side

MINE = Fence("orders:42", 5, "a" * 22)
NEWER = Fence("orders:42", 6, "b" * 22)
OTHER = Fence("orders:43", 5, "c" * 22)
SET_1, SET_2 = ("SET", "total", 1), ("SET", "total", 2)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "noeviction"])
def test_the_policy_of_eviction(side: Side, own_redis: RedisServer, policy: str) -> None:
    client = own_redis.client()
    client.config_set("maxmemory-policy", policy)
    guard = guard_of(side, own_redis.url)
    if policy.startswith("allkeys"):
        assert policy in str(side.expect(GuardNotEnforceable, guard.claim, MINE))
    else:
        side.call(guard.claim, MINE)


def test_a_server_without_memory_writes_nothing(side: Side, own_redis: RedisServer) -> None:
    client = own_redis.client()
    guard = guard_of(side, own_redis.url)
    side.call(guard.claim, MINE)
    client.config_set("maxmemory", 1)
    try:
        assert "raise its maxmemory" in str(side.expect(GuardUnavailable, guard.write, MINE, SET_1))
    finally:
        client.config_set("maxmemory", 0)
    assert client.get("total") is None
    side.call(guard.write, MINE, SET_1)


def test_other_data_under_the_key_of_the_mark(side: Side, any_redis: RedisServer) -> None:
    client, guard = any_redis.client(), guard_of(side, any_redis.url)
    client.set(mark_key("orders:42"), "x")
    side.expect(GuardNotEnforceable, guard.claim, MINE)
    client.delete(mark_key("orders:42"))
    client.hset(mark_key("orders:42"), "number", "5")
    assert "damaged" in str(side.expect(GuardNotEnforceable, guard.write, MINE, SET_1))


LACKS = {("the marks' keys", "fencing:*"), ("the data's keys", "total")}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guards" / "redis.md"
ALLOWED = [f"+{command}" for command in ["SET", "EVAL", "EVALSHA", "HMGET", "HSET", "HINCRBY", "HGET", "INFO"]]


@pytest.mark.parametrize("missing", [None, "+EVALSHA", "+INFO", "+HSET", "the marks' keys", "the data's keys"])
def test_the_permissions_of_the_page_are_needed_and_enough(
    side: Side, own_redis: RedisServer, missing: str | None
) -> None:
    admin: Any = own_redis.client()
    keys = [key for key in ("fencing:*", "total") if (missing, key) not in LACKS]
    commands = [command for command in ALLOWED if command != missing]
    admin.acl_setuser("worker", enabled=True, nopass=True, reset=True, keys=keys, commands=commands)
    guard = guard_of(side, own_redis.url, username="worker", password="")
    if missing is None:
        side.call(guard.write, MINE, SET_1, claim=True)
        assert all(f"`{command[1:]}`" in PAGE.read_text("utf-8") for command in ALLOWED[1:])
        return
    refused = str(side.expect(GuardNotEnforceable, guard.write, MINE, SET_1, claim=True))
    assert "docs/guards/redis.md" in refused
    assert "nothing was written" in refused
    assert admin.get("total") is None


FOR_ONCE = ["+TIME", "+HLEN", "+HKEYS", "+HDEL"]


@pytest.mark.parametrize("missing", [None, *FOR_ONCE])
def test_what_is_done_once_needs_more(side: Side, own_redis: RedisServer, missing: str | None) -> None:
    admin: Any = own_redis.client()
    commands = [command for command in [*ALLOWED, *FOR_ONCE] if command != missing]
    admin.acl_setuser("worker", enabled=True, nopass=True, reset=True, keys=["fencing:*", "total"], commands=commands)
    admin.hset(done_key("orders:42"), mapping={f"{number}": "1 1 a" for number in range(MOST_DONE)})
    guard = guard_of(side, own_redis.url, username="worker", password="")
    if missing is None:
        side.call(guard.write, MINE, SET_1, claim=True, once="x")
        assert all(f"`{command[1:]}`" in PAGE.read_text("utf-8") for command in FOR_ONCE)
        return
    refused = str(side.expect(GuardNotEnforceable, guard.write, MINE, SET_1, claim=True, once="x"))
    assert "docs/guards/redis.md" in refused
    assert (admin.get("total"), admin.hexists(done_key("orders:42"), "x")) == (None, False)


def test_clients_of_the_wrong_kind(any_redis: RedisServer) -> None:
    for guard, client, hint in (
        (RedisGuard, redis.asyncio.Redis(), "AsyncRedisGuard"),
        (AsyncRedisGuard, redis.Redis(), "RedisGuard"),
        (RedisGuard, any_redis.url, "write redis.Redis.from_url"),
        (AsyncRedisGuard, any_redis.url, "write redis.asyncio.Redis.from_url"),
        (RedisGuard, redis.asyncio.Redis(), "not redis.asyncio.client.Redis; "),
        (RedisGuard, any_redis.client().pipeline(), "Pipeline"),
        (RedisGuard, object.__new__(redis.cluster.ClusterPipeline), "Pipeline"),
    ):
        with pytest.raises(TypeError, match=hint):
            guard(client)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        RedisGuard(any_redis.client(), timeout=0)
