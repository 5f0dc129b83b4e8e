"""One Redis, twice: for locks, and for data with their marks."""

from __future__ import annotations

import time
from typing import Any

import redis
import redis.asyncio

from examples.servers import RedisServer, find_faketime, find_redis_binaries, start_redis
from examples.servers.redis import version_for_clocks
from fencing import AsyncRedisCoordinator, RedisCoordinator
from storage_guards import AsyncRedisGuard, RedisGuard
from tests.torture.services.base import GUARD_SECONDS, Given, Kit, Place, Service, Sides
from tests.torture.services.clock import Clock
from tests.torture.ways import REDIS

__all__ = ["Redis", "RedisData"]

SETTINGS = ("--appendonly", "no", "--repl-diskless-sync-delay", "0")
"""So a killed server has what SAVE has kept, and nothing later; and replicas copy at once."""


SOCKET_SECONDS = 0.15
"""A third of what a request may take: a client that gets no answer goes on over a new connection."""


class OneRedis(Service):
    """A Redis behind a proxy, which can be pointed at another one."""

    def start(self) -> Given:
        self.clock = Clock(self.folder)
        self.saved_at = self.began = time.monotonic()
        self.server = self.start_server()
        return {"url": f"{self.proxy(self.server).url(self.server.url)}?socket_timeout={SOCKET_SECONDS}"}

    def start_server(self) -> RedisServer:
        environment, version = None, None
        if find_faketime() and any(binary.version >= (8,) for binary in find_redis_binaries()):
            environment, version = self.clock.environment(), version_for_clocks()
        server = start_redis(own=True, local=True, extra_args=SETTINGS, environment=environment, version=version)
        self.stack.callback(server.close)
        return server

    def direct(self) -> Given:
        return {"url": self.server.url}

    def is_able(self, fault: str) -> bool:
        return fault != "jump" or find_faketime() is not None

    def restore(self) -> None:
        super().restore()
        self.clock.set(0)

    def fail_over(self, replica: RedisServer, since: float) -> None:
        """Have a replica take over. Whatever asks from now on asks that one; the old one is gone."""
        start = time.monotonic()
        [proxy] = self.proxies
        proxy.refuse()
        self.server.close()
        with replica.client(socket_timeout=5) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.server = replica
        proxy.retarget(replica)
        proxy.restore()
        self.was_rewound(since, start)


class Redis(OneRedis):
    name = "redis"
    has_locks = True

    def locks(self) -> Any:
        return RedisCoordinator(self.server.client())

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        if sides.asynchronous:
            return AsyncRedisCoordinator(redis.asyncio.Redis.from_url(given["url"]), **sides.options)
        return RedisCoordinator(redis.Redis.from_url(given["url"]), **sides.options)


class RedisData(OneRedis):
    name = "redis-data"
    storages = done_once = ("redis-data",)

    def final(self, place: Place) -> dict[str, Any]:
        with self.server.client(decode_responses=True) as client:
            state: Any = client.hgetall(f"{place.name}:counter")
            effects: Any = client.lrange(f"{place.name}:effects", 0, -1)
        return {"value": int(state.get("value", 0)), "write": state.get("last", ""), "effects": tuple(effects)}

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        module: Any = redis.asyncio if sides.asynchronous else redis
        client = module.Redis.from_url(given["url"], socket_timeout=GUARD_SECONDS)
        guard: Any = (AsyncRedisGuard if sides.asynchronous else RedisGuard)(client, timeout=GUARD_SECONDS)
        return [Kit(guard, client, REDIS, sides.asynchronous)]
