"""``hold(at_least=...)`` on several nodes: a majority has it, or it is asked for again; and nodes that come back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, Fence, FencingError
from fencing.kernel.effects import Sleep
from fencing.kernel.retry import NoReply
from fencing.locks import plans as locks
from fencing.locks.settings import Settings
from fencing.redis.scripts import RELEASE_LATER
from fencing.redlock.calls import Fanout
from fencing.redlock.decisions import check_answered, decide_stay
from fencing.redlock.plans import RedlockPlans
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.sides import Side

LOST = NoReply(TimeoutError("no reply in time"), may_have_run=True)


class World:
    """Nodes that give these replies in turn, and the last ones for ever. Time passes only here."""

    def __init__(self, *replies: list[Any]) -> None:
        self.replies, self.calls, self.now = list(replies), list[Any](), 0.0
        plans = self.plans = RedlockPlans()
        plans.nodes, plans.ready, plans.node_timeout = len(replies[0]), set(), 0.05
        plans.longest_ttl, plans.clock_floor, plans.address = 60.0, False, "here"
        plans.clock = lambda: self.now

    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Sleep):
            self.now += effect.seconds
            return None
        assert isinstance(effect, Fanout)
        assert effect.script is RELEASE_LATER
        self.now += 0.05
        self.calls.append(effect.call)
        replies = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        check_answered(replies, effect.least)
        return replies

    def release(self) -> bool:
        plan = locks.release(self.plans, Fence("r", 7, "t" * 22), Settings(ttl=10.0, owner="me"), 2.0, 30.0)
        result: Any = None
        try:
            while True:
                try:
                    result = self.perform(plan.send(result))
                except NoReply as failure:
                    result = self.perform(plan.throw(failure))
        except StopIteration as stop:
            return bool(stop.value)


@pytest.mark.parametrize(
    ("replies", "stays"),
    [
        ([1, 1, 1], True),
        ([1, 1, 0], True),
        ([1, LOST, 1], True),
        ([1, 0, LOST], None),
        ([1, None, LOST], None),
        ([0, 0, 1], False),
        ([0, None, 0], False),
    ],
)
def test_a_majority_says_that_it_stays_taken(replies: list[Any], stays: bool | None) -> None:
    assert decide_stay(replies, 2) is stays


def test_a_release_that_reached_a_minority_is_asked_for_again() -> None:
    world = World([1, 0, LOST], [1, LOST, LOST], [1, 0, 1])
    assert world.release() is True
    assert len(world.calls) == 3
    tokens = {call.args[1] for call in world.calls}
    assert len(tokens) == 1, "a later attempt counts the nodes of the earlier ones"
    assert tokens != {"t" * 22}
    assert len(tokens.pop()) == 22
    times = [call.args[2] for call in world.calls]
    assert times == sorted(set(times), reverse=True), "it frees itself at the same moment"


def test_a_release_again_counts_the_nodes_that_have_it() -> None:
    """As the background does after a block whose release reached a minority."""
    first, second = World([1, 1, 1]), World([1, 1, 1])
    assert first.release()
    assert second.release()
    assert first.calls[0].args[1] == second.calls[0].args[1]


def test_a_minority_is_told_when_the_time_is_up() -> None:
    world = World([1, 0, LOST])
    with pytest.raises(CoordinatorUnavailable, match="after its release it stays taken at 1 of 3 nodes only"):
        world.release()
    assert world.now <= 2.0 + world.plans.node_timeout  # of the last attempt, which this world never cuts short


def test_what_a_majority_does_not_have_was_lost() -> None:
    assert World([0, 1, 0]).release() is False
    assert World([1, 0, LOST], [0, 0, 0]).release() is True  # the first attempt may have released it, long ago


def enter(side: Side, block: Any) -> Any:
    return side.call(block.__aenter__ if side.asynchronous else block.__enter__)


def leave(side: Side, block: Any) -> None:
    side.call(block.__aexit__ if side.asynchronous else block.__exit__, None, None, None)


def test_a_majority_of_the_nodes_keeps_it(side: Side, redlock_nodes: RedlockNodes) -> None:
    """As long as three of five have it, what became of it at the others does not matter."""
    coordinator, other = (redlock_nodes.coordinator(side, ttl=20) for _ in range(2))
    clients: list[Any] = [server.client() for server in redlock_nodes.servers]
    block = coordinator.hold("stays", at_least=60)
    lease = enter(side, block)
    redlock_nodes.wait_until_all_hold(side, "stays")
    leave(side, block)
    side.wait_until(lambda: len({client.get("stays") for client in clients}) == 1)
    assert clients[0].get("stays") != lease.fence.token.encode()
    assert min(client.pttl("stays") for client in clients) > 20_000, "longer than the ttl"
    for client in clients[:2]:
        client.delete("stays")
    assert side.call(other.try_acquire, "stays") is None
    assert side.call(other.holder, "stays").released
    clients[2].delete("stays")  # what no rule prevents: three have lost it
    following = side.call(other.acquire, "stays", timeout=10)
    assert following.fence.number > lease.fence.number
    side.call(following.release)
    for client in clients:
        client.delete("stays")


@pytest.mark.thorough
def test_a_node_that_was_restarted_keeps_it_by_its_wait(side: Side, fresh_nodes: FreshNodes) -> None:
    """Two of three have it, and one of them loses its data: it grants nothing before the lock would be free there."""
    nodes = fresh_nodes(longest_ttl=6.0)
    holder, other = (nodes.coordinator(side, ttl=1.0) for _ in range(2))
    block, began = holder.hold("r", at_least=6), time.monotonic()
    enter(side, block)
    nodes.wait_until_all_hold(side, "r")
    with nodes.servers[2].client() as client:
        client.delete("r")
    leave(side, block)
    nodes.servers[1].kill()
    nodes.servers[1].restart(keep_data=False)
    deadline, lease = time.monotonic() + 90, None
    while lease is None and time.monotonic() < deadline:
        try:
            lease = side.call(other.acquire, "r", timeout=1)
        except FencingError:
            pass
    assert lease is not None
    side.call(lease.release)
    assert time.monotonic() - began > 0.9 * 6, "the clocks of holder and nodes run alike"


@pytest.mark.thorough
def test_a_release_without_a_majority_is_finished_in_the_background(
    side: Side, fresh_nodes: FreshNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator, watcher = (nodes.coordinator(side, ttl=6, node_timeout=0.3) for _ in range(2))
    block = coordinator.hold("r", at_least=60)
    enter(side, block)
    nodes.wait_until_all_hold(side, "r")
    for server in nodes.servers[:2]:
        server.freeze()
    leave(side, block)
    assert "no answer" in caplog.text
    for server in nodes.servers[:2]:
        server.thaw()

    def has_it() -> bool:
        try:
            return bool(side.call(watcher.holder, "r").released)
        except CoordinatorUnavailable:
            return False

    side.wait_until(has_it, seconds=60)
    assert side.call(watcher.holder, "r").remaining > 6
