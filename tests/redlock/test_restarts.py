"""Nodes that come back: without their data, with old data, after a stop; and the admission of new ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencing import CoordinatorUnavailable
from fencing.redlock.calls import member_words
from tests.support.redlock import TIMESTAMPS, FreshNodes, RedlockNodes, cut_off_the_last_second
from tests.support.sides import Side

LONGEST = 2.0
MEMBER = "fencing:1:member"


def highest(nodes: RedlockNodes, index: int) -> int:
    with nodes.servers[index].client() as client:
        return int(client.get("fencing:1:highest") or 0)


def is_member(nodes: RedlockNodes, index: int) -> bool:
    with nodes.servers[index].client() as client:
        run_id = client.info("server")["run_id"]
        return bool(client.get(MEMBER) == member_words(run_id, int(LONGEST * 1000), True).encode())


def pair(side: Side, coordinator: Any, name: str = "r") -> int:
    lease = side.call(coordinator.acquire, name, timeout=60)
    side.call(lease.release)
    return int(lease.fence.number)


@pytest.mark.thorough
def test_new_nodes_are_admitted_by_themselves_after_the_longest_ttl(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=LONGEST, admitted=False)
    coordinator = nodes.coordinator(side)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.25)
    assert re.search(
        r"no majority for 'r': the nodes have no data.*call initialise\(\) once.* in \d(\.\d+)? s", str(error)
    )
    started = time.monotonic()
    assert pair(side, coordinator) > 1e15
    assert time.monotonic() - started < LONGEST + 30
    side.wait_until(lambda: pair(side, coordinator) and all(is_member(nodes, index) for index in range(3)))


def test_initialise_admits_new_nodes_at_once_and_no_others(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0, admitted=False)
    coordinator = nodes.coordinator(side)
    side.call(coordinator.initialise)
    pair(side, coordinator)
    side.call(coordinator.initialise)  # nothing to do
    nodes.servers[0].restart(keep_data=False)
    error = side.expect(CoordinatorUnavailable, coordinator.initialise)
    assert re.search(r"node [23] has granted locks before", str(error))


@pytest.mark.parametrize(
    "how", ["empty", "cut off", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("killed", "stopped"))]
)
def test_a_node_that_was_restarted_waits_and_then_begins_above_the_members(
    side: Side, fresh_nodes: FreshNodes, how: str
) -> None:
    nodes = fresh_nodes(longest_ttl=LONGEST, extra_args=TIMESTAMPS if how == "cut off" else ())
    coordinator = nodes.coordinator(side)
    if how == "cut off":
        began = int(time.time())
        side.wait_until(lambda: int(time.time()) > began)  # the admission must not be in the last second
    before = pair(side, coordinator)
    back = nodes.servers[0]
    if how in ("killed", "cut off"):
        back.kill()
    elif how == "stopped":
        back.stop()
    if how == "cut off":
        assert cut_off_the_last_second(back)
    back.restart(keep_data=how != "empty")
    # Two members are a majority: locks go on meanwhile, and the node grants nothing.
    numbers = [pair(side, coordinator)]
    assert not is_member(nodes, 0)
    assert highest(nodes, 0) < numbers[0]
    deadline = time.monotonic() + 90
    while not is_member(nodes, 0):
        assert time.monotonic() < deadline
        numbers.append(pair(side, coordinator))
    with back.client() as client:
        assert int(client.get("fencing:1:seed") or 0) >= before
    nodes.servers[1].kill()  # from now on it is needed
    numbers.append(pair(side, coordinator))
    assert [before, *numbers] == sorted({before, *numbers})


@pytest.mark.thorough
def test_without_a_wait_a_node_with_its_data_goes_on_at_once(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0, extra_args=("--appendfsync", "always"), admitted=False)
    coordinator = nodes.coordinator(side, restart_wait=False)
    side.call(coordinator.initialise)
    before = pair(side, coordinator)
    nodes.servers[0].kill()
    nodes.servers[0].restart()
    nodes.servers[1].kill()
    assert pair(side, coordinator) > before
    nodes.servers[1].restart(keep_data=False)  # a node without data waits all the same
    nodes.servers[2].kill()
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [lambda client: client.flushall(), lambda client: client.append(MEMBER, " ?")])
def test_a_node_without_its_record_is_one_that_came_back(
    side: Side, fresh_nodes: FreshNodes, damage: Callable[[Any], object]
) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    coordinator = nodes.coordinator(side)
    before = pair(side, coordinator)
    with nodes.servers[0].client() as client:
        damage(client)
    assert pair(side, coordinator) > before
    nodes.servers[1].freeze()
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.5)
    assert "no majority" in str(error) or "are needed" in str(error)


@pytest.mark.thorough
def test_a_majority_that_lost_its_data_takes_its_numbers_from_the_clock(side: Side, fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=LONGEST)
    coordinator = nodes.coordinator(side)
    before = pair(side, coordinator)
    for server in nodes.servers[:2]:
        server.restart(keep_data=False)
    assert pair(side, coordinator) > before
    # A slow node's reply to its admission is not waited for, and another acquire admits it.
    side.wait_until(lambda: pair(side, coordinator) > before and all(is_member(nodes, index) for index in range(2)))


@pytest.mark.thorough
def test_a_majority_that_lost_its_data_needs_the_others_and_names_them(
    side: Side, fresh_nodes: FreshNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = fresh_nodes(longest_ttl=LONGEST)
    coordinator = nodes.coordinator(side)
    before = pair(side, coordinator)
    for server in nodes.servers[1:]:
        with server.client() as client:
            client.flushall()
    nodes.servers[0].freeze()
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=4)
    assert "all must answer before one takes part, and node 1 of the list did not; start what is down" in str(error)
    nodes.servers[0].thaw()
    assert pair(side, coordinator) > before
    nodes.servers[0].freeze()
    with monkeypatch.context() as patch:
        patch.setattr("fencing.redlock.plans.INITIALISE_SECONDS", 1.0)
        error = side.expect(CoordinatorUnavailable, coordinator.initialise)
    assert "initialise() needs all nodes; start them, and repeat it" in str(error)
    assert "2 of 3 nodes answered, and 3 are needed; node 1 did not" in str(error)
    nodes.servers[0].thaw()
    side.call(coordinator.initialise)
