"""The network keeps what an open connection has sent, and delivers it after the client went on over a new connection.

The compensation of a request comes behind it on its connection, so the two arrive together, late. A token is not asked
with again behind it: it would free what the repetition was granted.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from examples.servers import RedisCluster, RedisServer, SentinelServers
from fencing import CoordinatorUnavailable, Fence, LeaseLost
from fencing.kernel.fence import new_token
from fencing.kernel.process import now
from fencing.redis.keys import keys_of
from fencing.redis.resp import bulk
from fencing.redis.scripts import ACQUIRE, FORCE_RELEASE, RELEASE, REMINT, Script
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.redis_requests import asks_for
from tests.support.servers import Loss, Proxy
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter

TTL = 30.0
SOCKET_TIMEOUT = 0.15
"""Of the client: far shorter than an attempt, which has a third of the ttl."""


class Network:
    """A coordinator whose way to the server keeps requests, and the server without that.

    Args:
        side: of the coordinator.
        server: the primary of "r".
        proxy: before it.
        client: of the coordinator, through the proxy.
        options: of the coordinator.
    """

    def __init__(self, side: Side, server: RedisServer, proxy: Proxy, client: Any, **options: Any) -> None:
        self._side, self.server, self.proxy = side, server, proxy
        self.direct: Any = server.client()
        for script in (ACQUIRE, REMINT, FORCE_RELEASE):
            self.direct.script_load(script.text)  # so that the first request runs it
        self.coordinator = side.coordinator(client, ttl=TTL, renew=False, **options)
        self._skipped = 0.0
        self.coordinator._backend.clock = lambda: (
            now() + self._skipped
        )  # of the plans; that of the waits is the real one
        side.call(side.call(self.coordinator.acquire, "r", timeout=10).release)  # a connection is open

    def stall(self, script: Script, *, seconds: float = 0.0, words: int = 0) -> Loss:
        """Keep the next request that runs the script, and let time pass.

        Args:
            script: of the request.
            seconds: how much time passes for the plans when the request is sent.
            words: how many the request has; 0: any number.
        """

        def matches(request: bytes) -> bool:
            if not asks_for(script, request) or not request.startswith(b"*%d\r\n" % words if words else b"*"):
                return False
            self._skipped += seconds
            return True

        return self.proxy.stall_connection_when(matches)

    @contextmanager
    def delivered(self, count: int = 1) -> Iterator[None]:
        """Deliver what was kept at the end of the block, and wait until the server has carried it out."""
        before = self._connections()
        yield
        self.proxy.restore()
        # A server reads all that a connection has sent before it notices its end.
        wait_until(lambda: len(before - self._connections()) >= count, 20)

    def _connections(self) -> set[str]:
        return {client["id"] for client in self.direct.client_list(_type="normal")}

    @property
    def token(self) -> str | None:
        """The token that holds the lock."""
        return self.direct.get("r")  # type: ignore[no-any-return]


CLUSTER_AND_REPLICAS = [pytest.param(way, marks=pytest.mark.thorough) for way in ("cluster", "replicas")]


@pytest.fixture(params=["one", *CLUSTER_AND_REPLICAS])
def network(request: pytest.FixtureRequest, side: Side, proxy: ProxyFactory) -> Network:
    if request.param == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        server = cluster.primary_of("r")
        through = proxy(server)
        addresses = {(server.host, server.port): (through.host, through.port)}
        remap: Callable[[Any], Any] = lambda address: addresses.get(address, address)  # noqa: E731
        client = side.cluster_client(cluster, socket_timeout=SOCKET_TIMEOUT, address_remap=remap)
        return Network(side, server, through, client)
    replicas = 1 if request.param == "replicas" else 0
    if replicas:
        sentinels: SentinelServers = request.getfixturevalue("sentinels")
        server = sentinels.servers[0]
    else:
        server = request.getfixturevalue("any_redis")
    through = proxy(server)
    client = side.client(through.url(server.url), socket_timeout=SOCKET_TIMEOUT)
    return Network(side, server, through, client, replicas=replicas)


def held_by(network: Network, lease: Any) -> bool:
    return bool(network.direct.get("r") == lease.fence.token.encode())


def test_an_acquire_whose_attempt_ends_before_its_time(side: Side, network: Network) -> None:
    """The first attempt may take all of the caller's time, and the client's socket_timeout ends it."""
    network.stall(ACQUIRE)
    lease = side.call(network.coordinator.acquire, "r", timeout=8)
    with network.delivered():
        pass
    assert held_by(network, lease)
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_an_acquire_without_a_timeout(side: Side, network: Network) -> None:
    """It gives up after two attempts' time. The second one begins so late that it would be the last one."""
    network.stall(ACQUIRE, seconds=TTL / 3)
    network.stall(ACQUIRE)
    lease = side.call(network.coordinator.acquire, "r")
    with network.delivered(2):
        pass
    assert held_by(network, lease)
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_an_adoption(side: Side, network: Network) -> None:
    fence = side.call(network.coordinator.acquire, "r").detach()
    network.stall(REMINT, seconds=TTL / 3)
    network.stall(REMINT)
    lease = side.call(network.coordinator.adopt, fence)
    with network.delivered(2):
        pass
    assert held_by(network, lease)
    assert side.call(lease.release) is True


