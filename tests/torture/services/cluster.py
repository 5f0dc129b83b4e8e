"""A Redis Cluster, for locks."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio.cluster
import redis.cluster

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
        return {"nodes": [(server.host, server.port) for server in self.servers]}

    def locks(self) -> Any:
        return RedisCoordinator(self.cluster.client(socket_timeout=5))

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        # All of them: one may be down as redis-py's client is made.
        kind: Any = (redis.asyncio.cluster if sides.asynchronous else redis.cluster).ClusterNode
        nodes = [kind(*node) for node in given["nodes"]]
        if sides.asynchronous:
            return AsyncRedisCoordinator(redis.asyncio.RedisCluster(startup_nodes=nodes), **sides.options)
        return RedisCoordinator(redis.RedisCluster(startup_nodes=nodes), **sides.options)
