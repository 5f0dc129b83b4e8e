"""Nodes that die, freeze and are cut off, and clients that race."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.asyncio

from fencing import AsyncRedlockCoordinator, CoordinatorUnavailable, FencingError, NotAcquired, RedlockCoordinator
from fencing.kernel import lending
from fencing.kernel.opening import MOST_OVERDUE_OF_ALL
from fencing.kernel.retry import NoReply
from fencing.redlock import client_async
from fencing.redlock.calls import Fanout, grant_call
from fencing.redlock.scripts import ACQUIRE
from tests.support import wait_until
from tests.support.bursts import MANY, burst_until
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.servers import Proxy
from tests.support.sides import Side

MOST_OPENERS = MOST_OVERDUE_OF_ALL + 5
"""How many connections to five nodes may be opened at once: so many overdue ones, and one more for each node."""

TWO = ("frozen", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("killed", "cut off")))


class Cut:
    """Five nodes, each behind a proxy, of which some fail."""

    def __init__(self, nodes: RedlockNodes, proxies: list[Proxy]) -> None:
        self.nodes, self.proxies = nodes, proxies

    @property
    def urls(self) -> list[str]:
        return [proxy.url(server.url) for proxy, server in zip(self.proxies, self.nodes.servers, strict=True)]

    def fail(self, how: str, count: int) -> None:
        for server, proxy in list(zip(self.nodes.servers, self.proxies, strict=True))[:count]:
            if how == "killed":
                server.kill()
            elif how == "frozen":
                server.freeze()
            else:
                proxy.silence()

    def restore(self) -> None:
        for server, proxy in zip(self.nodes.servers, self.proxies, strict=True):
            proxy.restore()
            if server.pid is not None:
                server.thaw()


@pytest.fixture
def five(fresh_nodes: FreshNodes) -> Iterator[Cut]:
    nodes = fresh_nodes(5, longest_ttl=10.0)
    with ExitStack() as stack:
        five = Cut(nodes, [stack.enter_context(Proxy(server.host, server.port)) for server in nodes.servers])
        yield five
        five.restore()


def numbers_of(side: Side, coordinator: Any, count: int) -> list[int]:
    numbers = []
    for _ in range(count):
        lease = side.call(coordinator.acquire, "r", timeout=10)
        numbers.append(lease.fence.number)
        assert side.call(lease.release) is True
    return numbers


@pytest.mark.thorough
@pytest.mark.parametrize("how", TWO)
def test_two_of_five_nodes_may_fail(side: Side, five: Cut, how: str) -> None:
    coordinator = five.nodes.coordinator(side, five.urls)
    numbers = numbers_of(side, coordinator, 3)
    held = side.call(coordinator.acquire, "held", timeout=10)
    five.fail(how, 2)
    numbers += numbers_of(side, coordinator, 30)
    side.call(held.renew)
    assert side.call(coordinator.try_acquire, "held") is None
    side.call(held.release)
    five.restore()
    numbers += numbers_of(side, coordinator, 3)
    assert numbers == sorted(set(numbers))


@pytest.mark.thorough
@pytest.mark.parametrize("how", TWO)
def test_without_a_majority_there_are_no_locks_and_it_is_told_in_time(side: Side, five: Cut, how: str) -> None:
    coordinator = five.nodes.coordinator(side, five.urls, ttl=1.5)
    lease = side.call(coordinator.acquire, "held", timeout=10)
    before = numbers_of(side, coordinator, 1)
    five.fail(how, 3)
    for timeout in (0, 0.3):
        started = time.monotonic()
        error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=timeout)
        assert "2 of 5 nodes answered, and 3 are needed" in str(error)
        assert time.monotonic() - started < 30
    side.expect(FencingError, lease.renew)
    side.wait_until(lease.lost.is_set)
    five.restore()
    if how != "killed":
        after = numbers_of(side, coordinator, 2)  # nothing stays taken by what arrived late
        assert [*before, *after] == sorted({*before, *after})


@pytest.mark.thorough
def test_a_partition_that_never_ends_costs_nothing_more_with_time(
    side: Side, five: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes send no reply any more: no thread, connection or memory is used up by them."""
    # What is remembered has a bound, which a short test must reach.
    monkeypatch.setattr("fencing.redlock.client.MOST_TOKENS", 50)
    coordinator = five.nodes.coordinator(side, node_timeout=0.02)
    [last] = numbers_of(side, coordinator, 1)
    five.fail("frozen", 2)
    used: list[tuple[int, int, int]] = []
    tracemalloc.start()
    try:
        for _ in range(3):
            began, pairs = time.monotonic(), 0
            while time.monotonic() - began < 4 or pairs < 200:
                [number] = numbers_of(side, coordinator, 1)
                assert number > last
                last, pairs = number, pairs + 1
            gc.collect()
            memory, _ = tracemalloc.get_traced_memory()
            openers = [each for each in threading.enumerate() if each.name == "fencing-opener"]
            # A busy machine is late at the other three as well.
            assert len(openers) <= MOST_OPENERS, "they try to reach the two"
            used.append((threading.active_count() - len(openers), len(os.listdir("/proc/self/fd")), memory))
        # What a busy machine has left undecided is given back in the background, and is forgotten then.
        side.wait_until(lambda: gc.collect() >= 0 and tracemalloc.get_traced_memory()[0] <= used[0][2] + 300_000)
    finally:
        tracemalloc.stop()
    first, *_, latest = used
    assert latest[0] <= first[0]
    assert latest[1] <= first[1] + MOST_OPENERS, "connections come and go"
    started = time.monotonic()
    side.call(coordinator.close)
    assert time.monotonic() - started < 30


