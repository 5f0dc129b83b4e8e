"""Fences minted by one Redis, by itself or behind Sentinel."""

from __future__ import annotations

from typing import Any, Unpack

import redis
import redis.asyncio

from fencing.coordinator import AsyncCoordinator, Coordinator
from fencing.locks.settings import AsyncLockOptions, LockOptions, check_flag
from fencing.redis.calls import Call
from fencing.redis.client import Connections
from fencing.redis.client_async import AsyncConnections
from fencing.redis.listener import Listener
from fencing.redis.listener_async import AsyncListener
from fencing.redis.plans import RedisPlans
from fencing.redis.waiters import Enlist, Leave, Wait


class RedisCoordinator(RedisPlans, Coordinator):
    """Mints fences on one Redis, and takes locks there. Thread-safe; make one per process and Redis.

    It does not make data safe: two clients can hold a lock at the same time, whenever a pause outlasts the ttl or Redis
    loses data. The guards do, by refusing whoever is not the newest.

    Args:
        client: a ``redis.Redis``. Its settings (address, TLS, credentials, database, Sentinel) are used for a few
            connections of the coordinator's own; the client's pool is left to the application.
        clock_floor: whether numbers start from the server's clock in microseconds, so that they keep growing when Redis
            has lost its data. Safety does not depend on it.
        options: of its locks, as of :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default), ``guards``,
            ``renew``, ``max_lifetime``, ``owner``.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind; the message says which.
    """

    def __init__(self, client: redis.Redis, *, clock_floor: bool = True, **options: Unpack[LockOptions]) -> None:
        _check_client(client, redis.Redis, "RedisCoordinator")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        super().__init__(**options)
        self._connections = Connections(client)
        self._listener = Listener(client, self._connections.perform, self.clock)
        self.address = self._connections.address

    def listening(self) -> bool:
        """Return whether there is a connection that waiters are woken by."""
        return self._listener.listening()

    def perform(self, effect: Call | Enlist | Wait | Leave) -> Any:
        """Run one script on Redis, or wait for what Redis says."""
        if isinstance(effect, Call):
            return self._connections.perform(effect)
        return self._listener.perform(effect)

    def close(self) -> None:
        """Close the connections, and renew no more. Leases that are still held free themselves after their ttl."""
        super().close()
        self._connections.close()
        self._listener.close()


class AsyncRedisCoordinator(RedisPlans, AsyncCoordinator):
    """:class:`RedisCoordinator` for asyncio: the same arguments, with a ``redis.asyncio.Redis`` and async guards."""

    def __init__(
        self, client: redis.asyncio.Redis, *, clock_floor: bool = True, **options: Unpack[AsyncLockOptions]
    ) -> None:
        _check_client(client, redis.asyncio.Redis, "AsyncRedisCoordinator")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        super().__init__(**options)
        self._connections = AsyncConnections(client)
        self._listener = AsyncListener(client, self._connections.perform, self.clock)
        self.address = self._connections.address

    def listening(self) -> bool:
        """Return whether the running loop has a connection that waiters are woken by."""
        return self._listener.listening()

    async def perform(self, effect: Call | Enlist | Wait | Leave) -> Any:
        """Run one script on Redis, or wait for what Redis says."""
        if isinstance(effect, Call):
            return await self._connections.perform(effect)
        return await self._listener.perform(effect)

    async def close(self) -> None:
        """Close the connections of the running loop, and renew no more. Leases that are still held free themselves
        after their ttl."""
        await super().close()
        await self._connections.close()
        await self._listener.close()


def _check_client(client: object, wanted: type, ours: str) -> None:
    if isinstance(client, wanted):
        return
    if isinstance(client, redis.asyncio.Redis):
        hint = "; for asyncio use AsyncRedisCoordinator or AsyncFencedLock"
    elif isinstance(client, redis.Redis):
        hint = "; for threads use RedisCoordinator or FencedLock"
    elif "Cluster" in type(client).__name__:
        hint = "; Redis Cluster is not supported in this version"
    elif isinstance(client, str):
        hint = "; write redis.Redis.from_url(...)"
    else:
        hint = ""
    name = f"{wanted.__module__.removesuffix('.client')}.{wanted.__name__}"
    raise TypeError(f"{ours} takes a {name}, not {type(client).__module__}.{type(client).__name__}{hint}")
