"""Requests, or their replies, that are lost once or twice: what a user sees is the same, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient

from examples.servers import ZooKeeperServer
from examples.servers.proxy import Proxy
from fencing.kernel.fence import new_token
from tests.support.lost_stories import (
    MOST_REQUESTS,
    STORIES,
    Story,
    adopt,
    hold,
    release,
)
from tests.support.zookeeper import Faults, ZooKeeperSide, with_faults


def play(side: ZooKeeperSide, events: Any, what: str, first: int, count: int) -> bool:
    """Play a story in which some requests are lost. Return whether any was."""
    other, faulty = side.coordinator(), side.coordinator()
    faults: Faults = with_faults(faulty)
    story = Story(side, faulty, other)
    try:
        events(story, lambda: faults.lose(what, first, count))
    finally:
        faults.lost = lambda _: None
    side.wait_until(lambda: not side.queue(story.name))
    assert not faulty._backend.held_nodes
    for each in (other, faulty):
        side.call(each.close)
        side.made.remove(each)
    return bool(faults.late)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("events", STORIES)
def test_what_is_lost_changes_nothing(side: ZooKeeperSide, events: Any, what: str, count: int) -> None:
    played = 0
    while play(side, events, what, played, count):
        played += 1
        assert played < MOST_REQUESTS
    assert played >= 1


def test_a_creation_whose_reply_is_lost_leaves_nothing_in_the_queue(side: ZooKeeperSide) -> None:
    coordinator, resource = side.coordinator(), f"lost/{new_token()}"
    before = side.call(coordinator.acquire, resource, timeout=10)
    assert side.call(before.release)
    faults = with_faults(coordinator)
    faults.lose("reply", 0, 1)
    lease = side.call(coordinator.acquire, resource, timeout=10)
    assert faults.kinds[:2] == [["Create2", "GetChildren2", "Exists"]] * 2
    assert lease.fence.number > before.fence.number
    assert len(side.queue(resource)) == 1
    assert side.call(lease.release)
    assert not side.queue(resource)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("events", [hold, adopt, release])
def test_a_reply_that_is_lost_with_its_connection_changes_nothing(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer, events: Any, first: int
) -> None:
    """The client is connected again in the same session, and its pipelined requests were done in part."""
    other = side.coordinator()
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        faulty = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"))
        side.call(side.call(faulty.acquire, "connected/x", timeout=10).release)
        session = faulty._backend._client.current().client_id
        story = Story(side, faulty, other)
        seen = 0

        def is_it(request: bytes) -> bool:
            nonlocal seen
            seen += b"lost%2F" in request
            return seen > first

        losses: list[Any] = []
        events(story, lambda: losses.append(proxy.drop_reply_when(is_it)))
        side.wait_until(lambda: not side.queue(story.name))
        if losses[0].fired:
            side.wait_until(lambda: faulty._backend._client.current().connected)
            assert faulty._backend._client.current().client_id == session
        side.call(faulty.close)
        side.made.remove(faulty)
