"""A primary with replicas, watched by Sentinels, for locks."""

from __future__ import annotations

from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

from examples.servers import start_sentinels
from examples.servers.sentinel import SERVICE
from fencing import AsyncRedisCoordinator, RedisCoordinator
from tests.torture.services.base import Given, Service, Sides

__all__ = ["Sentinel"]


class Sentinel(Service):
    name = "sentinel"
    has_locks = True

    def start(self) -> Given:
        self.sentinels = self.stack.enter_context(start_sentinels())
        self.servers = self.sentinels.servers
        return {"addresses": self.sentinels.addresses}

    def locks(self) -> Any:
        return RedisCoordinator(self.sentinels.client(socket_timeout=5))

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        addresses = [tuple(address) for address in given["addresses"]]
        if sides.asynchronous:
            asynchronous: Any = redis.asyncio.sentinel.Sentinel
            found = asynchronous(addresses).master_for(SERVICE)
            return AsyncRedisCoordinator(found, **sides.options)
        make: Any = redis.sentinel.Sentinel
        return RedisCoordinator(make(addresses).master_for(SERVICE), **sides.options)
