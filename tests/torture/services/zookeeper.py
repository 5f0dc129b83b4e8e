"""Three members of ZooKeeper, each behind a proxy, which grant locks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from examples.servers import ZooKeeperEnsemble, ZooKeeperServer, find_zookeeper
from fencing import AsyncZooKeeperCoordinator, ZooKeeperCoordinator
from tests.torture.services.base import Given, Service, Sides

__all__ = ["ZooKeeper"]


class ZooKeeper(Service):
    name = "zookeeper"
    has_locks = True
    important = late = b"/fencing/1/"

    @classmethod
    def why_not(cls) -> str:
        return "" if find_zookeeper() else "there is no ZooKeeper: Debian's libzookeeper-java, and a Java"

    def start(self) -> Given:
        self.ensemble = ZooKeeperEnsemble(self.stack)
        proxies = [self.proxy(member) for member in self.ensemble.members]
        self.has_snapshot = False
        return {"hosts": ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)}

    def restore(self) -> None:
        super().restore()
        self.ensemble.heal()

    def save(self) -> None:
        """Copy what the leader has stored."""
        copied = self.folder / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(_stored(self.ensemble.leader()), copied)
        self.has_snapshot = True

    def bring_back(self) -> None:
        """Restart all members from the copy."""
        members = self.ensemble.members
        for member in members:
            member.kill()
        for member in members:
            shutil.rmtree(_stored(member))
            shutil.copytree(self.folder / "copy", _stored(member))
        for member in members:
            member.restart()
        self.ensemble.leader()

    def locks(self) -> Any:
        return ZooKeeperCoordinator(KazooClient(self.ensemble.hosts))

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        kind = AsyncZooKeeperCoordinator if sides.asynchronous else ZooKeeperCoordinator
        return kind(KazooClient(given["hosts"]), **sides.options)


def _stored(member: ZooKeeperServer) -> Path:
    """Return the folder of a member's log and snapshots."""
    assert member.data is not None
    return member.data / "version-2"
