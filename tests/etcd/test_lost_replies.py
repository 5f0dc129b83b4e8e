"""A request, or its reply, that is lost once or twice: what a user sees is the same, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.etcd import EtcdSide, Faults, with_faults
from tests.support.lost_stories import (
    MOST_REQUESTS,
    STORIES,
    Story,
    hold,
)


def play(etcd: EtcdSide, events: Any, what: str, first: int, count: int) -> bool:
    """Play a story in which some requests are lost. Return whether any was."""
    other, faulty = etcd.coordinator(), etcd.coordinator()
    faults: Faults = with_faults(faulty)
    story = Story(etcd, faulty, other)
    try:
        events(story, lambda: faults.lose(what, first, count))
    finally:
        faults.lost = lambda _: None
    etcd.wait_until(lambda: not etcd.keys(other, story.name))
    lease = etcd.call(other.acquire, story.name)
    held = etcd.keys(other, story.name)
    for call in faults.late:  # a request that was lost arrives all the same, late
        etcd.arrive(faulty, call)
    etcd.call(lease.renew)
    assert etcd.keys(other, story.name) == held
    assert etcd.call(lease.release)
    etcd.wait_until(lambda: not etcd.keys(other, story.name))
    for each in (other, faulty):
        etcd.call(each.close)
        etcd.made.remove(each)
    return bool(faults.late)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("events", STORIES)
def test_what_is_lost_changes_nothing(etcd: EtcdSide, events: Any, what: str, count: int) -> None:
    played = 0
    while play(etcd, events, what, played, count):
        played += 1
        assert played < MOST_REQUESTS
    assert played >= 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_lost_reply_of_a_short_block_changes_nothing(etcd: EtcdSide, first: int) -> None:
    assert play(etcd, hold, "reply", first, 1)
