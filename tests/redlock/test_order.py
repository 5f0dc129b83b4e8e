"""The requests of a token reach a node in order: no release overtakes its acquire, whatever connection is free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing.kernel.effects import run, run_async
from fencing.kernel.retry import NoReply
from fencing.redis.calls import Call, release_call
from fencing.redis.resp import INCOMPLETE
from fencing.redis.scripts import RELEASE
from fencing.redlock import client, client_async, exchange
from fencing.redlock.calls import Fanout, grant_call, holder_call
from fencing.redlock.scripts import ACQUIRE
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.servers import Proxy
from tests.support.sides import Side


class SlowThird:
    """Three nodes. The connection that takes ``r`` is slow at the third one."""

    def __init__(self, side: Side, nodes: RedlockNodes, proxy: Proxy) -> None:
        self.side, self.proxy = side, proxy
        self.third: RedisServer = nodes.servers[2]
        self.coordinator = nodes.coordinator(
            side, [*(each.url for each in nodes.servers[:2]), proxy.url(self.third.url)]
        )
        side.call(side.call(self.coordinator.acquire, "before", timeout=10).release)  # all connections are open
        with self.third.client() as client:
            side.wait_until(lambda: client.get("fencing:1:highest") is not None)
            self.highest = int(client.get("fencing:1:highest"))
        self.stalled = proxy.stall_connection_when(lambda request: b"\r\nr\r\n" in request)

    def take(self) -> Any:
        lease = self.side.call(self.coordinator.acquire, "r", timeout=10)
        assert self.stalled.wait(5)
        return lease

    @contextmanager
    def connections_in_use(self) -> Iterator[None]:
        """Let the calls of other threads use the connections over which the lock was taken."""
        if self.side.asynchronous:  # all calls share one connection
            yield
            return
        connections = self.coordinator._backend._connections
        bundle = connections._pool.free.pop()
        timer = threading.Timer(0.1, connections._give_back, [bundle])
        try:
            timer.start()
            yield
        finally:
            timer.join()

    def is_free_in_the_end(self) -> bool:
        self.proxy.restore()
        with self.third.client() as client:
            self.side.wait_until(lambda: int(client.get("fencing:1:highest") or 0) > self.highest)
            # What was sent behind the request is run with it, or soon after it.
            self.side.wait_until(lambda: client.get("r") is None, seconds=5)
        return True


@pytest.fixture
def slow_third(side: Side, fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowThird]:
    for module in (exchange, client_async):  # no connection is given up, however busy the machine is
        monkeypatch.setattr(module, "STALLED_SECONDS", 60.0)
    nodes = fresh_nodes(longest_ttl=60.0)
    with Proxy(nodes.servers[2].host, nodes.servers[2].port) as proxy:
        yield SlowThird(side, nodes, proxy)
        proxy.restore()


def release(three: SlowThird, lease: Any) -> None:
    assert three.side.call(lease.release) is True


def adopt(three: SlowThird, lease: Any) -> None:
    fence = three.side.call(lease.detach)
    adopted = three.side.call(three.coordinator.adopt, fence)
    assert three.side.call(adopted.release) is True


@pytest.mark.parametrize("end", [release, adopt])
def test_what_ends_a_lease_never_overtakes_its_acquire(slow_third: SlowThird, end: Callable[..., None]) -> None:
    lease = slow_third.take()
    with slow_third.connections_in_use():
        end(slow_third, lease)
    assert slow_third.is_free_in_the_end()


@pytest.mark.thorough
def test_a_release_of_several_locks_is_repeated_behind_their_requests(side: Side, slow_third: SlowThird) -> None:
    coordinator = slow_third.coordinator
    fence = side.call(slow_third.take().detach)
    plan = coordinator._backend.plan_release_all(
        [fence], coordinator._backend.settings, deadline=coordinator._backend.clock() + 10
    )
    with slow_third.connections_in_use():
        assert side.call(run_async if side.asynchronous else run, plan, coordinator._backend.perform) == [True]
    assert slow_third.is_free_in_the_end()


def test_a_late_reply_is_never_that_to_a_later_request(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(side)
    before = side.call(coordinator.acquire, "before", timeout=10)
    number = before.fence.number

    def ask(name: str, proposal: int, *, quorum: int, timeout: float) -> list[Any]:
        call = grant_call(ACQUIRE, name, name * 22, (60_000, "me", 0), proposal)
        return list(side.call(coordinator._backend.perform, Fanout(call, (0, 1, 2), quorum, 2, timeout)))

    nodes.servers[2].freeze()
    first, second = b"%d" % (number + 1), b"%d" % (number + 2)
    assert ask("a", number + 1, quorum=2, timeout=10.0) == [first, first, None]
    nodes.servers[2].thaw()
    with nodes.servers[2].client() as client:
        side.wait_until(lambda: client.exists("a"))  # it has replied
    nodes.servers[2].freeze()
    *two, third = ask("b", number + 2, quorum=4, timeout=0.3)
    assert two == [second, second]
    assert isinstance(third, NoReply)
    nodes.servers[2].thaw()
    side.call(before.release)


def test_only_a_release_is_repeated_where_scripts_were_forgotten(
    fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an acquisition that was sent behind it: its own release may have been sent meanwhile."""
    monkeypatch.setattr(exchange, "STALLED_SECONDS", 60.0)
    monkeypatch.setattr(exchange, "FRESH_SECONDS", 60.0)  # the acquisition is sent before a reply is read
    nodes, side = fresh_nodes(longest_ttl=60.0), Side(False)
    coordinator, third = nodes.coordinator(side), nodes.servers[2]
    held = coordinator.acquire("held", timeout=10)
    number = held.fence.number

    def ask(call: Call, quorum: int) -> list[Any]:
        return list(coordinator._backend.perform(Fanout(call, (0, 1, 2), quorum, 2, 10.0)))

    ask(holder_call("held"), 4)
    with third.client() as client:
        client.script_flush()
        third.freeze()
        assert ask(release_call("held", held.fence.token), 2)[2] is None
        third.thaw()
        side.wait_until(lambda: client.info("errorstats").get("errorstat_NOSCRIPT"))  # it has replied
        third.freeze()
        assert ask(grant_call(ACQUIRE, "later", "t" * 22, (60_000, "me", 0), number + 1), 2)[2] is None
        third.thaw()
        side.wait_until(lambda: ask(holder_call("later"), 4) and not client.exists("held"))
        assert not client.exists("later")
    held.release()
    coordinator.close()


