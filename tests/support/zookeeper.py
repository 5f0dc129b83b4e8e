"""Coordinators on ZooKeeper, sync or async, that count or lose requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from examples.servers import ZooKeeperServer
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.retry import NoReply
from fencing.testing.contract import Contract
from fencing.zookeeper.calls import Ask
from fencing.zookeeper.coordinator import ZooKeeperCoordinator
from fencing.zookeeper.coordinator_async import AsyncZooKeeperCoordinator
from fencing.zookeeper.layout import LOCKS, nodes_of, quoted, record_of

ZooKeeperFactory = Callable[..., ZooKeeperServer]
"""Starts servers of a test's own."""

Lost = Callable[[Ask], str | None]
"""Says what becomes of requests: None: nothing, "request" or "reply": that is lost."""


class Faults:
    """What was requested, and what is lost."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.lost: Lost = lambda _: None
        self.late: list[Ask] = []
        """What was lost: a test may make it later."""

    @property
    def kinds(self) -> list[list[str]]:
        """The names of the requests of each effect."""
        return [[type(request).__name__ for request in ask.requests] for ask in self.asked]

    def lose(self, what: str, first: int, count: int) -> None:
        """Lose so many requests, or their replies, from the first-th one on that comes from now on."""
        at = len(self.asked) + first

        def lost(_: Ask) -> str | None:
            return what if at <= len(self.asked) - 1 < at + count else None

        self.lost = lost

    def lost_part_of(self, effect: Any) -> str | None:
        if not isinstance(effect, Ask):
            return None
        self.asked.append(effect)
        what = self.lost(effect)
        if what is not None:
            self.late.append(effect)
        return what


def with_faults(coordinator: Any) -> Faults:
    """Count and lose requests of a coordinator."""
    backend, faults = coordinator._backend, Faults()
    perform = backend.perform

    def perform_sync(effect: Any) -> Any:
        what = faults.lost_part_of(effect)
        result = None if what == "request" else perform(effect)
        if what:
            raise NoReply(ConnectionError("lost by the test"), may_have_run=True)
        return result

    async def perform_async(effect: Any) -> Any:
        what = faults.lost_part_of(effect)
        result = None if what == "request" else await perform(effect)
        if what:
            raise NoReply(ConnectionError("lost by the test"), may_have_run=True)
        return result

    backend.perform = perform_async if backend.asynchronous else perform_sync
    return faults


def client_id_of(coordinator: Any) -> tuple[int, bytes]:
    """Return the id and the password of a coordinator's session."""
    session: tuple[int, bytes] = coordinator._backend._client.current().client_id
    return session


def end_session(coordinator: Any) -> None:
    """End the session of a coordinator."""
    end_session_of(coordinator._backend._client.address, client_id_of(coordinator))


def end_session_of(hosts: str, session: tuple[int, bytes]) -> None:
    """End a session, as anybody can who knows its id and its password."""
    other = KazooClient(hosts, client_id=session, timeout=10)
    other.start(30)
    other.stop()
    other.close()


def loops() -> set[threading.Thread]:
    """Return the threads of kazoo's connections."""
    return {each for each in threading.enumerate() if "zk_loop" in each.name}


class ZooKeeperSide(Contract):
    """Makes coordinators, all sync or all async; ``call`` runs their methods."""

    def __init__(self, asynchronous: bool, hosts: str, handler: Callable[[], Any] = lambda: None) -> None:
        self.asynchronous, self.hosts, self._handler = asynchronous, hosts, handler
        self.made: list[Any] = []
        self._client: KazooClient | None = None

    def coordinator(self, *, client: KazooClient | None = None, **options: Any) -> Any:
        kind = AsyncZooKeeperCoordinator if self.asynchronous else ZooKeeperCoordinator
        made: Any = kind(client or KazooClient(self.hosts, handler=self._handler()), **options)
        self.made.append(made)
        return made

    def plan(self, coordinator: Any, plan: Plan[Any]) -> Any:
        return self.call(run_async if self.asynchronous else run, plan, coordinator._backend.perform)

    @property
    def client(self) -> KazooClient:
        """A client of another program."""
        if self._client is None:
            self._client = KazooClient(self.hosts, handler=self._handler())
            self._client.start(30)
        return self._client

    def queue(self, name: str) -> list[str]:
        """Return the names of the nodes of a lock, the first one first."""
        path = f"{LOCKS}/{quoted(name)}"
        try:
            return [node.name for node in nodes_of(self.client.get_children(path))]
        except NoNodeError:  # never used, or a container that was empty for a minute
            return []

    def waiting(self, name: str) -> int:
        """Return how many stand in the queue of a lock, without those who only try."""
        path = f"{LOCKS}/{quoted(name)}"
        records = []
        for node in self.queue(name):
            with suppress(NoNodeError):
                records.append(record_of(self.client.get(f"{path}/{node}")[0]))
        return sum(record is not None and record.base is None for record in records)

    def close(self) -> None:
        for each in self.made:
            self.call(each.close)
        if self._client is not None:
            self._client.stop()
            self._client.close()
