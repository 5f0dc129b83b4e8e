"""The connections of a guard: to one server, or to each primary of a Cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis.calls import Call
from fencing.redis.client import Connections
from fencing.redis.client_async import AsyncConnections
from fencing.redis.keys import slot_of
from storage_guards.redis.replies import moved

REFRESH_SECONDS = 1.0
"""The least time between two questions for the topology of a Cluster."""

CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)


def check_client(client: object, *, asynchronous: bool) -> None:
    """Raise TypeError if ``client`` is no client of redis-py of the wanted kind."""
    wanted = (redis.asyncio.Redis, redis.asyncio.RedisCluster) if asynchronous else (redis.Redis, redis.RedisCluster)
    if isinstance(client, wanted) and not isinstance(client, (redis.client.Pipeline, redis.asyncio.client.Pipeline)):
        return
    guard, name = ("AsyncRedisGuard", "redis.asyncio.Redis") if asynchronous else ("RedisGuard", "redis.Redis")
    hint = ""
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        hint = "; for asyncio use AsyncRedisGuard"
    elif isinstance(client, (redis.Redis, redis.RedisCluster)):
        hint = "; for threads use RedisGuard"
    elif isinstance(client, str):
        hint = "; write redis.Redis.from_url(...)"
    raise TypeError(f"{guard} takes a {name} or RedisCluster, not {type(client).__name__}{hint}")


class _Topology:
    """The connections to each primary of a Cluster. The client knows the topology, and asks for it again."""

    def __init__(self, client: Any, make: Callable[[Any], Any]) -> None:
        self._client, self._make = client, make
        self._of_node: dict[str, Any] = {}
        self._refreshed = 0.0
        self.address = "the Cluster"

    def connections_for(self, call: Call) -> Any:
        """Return the connections to the primary of the call's slot."""
        first: Any = call.keys[0]
        slot = slot_of(first if isinstance(first, bytes) else first.encode())
        node = self._client.nodes_manager.get_node_from_slot(slot)
        if node.name not in self._of_node:
            if len(self._of_node) >= 4096:  # nodes that left are forgotten with the others
                self._of_node.clear()
            self._of_node[node.name] = self._make(node)
        return self._of_node[node.name]

    def may_refresh(self) -> bool:
        """Return whether the topology may be asked for again, and note that it is."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return False
        self._refreshed = now
        return True


def _no_node(error: Exception) -> NoReply:
    return NoReply(error, may_have_run=False)


class ClusterConnections:
    """The connections of threads to a Cluster."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self._client: Any = client
        self._topology = _Topology(client, lambda node: Connections(client.get_redis_connection(node)))
        self.address = self._topology.address

    def perform(self, call: Call) -> Any:
        """Run the call's script at the primary of its slot. After a failure, ask for the topology first."""
        try:
            connections = self._topology.connections_for(call)
        except redis.RedisError as error:
            self._refresh()
            raise _no_node(error) from error
        try:
            return connections.perform(call)
        except NoReply:
            self._refresh()
            raise
        except CoordinatorUnavailable as refused:
            if not moved(str(refused)):
                raise
            self._refresh()
            raise _no_node(refused) from refused

    def _refresh(self) -> None:
        if self._topology.may_refresh():
            try:
                self._client.nodes_manager.initialize()
            except (redis.RedisError, OSError):
                pass  # the caller tries again, within its own bound


class AsyncClusterConnections:
    """The connections of an event loop to a Cluster."""

    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        self._client: Any = client
        self._topology = _Topology(client, _connections_of_node)
        self.address = self._topology.address

    async def perform(self, call: Call) -> Any:
        """Run the call's script at the primary of its slot. After a failure, ask for the topology first."""
        try:
            await self._client.initialize()
            connections = self._topology.connections_for(call)
        except (redis.RedisError, OSError) as error:
            await self._refresh()
            raise _no_node(error) from error
        try:
            return await connections.perform(call)
        except NoReply:
            await self._refresh()
            raise
        except CoordinatorUnavailable as refused:
            if not moved(str(refused)):
                raise
            await self._refresh()
            raise _no_node(refused) from refused

    async def _refresh(self) -> None:
        if self._topology.may_refresh():
            try:
                await self._client.nodes_manager.initialize()
            except (redis.RedisError, OSError):
                pass


def _connections_of_node(node: Any) -> AsyncConnections:
    pool = redis.asyncio.ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
    return AsyncConnections(redis.asyncio.Redis(connection_pool=pool))


def connections_of(client: Any) -> Any:
    """Return the connections of a guard over this client."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return AsyncClusterConnections(client)
    if isinstance(client, redis.RedisCluster):
        return ClusterConnections(client)
    return (AsyncConnections if isinstance(client, redis.asyncio.Redis) else Connections)(client)
