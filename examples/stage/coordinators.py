"""The coordinators that a demo can run on. One entry each: how its servers start, and how a process opens it."""

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import redis
import redis.sentinel
from redis.cluster import ClusterNode

from examples.servers import (
    MissingTool,
    SentinelServers,
    start_cluster,
    start_etcd,
    start_mariadb,
    start_postgres,
    start_redis,
    start_sentinels,
    start_zookeeper,
)
from examples.servers.redis import URL_VARIABLE
from examples.servers.sentinel import SERVICE
from examples.servers.settings import named_by
from fencing import Coordinator, RedisCoordinator, RedlockCoordinator

LONGEST_TTL = 30.0
"""Seconds: the longest that a demo may ask for. All coordinators of the same nodes must agree on it."""

NODE_TIMEOUT = 0.2
"""Seconds: more than by default, because all five share one machine with everything else."""

CALM = 10.0
"""Seconds of silence after which a server is replaced: on a busy machine, no failover that nobody asked for."""


class Choice(NamedTuple):
    title: str
    """Where its locks are."""
    start_servers: Callable[[ExitStack], str]
    """Start its servers, which the stack removes again, and return their address: a text."""
    open: Callable[..., Coordinator]
    """Return the coordinator at an address; with the options of locks, which include the ttl of all of them."""
    lets_expire: bool = True
    """Whether a lock can be held without being renewed."""

    def start(self, stack: ExitStack) -> str:
        """Start its servers, and return their address; raises MissingTool where a package is missing."""
        try:
            return self.start_servers(stack)
        except ModuleNotFoundError as error:
            raise MissingTool(
                f"{self.title} need the Python package {error.name}: `make demo` installs it into .venv"
            ) from error


def _start_redis(stack: ExitStack) -> str:
    return stack.enter_context(start_redis()).url


def _start_redlock(stack: ExitStack) -> str:
    addresses = ",".join(stack.enter_context(start_redis(own=True, local=True)).url for _ in range(5))
    with _open_redlock(addresses) as coordinator:
        coordinator.initialise()
    return addresses


def _start_sentinel(stack: ExitStack) -> str:
    return sentinel_address(stack.enter_context(start_sentinels(replicas=1, down_after=CALM)))


def sentinel_address(servers: SentinelServers) -> str:
    """Return the address of Sentinels that run already."""
    return _joined(servers.addresses)


def _start_cluster(stack: ExitStack) -> str:
    cluster = stack.enter_context(start_cluster(replicas=0, node_timeout_ms=int(CALM * 1000)))
    return _joined([(server.host, server.port) for server in cluster.servers])


def _start_sqlite(stack: ExitStack) -> str:
    directory = stack.enter_context(TemporaryDirectory(prefix="fencing-demo-"))
    return _with_tables(f"sqlite:///{directory}/locks.db")


def _start_postgresql(stack: ExitStack) -> str:
    postgres = stack.enter_context(start_postgres())
    url = postgres.create_database()
    stack.callback(postgres.drop_database, url)
    return _with_tables(url)


def _start_mariadb(stack: ExitStack) -> str:
    mariadb = stack.enter_context(start_mariadb())
    url = mariadb.create_database()
    stack.callback(mariadb.drop_database, url)
    return _with_tables(url)


def _start_etcd(stack: ExitStack) -> str:
    return stack.enter_context(start_etcd()).url


def _start_zookeeper(stack: ExitStack) -> str:
    return stack.enter_context(start_zookeeper()).hosts


def _with_tables(url: str) -> str:
    with _open_sql(url) as coordinator:
        coordinator.create_tables()
    return url


def _open_redis(address: str, **options: Any) -> Coordinator:
    return RedisCoordinator(redis.Redis.from_url(address), **options)


def _open_redlock(
    address: str, *, ttl: float = 10.0, longest_ttl: float = LONGEST_TTL, **options: Any
) -> RedlockCoordinator:
    clients = [redis.Redis.from_url(url) for url in address.split(",")]
    timeout = min(NODE_TIMEOUT, ttl / 4)
    return RedlockCoordinator(clients, ttl=ttl, longest_ttl=longest_ttl, node_timeout=timeout, **options)


def _open_sentinel(address: str, **options: Any) -> Coordinator:
    sentinel: Any = redis.sentinel.Sentinel
    return RedisCoordinator(sentinel(_split(address)).master_for(SERVICE), **options)


def _open_cluster(address: str, **options: Any) -> Coordinator:
    node: Any = ClusterNode
    nodes = [node(host, port) for host, port in _split(address)]
    return RedisCoordinator(redis.RedisCluster(startup_nodes=nodes), **options)


def _open_sql(address: str, **options: Any) -> Any:
    from sqlalchemy import create_engine  # not every demo installs it

    from fencing import SQLCoordinator

    return SQLCoordinator(create_engine(address), **options)


def _open_etcd(address: str, **options: Any) -> Any:
    from fencing import EtcdCoordinator  # likewise

    return EtcdCoordinator([address], **options)


def _open_zookeeper(address: str, **options: Any) -> Any:
    from kazoo.client import KazooClient  # likewise

    from fencing import ZooKeeperCoordinator

    logging.getLogger("kazoo").addHandler(logging.NullHandler())  # or else its warnings are written over the screen
    return ZooKeeperCoordinator(KazooClient(address), **options)


def _joined(addresses: list[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


def _split(address: str) -> list[tuple[str, int]]:
    return [(host, int(port)) for host, _, port in (one.rpartition(":") for one in address.split(","))]


CHOICES: Mapping[str, Choice] = {
    "redis": Choice("locks in Redis", _start_redis, _open_redis),
    "sentinel": Choice("locks in Redis behind Sentinels", _start_sentinel, _open_sentinel),
    "cluster": Choice("locks in a Redis Cluster", _start_cluster, _open_cluster),
    "redlock": Choice("locks in five independent Redis", _start_redlock, _open_redlock),
    "postgresql": Choice("locks in PostgreSQL", _start_postgresql, _open_sql),
    "mariadb": Choice("locks in MariaDB", _start_mariadb, _open_sql),
    "etcd": Choice("locks in etcd", _start_etcd, _open_etcd),
    "zookeeper": Choice("locks in ZooKeeper", _start_zookeeper, _open_zookeeper, lets_expire=False),
    "sqlite": Choice("locks in SQLite", _start_sqlite, _open_sql),
}

EXPIRING = tuple(name for name, choice in CHOICES.items() if choice.lets_expire)
"""The choices for an act that lets a lock expire whose holder is at work."""


def names_of_our_own() -> str:
    """Return what resources begin with. Other programs may use a Redis that was named by its URL.

    The names share a hash tag, so at most one counter stays there.
    """
    return f"{{fencing-demo}}:{secrets.token_hex(4)}:" if named_by(URL_VARIABLE) else ""
