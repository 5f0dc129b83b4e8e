# Made from coordinator_async.py by `make faces`: change that file, not this one.
"""The sync coordinator of several independent Redis servers, of which a majority must agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import redis

from fencing.coordinator import Coordinator
from fencing.kernel.effects import run
from fencing.locks.settings import CoordinatorOptions, check_flag
from fencing.locks.signatures import show_options
from fencing.redlock.base import nodes_of
from fencing.redlock.calls import Fanout
from fencing.redlock.client import FanoutConnections
from fencing.redlock.nodes import Nodes, check_clients
from fencing.redlock.plans import RedlockPlans


class RedlockBackend(RedlockPlans):
    """The backend of several Redis servers, with connections of its own."""

    _connections: FanoutConnections

    def __init__(self, *, restart_wait: bool, clock_floor: bool) -> None:
        self.restart_wait = check_flag(restart_wait, "restart_wait")
        self.clock_floor = check_flag(clock_floor, "clock_floor")

    def connect(self, nodes: Nodes) -> None:
        """Use these nodes, which depend on the settings."""
        self._connections = FanoutConnections(nodes)
        self.address = self.location = self._connections.address

    def perform(self, effect: Fanout) -> Any:
        """Send one call to nodes, all at once."""
        return self._connections.perform(effect)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()


class RedlockCoordinator(Coordinator):
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
            restarted grants nothing for so long. All coordinators of the nodes must have the same. ``at_least`` of a
            block may be as long: then a majority keeps the lock, if a majority answers the release.
        restart_wait: whether a node that was restarted with its data waits, too. False is right only if all nodes have
            ``appendfsync always``. A node that lost its data always waits.
        clock_floor: whether numbers start from the client's clock in microseconds. Safety does not depend on it.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (10 seconds by default),
            ``guards``, ``renew``, ``max_lifetime``, ``owner``; and ``prefix``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    __module__ = "fencing"

    _backend: RedlockBackend

    @show_options(CoordinatorOptions)
    def __init__(
        self,
        clients: Iterable[redis.Redis],
        *,
        node_timeout: float | None = None,
        longest_ttl: float | None = None,
        restart_wait: bool = True,
        clock_floor: bool = True,
        **options: Unpack[CoordinatorOptions],
    ) -> None:
        found = check_clients(clients, redis.Redis, "RedlockCoordinator")
        backend = RedlockBackend(restart_wait=restart_wait, clock_floor=clock_floor)
        super().__init__(backend, **options)
        backend.connect(nodes_of(backend, found, node_timeout, longest_ttl))

    def initialise(self) -> None:
        """Admit all nodes at once, for a new installation. Otherwise the first grant comes after ``longest_ttl``.

        Call it once, before any lock is taken. All nodes must answer, and none may ever have granted a lock. It may be
        repeated.

        Raises:
            CoordinatorUnavailable: a node does not answer, or has granted locks before. Start all nodes, and repeat it.
        """
        run(self._backend.plan_initialise(), self._backend.perform)