def test_the_remint_after_a_refused_claim(side: Side, network: Network) -> None:
    guard: Any = (AsyncMemoryGuard if side.asynchronous else MemoryGuard)()
    first = side.call(network.coordinator.acquire, "r")
    side.call(guard.claim, Fence("r", first.fence.number + 60_000_000, new_token()))
    side.call(first.release)
    network.stall(REMINT)
    lease = side.call(network.coordinator.lock("r", guards=[guard]).acquire, timeout=8)
    with network.delivered():
        pass
    assert held_by(network, lease)
    assert side.call(lease.release) is True


QUEUE_WORDS = 3 + 5 + 7  # EVALSHA, digest and number of keys; the keys; the arguments with a listener and a ticket


def test_a_waiter_keeps_its_place(side: Side, network: Network) -> None:
    holder = side.call(network.coordinator.acquire, "r")
    network.stall(ACQUIRE, words=QUEUE_WORDS)
    waiter = Waiter(side, network.coordinator, timeout=8)
    queue = Queue(network.server)
    queue.has(1)
    with network.delivered():
        pass
    assert len(queue) == 1, "its place is not removed"
    assert side.call(holder.release) is True
    assert waiter.join().error is None


@pytest.mark.parametrize("lost", ["reply", pytest.param("request", marks=pytest.mark.thorough)])
def test_an_adoption_without_an_answer_frees_nothing_and_is_repeated(side: Side, network: Network, lost: str) -> None:
    fence = side.call(network.coordinator.acquire, "r").detach()
    before = network.coordinator._backend.clock()

    def matches(request: bytes) -> bool:
        network._skipped += TTL if asks_for(REMINT, request) else 0.0
        return asks_for(REMINT, request)

    lose = network.proxy.drop_reply_when if lost == "reply" else network.proxy.drop_request_when
    loss = lose(matches)
    side.expect(CoordinatorUnavailable, network.coordinator.adopt, fence)
    assert loss.fired == 1
    assert network.coordinator._backend.clock() > before + TTL / 2
    held = network.direct.get("r")
    assert (held == fence.token.encode()) is (lost == "request")
    lease = side.call(network.coordinator.adopt, fence)
    assert held_by(network, lease)
    assert lost == "request" or held == lease.fence.token.encode(), "the same adoption, answered now"
    assert side.call(lease.release) is True


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_reclaim_is_continued(side: Side, network: Network) -> None:
    """It asks again under the same token. So nothing may come behind the remint that was cancelled."""
    guard = AsyncMemoryGuard()
    lease = side.call(network.coordinator.lock("r", guards=[guard]).acquire, timeout=8)
    kept = network.stall(REMINT)

    async def cancel() -> None:
        task = asyncio.create_task(lease.reclaim())
        while not kept.fired:  # noqa: ASYNC110 - the proxy runs in a thread
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        network.proxy.restore()

    side.call(cancel)
    newest = side.call(lease.reclaim)
    assert newest.fence.number > lease.fence.number
    side.call(newest.renew)
    assert held_by(network, newest)
    assert side.call(newest.release) is True


def test_a_forced_release_that_arrives_late_takes_the_lock_from_nobody_else(side: Side, network: Network) -> None:
    """The request is repeated and answered. Another one holds the lock when the first attempt arrives."""
    side.call(network.coordinator.acquire, "r").detach()
    network.stall(FORCE_RELEASE)
    assert side.call(network.coordinator.force_release, "r").fence
    other = side.call(network.coordinator.acquire, "r", timeout=10)
    with network.delivered():
        pass
    assert held_by(network, other)
    side.call(other.renew)
    assert side.call(other.release) is True


