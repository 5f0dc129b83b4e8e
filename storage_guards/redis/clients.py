"""The clients that a Redis guard takes, and the connections of its own to the same servers."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from fencing.redis.client import Connections
from fencing.redis.client_async import AsyncConnections
from fencing.redis.cluster.client import ClusterConnections
from fencing.redis.cluster.client_async import AsyncClusterConnections
from fencing.redis.connection_factory import PIPELINES, hint_of_valkey

CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)


def check_client(client: object, *, asynchronous: bool) -> None:
    """Raise TypeError if ``client`` is no client of redis-py of the wanted kind."""
    wanted = (redis.asyncio.Redis, redis.asyncio.RedisCluster) if asynchronous else (redis.Redis, redis.RedisCluster)
    if isinstance(client, wanted) and not isinstance(client, PIPELINES):
        return
    guard, name = ("AsyncRedisGuard", "redis.asyncio.Redis") if asynchronous else ("RedisGuard", "redis.Redis")
    hint = hint_of_valkey(client, name)
    if isinstance(client, PIPELINES):
        hint = "; pass the client that made the pipeline"
    elif isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        hint = "; for asyncio use AsyncRedisGuard"
    elif isinstance(client, (redis.Redis, redis.RedisCluster)):
        hint = "; for threads use RedisGuard"
    elif isinstance(client, str):
        hint = f"; write {name}.from_url(...)"
    kind = type(client)
    raise TypeError(f"{guard} takes a {name} or RedisCluster, not {kind.__module__}.{kind.__name__}{hint}")


def connections_of(client: Any) -> Any:
    """Return the connections of a guard over this client. They are those that coordinators use, but its own."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return AsyncClusterConnections(client)
    if isinstance(client, redis.RedisCluster):
        return ClusterConnections(client)
    return (AsyncConnections if isinstance(client, redis.asyncio.Redis) else Connections)(client)
