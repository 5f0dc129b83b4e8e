"""Clocks of nodes that jump by a minute, ahead and back, through libfaketime; and the clock of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from examples.servers import FakeClock, MissingTool
from fencing import StaleFence
from tests.support.fixtures import missing
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.sides import Account, Side

MINUTE = 60
Jumping = Callable[..., tuple[RedlockNodes, list[FakeClock]]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """For clocks, which end after the nodes."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def jumping(stack: ExitStack, fresh_nodes: FreshNodes) -> Jumping:
    """Starts five nodes, each with a clock of its own."""

    def start(longest_ttl: float) -> tuple[RedlockNodes, list[FakeClock]]:
        try:
            clocks = [stack.enter_context(FakeClock()) for _ in range(5)]
        except MissingTool as error:
            missing("faketime", str(error))
        return fresh_nodes(5, longest_ttl=longest_ttl, clocks=clocks), clocks

    return start


@pytest.mark.thorough
@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_three_clocks_that_jump_ahead_make_two_holders_and_a_guard_refuses_the_older(
    side: Side, jumping: Jumping, account: Account
) -> None:
    nodes, clocks = jumping(30.0)
    first, second = (nodes.coordinator(side, guards=[account.guard]) for _ in range(2))
    lease = side.call(first.acquire, "r", timeout=10)
    read = account.balance
    assert side.call(second.try_acquire, "r") is None
    nodes.wait_until_all_hold(side, "r")
    for clock in clocks[:3]:
        clock.set(MINUTE)
    newer = side.call(second.acquire, "r", timeout=10)
    assert newer.fence.number > lease.fence.number
    assert lease.held, "two clients believe that they hold it: this is what guards are for"
    account.write(newer, read + 5)
    side.expect(StaleFence, account.write, lease, read + 10)
    assert account.balance == read + 5
    side.call(newer.release)
    side.call(lease.release)


@pytest.mark.thorough
def test_three_clocks_that_jump_back_keep_a_lock_for_a_minute_longer(side: Side, jumping: Jumping) -> None:
    nodes, clocks = jumping(30.0)
    first, second = nodes.coordinator(side), nodes.coordinator(side)
    lease = side.call(first.acquire, "r", timeout=10)
    nodes.wait_until_all_hold(side, "r")
    for clock in clocks[:3]:
        clock.set(-MINUTE)
    for clock in clocks[3:]:
        clock.set(MINUTE)  # the ttl of ten seconds is over there
    assert side.call(second.try_acquire, "r") is None
    remaining = side.call(second.holder, "r").remaining
    assert 30 < remaining < 71
    assert side.call(lease.release) is True  # its holder can free it, and force_release could
    newer = side.call(second.acquire, "r", timeout=10)
    assert newer.fence.number > lease.fence.number
    side.call(newer.release)


@pytest.mark.thorough
def test_numbers_grow_while_clocks_jump(side: Side, jumping: Jumping) -> None:
    """A proposal that is a minute ahead of a node's clock is ignored there; a second round makes numbers equal."""
    nodes, clocks = jumping(30.0)
    coordinator = nodes.coordinator(side)
    numbers = []
    for offsets in (
        (0, 0, 0, 0, 0),
        (-61, 0, 0, 61, 61),
        (61, -61, -61, 0, 0),
        (-61, -61, -61, -61, 61),
        (0, 0, 0, 0, 0),
    ):
        for clock, offset in zip(clocks, offsets, strict=True):
            clock.set(offset)
        for _ in range(2):
            lease = side.call(coordinator.acquire, "r", timeout=10)
            numbers.append(lease.fence.number)
            side.call(lease.release)
    assert numbers == sorted(set(numbers))


@pytest.mark.thorough
def test_a_clock_that_jumps_ahead_admits_a_node_early(side: Side, jumping: Jumping) -> None:
    """A named limit: a node that came back waits by its own clock."""
    nodes, clocks = jumping(30.0)
    coordinator = nodes.coordinator(side)
    side.call(side.call(coordinator.acquire, "r", timeout=10).release)
    back = nodes.servers[0]
    back.restart(keep_data=False)
    with back.client() as client:

        def is_seen(key: str) -> bool:
            side.call(side.call(coordinator.acquire, "r", timeout=10).release)
            return bool(client.exists(key))

        side.wait_until(lambda: is_seen("fencing:1:back"))
        assert not client.exists("fencing:1:member")
        clocks[0].set(MINUTE)
        side.wait_until(lambda: is_seen("fencing:1:member"))
