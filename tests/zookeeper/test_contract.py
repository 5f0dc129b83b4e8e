"""The contract of coordinators on ZooKeeper: sync and async."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from examples.servers import ZooKeeperServer
from examples.servers.proxy import Proxy
from fencing.testing import CoordinatorContract
from fencing.zookeeper.coordinator import ZooKeeperCoordinator
from fencing.zookeeper.coordinator_async import AsyncZooKeeperCoordinator
from fencing.zookeeper.layout import LOCKS, quoted
from tests.support.zookeeper import end_session


class _OnZooKeeper(CoordinatorContract):
    short_ttl = 1.0  # of the tests' server; 4.0 at ZooKeeper's default tick
    kind: Any

    def make(self, **options: Any) -> Any:
        return self.kind(KazooClient(self.server.hosts), **options)

    def make_expiring(self, ttl: float) -> Any:
        """Its connection is silent for a while as soon as it has a lease, so its session ends."""
        proxy = Proxy(self.server.host, self.server.port)
        self.proxies.append(proxy)
        coordinator = self.kind(KazooClient(f"{proxy.host}:{proxy.port}"), ttl=ttl)
        backend, granted = coordinator._backend, coordinator._backend.grant_of

        def silenced(*args: Any) -> Any:
            proxy.silence()
            timer = threading.Timer(1.3 * ttl + 0.3, proxy.restore)
            self.timers.append(timer)
            timer.start()
            return granted(*args)

        backend.grant_of = silenced
        return coordinator

    def make_unreachable(self, **options: Any) -> Any:
        return self.kind(KazooClient(f"127.0.0.1:{self.silent.getsockname()[1]}"), **options)

    def end_session(self, coordinator: Any) -> None:
        end_session(coordinator)

    def take_as_another_program(self, name: str) -> Callable[[], object]:
        client = KazooClient(self.server.hosts)
        client.start(30)
        lock = client.Lock(f"{LOCKS}/{quoted(name)}", "another program")
        assert lock.acquire(timeout=60)

        def end() -> None:
            client.stop()
            client.close()

        return end

    @pytest.fixture(autouse=True)
    def _server(self, zookeeper_server: ZooKeeperServer) -> Iterator[None]:
        """The server, and a port that accepts connections, and never answers."""
        self.server = zookeeper_server
        self.proxies: list[Proxy] = []
        self.timers: list[threading.Timer] = []
        with socket.create_server(("127.0.0.1", 0)) as self.silent:
            yield
        for timer in self.timers:
            timer.cancel()
            timer.join()
        for proxy in self.proxies:
            proxy.close()


@pytest.mark.thorough
class TestZooKeeperCoordinator(_OnZooKeeper):
    kind = ZooKeeperCoordinator


@pytest.mark.thorough
class TestAsyncZooKeeperCoordinator(_OnZooKeeper):
    kind = AsyncZooKeeperCoordinator
