"""The lock services that are compared: how each is started, how a process opens it, and which faults it can have."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from examples.servers import (
    EtcdCluster,
    SentinelServers,
    ZooKeeperEnsemble,
    start_cluster,
    start_mariadb,
    start_postgres,
    start_redis,
    start_sentinels,
)
from examples.servers.server import Server
from examples.stage.coordinators import CHOICES, sentinel_address
from fencing import EtcdCoordinator, MemoryCoordinator

TTL = 2.0
"""Seconds. ZooKeeper's sessions and Redlock's longest ttl have the same."""

FAULT_SECONDS = 4.0
"""For how long a server is away: twice the ttl."""

RESOURCE = "orders:42"

KILLED, FROZEN, CUT_OFF, TWO_KILLED = "server killed", "server frozen", "server cut off", "2 servers killed"
REPLACED = "server replaced under a holder"
"""At once: it restarts; or another one takes over, behind Sentinel one that has not seen the last grant."""

# Servers of tests do not wait for their disks.
_DURABLE_POSTGRESQL = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
_DURABLE_MARIADB = {"innodb-flush-log-at-trx-commit": "1"}

Undo = Callable[[], object]
Fault = Callable[[], Undo]
"""Makes it happen, and returns what ends it."""


class Running(NamedTuple):
    """A service that runs.

    Args:
        kind: how a process opens it.
        address: a text.
        faults: what can happen to its servers.
        lag: lets replicas miss all that comes from now on.
    """

    kind: str
    address: str
    faults: Mapping[str, Fault]
    lag: Callable[[], object] = lambda: None


class Deployment(NamedTuple):
    """A service that can be started.

    Args:
        title: for a table.
        start: starts it, and returns it. The stack ends it.
    """

    title: str
    start: Callable[[ExitStack], Running]


def open_coordinator(kind: str, address: str, **options: Any) -> Any:
    """Return the coordinator of a process, with this ttl."""
    if kind == "memory":
        return MemoryCoordinator(**options)
    if kind == "etcd":
        return EtcdCoordinator(address.split(","), **options)
    more = {"longest_ttl": options["ttl"]} if kind == "redlock" else {}
    return CHOICES[kind].open(address, **options, **more)


def _of_one(choose: Callable[[], Server]) -> dict[str, Fault]:
    """Return the faults of the server that is chosen when they happen."""

    def kill() -> Undo:
        server = choose()
        server.kill()
        return server.restart

    def freeze() -> Undo:
        pids = _family(choose())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

        return thaw

    def replace() -> Undo:
        undo = kill()
        undo()
        return lambda: None

    return {KILLED: kill, FROZEN: freeze, REPLACED: replace}


def _family(server: Server) -> list[int]:
    """Return the process of a server, and those that it has started, as PostgreSQL does for each connection."""
    assert server.pid is not None
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    return [server.pid, *(map(int, children.read_text("ascii").split()) if children.exists() else ())]


def _redis(*arguments: str) -> Callable[[ExitStack], Running]:
    def start(stack: ExitStack) -> Running:
        server = stack.enter_context(start_redis(own=True, local=True, extra_args=arguments))
        return Running("redis", server.url, _of_one(lambda: server))

    return start


def _sentinel(stack: ExitStack) -> Running:
    servers: SentinelServers = stack.enter_context(start_sentinels())

    def replace() -> Undo:
        servers.fail_over()
        return lambda: None

    faults = {**_of_one(lambda: servers.primary), REPLACED: replace}
    return Running("sentinel", sentinel_address(servers), faults, servers.cut_replication)


def _cluster(stack: ExitStack) -> Running:
    cluster = stack.enter_context(start_cluster())
    address = ",".join(f"{server.host}:{server.port}" for server in cluster.servers)
    return Running("cluster", address, _of_one(lambda: cluster.primary_of(RESOURCE)))


def _redlock(nodes: int) -> Callable[[ExitStack], Running]:
    def start(stack: ExitStack) -> Running:
        # A node that comes back has its data.
        kept = ("--appendonly", "yes", "--appendfsync", "always")
        servers = [stack.enter_context(start_redis(own=True, local=True, extra_args=kept)) for _ in range(nodes)]
        address = ",".join(server.url for server in servers)
        with open_coordinator("redlock", address, ttl=TTL) as coordinator:
            coordinator.initialise()

        return Running("redlock", address, {**_of_one(lambda: servers[0]), TWO_KILLED: _two(servers)})

    return start


def _postgresql(stack: ExitStack) -> Running:
    server = stack.enter_context(start_postgres(own=True, settings=_DURABLE_POSTGRESQL))
    return Running("postgresql", _with_tables("postgresql", server.create_database()), _of_one(lambda: server))


def _mariadb(stack: ExitStack) -> Running:
    server = stack.enter_context(start_mariadb(own=True, settings=_DURABLE_MARIADB))
    return Running("mariadb", _with_tables("mariadb", server.create_database()), _of_one(lambda: server))


def _sqlite(stack: ExitStack) -> Running:
    folder = stack.enter_context(TemporaryDirectory(prefix="fencing-outages-"))
    return Running("sqlite", _with_tables("sqlite", f"sqlite:///{folder}/locks.db"), {})


def _with_tables(kind: str, url: str) -> str:
    with open_coordinator(kind, url, ttl=TTL) as coordinator:
        coordinator.create_tables()
    return url


def _isolated(leader: Callable[[], Any], isolate: Callable[[Any], None], heal: Undo) -> Fault:
    def cut_off() -> Undo:
        isolate(leader())
        return heal

    return cut_off


def _two(members: Sequence[Server]) -> Fault:
    def kill() -> Undo:
        for member in members[:2]:
            member.kill()

        def restart() -> None:
            for member in members[:2]:
                member.restart()

        return restart

    return kill


def _etcd(stack: ExitStack) -> Running:
    cluster = EtcdCluster(stack)
    faults = {
        **_of_one(cluster.leader),
        CUT_OFF: _isolated(cluster.leader, cluster.isolate, cluster.heal),
        TWO_KILLED: _two(cluster.servers),
    }
    return Running("etcd", ",".join(cluster.urls), faults)


def _zookeeper(stack: ExitStack) -> Running:
    ensemble = ZooKeeperEnsemble(stack, settings={"forceSync": "yes"})
    faults = {
        **_of_one(ensemble.leader),
        CUT_OFF: _isolated(ensemble.leader, ensemble.isolate, ensemble.heal),
        TWO_KILLED: _two(ensemble.members),
    }
    return Running("zookeeper", ensemble.hosts, faults)


DEPLOYMENTS: Mapping[str, Deployment] = {
    "redis": Deployment("Redis, no AOF", _redis("--appendonly", "no")),
    "redis-everysec": Deployment("Redis, AOF everysec", _redis("--appendonly", "yes", "--appendfsync", "everysec")),
    "redis-always": Deployment("Redis, AOF always", _redis("--appendonly", "yes", "--appendfsync", "always")),
    "sentinel": Deployment("Redis with Sentinel", _sentinel),
    "cluster": Deployment("Redis Cluster", _cluster),
    "redlock-3": Deployment("Redlock of 3", _redlock(3)),
    "redlock-5": Deployment("Redlock of 5", _redlock(5)),
    "postgresql": Deployment("PostgreSQL", _postgresql),
    "mariadb": Deployment("MariaDB", _mariadb),
    "sqlite": Deployment("SQLite", _sqlite),
    "etcd": Deployment("etcd of 3", _etcd),
    "zookeeper": Deployment("ZooKeeper of 3", _zookeeper),
    "memory": Deployment("memory", lambda stack: Running("memory", "", {})),
}
