"""Independent Redis servers, each behind a proxy, of which a majority grants locks."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from examples.servers import start_redis
from fencing import AsyncRedlockCoordinator, RedlockCoordinator
from tests.torture.services.base import Given, Service, Sides

__all__ = ["Redlock"]

NODES = 3
NODE_TIMEOUT = 0.2
"""Seconds: far more than a node takes on a busy machine."""


class Redlock(Service):
    name = "redlock"
    has_locks = True

    def start(self) -> Given:
        self.servers = [self.stack.enter_context(start_redis(own=True, local=True)) for _ in range(NODES)]
        with self._coordinator(ttl=self.ttl) as coordinator:
            coordinator.initialise()
        return {"urls": [self.proxy(server).url(server.url) for server in self.servers]}

    def _coordinator(self, **options: Any) -> RedlockCoordinator:
        clients = [server.client() for server in self.servers]
        return RedlockCoordinator(clients, node_timeout=NODE_TIMEOUT, longest_ttl=self.ttl, **options)

    def locks(self) -> Any:
        return self._coordinator(ttl=self.ttl)

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        kind: Any = AsyncRedlockCoordinator if sides.asynchronous else RedlockCoordinator
        module: Any = redis.asyncio if sides.asynchronous else redis
        clients = [module.Redis.from_url(url) for url in given["urls"]]
        return kind(clients, node_timeout=NODE_TIMEOUT, longest_ttl=sides.ttl, **sides.options)
