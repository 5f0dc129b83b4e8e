"""The async coordinator of Redis: one server, alone or behind Sentinel, or a Redis Cluster."""

from __future__ import annotations

from typing import Any, Unpack

import redis.asyncio

from fencing.coordinator_async import AsyncCoordinator
from fencing.locks.settings import AsyncCoordinatorOptions, check_flag
from fencing.locks.signatures import show_options
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.arguments import check_client, check_replicas
from fencing.redis.calls import Call, Calls, NodeCall, Replicated
from fencing.redis.client_async import AsyncConnections
from fencing.redis.cluster.plans import MOST_RENEWALS
from fencing.redis.listener_async import AsyncListener
from fencing.redis.plans import RedisPlans


class AsyncRedisBackend(RedisPlans):
    """The backend of Redis for asyncio, with connections of its own."""

    _connections: Any

    def __init__(
        self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, *, clock_floor: bool, replicas: int
    ) -> None:
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.replicas = check_replicas(replicas, client)
        if isinstance(client, redis.asyncio.RedisCluster):
            from fencing.redis.cluster.client_async import AsyncClusterConnections  # only users of a Cluster load it
            from fencing.redis.cluster.listener_async import AsyncClusterListener

            self.spans_slots, self.max_renewals = True, MOST_RENEWALS
            self._connections = cluster = AsyncClusterConnections(client)
            self._listener = AsyncClusterListener(cluster, self.clock)
        else:
            self._connections = AsyncConnections(client)
            self._listener = AsyncListener(client, self._connections, self.clock)
            self._connections.when_moved(self._listener.move)
        self.address, self.location = self._connections.address, self._connections.location

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
        """Close the running loop's connections."""
        await self._connections.close()
        await self._listener.close()


class AsyncRedisCoordinator(AsyncCoordinator):
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
            ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner``; and ``prefix``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    # SYNC "Make one": Thread-safe; make one
    # SYNC "of its own, per event loop, with": of its own with

    __module__ = "fencing"

    _backend: AsyncRedisBackend
    _shared_by_clients = staticmethod(RedisPlans.shared_by_clients)

    @show_options(AsyncCoordinatorOptions)
    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        clock_floor: bool = True,
        replicas: int = 0,
        **options: Unpack[AsyncCoordinatorOptions],
    ) -> None:
        check_client(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster), "AsyncRedisCoordinator")
        super().__init__(AsyncRedisBackend(client, clock_floor=clock_floor, replicas=replicas), **options)