@pytest.mark.thorough
def test_a_late_request_leaves_nothing_behind(side: Side, five: Cut) -> None:
    """A release was sent behind each request that got no reply."""
    coordinator = five.nodes.coordinator(side, five.urls, node_timeout=0.05)
    numbers_of(side, coordinator, 1)
    five.fail("frozen", 3)
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2)
    five.restore()
    for server in five.nodes.servers:
        with server.client() as client:
            side.wait_until(lambda client=client: client.get("r") is None)  # type: ignore[misc]


@pytest.mark.thorough
def test_clocks_that_jump_end_leases_early_and_numbers_grow_all_the_same(side: Side, five: Cut) -> None:
    """The keys of three nodes expire, as they do when the clocks of the nodes jump ahead."""
    first, second = five.nodes.coordinator(side), five.nodes.coordinator(side)
    lease = side.call(first.acquire, "r", timeout=10)
    assert side.call(second.try_acquire, "r") is None
    for server in five.nodes.servers[:3]:
        with server.client() as client:
            client.pexpire("r", 1)
    newer = side.call(second.acquire, "r", timeout=10)
    assert newer.fence.number > lease.fence.number
    assert lease.held, "two clients believe that they hold it: this is what guards are for"
    side.call(newer.release)
    side.call(lease.release)


@pytest.mark.thorough
@pytest.mark.parametrize("ahead", [-60, 60])
def test_a_client_whose_clock_is_wrong_by_a_minute(side: Side, five: Cut, ahead: int) -> None:
    right, wrong = five.nodes.coordinator(side), five.nodes.coordinator(side)
    clock = wrong._backend._wall_clock_us
    wrong._backend._wall_clock_us = lambda: clock() + ahead * 1_000_000
    numbers = []
    for _ in range(4):
        numbers += numbers_of(side, right, 1) + numbers_of(side, wrong, 1)
    assert numbers == sorted(set(numbers))


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [6, 150])
def test_racing_clients_never_share_a_lock_or_a_number(side: Side, five: Cut, rounds: int) -> None:
    coordinators = [five.nodes.coordinator(side, node_timeout=0.1) for _ in range(4)]
    held: list[int] = []
    numbers: list[int] = []

    def work(coordinator: Any) -> None:
        for _ in range(rounds):
            try:
                lease = side.call(coordinator.acquire, "r", timeout=20)
            except NotAcquired:
                continue
            held.append(1)
            assert len(held) == 1
            numbers.append(lease.fence.number)
            held.pop()
            side.call(lease.release)

    side.race([lambda each=each: work(each) for each in coordinators])  # type: ignore[misc]
    assert len(numbers) > rounds
    assert numbers == sorted(set(numbers))


