"""The locks that are compared, each used as its own documentation says, for threads and for asyncio.

All locks of a process share one client. Its pool is large enough: with the default one (100 connections in redis-py
8.1) some locks could not even wait. All locks expire after ``ttl`` seconds; only ours renew themselves.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import redis
import redis.asyncio

from fencing import AsyncRedisCoordinator, RedisCoordinator

OURS = "fencing"
REDIS_PY = "redis-py Lock"
AGAIN = ", again"
"""The end of the name of a contender that is measured a second time: the A/A comparison."""


class Way(NamedTuple):
    """The functions by which a worker takes and frees its lock. ``acquire`` raises if it did not get it."""

    acquire: Callable[[], Any]
    release: Callable[[], Any]


class AsyncWay(NamedTuple):
    acquire: Callable[[], Awaitable[Any]]
    release: Callable[[], Awaitable[Any]]


class NotGranted(RuntimeError):
    """The lock was not granted within its time."""


Maker = Callable[[str], Way]
AsyncMaker = Callable[[str], AsyncWay]


def open_threads(name: str, url: str, *, ttl: int, connections: int) -> Maker:
    """Return what makes a worker's ``Way`` to a resource; may be called from any thread."""
    client = redis.Redis.from_url(url, max_connections=connections + 10)
    return _THREADS[name.removesuffix(AGAIN)](client, ttl)


async def open_async(name: str, url: str, stack: AsyncExitStack, *, ttl: int, connections: int) -> AsyncMaker:
    return await _ASYNC[name.removesuffix(AGAIN)](url, stack, ttl, connections + 10)


def way_of(lock: Any, seconds: float) -> Way:
    """Return how a worker takes and frees a lock of ours, for which it waits so many seconds."""
    leases: list[Any] = []
    return Way(lambda: leases.append(lock.acquire(timeout=seconds)), lambda: leases.pop().release())


def _must(got: object) -> None:
    if not got:
        raise NotGranted


def checked(lock: Any, **options: Any) -> Way:
    """Return the same for a lock whose ``acquire`` returns whether it was granted."""
    return Way(lambda: _must(lock.acquire(**options)), lock.release)


def _async_checked(lock: Any, **options: Any) -> AsyncWay:
    async def acquire() -> None:
        _must(await lock.acquire(**options))

    return AsyncWay(acquire, lock.release)


def _fencing(client: redis.Redis, ttl: int) -> Maker:
    coordinator = RedisCoordinator(client, ttl=ttl)
    return lambda resource: way_of(coordinator.lock(resource), WAIT)


def _redis_py(client: redis.Redis, ttl: int) -> Maker:
    return lambda resource: checked(client.lock(resource, timeout=ttl, blocking_timeout=WAIT))


def _python_redis_lock(client: redis.Redis, ttl: int) -> Maker:
    lock_class = importlib.import_module("redis_lock").Lock
    return lambda resource: checked(lock_class(client, resource, expire=ttl))  # its time-out must not exceed the ttl


def _pottery(client: redis.Redis, ttl: int) -> Maker:
    lock_class = importlib.import_module("pottery").Redlock
    return lambda resource: checked(lock_class(key=resource, masters={client}, auto_release_time=ttl), timeout=WAIT)


def _redlock_py(client: redis.Redis, ttl: int) -> Maker:
    delay = 0.2  # its default; it waits by counting attempts
    manager = importlib.import_module("redlock").Redlock([client], retry_count=int(WAIT / delay), retry_delay=delay)

    def make(resource: str) -> Way:
        locks: list[Any] = []

        def acquire() -> None:
            lock = manager.lock(resource, ttl * 1000)
            _must(lock)
            locks.append(lock)

        return Way(acquire, lambda: manager.unlock(locks.pop()))

    return make


async def _async_fencing(url: str, stack: AsyncExitStack, ttl: int, connections: int) -> AsyncMaker:
    client = await stack.enter_async_context(redis.asyncio.Redis.from_url(url, max_connections=connections))
    coordinator = await stack.enter_async_context(AsyncRedisCoordinator(client, ttl=ttl))

    def make(resource: str) -> AsyncWay:
        lock = coordinator.lock(resource)
        leases: list[Any] = []

        async def acquire() -> None:
            leases.append(await lock.acquire(timeout=WAIT))

        return AsyncWay(acquire, lambda: leases.pop().release())

    return make


async def _async_redis_py(url: str, stack: AsyncExitStack, ttl: int, connections: int) -> AsyncMaker:
    client = await stack.enter_async_context(redis.asyncio.Redis.from_url(url, max_connections=connections))
    return lambda resource: _async_checked(client.lock(resource, timeout=ttl, blocking_timeout=WAIT))


async def _coredis(url: str, stack: AsyncExitStack, ttl: int, connections: int) -> AsyncMaker:
    coredis: Any = importlib.import_module("coredis")
    lock_class = importlib.import_module("coredis.patterns.lock").Lock
    client = await stack.enter_async_context(coredis.Redis.from_url(url, max_connections=connections))
    return lambda resource: _async_checked(lock_class(client, resource, timeout=ttl, blocking_timeout=WAIT))


async def _async_pottery(url: str, stack: AsyncExitStack, ttl: int, connections: int) -> AsyncMaker:
    lock_class = importlib.import_module("pottery").AIORedlock
    client = await stack.enter_async_context(redis.asyncio.Redis.from_url(url, max_connections=connections))
    return lambda resource: _async_checked(
        lock_class(key=resource, masters={client}, auto_release_time=ttl), timeout=WAIT
    )


WAIT = 60
"""The seconds that a worker waits at most. A measurement ends before that."""

_THREADS: dict[str, Callable[[redis.Redis, int], Maker]] = {
    OURS: _fencing,
    REDIS_PY: _redis_py,
    "python-redis-lock": _python_redis_lock,
    "pottery": _pottery,
    "redlock-py": _redlock_py,
}
_ASYNC: dict[str, Callable[[str, AsyncExitStack, int, int], Awaitable[AsyncMaker]]] = {
    OURS: _async_fencing,
    REDIS_PY: _async_redis_py,
    "coredis": _coredis,
    "pottery": _async_pottery,
}
THREADS = tuple(_THREADS)
ASYNC = tuple(_ASYNC)


def versions() -> dict[str, str]:
    """Return the versions of what is compared, and of its dependencies."""
    found = {}
    for package in (
        *("fencing", "redis", "hiredis", "python-redis-lock", "pottery", "redlock-py", "coredis"),
        *("psycopg", "SQLAlchemy", "PyMySQL", "sqlalchemy-dlock", "PALs", "obstore"),
    ):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
