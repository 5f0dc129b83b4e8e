"""A real Redis Cluster: primaries with replicas, all processes of this machine."""

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import redis
import redis.asyncio
from redis.cluster import ClusterNode

from examples.servers.local import START_TIMEOUT, ServerError
from examples.servers.redis import RedisServer, start_redis

SLOTS = 16384
_AT_ONCE = 2000  # slots in one ADDSLOTS


class RedisCluster:
    """A running Redis Cluster. A context manager; `close` ends it and removes its data."""

    def __init__(self, servers: Sequence[RedisServer], stack: ExitStack, options: Sequence[str]) -> None:
        self.servers = list(servers)
        self._stack = stack
        self._options = tuple(options)
        self.version = servers[0].version

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a new client."""
        return redis.RedisCluster(startup_nodes=self._startup(ClusterNode), **options)

    def async_client(self, **options: Any) -> redis.asyncio.RedisCluster:
        """Return a new client for asyncio."""
        return redis.asyncio.RedisCluster(startup_nodes=self._startup(redis.asyncio.cluster.ClusterNode), **options)

    def _startup(self, node: Any) -> list[Any]:
        return [node(server.host, server.port) for server in self.servers]

    def ids(self) -> dict[str, RedisServer]:
        """The servers that run, by node id."""
        return {_ask(server, "CLUSTER", "MYID").decode(): server for server in self.servers if server.pid is not None}

    def is_primary(self, server: RedisServer) -> bool:
        """Whether the server says of itself that it is a primary."""
        with contextlib.suppress(redis.RedisError):
            return bool(_ask(server, "ROLE")[0] == b"master")
        return False

    def primaries(self) -> list[RedisServer]:
        """The servers that are primaries, and run."""
        return [server for server in self.servers if server.pid is not None and self.is_primary(server)]

    def primary_of(self, key: str) -> RedisServer:
        """The primary that has a key's slot."""
        return self.primary_of_slot(redis.crc.key_slot(key.encode()))

    def primary_of_slot(self, slot: int) -> RedisServer:
        """The primary that has a slot, as one of them sees it."""
        by_port = {server.port: server for server in self.servers}
        for server in self.primaries():
            for first, last, primary, *_ in _ask(server, "CLUSTER", "SLOTS"):
                if first <= slot <= last and by_port[primary[1]].pid is not None:
                    return by_port[primary[1]]
        raise ServerError(f"no primary has slot {slot}")

    def replicas_of(self, primary: RedisServer) -> list[RedisServer]:
        """The replicas of a primary that run."""
        replicas = [server for server in self.servers if server is not primary and server.pid is not None]
        return [server for server in replicas if _ask(server, "ROLE")[:3] == [b"slave", b"127.0.0.1", primary.port]]

    def add_primary(self) -> RedisServer:
        """Start a node more, without slots."""
        server = self._stack.enter_context(_start_node(self.servers[0].series, self._options))
        _ask(server, "CLUSTER", "MEET", self.servers[0].host, self.servers[0].port)
        self.servers.append(server)
        self.wait_until_ready()
        return server

    def move_slot(self, slot: int, target: RedisServer, *, between: Callable[[], object] = lambda: None) -> None:
        """Move a slot and its keys to another primary, as `redis-cli --cluster reshard` does.

        `between` is called after each step: when the slot is marked as moving, and after each key.
        """
        source = self.primary_of_slot(slot)
        source_id, target_id = (_ask(server, "CLUSTER", "MYID").decode() for server in (source, target))
        _ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        _ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        between()
        while keys := _ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            for key in keys:
                _ask(source, "MIGRATE", target.host, target.port, key, 0, 5000)
                between()
        for server in (target, source, *self.primaries()):
            if self.is_primary(server):
                _ask(server, "CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def flush(self) -> None:
        """Remove all data."""
        for server in self.primaries():
            _ask(server, "FLUSHALL")

    def wait_until_ready(self) -> None:
        """Wait until all servers that run agree on who has which slots, and each replica follows its primary."""
        running = [server for server in self.servers if server.pid is not None]
        _wait(lambda: self._is_ready(running), "the cluster did not become ready")

    def _is_ready(self, running: Sequence[RedisServer]) -> bool:
        seen = set()
        replicas = sum(not self.is_primary(server) for server in running)
        for server in running:
            with contextlib.suppress(redis.RedisError):
                info = dict(line.split(b":") for line in _ask(server, "CLUSTER", "INFO").split())
                role = _ask(server, "ROLE")
                shares = sorted(
                    (first, last, nodes[0][1], sorted(replica[1] for replica in nodes[1:]))
                    for first, last, *nodes in _ask(server, "CLUSTER", "SLOTS")
                )
                known = [line.split() for line in _ask(server, "CLUSTER", "NODES").decode().splitlines()]
                met = [fields for fields in known if fields[7] == "connected" and "handshake" not in fields[2]]
                following = sum("slave" in fields[2] and "fail" not in fields[2] for fields in known)
                is_linked = role[0] == b"master" or role[3] == b"connected"
                if info[b"cluster_state"] == b"ok" and is_linked and len(met) >= len(running):
                    seen.add((str(shares), following == replicas))
                    continue
            return False
        return len(seen) == 1 and all(agrees for _, agrees in seen)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "RedisCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask(server: RedisServer, *command: Any) -> Any:
    """Ask one server, past all clients of the cluster. The reply is Redis' own."""
    make: Any = redis.SSLConnection if server.url.startswith("rediss:") else redis.Connection  # untyped
    connection = make(host=server.host, port=server.port, socket_timeout=5, socket_connect_timeout=5, protocol=2)
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


def _wait(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(failure)
        time.sleep(0.01)


def _start_node(version: str | None, options: Sequence[str]) -> RedisServer:
    return start_redis(version=version, extra_args=options, local=True, own=True)


def start_cluster(
    *,
    version: str | None = None,
    primaries: int = 3,
    replicas: int = 1,
    node_timeout_ms: int = 1000,
    extra_args: Sequence[str] = (),
) -> RedisCluster:
    """Start a Redis Cluster of this machine's own binary; raises ServerError when there is none.

    `version`: as for `start_redis`. `replicas`: of each primary. `node_timeout_ms`: after which a node that is
    silent is replaced; a failover takes twice that, and a little more. `extra_args`: for each server.
    """
    options: tuple[str, ...] = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms))
    options += ("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0")
    options += tuple(extra_args)
    with ExitStack() as stack:
        servers = [stack.enter_context(_start_node(version, options)) for _ in range(primaries * (1 + replicas))]
        bounds = [SLOTS * i // primaries for i in range(primaries + 1)]
        for epoch, server in enumerate(servers, 1):
            _ask(server, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for i, server in enumerate(servers[:primaries]):
            for first in range(bounds[i], bounds[i + 1], _AT_ONCE):
                _ask(server, "CLUSTER", "ADDSLOTS", *range(first, min(first + _AT_ONCE, bounds[i + 1])))
        for server in servers[1:]:
            _ask(server, "CLUSTER", "MEET", servers[0].host, servers[0].port)
        cluster = RedisCluster(servers, stack, options)
        cluster.wait_until_ready()
        for i, server in enumerate(servers[primaries:]):
            _ask(server, "CLUSTER", "REPLICATE", _ask(servers[i % primaries], "CLUSTER", "MYID").decode())
        cluster.wait_until_ready()
        cluster._stack = stack.pop_all()
        return cluster
