"""The coordinators of several independent Redis servers, of which a majority must agree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

import redis
import redis.asyncio

from fencing.coordinator import Coordinator
from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel.effects import run, run_async
from fencing.locks.capabilities import check_capabilities
from fencing.locks.settings import MAX_TTL, MIN_TTL, AsyncLockOptions, LockOptions, check_flag, check_seconds
from fencing.redlock.calls import Fanout
from fencing.redlock.client import FanoutConnections
from fencing.redlock.client_async import AsyncFanoutConnections
from fencing.redlock.nodes import Nodes, check_clients, check_distinct
from fencing.redlock.plans import RedlockPlans

NODE_TIMEOUT_SHARE = 1 / 200
NODE_TIMEOUT_SECONDS = 0.005, 0.05
"""The time-out of a node, as a share of the ttl, and its limits. The values are those of the algorithm's description:
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/"""


class RedlockCoordinator(RedlockPlans, Coordinator):
    """A coordinator on several independent Redis servers: a lock is held if a majority grants it. Thread-safe.

    Its numbers grow as long as a majority keeps its data. It does not make data safe. Two clients can hold a lock at
    the same time, if a pause outlasts the ttl or clocks jump. The guards make data safe: they refuse every holder but
    the newest. With guards, one Redis is mostly enough: see docs/coordinators/redlock.md.

    Args:
        clients: an odd number of ``redis.Redis``, at least 3, each of another single server (no Cluster, no Sentinel,
            no replica), always the same servers. The coordinator opens connections of its own with their settings.
        node_timeout: seconds after which a node that did not reply counts as a refusal; None: a 200th of the ttl, but 5
            to 50 ms.
        longest_ttl: seconds, the longest ttl of any lock on these nodes; None: this coordinator's ttl. A node that was
            restarted grants nothing for so long. All coordinators of the nodes must have the same.
        restart_wait: whether a node that was restarted with its data waits, too. False is right only if all nodes have
            ``appendfsync always``. A node that lost its data always waits.
        clock_floor: whether numbers start from the client's clock in microseconds. Safety does not depend on it.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default),
            ``guards``, ``renew``, ``max_lifetime``, ``owner``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        clients: Iterable[redis.Redis],
        *,
        node_timeout: float | None = None,
        longest_ttl: float | None = None,
        restart_wait: bool = True,
        clock_floor: bool = True,
        **options: Unpack[LockOptions],
    ) -> None:
        found = check_clients(clients, redis.Redis, "RedlockCoordinator")
        super().__init__(**options)
        self.restart_wait = check_flag(restart_wait, "restart_wait")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self._connections = FanoutConnections(_nodes(self, found, node_timeout, longest_ttl))
        self.address = self.location = self._connections.address

    def initialise(self) -> None:
        """Admit all nodes at once, for a new installation. Otherwise the first grant comes after ``longest_ttl``.

        Call it once, before any lock is taken. All nodes must answer, and none may ever have granted a lock. It may be
        repeated.

        Raises:
            CoordinatorUnavailable: a node does not answer, or has granted locks before. Start all nodes, and repeat it.
        """
        run(self.plan_initialise(), self.perform)

    def perform(self, effect: Fanout) -> Any:
        """Send one call to nodes, all at once."""
        return self._connections.perform(effect)

    def close(self) -> None:
        """Release the locks that are still held, close the connections, and stop renewal. Idempotent.

        The releases take at most a second together. The locks that could not be released are logged; they free
        themselves after their ttl. A release at the end of a block is still possible.
        """
        super().close()
        self._connections.close()


class AsyncRedlockCoordinator(RedlockPlans, AsyncCoordinator):
    """A coordinator for asyncio on several independent Redis servers: a lock is held if a majority grants it.

    Its numbers grow as long as a majority keeps its data. It does not make data safe. Two clients can hold a lock at
    the same time, if a pause outlasts the ttl or clocks jump. The guards make data safe: they refuse every holder but
    the newest. With guards, one Redis is mostly enough: see docs/coordinators/redlock.md.

    Args:
        clients: an odd number of ``redis.asyncio.Redis``, at least 3, each of another single server (no Cluster, no
            Sentinel, no replica), always the same servers. The coordinator opens connections of its own, per event
            loop, with their settings.
        node_timeout: as of :class:`fencing.RedlockCoordinator`.
        longest_ttl: as of :class:`fencing.RedlockCoordinator`.
        restart_wait: as of :class:`fencing.RedlockCoordinator`.
        clock_floor: as of :class:`fencing.RedlockCoordinator`.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`: ``ttl`` (10 seconds by default),
            ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(
        self,
        clients: Iterable[redis.asyncio.Redis],
        *,
        node_timeout: float | None = None,
        longest_ttl: float | None = None,
        restart_wait: bool = True,
        clock_floor: bool = True,
        **options: Unpack[AsyncLockOptions],
    ) -> None:
        found = check_clients(clients, redis.asyncio.Redis, "AsyncRedlockCoordinator")
        super().__init__(**options)
        self.restart_wait = check_flag(restart_wait, "restart_wait")
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self._connections = AsyncFanoutConnections(_nodes(self, found, node_timeout, longest_ttl))
        self.address = self.location = self._connections.address

    async def initialise(self) -> None:
        """Admit all nodes at once, for a new installation. Otherwise the first grant comes after ``longest_ttl``.

        Call it once, before any lock is taken. All nodes must answer, and none may ever have granted a lock. It may be
        repeated.

        Raises:
            CoordinatorUnavailable: a node does not answer, or has granted locks before. Start all nodes, and repeat it.
        """
        await run_async(self.plan_initialise(), self.perform)

    async def perform(self, effect: Fanout) -> Any:
        """Send one call to nodes, all at once."""
        return await self._connections.perform(effect)

    async def close(self) -> None:
        """Release the locks that are still held, close the running loop's connections, and stop renewal. Idempotent.

        The releases take at most a second together. The locks that could not be released are logged; they free
        themselves after their ttl. A release at the end of a block is still possible.
        """
        await super().close()
        await self._connections.close()


def _nodes(
    coordinator: RedlockPlans, clients: list[Any], node_timeout: float | None, longest_ttl: float | None
) -> Nodes:
    """Return the nodes of a coordinator, and set its times."""
    ttl = coordinator.settings.ttl
    assert ttl is not None
    least, most = NODE_TIMEOUT_SECONDS
    coordinator.node_timeout = (
        min(max(ttl * NODE_TIMEOUT_SHARE, least), most)
        if node_timeout is None
        else check_seconds(node_timeout, "node_timeout")
    )
    coordinator.longest_ttl = ttl if longest_ttl is None else check_seconds(longest_ttl, "longest_ttl")
    if not MIN_TTL <= coordinator.longest_ttl <= MAX_TTL:
        raise ValueError(f"longest_ttl must be between {MIN_TTL} seconds and a year, not {longest_ttl}")
    if node_timeout is None and coordinator.node_timeout >= ttl / 3:
        raise ValueError(f"ttl must be above {3 * least:g} s with Redlock, not {ttl:g}")
    if not 0 < coordinator.node_timeout < ttl / 3:
        raise ValueError(f"node_timeout must be above 0 and below a third of the ttl ({ttl:g} s), not {node_timeout}")
    check_capabilities(coordinator, coordinator.settings, ttl)
    nodes = Nodes(clients, longest_ms=math.ceil(coordinator.longest_ttl * 1000), restart_wait=coordinator.restart_wait)
    check_distinct(nodes.factories)
    coordinator.nodes, coordinator.ready = nodes.count, nodes.ready
    return nodes
