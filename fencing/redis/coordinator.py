"""The coordinators of Redis: one server, alone or behind Sentinel, or a Redis Cluster."""

from __future__ import annotations

from typing import Any, Unpack

import redis
import redis.asyncio

from fencing.coordinator import Coordinator
from fencing.coordinator_async import AsyncCoordinator
from fencing.locks.settings import AsyncLockOptions, LockOptions, check_flag
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.calls import Call, Calls, NodeCall, Replicated
from fencing.redis.client import Connections
from fencing.redis.client_async import AsyncConnections
from fencing.redis.cluster.client import ClusterConnections
from fencing.redis.cluster.client_async import AsyncClusterConnections
from fencing.redis.cluster.listener import ClusterListener
from fencing.redis.cluster.listener_async import AsyncClusterListener
from fencing.redis.listener import Listener
from fencing.redis.listener_async import AsyncListener
from fencing.redis.plans import RedisPlans

CLUSTER_RENEWALS = 100_000
"""Leases renewed in one effect on a Cluster, so that a node that does not answer delays those of the others once."""


class RedisCoordinator(RedisPlans, Coordinator):
    """A coordinator on Redis: one server, alone or behind Sentinel, or a Cluster. Thread-safe; make one per process.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    Redis loses data. The guards make data safe: they refuse every holder but the newest.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``. The coordinator opens a few connections of its own with
            the client's settings (address, TLS, credentials, database, Sentinel). It does not use the client's pool.
        clock_floor: whether numbers start from the server's clock in microseconds, so that they keep growing when Redis
            loses its data. Safety does not depend on it.
        replicas: how many replicas must confirm a grant (``WAIT``) before it counts. With fewer, it is given back,
            and ``acquire`` raises NotAcquired with the reason ``"unreplicated"``. So a failover rarely grants a lock
            twice; it still can, because another replica may be promoted. 0: grants wait for none.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default),
            ``guards``, ``renew``, ``max_lifetime``, ``owner``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        clock_floor: bool = True,
        replicas: int = 0,
        **options: Unpack[LockOptions],
    ) -> None:
        _check_client(client, (redis.Redis, redis.RedisCluster), "RedisCoordinator")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.replicas = _check_replicas(replicas, client)
        super().__init__(**options)
        self._connections: Any
        self._listener: Any
        if isinstance(client, redis.RedisCluster):
            self.spans_slots, self.max_renewals = True, CLUSTER_RENEWALS
            self._connections = cluster = ClusterConnections(client)
            self._listener = ClusterListener(cluster, self.clock)
        else:
            self._connections = Connections(client)
            self._listener = Listener(client, self._connections.perform, self.clock)
            self._connections.when_moved(self._listener.move)
        self.address, self.location = self._connections.address, self._connections.location

    def is_waited_for(self, resource: str) -> bool:
        waited_for: bool = self._listener.is_waited_for(resource)
        return waited_for

    def perform(self, effect: Call | Calls | NodeCall | Replicated | Enlist | Wait | Leave) -> Any:
        """Run scripts on Redis, or add, block or remove a waiter."""
        if isinstance(effect, Call):
            return self._connections.perform(effect)
        if isinstance(effect, (Calls, NodeCall)):
            return self._connections.perform(effect)
        if isinstance(effect, Replicated):
            return self._connections.perform(*effect)
        return self._listener.perform(effect)

    def close(self) -> None:
        """Release the locks that are still held, close the connections, and stop renewal. Idempotent.

        The releases take at most a second together. The locks that could not be released are logged; they free
        themselves after their ttl. A release at the end of a block is still possible.
        """
        super().close()
        self._connections.close()
        self._listener.close()


class AsyncRedisCoordinator(RedisPlans, AsyncCoordinator):
    """A coordinator on Redis for asyncio: one server, alone or behind Sentinel, or a Cluster. Make one per process.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    Redis loses data. The guards make data safe: they refuse every holder but the newest.

    Args:
        client: a ``redis.asyncio.Redis`` or a ``redis.asyncio.RedisCluster``. The coordinator opens connections of its
            own, per event loop, with the client's settings (address, TLS, credentials, database, Sentinel). It does not
            use the client's pool.
        clock_floor: whether numbers start from the server's clock in microseconds, so that they keep growing when Redis
            loses its data. Safety does not depend on it.
        replicas: how many replicas must confirm a grant (``WAIT``) before it counts. With fewer, it is given back,
            and ``acquire`` raises NotAcquired with the reason ``"unreplicated"``. So a failover rarely grants a lock
            twice; it still can, because another replica may be promoted. 0: grants wait for none.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`: ``ttl`` (10 seconds by default),
            ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        clock_floor: bool = True,
        replicas: int = 0,
        **options: Unpack[AsyncLockOptions],
    ) -> None:
        _check_client(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster), "AsyncRedisCoordinator")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.replicas = _check_replicas(replicas, client)
        super().__init__(**options)
        self._connections: Any
        self._listener: Any
        if isinstance(client, redis.asyncio.RedisCluster):
            self.spans_slots, self.max_renewals = True, CLUSTER_RENEWALS
            self._connections = cluster = AsyncClusterConnections(client)
            self._listener = AsyncClusterListener(cluster, self.clock)
        else:
            self._connections = AsyncConnections(client)
            self._listener = AsyncListener(client, self._connections.perform, self.clock)
            self._connections.when_moved(self._listener.move)
        self.address, self.location = self._connections.address, self._connections.location

    def is_waited_for(self, resource: str) -> bool:
        waited_for: bool = self._listener.is_waited_for(resource)
        return waited_for

    async def perform(self, effect: Call | Calls | NodeCall | Replicated | Enlist | Wait | Leave) -> Any:
        """Run scripts on Redis, or add, block or remove a waiter."""
        if isinstance(effect, Call):
            return await self._connections.perform(effect)
        if isinstance(effect, (Calls, NodeCall)):
            return await self._connections.perform(effect)
        if isinstance(effect, Replicated):
            return await self._connections.perform_replicated(*effect)
        return await self._listener.perform(effect)

    async def close(self) -> None:
        """Release the locks that are still held, close the running loop's connections, and stop renewal. Idempotent.

        The releases take at most a second together. The locks that could not be released are logged; they free
        themselves after their ttl. A release at the end of a block is still possible.
        """
        await super().close()
        await self._connections.close()
        await self._listener.close()


def _check_replicas(replicas: object, client: object) -> int:
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise TypeError(f"replicas must be an int, not {type(replicas).__name__}")
    if replicas < 0:
        raise ValueError(f"replicas must not be negative, not {replicas}; 0 waits for none")
    if replicas and isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)):
        raise ValueError("replicas is for one server or Sentinel; a Cluster waits for none: remove it")
    return replicas


def _check_client(client: object, wanted: tuple[type, type], coordinator: str) -> None:
    if isinstance(client, wanted):
        return
    if isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        hint = "; for asyncio use AsyncRedisCoordinator or AsyncFencedLock"
    elif isinstance(client, (redis.Redis, redis.RedisCluster)):
        hint = "; for threads use RedisCoordinator or FencedLock"
    elif isinstance(client, str):
        hint = "; write redis.Redis.from_url(...)"
    else:
        hint = ""
    package = "redis.asyncio" if "asyncio" in wanted[0].__module__ else "redis"
    raise TypeError(
        f"{coordinator} takes a {package}.Redis or a {package}.RedisCluster, "
        f"not {type(client).__module__}.{type(client).__name__}{hint}"
    )
