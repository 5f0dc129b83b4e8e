# Made from coordinator_async.py by `make faces`: change that file, not this one.
"""The sync coordinator of Redis: one server, alone or behind Sentinel, or a Redis Cluster."""

from __future__ import annotations

from typing import Any, Unpack

import redis

from fencing.coordinator import Coordinator
from fencing.locks.settings import CoordinatorOptions, check_flag
from fencing.locks.signatures import show_options
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.arguments import check_client, check_replicas
from fencing.redis.calls import Call, Calls, NodeCall, Replicated
from fencing.redis.client import Connections
from fencing.redis.cluster.plans import MOST_RENEWALS
from fencing.redis.listener import Listener
from fencing.redis.plans import RedisPlans


class RedisBackend(RedisPlans):
    """The backend of Redis, with connections of its own."""

    _connections: Any

    def __init__(self, client: redis.Redis | redis.RedisCluster, *, clock_floor: bool, replicas: int) -> None:
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.replicas = check_replicas(replicas, client)
        if isinstance(client, redis.RedisCluster):
            from fencing.redis.cluster.client import ClusterConnections  # only users of a Cluster load it
            from fencing.redis.cluster.listener import ClusterListener

            self.spans_slots, self.max_renewals = True, MOST_RENEWALS
            self._connections = cluster = ClusterConnections(client)
            self._listener = ClusterListener(cluster, self.clock)
        else:
            self._connections = Connections(client)
            self._listener = Listener(client, self._connections, self.clock)
            self._connections.when_moved(self._listener.move)
        self.address, self.location = self._connections.address, self._connections.location

    def perform(self, effect: Call | Calls | NodeCall | Replicated | Enlist | Wait | Leave) -> Any:
        """Run scripts on Redis, or add, block or remove a waiter."""
        if isinstance(effect, Call):
            return self._connections.perform(effect)
        if isinstance(effect, (Calls, NodeCall)):
            return self._connections.perform(effect)
        if isinstance(effect, Replicated):
            return self._connections.perform_replicated(*effect)
        return self._listener.perform(effect)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()
        self._listener.close()


class RedisCoordinator(Coordinator):
    """A coordinator on Redis: one server, alone or behind Sentinel, or a Cluster. Thread-safe; make one per process.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    Redis loses data. The guards make data safe: they refuse every holder but the newest.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``. The coordinator opens connections of its own with the
            client's settings (address, TLS, credentials, database, Sentinel). It does not use the client's pool.
        clock_floor: whether numbers start from the server's clock in microseconds, so that they keep growing when Redis
            loses its data. Safety does not depend on it.
        replicas: how many replicas must confirm a grant (``WAIT``) before it counts. With fewer, it is given back,
            and ``acquire`` raises NotAcquired with the reason ``"unreplicated"``. So a failover rarely grants a lock
            twice; it still can, because another replica may be promoted. 0: grants wait for none.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default),
            ``guards``, ``renew``, ``max_lifetime``, ``owner``; and ``prefix``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    __module__ = "fencing"

    _backend: RedisBackend
    _shared_by_clients = staticmethod(RedisPlans.shared_by_clients)

    @show_options(CoordinatorOptions)
    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        *,
        clock_floor: bool = True,
        replicas: int = 0,
        **options: Unpack[CoordinatorOptions],
    ) -> None:
        check_client(client, (redis.Redis, redis.RedisCluster), "RedisCoordinator")
        super().__init__(RedisBackend(client, clock_floor=clock_floor, replicas=replicas), **options)
