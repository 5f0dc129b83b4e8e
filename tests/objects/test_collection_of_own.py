"""A collector deletes data of older fences only: never its own, and never a newer one's."""

from __future__ import annotations

from typing import Any

import pytest
from obstore.store import MemoryStore

from fencing import Fence
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.probe import ProbeReport
from tests.support.sides import Side

R = "orders:1"
OLD, MINE, NEWER = (Fence(R, number, token * 22) for number, token in ((1, "a"), (2, "b"), (3, "c")))


@pytest.fixture
def guard(side: Side) -> Any:
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    guard = kind(MemoryStore())
    guard._report = ProbeReport("as given", versions_return=False, races=6, seconds=0.1)
    return guard


def numbers(uploads: Any) -> list[int]:
    return [each.number for each in uploads]


def test_uploads_of_the_collectors_own_fence_stay(side: Side, guard: Any) -> None:
    """Another thread under the same fence may be about to publish them."""
    side.call(guard.publish, OLD, {"x": b"0"}, claim=True)
    for value in (b"1", b"2", b"3"):
        side.call(guard.publish, MINE, {"x": value}, claim=True)
    assert numbers(side.call(guard.collect, MINE)) == [1]
    assert numbers(side.call(guard.history, R)) == [2, 2, 2]
    side.call(guard.claim, NEWER)
    assert numbers(side.call(guard.collect, NEWER)) == [2, 2]


def test_an_upload_that_is_under_way_in_the_same_fence_can_still_be_published(side: Side, guard: Any) -> None:
    beside = ObjectStoreGuard(guard._io.store)
    side.call(guard.claim, MINE)
    collected: list[Any] = []
    progress = lambda *_: collected.extend(beside.collect(MINE))  # noqa: E731
    published = side.call(guard.publish, MINE, {"x": b"1"}, progress=progress)
    assert collected == []
    assert side.call(published.read, "x") == b"1"


def test_uploads_of_newer_fences_stay(side: Side, guard: Any) -> None:
    """A newer holder uploads before it claims, with its publication."""
    beside = ObjectStoreGuard(guard._io.store)
    beside.claim(MINE)
    collected: list[Any] = []
    progress = lambda *_: collected.extend(beside.collect(MINE))  # noqa: E731
    published = side.call(guard.publish, NEWER, {"x": b"1"}, claim=True, progress=progress)
    assert collected == []
    assert side.call(published.read, "x") == b"1"
