"""A request, or its reply, that is lost once or twice: what a user sees is the same, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencing import LeaseLost
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide, Faults, with_faults
from tests.support.refusals import refused_as_held

MOST_REQUESTS = 12
"""More than any story sends."""


class Story:
    """Two coordinators, and a name. The requests of ``faulty`` may be lost."""

    def __init__(self, etcd: EtcdSide, faulty: Any, other: Any) -> None:
        self.call, self.faulty, self.other = etcd.call, faulty, other
        self.name = f"lost/{new_token()}"


def hold(story: Story, begin: Callable[[], None]) -> None:
    begin()
    lease = story.call(story.faulty.acquire, story.name)
    assert story.call(story.faulty.holder, story.name).number == lease.fence.number
    assert story.call(lease.release)


def try_in_vain(story: Story, begin: Callable[[], None]) -> None:
    held = story.call(story.other.acquire, story.name)
    begin()
    assert story.call(story.faulty.try_acquire, story.name) is None
    assert story.call(held.release)


def wait_in_vain(story: Story, begin: Callable[[], None]) -> None:
    held = story.call(story.other.acquire, story.name)
    begin()
    refused_as_held(lambda: story.call(story.faulty.acquire, story.name, timeout=0.4))
    assert story.call(held.release)


def renew(story: Story, begin: Callable[[], None]) -> None:
    lease = story.call(story.faulty.acquire, story.name)
    begin()
    for _ in range(3):
        story.call(lease.renew)
    assert story.call(lease.release)


def adopt(story: Story, begin: Callable[[], None]) -> None:
    fence = story.call(story.call(story.other.acquire, story.name).detach)
    begin()
    lease = story.call(story.faulty.adopt, fence)
    assert lease.fence.number > fence.number
    assert story.call(lease.release)


def force(story: Story, begin: Callable[[], None]) -> None:
    lost = story.call(story.other.acquire, story.name)
    begin()
    forced = story.call(story.faulty.force_release, story.name)
    assert forced.fence.number > lost.fence.number
    with pytest.raises(LeaseLost):
        story.call(lost.renew)
    assert not story.call(lost.release)


def release(story: Story, begin: Callable[[], None]) -> None:
    lease = story.call(story.faulty.acquire, story.name)
    begin()
    assert story.call(lease.release)


STORIES = (hold, try_in_vain, wait_in_vain, renew, adopt, force, release)


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
