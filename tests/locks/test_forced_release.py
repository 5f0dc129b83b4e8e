"""A forced release that a guard did not answer is repeated, with the very same objects and number."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import Fence, GuardUnavailable, StaleFence
from fencing.testing.base import AsyncScriptedGuard, ScriptedGuard
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.memory_side import MemorySide


def test_the_error_of_a_guard_says_to_repeat_it_and_that_shuts_the_holder_out(side: MemorySide) -> None:
    storage: Any = AsyncMemoryGuard() if side.asynchronous else MemoryGuard()
    away: Any = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()
    stuck = side.call(side.coordinator(guards=[storage], renew=False).acquire, "r")
    operator = side.coordinator(guards=[away, storage])
    number = side.call(operator.holder, "r").number

    def unavailable(fence: Fence) -> None:
        raise GuardUnavailable("the storage is away, retry", resource=fence.resource)

    away.before_claim = unavailable
    error = side.expect(GuardUnavailable, operator.force_release, "r", number)
    assert "its former holder may still write: force the release again" in str(error)
    assert side.holder() is None
    side.call(storage.write, stuck.fence, "key", "still")
    away.before_claim = lambda _: None
    forced = side.call(operator.force_release, "r", number)
    assert forced.holder is None
    assert forced.fenced
    assert side.holder() is None
    with pytest.raises(StaleFence):
        side.call(storage.write, stuck.fence, "key", "no more")
    assert side.call(stuck.release) is False


def test_a_number_that_is_not_the_holders_forces_nobody_out(side: MemorySide) -> None:
    guard: Any = AsyncMemoryGuard() if side.asynchronous else MemoryGuard()
    coordinator = side.coordinator(guards=[guard])
    former = side.call(coordinator.acquire, "r")
    side.call(former.release)
    lease = side.call(coordinator.acquire, "r")
    assert side.call(coordinator.force_release, "r", former.fence.number) is None
    assert lease.held
    side.call(guard.write, lease, "key", "mine")
    side.call(lease.release)
    assert side.call(side.coordinator().force_release, "r", lease.fence.number) is None, "free, and nothing to claim at"