def test_a_connection_that_owes_a_reply_for_long_is_replaced(
    side: Side, slow_third: SlowThird, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = slow_third.take()
    for module in (exchange, client_async):
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.1)

    def third_grants() -> bool:
        side.call(side.call(slow_third.coordinator.acquire, "another", timeout=10).release)
        with slow_third.third.client() as client:
            return int(client.get("fencing:1:highest")) > slow_third.highest

    side.wait_until(third_grants)
    side.call(lease.release)


@pytest.mark.thorough
@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(
    side: Side, redlock_nodes: RedlockNodes, node: int
) -> None:
    """Also where its reply comes after those of a majority, which decide."""
    coordinator, name = redlock_nodes.coordinator(side), f"forgotten:{side.name}:{node}"
    client = redlock_nodes.servers[node].client()
    lease = side.call(coordinator.acquire, name, timeout=10)
    redlock_nodes.wait_until_all_hold(side, name)
    client.script_flush()
    assert side.call(lease.release) is True

    def works_again() -> bool:
        side.call(side.call(coordinator.acquire, "another", timeout=10).release)
        return bool(all(client.script_exists(ACQUIRE.sha, RELEASE.sha))) and not client.exists(name)

    side.wait_until(works_again, seconds=5)


@pytest.mark.thorough
def test_an_interruption_closes_what_owes_replies_behind_a_release(
    fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its give-back may go over other connections, and would overtake the acquire at a slow node."""
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(Side(False), node_timeout=0.2)
    coordinator.acquire("before", timeout=10).release()
    connections = coordinator._backend._connections
    [bundle] = connections._pool.free

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(connections, "_note_owing", interrupt)
    nodes.servers[2].freeze()
    with pytest.raises(KeyboardInterrupt):
        coordinator.acquire("r", timeout=10)
    assert bundle.nodes[2].sock is None or not bundle.nodes[2].expected
    nodes.servers[2].thaw()
    with nodes.servers[2].client() as client:
        Side(False).wait_until(lambda: client.get("r") is None, seconds=5)
    coordinator.close()


class Interrupted:
    """A parser of replies; an interruption comes when the next one was taken from it."""

    def __init__(self, reader: Any) -> None:
        self.feed, self._gets = reader.feed, reader.gets

    def gets(self) -> Any:
        if self._gets() is not INCOMPLETE:
            raise KeyboardInterrupt
        return INCOMPLETE


def test_an_interruption_that_loses_a_reply_closes_its_connection(fresh_nodes: FreshNodes) -> None:
    """Otherwise, the connection would stay one reply behind, and the node would never be heard in time."""
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(Side(False), node_timeout=0.2)
    coordinator.acquire("before", timeout=10).release()
    [bundle] = coordinator._backend._connections._pool.free
    nodes.servers[2].freeze()
    lease = coordinator.acquire("r", timeout=10)
    third = bundle.nodes[2]
    assert third.expected
    third.reader = Interrupted(third.reader)
    nodes.servers[2].thaw()

    def ask_until_it_replies() -> None:
        while True:
            coordinator.holder("r")

    with pytest.raises(KeyboardInterrupt):
        ask_until_it_replies()
    assert third.sock is None
    assert lease.release() is True
    coordinator.close()


@pytest.mark.thorough
def test_a_release_does_without_connections_that_an_interruption_took(fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(Side(False), node_timeout=0.2)
    coordinator.acquire("before", timeout=10).release()
    nodes.servers[2].freeze()
    lease = coordinator.acquire("r", timeout=10)
    lost = coordinator._backend._connections._pool.free.pop()
    assert lost.owes()
    assert lease.release() is True
    nodes.servers[2].thaw()
    for server in nodes.servers[:2]:
        with server.client() as client:
            assert client.get("r") is None
    lost.close()
    coordinator.close()


def test_a_round_that_needs_no_reply_does_without_connections(
    redlock_nodes: RedlockNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in use by other threads: the round fails at each node, and raises nothing."""
    monkeypatch.setattr(client, "LEAST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(client, "MAX_CONNECTIONS", 1)
    coordinator = redlock_nodes.coordinator(Side(False), node_timeout=0.01)
    lease = coordinator.acquire("busy", timeout=10)
    pool = coordinator._backend._connections._pool
    release = release_call("busy", lease.fence.token)
    bundle = pool.free.pop()
    try:
        replies = coordinator._backend.perform(Fanout(release, (0, 1, 2, 3, 4), 3, 0, 0.01))
        assert [type(reply) for reply in replies] == [NoReply] * 5
        with pytest.raises(NoReply):
            coordinator._backend.perform(Fanout(release, (0, 1, 2, 3, 4), 3, 3, 0.01))
    finally:
        pool.give_back(bundle)
    lease.release()
    coordinator.close()
