# Made from coordinator_async.py by `make faces`: change that file, not this one.
"""The sync coordinator whose locks are in ZooKeeper."""

from __future__ import annotations

from typing import Any, Unpack
from weakref import ref

from kazoo.client import KazooClient

from fencing.coordinator import Coordinator
from fencing.kernel.effects import run
from fencing.locks.settings import CoordinatorOptions, check_flag, check_seconds
from fencing.locks.signatures import show_options
from fencing.zookeeper.calls import Ask, Leave, Wait
from fencing.zookeeper.client import Client
from fencing.zookeeper.plans import ZooKeeperPlans
from fencing.zookeeper.session import seconds_of
from fencing.zookeeper.sessions import check_client


class ZooKeeperBackend(ZooKeeperPlans):
    """The backend of ZooKeeper, with a session of its own."""

    def __init__(self, client: KazooClient, seconds: float, *, clock_floor: bool) -> None:
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.session_seconds = seconds
        self._client = Client(client, seconds, ref(self))
        self.root, self.acl = self._client.root, self._client.acl
        self.address = self.location = self._client.address

    def perform(self, effect: Ask | Wait | Leave) -> Any:
        """Make requests, or wait."""
        return self._client.perform(effect)

    def sweep_in(self, seconds: float) -> None:
        """Have the nodes deleted that nobody uses, in so many seconds."""
        self._client.sweep_in(seconds)

    def close(self) -> None:
        """End the session."""
        run(self.plan_before_closing(), self.perform)
        self._client.close()


class ZooKeeperCoordinator(Coordinator):
    """A coordinator whose locks are in ZooKeeper.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the
    session, or a snapshot of ZooKeeper is restored. The guards make data safe: they refuse every holder but the newest.

    One session holds all locks of the coordinator, and its time-out is the ttl of each. Waiters get the lock in the
    order in which they came. kazoo's ``client.Lock("/fencing/1/lock/NAME")`` waits in the same queue. See
    docs/coordinators/zookeeper.md.

    Args:
        client: a ``kazoo.client.KazooClient``, of which only the settings are used: the coordinator has a session of
            its own, which begins with its first lock and ends with ``close()``. The client need not be started.
        clock_floor: whether numbers start from the client's clock in microseconds. Safety does not depend on it.
        options: the options of its locks, as in :class:`fencing.Coordinator`: ``ttl`` (the client's ``timeout`` by
            default), ``guards``, ``owner``; and ``prefix``. All locks have one ttl, the session's, and it is always
            renewed. The servers keep sessions for 2 to 20 of their ticks by default: another ttl is refused by the
            first lock.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    __module__ = "fencing"

    _backend: ZooKeeperBackend

    @show_options(CoordinatorOptions)
    def __init__(self, client: KazooClient, *, clock_floor: bool = True, **options: Unpack[CoordinatorOptions]) -> None:
        seconds = check_seconds(options.get("ttl", seconds_of(check_client(client))), "ttl")
        super().__init__(ZooKeeperBackend(client, seconds, clock_floor=clock_floor), **options)
