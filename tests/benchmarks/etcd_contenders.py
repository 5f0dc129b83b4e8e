"""The locks in etcd that are compared, all over the connections of our client, but for ``etcdctl``.

- **etcd's recipe** is ``concurrency.Mutex`` of its client for Go, 3.4: the lease of a session is granted once, and kept
  alive. To lock is one transaction, which creates the key if it is not there, and reads the first key of the queue. To
  unlock is one deletion. A waiter reads the last key before its own, watches it, and reads again. Its requests are made
  once for each lock, as keys and lease stay the same. They mint no number, and keep no record.
- **/v3/lock** and **/v3/unlock** are the service of the server, with the same recipe inside. The lease is the caller's.
- **etcdctl lock NAME true** is a process each time. Its time has the start of two processes in it.

https://github.com/etcd-io/etcd/blob/v3.4.23/clientv3/concurrency/mutex.go
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from examples.servers import EtcdServer, start_etcd
from fencing import AsyncEtcdCoordinator, EtcdCoordinator
from fencing.etcd.calls import (
    Reply,
    body_of,
    compare,
    encode,
    end_of,
    put,
    read,
    read_oldest,
    reply_of,
    transaction,
)
from fencing.etcd.connection import Connection
from fencing.etcd.connection_async import AsyncConnection
from fencing.etcd.endpoints import Endpoint
from fencing.etcd.waiters import is_deletion
from tests.benchmarks.contenders import AGAIN, OURS, AsyncWay, Way, way_of
from tests.benchmarks.servers import cpu_seconds

RECIPE, SERVICE, ETCDCTL = "etcd's recipe", "/v3/lock", "etcdctl lock"
ASYNC, ASYNC_RECIPE = f"{OURS}, asyncio", f"{RECIPE}, asyncio"
KINDS = (OURS, OURS + AGAIN, RECIPE, SERVICE, ETCDCTL, ASYNC, ASYNC_RECIPE)
WAITERS = (OURS, OURS + AGAIN, RECIPE, SERVICE, ASYNC)

TTL = 10
SESSION_TTL = 60
"""The default of Go's sessions."""
SECONDS = 30.0
DEFAULTS = ("--heartbeat-interval", "100", "--election-timeout", "1000")
"""Those of etcd: the servers of tests have shorter ones."""

