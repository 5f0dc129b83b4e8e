"""Requests that arrive late: a proxy keeps the bytes of a connection, and the client goes on over a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.servers.proxy import Loss
from fencing import CoordinatorUnavailable, Fence, LeaseLost, NotAcquired
from fencing.redis.scripts import RELEASE, Script
from fencing.redlock import client_async, exchange
from fencing.redlock.calls import Fanout, highest_call
from fencing.redlock.scripts import ACQUIRE, FORCE_RELEASE, JOIN, REMINT
from tests.support.redis_requests import asks_for
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.servers import Proxy
from tests.support.sides import Side

MEMBER = "fencing:1:member"


class Slow:
    """Three nodes. The requests of ``coordinator`` go through proxies, those of ``other`` do not."""

    def __init__(self, side: Side, nodes: RedlockNodes, name: str, stack: ExitStack) -> None:
        self.side, self.nodes, self.name = side, nodes, name
        self.proxies = proxies = [stack.enter_context(Proxy(server.host, server.port)) for server in nodes.servers]
        self.clients = [stack.enter_context(server.client()) for server in nodes.servers]
        urls = [proxy.url(server.url) for proxy, server in zip(proxies, nodes.servers, strict=True)]
        self.leases: list[Any] = []
        options = {"ttl": min(10.0, nodes.longest_ttl), "node_timeout": min(0.3, nodes.longest_ttl / 4)}
        self.coordinator = nodes.coordinator(side, urls, clock_floor=False, **options)
        self.other = nodes.coordinator(side, clock_floor=False)

    def hold(self, script: Script, index: int, *, cut: bool = False) -> Loss:
        """Hold the next request that runs the script at a node; ``cut``: and break its connection off."""

        def runs(request: bytes) -> bool:
            return asks_for(script, request)

        return self.proxies[index].stall_connection_when(runs, cut_when=runs if cut else None)

    def tokens(self) -> list[str | None]:
        return [
            None if token is None else token.decode() for token in (client.get(self.name) for client in self.clients)
        ]

    def take(self, coordinator: Any, *, timeout: float = 10.0) -> Any:
        self.leases.append(self.side.call(coordinator.acquire, self.name, timeout=timeout))
        return self.leases[-1]

    def adopt(self, fence: Fence, **settings: Any) -> Any:
        self.leases.append(self.side.call(self.coordinator.lock(self.name, **settings).adopt, fence))
        return self.leases[-1]

    def end(self) -> None:
        for lease in self.leases:
            try:
                self.side.call(lease.detach)
            except LeaseLost:
                pass

    def is_held(self, lease: Any) -> bool:
        """Whether the lease still has its lock, and nobody else gets it."""
        self.side.call(lease.renew)
        return self.tokens().count(lease.fence.token) >= 2 and self.side.call(self.other.try_acquire, self.name) is None


Fresh = Callable[..., Slow]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    for module in (exchange, client_async):  # a connection that owes a reply is soon given up
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.1)
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def slow(side: Side, stack: ExitStack, redlock_nodes: RedlockNodes, request: pytest.FixtureRequest) -> Slow:
    nodes = RedlockNodes(redlock_nodes.servers[:3], longest_ttl=redlock_nodes.longest_ttl)
    slow = Slow(side, nodes, f"late:{request.node.name}", stack)
    stack.callback(slow.end)
    side.call(slow.coordinator.holder, slow.name)  # all connections are open, and have loaded the scripts
    return slow


@pytest.fixture
def fresh(side: Side, stack: ExitStack, fresh_nodes: FreshNodes) -> Fresh:
    """Starts nodes that may lose their data."""

    def start(**options: Any) -> Slow:
        slow = Slow(side, fresh_nodes(**options), "r", stack)
        stack.callback(slow.end)
        side.call(slow.coordinator.holder, slow.name)
        return slow

    return start


@pytest.mark.thorough
def test_a_late_round_frees_nothing_that_a_later_one_was_granted(side: Side, slow: Slow) -> None:
    kept = [slow.hold(ACQUIRE, index) for index in (0, 1)]
    lease = slow.take(slow.coordinator, timeout=20)
    for each in kept:
        each.deliver()  # the acquire, and the release behind it
    assert slow.is_held(lease)
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_late_acquire_does_not_revive_an_ended_lease(side: Side, slow: Slow) -> None:
    kept = slow.hold(ACQUIRE, 2)
    lease = slow.take(slow.coordinator)
    assert kept.wait(5)
    for client in slow.clients[:2]:
        client.delete(slow.name)  # its ttl is over
    kept.deliver()
    assert slow.tokens() == [None, None, lease.fence.token]
    side.expect(LeaseLost, lease.renew)
    side.expect(LeaseLost, slow.adopt, lease.fence)
    slow.take(slow.other)


@pytest.mark.thorough
def test_a_late_release_of_a_poll_frees_nothing_that_a_later_one_was_granted(side: Side, slow: Slow) -> None:
    for client in slow.clients[:2]:
        client.set(slow.name, "another library's token")
    kept = slow.hold(RELEASE, 2)  # of what this node grants
    leases: list[Any] = []

    def take() -> None:
        try:
            leases.append(slow.take(slow.coordinator, timeout=2))
        except (NotAcquired, CoordinatorUnavailable):
            pass  # what nobody uses any more is in the way

    def free() -> None:
        assert kept.wait(5)
        slow.clients[0].delete(slow.name)

    side.race([take, free])
    kept.deliver()
    lease = leases[0] if leases else slow.take(slow.coordinator, timeout=20)
    slow.clients[1].delete(slow.name)
    assert slow.is_held(lease)


@pytest.mark.thorough
def test_an_adoption_survives_a_slow_reply(side: Side, slow: Slow) -> None:
    fence = side.call(slow.take(slow.other).detach)
    slow.nodes.wait_until_all_hold(side, slow.name)
    slow.clients[2].delete(slow.name)  # the other two are a majority
    kept = slow.hold(REMINT, 1)
    adopted = slow.adopt(fence)
    kept.deliver()
    assert slow.is_held(adopted)


def test_an_adoption_without_an_answer_frees_nothing_and_is_repeated(side: Side, slow: Slow) -> None:
    fence = side.call(slow.take(slow.other).detach)
    slow.nodes.wait_until_all_hold(side, slow.name)
    slow.clients[2].delete(slow.name)
    slow.proxies[1].silence()
    side.expect(CoordinatorUnavailable, slow.adopt, fence, ttl=1.5)  # it asks for two thirds of it
    first, second, third = slow.tokens()
    assert first not in (None, fence.token), "the first node has granted it"
    assert (second, third) == (fence.token, None)
    slow.proxies[1].restore()
    adopted = slow.adopt(fence, ttl=1.5)
    assert adopted.fence.token == first
    assert slow.is_held(adopted)
    side.expect(LeaseLost, slow.adopt, fence)


def test_a_late_forced_release_takes_the_lock_from_nobody_else(side: Side, slow: Slow) -> None:
    slow.take(slow.other)
    slow.nodes.wait_until_all_hold(side, slow.name)
    kept = [slow.hold(FORCE_RELEASE, index, cut=True) for index in (0, 1)]
    side.call(slow.coordinator.force_release, slow.name)
    lease = slow.take(slow.other)
    for each in kept:
        each.deliver()
    assert slow.is_held(lease)


@pytest.mark.thorough
def test_a_forced_release_takes_free_nodes_where_one_of_the_holders_is_down(side: Side, slow: Slow) -> None:
    held = slow.take(slow.other)
    slow.nodes.wait_until_all_hold(side, slow.name)
    slow.clients[2].delete(slow.name)
    slow.proxies[1].refuse()
    forced = side.call(slow.coordinator.force_release, slow.name)
    assert forced.holder.number == held.fence.number
    lease = slow.take(slow.coordinator)
    slow.proxies[1].restore()
    assert lease.fence.number > forced.fence.number > held.fence.number


@pytest.mark.thorough
def test_a_late_initialisation_does_not_admit_a_node_that_lost_its_data_again(side: Side, fresh: Fresh) -> None:
    slow = fresh(longest_ttl=60.0, admitted=False)
    third = slow.clients[2]
    third.script_load(JOIN.text)
    kept = slow.hold(JOIN, 2, cut=True)
    side.call(slow.coordinator.initialise)
    assert third.get(MEMBER) is not None
    third.flushall()
    kept.deliver()
    assert third.get(MEMBER) is None, "it may have granted what is still held"


@pytest.mark.thorough
def test_an_initialisation_begins_again_where_a_node_lost_its_data_meanwhile(side: Side, fresh: Fresh) -> None:
    slow = fresh(longest_ttl=60.0, admitted=False)
    flushes = [slow.clients[2].flushall]

    def flush(request: bytes) -> bool:
        if asks_for(JOIN, request) and flushes:
            flushes.pop()()
        return False

    slow.proxies[2].drop_request_when(flush)
    side.call(slow.coordinator.initialise)
    assert not flushes
    assert all(client.get(MEMBER) is not None for client in slow.clients)


@pytest.mark.thorough
def test_a_late_join_does_not_admit_a_node_that_lost_its_data_again(side: Side, fresh: Fresh) -> None:
    """Its seed is old: the numbers of the members have grown since."""
    slow = fresh(longest_ttl=0.5)
    third = slow.clients[2]
    third.flushall()
    third.script_load(JOIN.text)
    kept = slow.hold(JOIN, 2, cut=True)

    def is_admitted() -> bool:
        try:
            side.call(side.call(slow.coordinator.acquire, slow.name, timeout=10).release)
        except CoordinatorUnavailable:
            pass
        return kept.fired > 0

    side.wait_until(is_admitted)
    third.flushall()
    third.script_load(JOIN.text)
    ask = Fanout(highest_call(), (2,), 1, 1, 1.0)
    side.wait_until(lambda: int(side.call(slow.other._backend.perform, ask)[2][2]) == 0)
    assert third.get(MEMBER) is None
    kept.deliver()
    assert third.get(MEMBER) is None