def test_a_connection_whose_end_is_seen_as_a_call_is_made(
    fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to the other nodes counts, although the first one has failed before it was sent."""
    monkeypatch.setattr(client_async, "IDLE_SECONDS", -1)
    nodes = fresh_nodes(longest_ttl=60.0)
    loop = asyncio.new_event_loop()
    clients = [redis.asyncio.Redis.from_url(server.url) for server in nodes.servers]
    coordinator = AsyncRedlockCoordinator(clients, longest_ttl=60.0)
    lease = loop.run_until_complete(coordinator.acquire("r"))
    with nodes.servers[0].client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: len(client.client_list(_type="normal")) == 1)  # the event loop stands still meanwhile
    assert loop.run_until_complete(lease.release()) is True
    loop.run_until_complete(coordinator.close())
    loop.close()


@pytest.mark.thorough
def test_releases_that_first_reach_a_minority_say_that_the_locks_were_held(side: Side, five: Cut) -> None:
    coordinator = five.nodes.coordinator(side, five.urls, ttl=10.0)
    leases = [side.call(coordinator.acquire, name, timeout=10) for name in ("r", "s")]
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for server in five.nodes.servers]
        for name in ("r", "s"):
            clients[0].delete(name)  # four nodes hold it
        for proxy in five.proxies[:3]:
            proxy.refuse()
        side.expect(CoordinatorUnavailable, coordinator.try_acquire, "other")  # from here on nothing is sent to them
        ends: list[Any] = []
        threads = [threading.Thread(target=lambda end=each.release: ends.append(side.call(end))) for each in leases]
        for thread in threads:
            thread.start()
        side.wait_until(lambda: not any(client.exists("r", "s") for client in clients[3:]))
        five.restore()
        for thread in threads:
            thread.join()
    assert ends == [True, True]


def test_a_release_is_sent_behind_each_request_without_a_reply(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(side, node_timeout=0.1)
    call = grant_call(ACQUIRE, "r", "t" * 22, (60_000, "me", 0), 1)
    numbers_of(side, coordinator, 1)  # all connections are open
    before = [highest_of(server) for server in nodes.servers]
    for server in nodes.servers[:2]:
        server.freeze()
    side.expect(NoReply, coordinator._backend.perform, Fanout(call, (0, 1, 2), 2, 2, 0.1))
    for server, earlier in zip(nodes.servers[:2], before, strict=False):
        server.thaw()
        side.wait_until(lambda server=server, earlier=earlier: highest_of(server) > earlier)  # type: ignore[misc]
        with server.client() as client:
            side.wait_until(lambda client=client: client.get("r") is None)  # type: ignore[misc]
    with nodes.servers[2].client() as client:
        assert client.get("r") is not None, "it replied, so the caller knows"


def highest_of(server: Any) -> int:
    with server.client() as client:
        return int(client.get("fencing:1:highest"))


def test_a_refused_try_leaves_nothing_at_a_minority(side: Side, redlock_nodes: RedlockNodes) -> None:
    coordinator, name = redlock_nodes.coordinator(side), f"refused:{side.name}"
    clients = [server.client() for server in redlock_nodes.servers]
    for client in clients[:3]:
        client.set(name, "another library's token", px=60_000)
    assert side.call(coordinator.try_acquire, name) is None
    side.wait_until(lambda: [client.get(name) for client in clients[3:]] == [None, None], seconds=5)
    for client in clients[:3]:
        client.delete(name)
    lease = side.call(coordinator.acquire, name, timeout=5)
    assert sum(bool(client.set(name, "another library's token", nx=True, px=60_000)) for client in clients) < 3
    side.call(lease.release)
    for client in clients:
        client.delete(name)


@pytest.mark.thorough
def test_a_node_whose_handshake_drips_costs_what_a_silent_one_does(side: Side, five: Cut) -> None:
    """The handshake of a new connection never ends, though each byte of it comes in time."""
    five.proxies[0].drip(replies=0.2)
    coordinator = five.nodes.coordinator(side, five.urls, ttl=10.0, node_timeout=0.5)
    started = time.monotonic()
    for _ in range(3):
        side.call(side.call(coordinator.acquire, "r", timeout=20).release)
    assert time.monotonic() - started < 20, "three times the time-out of a node, and what a busy machine adds"
    five.restore()


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_node_that_is_slow_to_connect_is_one_again_when_its_connection_is_open(side: Side, five: Cut) -> None:
    """Its connection comes too late for the call that began it. The next calls have it."""
    five.proxies[0].silence()
    coordinator = five.nodes.coordinator(side, five.urls, ttl=10.0, node_timeout=0.2)
    side.call(side.call(coordinator.acquire, "r", timeout=60).release)
    [bundle] = coordinator._backend._connections._pool.free
    assert bundle.closed == {0}
    five.restore()
    wait_until(lambda: not bundle.closed)
    wait_until(lambda: five.proxies[0].connections == 1)  # what else came too late is closed
    lease = side.call(coordinator.acquire, "r", timeout=60)
    five.nodes.wait_until_all_hold(side, "r")
    assert side.call(lease.release) is True


class FailingCredentials(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise LookupError("no credentials today")

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.mark.thorough
def test_a_function_of_one_node_that_fails_costs_no_lock(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(3, longest_ttl=20.0)
    clients = [side.client(server.url) for server in nodes.servers[:2]]
    clients.append(side.client(nodes.servers[2].url, credential_provider=FailingCredentials()))
    kind: Any = AsyncRedlockCoordinator if side.asynchronous else RedlockCoordinator
    coordinator = kind(clients, ttl=20, longest_ttl=20, node_timeout=2)
    side.made.append(coordinator)
    for _ in range(3):
        lease = side.call(coordinator.acquire, "r", timeout=20)
        side.call(lease.renew)
        assert side.call(lease.release) is True


@pytest.mark.deep
def test_the_connections_of_a_burst_are_given_up(
    side: Side, fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.1)
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(side)
    with nodes.servers[0].client() as admin:

        def connections() -> int:
            return len(admin.client_list(_type="normal"))

        others = connections()
        most = 1 if side.asynchronous else 5
        burst_until(side, coordinator, MANY, lambda: connections() >= others + most)
        side.wait_until(lambda: connections() <= others + 1)
    assert side.call(side.call(coordinator.acquire, "r", timeout=60).release) is True
