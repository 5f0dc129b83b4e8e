"""A Redis Cluster, for locks."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from examples.servers import start_cluster
from fencing import AsyncRedisCoordinator, RedisCoordinator
from tests.torture.services.base import Given, Service, Sides

__all__ = ["Cluster"]


class Cluster(Service):
    name = "cluster"
    has_locks = True

    def start(self) -> Given:
        self.cluster = self.stack.enter_context(start_cluster())
        self.servers = self.cluster.servers
        first = self.servers[0]
        return {"host": first.host, "port": first.port}

    def locks(self) -> Any:
        return RedisCoordinator(self.cluster.client(socket_timeout=5))

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        if sides.asynchronous:
            return AsyncRedisCoordinator(redis.asyncio.RedisCluster(given["host"], given["port"]), **sides.options)
        return RedisCoordinator(redis.RedisCluster(given["host"], given["port"]), **sides.options)
