"""Fences minted by one Redis, by itself or behind Sentinel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

import redis
import redis.asyncio

from fencing.kernel.guard import AsyncGuard, Guard
from fencing.locks.backend import Grant, Settings
from fencing.locks.holding import Holding
from fencing.locks.lease import AsyncLease, Lease
from fencing.locks.lock import AsyncFencedLock, FencedLock
from fencing.locks.renewal import AsyncRenewal, Renewal
from fencing.redis.calls import Call
from fencing.redis.client import Connections
from fencing.redis.client_async import AsyncConnections
from fencing.redis.listener import Listener
from fencing.redis.listener_async import AsyncListener
from fencing.redis.plans import RedisPlans
from fencing.redis.waiters import Enlist, Leave, Wait

__all__ = ["AsyncRedisCoordinator", "RedisCoordinator"]


class RedisCoordinator(RedisPlans):
    """Mints fences on one Redis, and takes locks there. Thread-safe; make one per process and Redis.

    It does not make data safe: two clients can hold a lock at the same time, whenever a pause outlasts the ttl or Redis
    loses data. The guards do, by refusing whoever is not the newest.

    Args:
        client: a ``redis.Redis``. Its settings (address, TLS, credentials, database, Sentinel) are used for a few
            connections of the coordinator's own; the client's pool is left to the application.
        ttl: seconds after which a lock frees itself unless it is renewed.
        guards: the storages at which every grant is claimed before its holder goes on.
        renew: whether leases are renewed by themselves, every third of the ttl, from the grant until they are released,
            lost or garbage-collected.
        max_lifetime: seconds after which a lease is not renewed by itself any more, so that a body that hangs does not
            hold its lock for ever; None: no such cap.
        clock_floor: whether numbers start from the server's clock in microseconds, so that they keep growing when Redis
            has lost its data. Safety does not depend on it.
        owner: the label that ``holder()`` shows, up to 200 characters; None: host name and process id.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind; the message says which.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        ttl: float = 10.0,
        guards: Iterable[Guard] = (),
        renew: bool = True,
        max_lifetime: float | None = None,
        clock_floor: bool = True,
        owner: str | None = None,
    ) -> None:
        _check_client(client, redis.Redis, "RedisCoordinator")
        self.settings = Settings.checked(
            ttl=ttl,
            guards=guards,
            renew=renew,
            max_lifetime=max_lifetime,
            clock_floor=clock_floor,
            owner=owner,
            asynchronous=False,
        )
        self._connections = Connections(client)
        self._wakeups = Listener(client, self._connections.perform, self.clock)
        self._renewal = Renewal(self)
        self.address = self._connections.address

    @classmethod
    def of(cls, client: redis.Redis) -> RedisCoordinator:
        """The coordinator that the client's locks share; made at the first call, gone with the client."""
        _check_client(client, redis.Redis, "RedisCoordinator")
        with _shared_lock:
            coordinator = _shared.get(client)
            if coordinator is None or coordinator._connections.closed:
                coordinator = _shared[client] = cls(client)
            return coordinator

    def lock(self, resource: str) -> FencedLock:
        """The lock of a resource; cheap, so make one whenever it is needed."""
        return FencedLock(self, resource)

    def acquire(self, resource: str, timeout: float | None = None) -> Lease:
        """Take the lock, waiting so many seconds at most (None: for ever): see :meth:`FencedLock.acquire`."""
        return self.lock(resource).acquire(timeout)

    def try_acquire(self, resource: str) -> Lease | None:
        """Take the lock if it is free; None: it is not. See :meth:`FencedLock.try_acquire`."""
        return self.lock(resource).try_acquire()

    def hold(self, resource: str, timeout: float | None = None) -> AbstractContextManager[Lease]:
        """Hold the lock for a ``with`` block, waiting so many seconds at most (None: for ever): see
        :meth:`FencedLock.hold`."""
        return self.lock(resource).hold(timeout)

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant, and renew it, until it ends."""
        return self._renewal.keep(grant, settings)

    def listening(self) -> bool:
        """Whether there is a connection that waiters are woken by."""
        return self._wakeups.listening()

    def perform(self, effect: Call | Enlist | Wait | Leave) -> Any:
        """Run one script on Redis, or wait for what Redis says."""
        if isinstance(effect, Call):
            return self._connections.perform(effect)
        return self._wakeups.perform(effect)

    def close(self) -> None:
        """Close the connections, and renew no more. Leases that are still held free themselves after their ttl."""
        self._renewal.close()
        self._connections.close()
        self._wakeups.close()

    def __enter__(self) -> RedisCoordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRedisCoordinator(RedisPlans):
    """:class:`RedisCoordinator` for asyncio: the same arguments, with a ``redis.asyncio.Redis`` and async guards."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        ttl: float = 10.0,
        guards: Iterable[AsyncGuard] = (),
        renew: bool = True,
        max_lifetime: float | None = None,
        clock_floor: bool = True,
        owner: str | None = None,
    ) -> None:
        _check_client(client, redis.asyncio.Redis, "AsyncRedisCoordinator")
        self.settings = Settings.checked(
            ttl=ttl,
            guards=guards,
            renew=renew,
            max_lifetime=max_lifetime,
            clock_floor=clock_floor,
            owner=owner,
            asynchronous=True,
        )
        self._connections = AsyncConnections(client)
        self._wakeups = AsyncListener(client, self._connections.perform, self.clock)
        self._renewal = AsyncRenewal(self)
        self.address = self._connections.address

    @classmethod
    def of(cls, client: redis.asyncio.Redis) -> AsyncRedisCoordinator:
        """See :meth:`RedisCoordinator.of`."""
        _check_client(client, redis.asyncio.Redis, "AsyncRedisCoordinator")
        with _shared_lock:
            coordinator = _shared_async.get(client)
            if coordinator is None or coordinator._connections.closed:
                coordinator = _shared_async[client] = cls(client)
            return coordinator

    def lock(self, resource: str) -> AsyncFencedLock:
        """See :meth:`RedisCoordinator.lock`."""
        return AsyncFencedLock(self, resource)

    async def acquire(self, resource: str, timeout: float | None = None) -> AsyncLease:
        """See :meth:`FencedLock.acquire`."""
        return await self.lock(resource).acquire(timeout)

    async def try_acquire(self, resource: str) -> AsyncLease | None:
        """See :meth:`FencedLock.try_acquire`."""
        return await self.lock(resource).try_acquire()

    def hold(
        self, resource: str, timeout: float | None = None, *, cancel_on_loss: bool = False
    ) -> AbstractAsyncContextManager[AsyncLease]:
        """See :meth:`AsyncFencedLock.hold`."""
        return self.lock(resource).hold(timeout, cancel_on_loss=cancel_on_loss)

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        """See :meth:`RedisCoordinator.keep`."""
        return self._renewal.keep(grant, settings)

    def listening(self) -> bool:
        """See :meth:`RedisCoordinator.listening`."""
        return self._wakeups.listening()

    async def perform(self, effect: Call | Enlist | Wait | Leave) -> Any:
        """See :meth:`RedisCoordinator.perform`."""
        if isinstance(effect, Call):
            return await self._connections.perform(effect)
        return await self._wakeups.perform(effect)

    async def close(self) -> None:
        """See :meth:`RedisCoordinator.close`; of the connections, those of the running loop."""
        self._renewal.close()
        await self._connections.close()
        await self._wakeups.close()

    async def __aenter__(self) -> AsyncRedisCoordinator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_shared_lock = threading.Lock()
_shared: weakref.WeakKeyDictionary[redis.Redis, RedisCoordinator] = weakref.WeakKeyDictionary()
_shared_async: weakref.WeakKeyDictionary[redis.asyncio.Redis, AsyncRedisCoordinator] = weakref.WeakKeyDictionary()


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
