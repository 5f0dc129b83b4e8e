"""Stories in which requests of one coordinator, or their replies, are lost: what a user sees is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencing import LeaseLost
from fencing.kernel.fence import new_token
from fencing.testing.contract import Contract
from tests.support.refusals import refused_as_held

MOST_REQUESTS = 12
"""More than any story sends."""


class Story:
    """Two coordinators, and a name. The requests of ``faulty`` may be lost."""

    def __init__(self, side: Contract, faulty: Any, other: Any) -> None:
        self.call, self.faulty, self.other = side.call, faulty, other
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
