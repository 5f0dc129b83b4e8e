"""The contract of coordinators on etcd: sync and async."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing.etcd.coordinator import EtcdCoordinator
from fencing.etcd.coordinator_async import AsyncEtcdCoordinator
from fencing.etcd.leases import RENEWED_FRESH_SHARE
from fencing.testing import CoordinatorContract
from tests.support.etcd import Etcdctl


class _OnEtcd(CoordinatorContract):
    used_share = RENEWED_FRESH_SHARE
    short_ttl = 1.0  # of the tests' server; 2.0 at etcd's default election time-out
    kind: Any
    options: dict[str, Any] = {}  # noqa: RUF012 - it is not changed

    def make(self, **options: Any) -> Any:
        return self.kind([self.url], **self.options, **options)

    def make_unreachable(self, **options: Any) -> Any:
        return self.kind([f"http://127.0.0.1:{self.silent.getsockname()[1]}"], **self.options, **options)

    def take_as_another_program(self, name: str) -> Callable[[], object]:
        program = Etcdctl(self.url, name)
        self.programs.append(program)
        assert program.holds.wait(60)
        return program.end

    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServer) -> Iterator[None]:
        """The server, and a port that accepts connections, and never answers."""
        self.url = etcd_server.url
        self.programs: list[Etcdctl] = []
        with socket.create_server(("127.0.0.1", 0)) as self.silent:
            yield
        for program in self.programs:
            program.end()


@pytest.mark.thorough
class TestEtcdCoordinator(_OnEtcd):
    kind = EtcdCoordinator


@pytest.mark.thorough
class TestAsyncEtcdCoordinator(_OnEtcd):
    kind = AsyncEtcdCoordinator
