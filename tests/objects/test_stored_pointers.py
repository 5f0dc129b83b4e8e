"""What a guard has stored or read serves as the condition of its next put, and for nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from examples.servers import S3Server
from fencing import Fence, OutcomeUnknown, StaleFence, StaleRead
from fencing.kernel.fence import Mark
from storage_guards.objects import changes
from storage_guards.objects.changes import Scope
from storage_guards.objects.keys import Layout
from storage_guards.objects.pointer import Entry, Pointer
from storage_guards.objects.requests import Version
from storage_guards.objects.seen import MOST_STORED, Seen, StoredPointers
from storage_guards.objects.uploads import SMALL
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.object_publications import SHA256, published
from tests.support.request_counts import RequestCounts
from tests.support.servers import HttpProxy
from tests.support.sides import Side

R, KEY = "orders:1", "reports/today.csv"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)
POINTER = "fencing/orders=3A1/pointer.json"
DATA = ["put data", "put manifest"]
READ, PUT = f"get {POINTER}", f"put {POINTER}"


class Recorder(FaultyStore):
    """A store in memory that records its requests in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        kind = "manifest" if path.endswith("/manifest.jsonl") else "data"
        self.asked.append(f"put {kind}" if "/data/" in path else f"put {path}")
        return await super().put_async(path, file, **options)

    async def get_async(self, path: str, **options: Any) -> Any:
        self.asked.append(f"{'head' if (options.get('options') or {}).get('head') else 'get'} {path}")
        return await super().get_async(path, **options)

    def during(self, action: Callable[[], object]) -> list[str]:
        self.asked.clear()
        action()
        return list(self.asked)


@pytest.fixture
def desk(side: Side) -> Desk:
    return Desk(side, Recorder())