@pytest.mark.parametrize("record", ["{later} {token} 5 me", "offer hub"], ids=["granted", "offered"])
def test_a_lease_does_not_go_on_in_a_later_grant_of_its_token(side: Side, any_redis: RedisServer, record: str) -> None:
    """It was forced out, and the lock given on and freed. Then a late request of its own arrived."""
    direct: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=TTL, renew=False)
    lease = side.call(coordinator.acquire, "r")
    fence = lease.fence
    direct.set("r", fence.token, px=5_000)
    direct.set(keys_of("r").holder, record.format(later=fence.number + 1, token=fence.token), px=5_000)
    side.expect(LeaseLost, coordinator.adopt, fence)
    side.expect(LeaseLost, lease.renew)
    assert direct.pttl("r") <= 5_000, "nobody believes in it, so nothing keeps it"


# A server whose answers the test writes


class Server:
    """A server that greets as Redis does, ends the first script on each connection in one way, and then grants.

    Args:
        answer: what the first script gets.
        must_end: whether the server ends its side of the connection then. The client's side stays open.
    """

    def __init__(self, answer: bytes, *, must_end: bool = False) -> None:
        self._answer, self._must_end = answer, must_end
        self.first: list[bytes] = []  # all scripts on the connection that was treated so
        self.granted: list[bytes] = []
        self.ended = threading.Event()
        self._clients: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self._clients.append(self._socket.accept()[0])
            except OSError:
                return
            threading.Thread(target=self._serve, args=(self._clients[-1],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        is_first = False
        try:
            while data := client.recv(1 << 20):
                if b"EVAL" not in data:
                    client.sendall(b"+OK\r\n" * max(1, data.count(b"CLIENT")))
                elif is_first:
                    self.first.append(data)
                elif self.first:
                    self.granted.append(data)
                    client.sendall(b":1\r\n" if asks_for(RELEASE, data) else b"$1\r\n7\r\n")
                else:
                    is_first = True
                    self.first.append(data)
                    client.sendall(self._answer)
                    if self._must_end:
                        client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if is_first:
            self.ended.set()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for client in self._clients:
            client.close()


ENDINGS: dict[str, Callable[[], Server]] = {
    "no answer": lambda: Server(b""),
    "READONLY": lambda: Server(b"-READONLY You can't write against a read only replica.\r\n"),
    "LOADING": lambda: Server(b"-LOADING Redis is loading the dataset in memory\r\n"),
    "the end of the connection": lambda: Server(b"", must_end=True),
    "no reply of ours": lambda: Server(b":1\r\n"),
}


@pytest.fixture
def serve() -> Iterator[Callable[[Server], Server]]:
    made: list[Server] = []

    def started(server: Server) -> Server:
        made.append(server)
        return server

    yield started
    for server in made:
        server.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_comes_behind_an_attempt_that_is_repeated(
    side: Side, serve: Callable[[Server], Server], ending: str
) -> None:
    server = serve(ENDINGS[ending]())
    coordinator = side.coordinator(side.client(server.url, socket_timeout=SOCKET_TIMEOUT), ttl=TTL, renew=False)
    lease = side.call(coordinator.acquire, "r", timeout=8)
    assert server.ended.wait(20)
    assert [bulk(lease.fence.token) in request for request in server.first] == [True]
    assert [bulk(lease.fence.token) in request for request in server.granted] == [True], "the same token again"
    side.call(lease.release)


@pytest.mark.thorough
def test_an_attempt_that_uses_up_all_of_its_time_is_released_and_not_repeated(
    side: Side, serve: Callable[[Server], Server]
) -> None:
    server = serve(Server(b""))
    coordinator = side.coordinator(side.client(server.url), ttl=TTL, renew=False)
    began = time.monotonic()
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.1)
    assert time.monotonic() - began >= 0.1
    wait_until(lambda: len(server.first) == 2, 20)
    assert [asks_for(script, request) for script, request in zip((ACQUIRE, RELEASE), server.first, strict=True)]
    wait_until(lambda: len(server.granted) == 2, 20)  # in the background, until two releases were answered
    assert all(asks_for(RELEASE, request) for request in server.granted)