_leases = itertools.count(time.time_ns() // 1000)


class Installation:
    """One server, and the clients that take turns on it.

    Args:
        server: the server.
        stack: ends what is opened here.
    """

    def __init__(self, server: EtcdServer, stack: ExitStack) -> None:
        self.server, self._stack = server, stack
        self.endpoint = Endpoint(server.host, server.port, tls=False)
        self.loop = asyncio.new_event_loop()
        self._sessions: list[int] = []
        self._keeper = Connection()
        stack.callback(self._keeper.close)
        threading.Thread(target=self._keep_sessions, daemon=True).start()

    def connection(self) -> Connection:
        connection = Connection()
        sock = socket.create_connection((self.server.host, self.server.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.open(sock, self.endpoint)
        return connection

    def session(self) -> int:
        """Return a lease, which is kept alive: each third of its ttl, as Go's client does."""
        lease = next(_leases)
        self.server.call("lease/grant", {"ID": str(lease), "TTL": str(SESSION_TTL)})
        self._sessions.append(lease)
        return lease

    def _keep_sessions(self) -> None:
        while True:
            time.sleep(SESSION_TTL / 3)
            for lease in list(self._sessions):
                self.server.call("lease/keepalive", {"ID": str(lease)})

    def coordinator(self) -> EtcdCoordinator:
        return self._stack.enter_context(EtcdCoordinator([self.server.url], ttl=TTL))

    def cpu(self) -> float:
        """Return the processor time of the server so far."""
        assert self.server.pid is not None
        return cpu_seconds(self.server.pid)

    def size(self) -> dict[str, int]:
        """Return the bytes of the file, and those of it that are in use."""
        said = self.server.call("maintenance/status", {})
        return {name: int(said[name]) for name in ("dbSize", "dbSizeInUse")}

    def compact(self) -> None:
        """Forget all revisions but the newest."""
        revision = self.server.call("maintenance/status", {})["header"]["revision"]
        self.server.call("kv/compaction", {"revision": revision, "physical": True})

    def queue(self, prefix: str) -> int:
        """Return how many hold the lock or wait for it."""
        asked = {"key": encode(prefix), "range_end": encode(end_of(prefix)), "count_only": True}
        return int(self.server.call("kv/range", asked).get("count", 0))


@contextmanager
def installation(*, on_disk: bool) -> Iterator[Installation]:
    """Start a server with etcd's defaults. It waits for the disk, or its data are in memory."""
    memory = Path("/dev/shm")
    before = tempfile.tempdir
    if not on_disk and memory.is_dir():
        tempfile.tempdir = str(memory)
    try:
        server = start_etcd(own=True, extra_args=DEFAULTS)
    finally:
        tempfile.tempdir = before
    with server, ExitStack() as stack:
        yield Installation(server, stack)


def installed(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind != ETCDCTL or shutil.which("etcdctl")]


def prefix_of(kind: str, resource: str) -> str:
    """Return what the keys of a queue begin with."""
    return f"fencing/1/lock/{resource}/" if kind.startswith(OURS) else f"bench/{resource}/"


class Requests:
    """What the locks of etcd itself ask, once for each lock."""

    def __init__(self, resource: str, lease: int) -> None:
        self.prefix, self.lease = prefix_of(RECIPE, resource), lease
        own = f"{self.prefix}{lease:x}"
        oldest = read_oldest(self.prefix)
        self.lock = body_of(
            transaction([compare(own, "CREATE", 0)], [put(own, "", lease), oldest], [read(own), oldest])
        )
        self.unlock = body_of({"key": encode(own)})
        name = b64encode(self.prefix.removesuffix("/").encode()).decode()
        self.service_lock = body_of({"name": name, "lease": str(lease)})
        self.service_unlock = self.unlock

    def before(self, revision: int) -> bytes:
        """Return what reads the last key before the own one."""
        asked = {"key": encode(self.prefix), "range_end": encode(end_of(self.prefix)), "limit": "1"}
        return body_of(asked | {"sort_target": "CREATE", "sort_order": "DESCEND", "max_create_revision": str(revision)})


def _checked(reply: tuple[int, bytes], endpoint: Endpoint) -> Reply:
    found = reply_of(*reply, endpoint.url)
    if found.refused:
        raise RuntimeError(found.refused.text)
    return found


class Recipe:
    """A lock as etcd's recipe has it, with a session of its own."""

    def __init__(self, its: Installation, resource: str) -> None:
        self._its, self._asks = its, Requests(resource, its.session())
        self._connection, self._watching = its.connection(), Connection()
        self._endpoint = its.endpoint

    def _ask(self, path: str, body: bytes) -> Reply:
        until = time.monotonic() + SECONDS
        return _checked(self._connection.ask(path, body, "", until), self._endpoint)

    def acquire(self) -> None:
        reply = self._ask("kv/txn", self._asks.lock)
        own = reply.revision if reply.succeeded else reply.keys(0)[0].created
        if reply.first_key(1) is None or reply.keys(1)[0].created == own:
            return
        while True:
            reply = self._ask("kv/range", self._asks.before(own - 1))
            found = reply.message.get("kvs", ())
            if not found:
                return
            self._watch(found[0]["key"], reply.revision + 1)

    def _watch(self, key: str, revision: int) -> None:
        """Wait until a key is deleted."""
        create = {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}
        sock = socket.create_connection((self._endpoint.host, self._endpoint.port))
        self._watching.open(sock, self._endpoint)
        until = time.monotonic() + SECONDS
        self._watching.send("watch", body_of({"create_request": create}), "", until)
        while True:
            lines = self._watching.next_lines(until)
            if not lines:
                raise TimeoutError
            if any(map(is_deletion, lines)):
                self._watching.close()
                return

    def release(self) -> None:
        self._ask("kv/deleterange", self._asks.unlock)


class Service:
    """A lock of the service within the server."""

    def __init__(self, its: Installation, resource: str) -> None:
        self._asks, self._connection, self._endpoint = Requests(resource, its.session()), its.connection(), its.endpoint

    def _ask(self, path: str, body: bytes) -> Reply:
        until = time.monotonic() + SECONDS
        return _checked(self._connection.ask(path, body, "", until), self._endpoint)

    def acquire(self) -> None:
        self._ask("lock/lock", self._asks.service_lock)

    def release(self) -> None:
        self._ask("lock/unlock", self._asks.service_unlock)


class AsyncRecipe:
    """The recipe's requests for asyncio, for a lock that nobody else wants."""

    def __init__(self, its: Installation, resource: str) -> None:
        self._its, self._asks = its, Requests(resource, its.session())
        self._connection = AsyncConnection()

    async def _ask(self, path: str, body: bytes) -> Reply:
        if not self._connection.is_usable(self._its.endpoint):
            await self._connection.open(self._its.endpoint, None)
        async with asyncio.timeout(SECONDS):
            return _checked(await self._connection.ask(path, body, ""), self._its.endpoint)

    async def acquire(self) -> None:
        reply = await self._ask("kv/txn", self._asks.lock)
        if reply.keys(1) and reply.keys(1)[0].created != reply.revision:
            raise RuntimeError("the lock was not free")

    async def release(self) -> None:
        await self._ask("kv/deleterange", self._asks.unlock)


def way(its: Installation, kind: str, resource: str, coordinator: EtcdCoordinator | None = None) -> Way:
    """Return how a worker takes and frees a lock, with a session or a coordinator of its own."""
    kind = kind.removesuffix(AGAIN)
    if kind == OURS:
        return way_of((coordinator or its.coordinator()).lock(resource), SECONDS)
    if kind == ETCDCTL:
        command = [
            "etcdctl",
            "--endpoints",
            its.server.url,
            "lock",
            prefix_of(kind, resource).removesuffix("/"),
            "true",
        ]
        return Way(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), lambda: None)
    made: Recipe | Service = Recipe(its, resource) if kind == RECIPE else Service(its, resource)
    return Way(made.acquire, made.release)


def async_way(its: Installation, kind: str, resource: str, coordinator: AsyncEtcdCoordinator | None = None) -> AsyncWay:
    """Return the same for asyncio, on the loop of the installation."""
    if kind == ASYNC_RECIPE:
        made = AsyncRecipe(its, resource)
        return AsyncWay(made.acquire, made.release)
    lock = (coordinator or AsyncEtcdCoordinator([its.server.url], ttl=TTL)).lock(resource)
    leases: list[Any] = []

    async def acquire() -> None:
        leases.append(await lock.acquire(timeout=SECONDS))

    async def release() -> None:
        await leases.pop().release()

    return AsyncWay(acquire, release)