def requests(desk: Desk, method: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    asked: list[str] = desk.store.during(lambda: desk.call(method, *args, **options))
    return asked


def publish(desk: Desk, fence: Fence = A, body: Any = b"new", **options: Any) -> list[str]:
    return requests(desk, desk.guard.publish, fence, {"x": body}, **options)


@pytest.mark.thorough
def test_the_requests_of_each_operation(
    side: Side, s3_server: S3Server, http_proxy: Callable[[S3Server], HttpProxy]
) -> None:
    """As the page counts them."""
    network = http_proxy(s3_server)
    counts = RequestCounts(network)
    desk = Desk(side, s3_server.store(via=network), s3_server)

    def count(method: Callable[..., Any], *args: Any, **options: Any) -> Counter[str]:
        return counts.during(lambda: desk.call(method, *args, **options))

    guard = desk.guard
    assert count(guard.publish, A, {"x": b"1"}, claim=True) == {"get": 1, "put": 3}
    assert count(guard.claim, B) == {"get": 1, "put": 1}
    assert count(guard.publish, B, {"x": b"1"}) == {"put": 3}
    assert count(guard.publish, B, {"x": b"1", "y": b"2"}) == {"put": 4}
    assert count(guard.publish, B, {"x": [b"1"]}) == {"get": 1, "put": 3}
    desk.beside.claim(C)
    assert count(guard.publish, C, {"x": b"1"}) == {"get": 1, "put": 3}
    assert count(guard.read, R) == {"get": 1}
    assert count(guard.publish, C, {"x": b"1"}) == {"put": 3}
    assert count(guard.delete, C) == {"get": 1, "put": 1}
    assert count(guard.write, C, KEY, b"1") == {"get": 1, "head": 1, "put": 1}
    stored = desk.call(guard.get, KEY)
    assert count(guard.write, C, KEY, b"2", replacing=stored) == {"get": 1, "put": 1}
    assert count(guard.write, Fence(R, 4, "d" * 22), KEY, b"3", claim=True) == {"get": 1, "head": 1, "put": 2}


def test_several_resources_are_read_at_once_and_then_claimed_one_after_the_other(desk: Desk) -> None:
    fences = [Fence(f"orders:{number}", 2, "b" * 22) for number in range(3)]
    asked = requests(desk, desk.guard.claim, *fences)
    pointers = [f"fencing/orders=3A{number}/pointer.json" for number in range(3)]
    assert sorted(asked[:3]) == [f"get {pointer}" for pointer in pointers]
    assert asked[3:] == [f"put {pointer}" for pointer in pointers]
    assert requests(desk, desk.guard.claim, *fences)[3:] == [], "they were claimed already"
    desk.beside.claim(Fence("orders:1", 3, "c" * 22))
    newer = [Fence(f"orders:{number}", 3, "d" * 22) for number in range(3)]
    assert desk.side.expect(StaleFence, desk.guard.claim, *newer).fence == newer[1]
    assert len(desk.store.asked) == 6, "all were read, and none was claimed"


def test_a_publication_after_the_own_claim_reads_nothing(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    assert publish(desk) == [*DATA, PUT]
    assert publish(desk) == [*DATA, PUT]
    assert desk.current == {"x": b"new"}
    mark = desk.beside.mark(R)
    assert mark == Mark(1, A.token, 2)


def test_a_change_that_fails_leaves_nothing_stored(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    desk.side.expect(ZeroDivisionError, lambda: publish(desk, progress=lambda *_: 1 // 0))
    assert publish(desk) == [READ, *DATA, PUT]


def test_bodies_that_are_big_or_of_unknown_size_are_uploaded_after_a_read(desk: Desk, tmp_path: Path) -> None:
    desk.call(desk.guard.claim, A)
    assert publish(desk, body=[b"1"])[0] == READ
    assert publish(desk, body=bytes(SMALL + 1))[0] == READ
    desk.side.expect(FileNotFoundError, lambda: publish(desk, body=tmp_path / "missing"))
    assert desk.store.asked == [READ]


def test_a_state_that_is_not_fresh_is_read_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the upload, and after one that has lasted."""
    desk.call(desk.guard.claim, A)
    monkeypatch.setattr(changes, "FRESH_SECONDS", -1.0)
    assert publish(desk) == [READ, *DATA, READ, PUT]


# Another writer in between


def test_a_superseded_holder_is_refused_at_its_put(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    desk.beside.publish(B, {"x": b"by B"}, claim=True)
    error = desk.side.expect(StaleFence, lambda: publish(desk))
    assert error.mark == Mark(2, B.token, 1)
    assert desk.store.asked == [*DATA, PUT, READ]
    assert desk.current == {"x": b"by B"}
    assert desk.side.expect(StaleFence, lambda: publish(desk)).mark == error.mark
    assert desk.store.asked == [READ], "now it is refused before the upload"


def test_another_writer_with_the_same_fence_is_replaced(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    first = desk.beside.publish(A, {"x": b"first"})
    assert publish(desk) == [*DATA, PUT, READ, PUT]
    assert desk.current == {"x": b"new"}
    assert desk.beside.mark(R) == Mark(1, A.token, 2), "both were acknowledged, each once"
    desk.side.expect(StaleRead, lambda: publish(desk, replacing=first))


def test_a_fence_with_other_writers_is_read_from_then_on(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    desk.beside.publish(A, {"x": b"first"})
    publish(desk)
    assert publish(desk) == publish(desk) == [READ, *DATA, PUT]
    desk.call(desk.guard.claim, B)
    assert publish(desk, B) == [*DATA, PUT], "the next fence begins anew"


def test_what_is_stored_refuses_nothing(desk: Desk) -> None:
    """Another writer has published what this one is to replace, or carries over."""
    desk.call(desk.guard.claim, A)
    other = desk.beside.publish(A, {"x": b"by another"})
    desk.call(desk.guard.publish, A, {"x": other["x"], "y": b"2"}, replacing=other)
    assert desk.current == {"x": b"by another", "y": b"2"}
    desk.beside.delete(A)
    assert publish(desk, replacing=None)[0] == READ


def test_a_stale_state_with_a_long_history_behind_it_is_unknown_and_neither_refused_nor_acknowledged(
    desk: Desk,
) -> None:
    """Nobody can say any more whether the refused put had been done before."""
    desk.call(desk.guard.claim, A)
    for number in range(17):
        desk.beside.publish(A, {"x": b"%d" % number})
    error = desk.side.expect(OutcomeUnknown, lambda: publish(desk))
    assert desk.call(desk.guard.landed, error) is None
    assert desk.current == {"x": b"16"}
    assert publish(desk) == [READ, *DATA, PUT]


@pytest.mark.parametrize("fault", ["reply lost", "refused though done", "late"])
def test_a_put_from_a_stored_state_whose_reply_is_lost_is_found_out(desk: Desk, fault: str) -> None:
    desk.call(desk.guard.claim, A)
    desk.store.faults.append(fault)
    publish(desk)
    assert desk.current == {"x": b"new"}
    assert desk.beside.mark(R) == Mark(1, A.token, 1), "it happened once"
    assert True not in desk.side.call(desk.store.land)
    publish(desk, body=b"newer")
    assert desk.current == {"x": b"newer"}


def test_the_same_state_under_another_version_is_no_conflict(desk: Desk) -> None:
    """As after a restore of the last acknowledged state."""
    desk.call(desk.guard.claim, A)
    desk.store.inner.put(POINTER, bytes(desk.store.inner.get(POINTER).bytes()))
    publish(desk)
    assert desk.current == {"x": b"new"}


def test_a_slow_upload_of_a_thread_yields_to_what_another_thread_has_stored(desk: Desk) -> None:
    """Its own state is older than what was acknowledged under the fence, so it reads again."""
    desk.call(desk.guard.claim, A)
    beside = desk.beside
    beside._continuity = desk.guard._continuity

    def publish_too(*_: Any) -> None:
        beside.publish(A, {"x": b"meanwhile"})

    assert publish(desk, progress=publish_too) == [*DATA, READ, PUT]
    assert desk.current == {"x": b"new"}


# The memory


def seen(resource: str = R, fence: Fence = A, seq: int = 1, objects: int = 0, version: str | None = "v") -> Seen:
    now = datetime.now(UTC)
    entries = {str(number): Entry("key", 1, SHA256) for number in range(objects)}
    new = published(fence, "i" * 16, now, entries)
    pointer = Pointer(resource, Mark(fence.number, fence.token, seq), now, ("*" + "i" * 16,), new)
    return Seen(pointer, Version(version, None), 0.0)


def test_only_states_of_the_own_fence_are_given_and_each_once() -> None:
    stored = StoredPointers()
    stored.put(seen())
    assert stored.take(R, B) is None
    assert stored.take("orders:2", A) is None
    assert stored.take(R, A) is not None
    assert stored.take(R, A) is None


def test_an_older_state_does_not_replace_a_newer_one_of_the_same_fence() -> None:
    stored = StoredPointers()
    stored.put(seen(seq=2))
    stored.put(seen(seq=1))
    found = stored.take(R, A)
    assert found is not None
    assert found.mark == Mark(1, A.token, 2)


def test_states_without_a_version_are_not_stored() -> None:
    stored = StoredPointers()
    stored.put(seen(version=None))
    stored.put(Seen(None, "create", 0.0))
    assert stored.take(R, A) is None


@pytest.mark.parametrize(("objects", "most"), [(0, MOST_STORED), (1000, 4)])
def test_the_memory_is_bounded(objects: int, most: int) -> None:
    stored = StoredPointers()
    names = [f"orders:{number}" for number in range(2 * most)]
    for name in names:
        stored.put(seen(name, objects=objects))
        stored.refuse(seen(name + "x"))
    found = [name for name in names if stored.take(name, A) is not None]
    assert 0 < len(found) <= most
    assert found == names[-len(found) :]


def test_a_scope_without_a_holder_takes_a_fresh_state_as_it_is() -> None:
    scope = Scope(R, Layout("fencing/").directory(R), 1.0, clock=lambda: 1.0)
    assert not scope.is_stale(seen())
