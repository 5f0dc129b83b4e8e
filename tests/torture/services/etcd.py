"""Three members of etcd, each behind a proxy, which grant locks."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from examples.servers import EtcdCluster, find_etcd_binary
from fencing import AsyncEtcdCoordinator, EtcdCoordinator
from tests.torture.services.base import Given, Service, Sides

__all__ = ["Etcd"]


class Etcd(Service):
    name = "etcd"
    has_locks = True
    important = late = b"/v3/kv/txn"

    @classmethod
    def why_not(cls) -> str:
        return "" if find_etcd_binary() else "there is no etcd on PATH"

    def start(self) -> Given:
        self.cluster = EtcdCluster(self.stack)
        self.servers = self.cluster.servers
        self.has_snapshot = False
        return {"urls": [self.proxy(server).url(server.url) for server in self.servers]}

    def is_able(self, fault: str) -> bool:
        return fault not in ("save", "older snapshot") or shutil.which("etcdctl") is not None

    def restore(self) -> None:
        super().restore()
        self.cluster.heal()

    def save(self) -> None:
        """Save a snapshot of what the leader has."""
        self._etcdctl("--endpoints", self.cluster.leader().url, "snapshot", "save", str(self.folder / "snapshot"))
        self.has_snapshot = True

    def bring_back(self) -> None:
        """Restart all members from the snapshot."""
        for server in self.servers:
            server.kill()
        peers = self.cluster.peers
        members = ",".join(f"m{port}={peer}" for port, peer in peers.items())
        for server in self.servers:
            assert server.data is not None
            shutil.rmtree(server.data)
            self._etcdctl(
                *("snapshot", "restore", str(self.folder / "snapshot"), "--data-dir", str(server.data)),
                *("--name", f"m{server.port}", "--initial-cluster", members),
                *("--initial-advertise-peer-urls", peers[server.port]),
            )
        for server in self.servers:
            server.restart()

    @staticmethod
    def _etcdctl(*arguments: str) -> None:
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run(["etcdctl", *arguments], env=environment, check=True, capture_output=True, timeout=60)

    def locks(self) -> Any:
        return EtcdCoordinator(self.cluster.urls)

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        return (AsyncEtcdCoordinator if sides.asynchronous else EtcdCoordinator)(given["urls"], **sides.options)
