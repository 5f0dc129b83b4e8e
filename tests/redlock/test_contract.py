"""The contract of coordinators on five Redis servers: sync and async."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fencing.testing import CoordinatorContract
from tests.support.redlock import RedlockNodes
from tests.support.sides import Side


class _OnFiveNodes(CoordinatorContract):
    short_ttl = 0.3
    asynchronous: bool
    options: dict[str, Any]
    nodes: RedlockNodes

    def make(self, **options: Any) -> Any:
        return self.nodes.coordinator(Side(self.asynchronous), **(self.options | options))

    def make_unreachable(self, **options: Any) -> Any:
        # A node that accepts a connection, and never answers, costs a thread this time-out: one after the other.
        return self.nodes.coordinator(
            Side(self.asynchronous), self.silent, node_timeout=0.25, **(self.options | options)
        )

    def take_as_another_program(self, name: str) -> Callable[[], object]:
        """As other libraries of the same algorithm do."""
        clients = [server.client() for server in self.nodes.servers]
        for client in clients:
            assert client.set(name, "another", nx=True, px=60_000)

        def free() -> None:
            for client in clients:
                client.delete(name)
                client.close()

        return free

    @pytest.fixture(autouse=True)
    def _nodes(self, redlock_nodes: RedlockNodes) -> Iterator[None]:
        """The nodes, and ports that accept connections, and never answer."""
        self.nodes = redlock_nodes
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.socket()) for _ in redlock_nodes.servers]
            for each in silent:
                each.bind(("127.0.0.1", 0))
                each.listen()
            self.silent = [f"redis://127.0.0.1:{each.getsockname()[1]}" for each in silent]
            yield


class TestRedlockCoordinator(_OnFiveNodes):
    asynchronous = False
    options: dict[str, Any] = {}  # noqa: RUF012 - it is not changed


class TestAsyncRedlockCoordinator(_OnFiveNodes):
    asynchronous = True
    options: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.thorough
class TestAsyncRedlockCoordinatorWithoutClockFloor(_OnFiveNodes):
    asynchronous = True
    options: dict[str, Any] = {"clock_floor": False}  # noqa: RUF012
