"""The checks of the arguments of both coordinators of Redis."""

from __future__ import annotations

import redis
import redis.asyncio

from fencing.redis.connection_factory import PIPELINES, hint_of_valkey


def check_replicas(replicas: object, client: object) -> int:
    """Return ``replicas`` if it is a number that the client's service can wait for; raise otherwise."""
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise TypeError(f"replicas must be an int, not {type(replicas).__name__}")
    if replicas < 0:
        raise ValueError(f"replicas must not be negative, not {replicas}; 0 waits for none")
    if replicas and isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)):
        raise ValueError("replicas is for one server or Sentinel; a Cluster waits for none: remove it")
    return replicas


def check_client(client: object, wanted: tuple[type, type], coordinator: str) -> None:
    """Raise TypeError, with what to do instead, if a coordinator does not take this client."""
    if isinstance(client, wanted) and not isinstance(client, PIPELINES):
        return
    package = "redis.asyncio" if "asyncio" in wanted[0].__module__ else "redis"
    hint = hint_of_valkey(client, f"{package}.Redis")
    if isinstance(client, type) and not hint:
        raise TypeError(f"{coordinator} takes a client, not the class {client.__name__}; write {client.__name__}(...)")
    if isinstance(client, PIPELINES):
        hint = "; pass the client that made the pipeline"
    elif isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        hint = "; for asyncio use AsyncRedisCoordinator or AsyncFencedLock"
    elif isinstance(client, (redis.Redis, redis.RedisCluster)):
        hint = "; for threads use RedisCoordinator or FencedLock"
    elif isinstance(client, str):
        hint = f"; write {package}.Redis.from_url(...)"
    elif isinstance(client, (redis.ConnectionPool, redis.asyncio.ConnectionPool)):
        hint = f"; write {package}.Redis(connection_pool=...)"
    elif not hint:
        hint = f"; write {package}.Redis(host=...)"
    raise TypeError(
        f"{coordinator} takes a {package}.Redis or a {package}.RedisCluster, "
        f"not {type(client).__module__}.{type(client).__name__}{hint}"
    )
