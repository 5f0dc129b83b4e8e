"""Earlier publications: they are listed, read, compared and restored, until they are collected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from obstore.exceptions import GenericError

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, StaleRead, UnclaimedFence
from storage_guards import PublicationDiff
from storage_guards.objects import collect as object_collect
from storage_guards.objects import pointer as states
from storage_guards.objects.keys import Directory
from storage_guards.objects.pointer import MOST_EARLIER, decode
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R, PLACE = "orders:1", "fencing/orders=3A1/"
POINTER = PLACE + "pointer.json"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)


class Nowhere(tzinfo):
    """A time zone that does not say what it is."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> None:
        return None


def read(desk: Desk, at: Any) -> dict[str, bytes] | None:
    found = desk.call(desk.guard.read, R, at=at)
    return None if found is None else desk.call(found.read_all)


def ids(desk: Desk) -> list[str]:
    return [each.id for each in desk.call(desk.guard.publications, R)]


def inner(desk: Desk) -> Any:
    return getattr(desk.store, "inner", desk.store)


def data_keys(desk: Desk) -> set[str]:
    return {each["path"] for page in inner(desk).list(PLACE + "data/") for each in page}


# Lists


def test_publications_are_listed(desk: Desk) -> None:
    assert desk.call(desk.guard.publications, R) == []
    first = desk.publish(A, {"x": b"1", "y": b"22"}, claim=True)
    second = desk.publish(B, {**first, "z": b"333"}, claim=True)
    desk.call(desk.guard.delete, C, claim=True)
    third = desk.publish(C, {"x": b""})
    found = desk.call(desk.guard.publications, R)
    assert [each.id for each in found] == [third.id, second.id, first.id]
    assert [(each.number, each.token, each.objects, each.size) for each in found] == [
        (3, C.token, 1, 0),
        (2, B.token, 3, 6),
        (1, A.token, 2, 3),
    ]
    assert [each.at for each in found] == [third.published_at, second.published_at, first.published_at]
    assert found[0].until is None
    assert second.published_at < found[1].until < third.published_at, "when it was deleted"
    assert second.published_at <= found[2].until < found[1].until


def test_the_last_ones_are_listed(desk: Desk) -> None:
    made = [desk.publish(A, {"x": b"1"}, claim=True).id for _ in range(MOST_EARLIER + 3)]
    assert ids(desk) == made[: -MOST_EARLIER - 2 : -1]


# Reads


def test_a_publication_is_read_by_its_id_its_number_or_its_time(desk: Desk) -> None:
    first = desk.publish(A, {"x": b"1"}, claim=True)
    second = desk.publish(A, {"x": b"2", "kept": first["x"]})
    desk.call(desk.guard.delete, A)
    third = desk.publish(B, {"x": b"3"}, claim=True)
    error = desk.refused(StaleRead, B, {**first, "y": b"4"})
    assert "restore() makes an earlier publication current first" in error
    bodies_of = {first: {"x": b"1"}, second: {"x": b"2", "kept": b"1"}, third: {"x": b"3"}}
    for publication, bodies in bodies_of.items():
        assert read(desk, publication.id) == bodies
        assert desk.call(desk.guard.read, R, at=publication.id) == publication
        assert read(desk, publication.published_at) == bodies
    assert read(desk, 1) == bodies_of[second], "the last one of that fence"
    assert read(desk, 2) == read(desk, None) == read(desk, datetime.now(UTC)) == bodies_of[third]
    deleted = desk.call(desk.guard.publications, R)[1].until
    assert read(desk, deleted - timedelta(microseconds=1)) == bodies_of[second]
    assert read(desk, deleted) is None
    desk.call(desk.guard.delete, B)
    assert read(desk, datetime.now(UTC)) is None
    assert read(desk, third.id) == bodies_of[third]


def test_a_publication_that_never_was_is_refused_in_words(desk: Desk) -> None:
    for published in (False, True):
        if published:
            desk.publish(A, {"x": b"1"}, claim=True)
        for at in ("x" * 16, 7, datetime(2026, 1, 31, tzinfo=UTC)):
            error = str(desk.side.expect(KeyError, desk.guard.read, R, at=at))
            assert "publications() lists those that are there" in error
    for bad in (True, 1.5, b"x", A):
        desk.side.expect(TypeError, desk.guard.read, R, at=bad)
    for naive in (None, Nowhere()):
        desk.side.expect(ValueError, desk.guard.read, R, at=datetime(2026, 1, 31, tzinfo=naive))


# Differences


def test_two_publications_are_compared(desk: Desk) -> None:
    first = desk.publish(A, {"kept": b"1", "same": b"2", "other": b"3", "gone": b"4"}, claim=True)
    second = desk.publish(A, {"kept": first["kept"], "same": b"2", "other": b"33", "new": b"5"})
    assert second.diff(first) == PublicationDiff(("new",), ("gone",), ("other",), ("kept", "same"))
    assert first.diff(second) == PublicationDiff(("gone",), ("new",), ("other",), ("kept", "same"))
    assert first.diff(desk.call(desk.guard.read, R, at=first.id)).unchanged == tuple(sorted(first))


# Restores


def test_an_earlier_publication_is_restored_without_a_copy(side: Side) -> None:
    desk = Desk(side, FaultyStore())
    first = desk.publish(A, {"x": b"1", "y": b"2"}, claim=True)
    second = desk.publish(A, {"x": b"3"})
    desk.call(desk.guard.claim, B)
    del desk.store.puts[:]
    restored = desk.call(desk.guard.restore, B, desk.call(desk.guard.read, R, at=first.id))
    assert [path.rpartition("/")[2] for path in desk.store.puts] == ["manifest.jsonl", "pointer.json"]
    assert dict(restored) == dict(first)
    assert restored.id not in (first.id, second.id)
    assert desk.current == {"x": b"1", "y": b"2"}
    assert ids(desk) == [restored.id, second.id, first.id]
    again = desk.call(desk.guard.restore, B, second, replacing=restored)
    assert desk.current == {"x": b"3"}
    desk.side.expect(StaleRead, desk.guard.restore, B, first, replacing=restored)
    desk.side.expect(StaleRead, desk.guard.restore, B, first, replacing=None)
    desk.call(desk.guard.restore, B, again, replacing=again)  # what is current
    assert desk.current == {"x": b"3"}


def test_a_restore_undoes_a_deletion(desk: Desk) -> None:
    first = desk.publish(A, {"x": b"1"}, claim=True)
    desk.call(desk.guard.delete, A)
    desk.call(desk.guard.restore, A, first, replacing=None)
    assert desk.current == {"x": b"1"}


def test_a_restore_is_a_write_of_the_holder(desk: Desk) -> None:
    first = desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.side.expect(UnclaimedFence, desk.guard.restore, B, first)
    desk.call(desk.guard.claim, B)
    desk.side.expect(StaleFence, desk.guard.restore, A, first)
    assert desk.current == {"x": b"2"}
    for bad in (None, "x", first.id, dict(first)):
        desk.side.expect(TypeError, desk.guard.restore, B, bad)
    other = desk.call(desk.guard.publish, Fence("orders:2", 1, "o" * 22), {"x": b"1"}, claim=True)
    desk.side.expect(ValueError, desk.guard.restore, B, other)
    desk.side.expect(TypeError, desk.guard.restore, B, first, replacing="x")


def test_what_no_pointer_names_is_not_restored(desk: Desk) -> None:
    """Its data may be deleted at any time."""
    first = desk.publish(A, {"x": b"1"}, claim=True)
    for _ in range(MOST_EARLIER + 1):
        desk.publish(A, {"x": b"2"})
    error = desk.side.expect(StaleRead, desk.guard.restore, A, first)
    assert "publications() lists what can be" in str(error)
    assert desk.current == {"x": b"2"}


# Collections


def test_a_collection_keeps_the_newest_publications_whole(desk: Desk) -> None:
    """Also what they have carried over from ones that are not kept."""
    first = desk.publish(A, {"x": b"1", "y": b"2"}, claim=True)
    second = desk.publish(A, {"x": first["x"], "z": b"3"})
    third = desk.publish(A, {"z": second["z"]})
    desk.publish(A, {"z": b"4"})
    desk.call(desk.guard.claim, B)
    would = desk.call(desk.guard.collect, B, keep=2, dry_run=True)
    assert [each.sizes for each in would] == [{"y": 1}]
    assert len(ids(desk)) == 4, "nothing has changed"
    assert desk.call(desk.guard.collect, B, keep=2) == would
    assert desk.call(desk.guard.collect, B, keep=2, dry_run=True) == []
    assert len(ids(desk)) == 3
    assert read(desk, second.id) == {"x": b"1", "z": b"3"}
    assert read(desk, third.id) == {"z": b"3"}
    assert desk.current == {"z": b"4"}
    desk.side.expect(KeyError, desk.guard.read, R, at=first.id)
    desk.side.expect(StaleRead, desk.guard.restore, B, first)
    desk.call(desk.guard.restore, B, second)
    desk.call(desk.guard.claim, C)
    desk.call(desk.guard.collect, C)
    assert desk.current == {"x": b"1", "z": b"3"}
    assert len(ids(desk)) == 1
    assert len(data_keys(desk)) == 3, "two objects, and a manifest"


def test_a_collection_keeps_what_was_current_a_while_ago(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago it was published: a reader may have opened it a moment before it was replaced."""
    now, clock = datetime.now(UTC), [0.0]
    scope_of = desk.guard._scope_of
    monkeypatch.setattr(
        desk.guard, "_scope_of", lambda *args: replace(scope_of(*args), now=lambda: now + timedelta(hours=clock[0]))
    )
    made = []
    for clock[0] in (-51, -50, 0.8):
        made.append(desk.publish(A, {"x": b"1"}, claim=True).id)
    clock[0] = 1.0
    desk.call(desk.guard.claim, B)
    assert len(desk.call(desk.guard.collect, B, older_than=0.5 * 3600)) == 1
    assert ids(desk) == [made[2], made[1]]
    assert read(desk, made[1]) == {"x": b"1"}
    assert desk.call(desk.guard.collect, B, older_than=0.5 * 3600) == []
    assert len(desk.call(desk.guard.collect, B, older_than=0.1 * 3600)) == 1
    assert ids(desk) == [made[2]]


def test_a_holder_that_stands_still_before_it_replaces_leaves_readers_their_time(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its bytes are stored. Readers open what is still current, for hours."""
    now, clock = datetime.now(UTC), [0.0]

    class StandsStill(FaultyStore):
        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            stored = await super().put_async(path, file, **options)
            if path.endswith("manifest.jsonl") and clock[0] == 1:
                clock[0] = 10
            return stored

    desk = Desk(side, StandsStill())
    scope_of = desk.guard._scope_of
    hours = timedelta(hours=1)
    monkeypatch.setattr(
        desk.guard, "_scope_of", lambda *args: replace(scope_of(*args), now=lambda: now + clock[0] * hours)
    )
    first = desk.publish(A, {"x": b"1"}, claim=True)
    clock[0] = 1
    second = desk.publish(A, {"x": b"2"})
    assert second.published_at == now + hours
    for at, then in ((0, b"1"), (1, b"2"), (1.1, b"1"), (9, b"1"), (10, b"2"), (11, b"2")):
        assert read(desk, now + at * hours) == {"x": then}
    desk.call(desk.guard.claim, B)
    desk.call(desk.guard.collect, B, older_than=3600)
    assert desk.call(first.read, "x") == b"1"
    clock[0] = 12
    desk.call(desk.guard.collect, B, older_than=3600)
    desk.side.expect(StaleRead, first.read, "x")


def test_a_young_upload_that_broke_off_stays(desk: Desk) -> None:
    inner(desk).put(PLACE + Directory.data_key(A, "u" * 16, "x"), b"1")
    desk.call(desk.guard.claim, B)
    assert desk.call(desk.guard.collect, B, keep=9, older_than=3600) == []
    assert [each.sizes for each in desk.call(desk.guard.collect, B, keep=9)] == [{"x": 1}]


def test_a_reader_of_what_is_collected_gets_an_error_and_never_other_bytes(desk: Desk) -> None:
    first = desk.publish(A, {"x": b"1", "y": b"2"}, claim=True)
    begun, later = desk.call(desk.guard.open, R, "x"), desk.call(first.open, "x")
    desk.publish(A, {"x": b"3", "y": first["y"]})
    desk.call(desk.guard.claim, B)
    desk.call(desk.guard.collect, B)
    for read in (later.read, first.read_all):
        desk.side.expect(StaleRead, read)
    assert desk.call(first.read, "y") == b"2"
    assert desk.call(begun.read) == b"1", "a store goes on with what it has begun to send"


def test_a_manifest_that_cannot_be_read_stops_the_collection(desk: Desk) -> None:
    damaged = desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.publish(A, {"x": b"3"})
    desk.call(desk.guard.claim, B)
    key = PLACE + f"data/{1:016d}.{A.token}/{damaged.id}/manifest.jsonl"
    before = data_keys(desk)
    pointer = bytes(inner(desk).get(POINTER).bytes())
    inner(desk).put(key, b"damaged")
    error = str(desk.side.expect(GuardNotEnforceable, desk.guard.collect, B, keep=2))
    assert "has deleted nothing: a manifest cannot be read" in error
    inner(desk).delete(key)
    error = str(desk.side.expect(GuardNotEnforceable, desk.guard.collect, B, keep=2))
    assert "does not keep this publication does not need it" in error
    assert data_keys(desk) == before - {key}
    assert bytes(inner(desk).get(POINTER).bytes()) == pointer
    assert len(desk.call(desk.guard.collect, B, keep=1)) == 1


def test_the_manifest_of_what_is_current_stops_the_collection_until_something_is_published(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MOST_INLINE", 1)
    lost = desk.publish(A, {"0": b"1", "1": b"2"}, claim=True)
    desk.call(desk.guard.claim, B)
    inner(desk).delete(PLACE + f"data/{1:016d}.{A.token}/{lost.id}/manifest.jsonl")
    for call in (desk.guard.read, desk.guard.history):
        assert "restore it from a backup, or publish again" in str(desk.side.expect(StaleRead, call, R))
    error = str(desk.side.expect(GuardNotEnforceable, desk.guard.collect, B, keep=1))
    assert "if it is current, publish first" in error
    desk.publish(B, {"x": lost["0"]}, replacing=lost)
    desk.call(desk.guard.claim, C)
    assert len(desk.call(desk.guard.collect, C)) == 1
    assert desk.current == {"x": b"1"}


class Superseding(FaultyStore):
    """Another collector is faster when a manifest is to be read."""

    newer: Callable[[], object] | None = None

    async def get_async(self, path: str, **options: Any) -> Any:
        if path.endswith("manifest.jsonl") and self.newer is not None:
            newer, self.newer = self.newer, None
            newer()
        return await super().get_async(path, **options)


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_collector_beside_another_of_the_same_fence_goes_on(side: Side) -> None:
    """The other one has deleted the manifest that it wanted to read."""
    desk = Desk(side, Superseding())
    desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.call(desk.guard.claim, B)
    desk.store.newer = lambda: desk.beside.collect(B)
    assert desk.call(desk.guard.collect, B, keep=1) == []
    assert len(ids(desk)) == 1
    assert desk.current == {"x": b"2"}


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_collector_that_is_superseded_says_so(side: Side) -> None:
    """The newer collector has deleted the manifest that it wanted to read."""
    desk = Desk(side, Superseding())
    desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.call(desk.guard.claim, B)
    desk.store.newer = lambda: (desk.beside.claim(C), desk.beside.collect(C))
    desk.side.expect(StaleFence, desk.guard.collect, B, keep=1)
    assert desk.current == {"x": b"2"}


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_collection_goes_on_behind_what_it_keeps(desk: Desk, monkeypatch: pytest.MonkeyPatch, earlier: int) -> None:
    """Although it inspects a part of the objects at a time, and the first parts have nothing to delete."""
    monkeypatch.setattr(object_collect, "MOST_LISTED", 3)
    current = desk.publish(A, {f"{number}": b"1" for number in range(10)}, claim=True)
    desk.publish(B, {"x": b"left"}, claim=True)
    desk.publish(B, {"x": b"left"})
    desk.publish(B, {**desk.call(desk.guard.restore, B, current), "y": b"2"})
    desk.call(desk.guard.claim, C)
    while desk.call(desk.guard.collect, C, keep=earlier):
        pass
    assert desk.current == {**{f"{number}": b"1" for number in range(10)}, "y": b"2"}
    assert len(data_keys(desk)) == 10 + 1 + 1 + earlier


# Each request that is lost, or arrives late


class OneFault(FaultyStore):
    """One request has a fault, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**6
        self.fault = ""

    def _is_now(self) -> bool:
        self.left -= 1
        return self.left == -1

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if self._is_now():
            if self.fault == "late":
                self.late.append((path, bytes(file), options))
            elif self.fault == "reply lost":
                await self.inner.put_async(path, file, **options)
            raise GenericError(self.fault)
        return await super().put_async(path, file, **options)

    async def get_async(self, path: str, **options: Any) -> Any:
        if self._is_now():
            raise GenericError(self.fault)
        return await super().get_async(path, **options)

    async def delete_async(self, paths: Any) -> None:
        is_now = self._is_now()
        if not is_now or self.fault == "reply lost":
            await self.inner.delete_async(paths)
        if is_now:
            raise GenericError(self.fault)

    async def list(self, prefix: str | None = None, **options: Any) -> Any:
        if self._is_now():
            raise GenericError(self.fault)
        async for page in self.inner.list(prefix, **options):
            yield page


REQUESTS = {"read": 2, "restore": 2, "append": 4, "collect": 5}
ACTIONS: dict[str, Callable[[Desk, Any], Any]] = {
    "read": lambda desk, first: desk.call(desk.guard.read, R, at=first.id),
    "restore": lambda desk, first: desk.call(desk.guard.restore, B, first),
    "append": lambda desk, _: desk.publish(B, {**desk.call(desk.guard.read, R), "new": b"4"}),
    "collect": lambda desk, _: desk.call(desk.guard.collect, B, keep=1),
}


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_of_each_request(side: Side, monkeypatch: pytest.MonkeyPatch, action: str, fault: str) -> None:
    """All publications that are listed stay whole, and what is not known can be found out."""
    monkeypatch.setattr("storage_guards.objects.changes.LONGEST_PAUSE_SECONDS", 0.001)
    number = 0
    while True:
        desk = Desk(side, OneFault())
        first = desk.publish(A, {"x": b"1", "y": b"1"}, claim=True)
        desk.publish(A, {"x": first["x"], "y": b"2"})
        desk.publish(A, {"x": b"3", "y": b"3"})
        desk.call(desk.guard.claim, B)
        desk.store.left, desk.store.fault = number, fault
        before = ids_beside(desk)
        try:
            ACTIONS[action](desk, first)
        except OutcomeUnknown as error:
            desk.store.left = 10**6
            assert desk.call(desk.guard.landed, error) is (ids_beside(desk) != before)
        except (GuardUnavailable, StaleRead):
            pass
        went_wrong = desk.store.left < 0
        desk.store.left = 10**6
        desk.call(desk.store.land)
        for each in desk.beside.publications(R):
            found = desk.beside.read(R, at=each.id)
            assert found is not None
            assert len(found.read_all()) == each.objects
        if not went_wrong:
            break
        ACTIONS[action](desk, first)
        number += 1
    assert number == REQUESTS[action]


def ids_beside(desk: Desk) -> list[str]:
    return [each.id for each in desk.beside.publications(R)]


def test_a_lost_reply_to_the_change_of_the_pointer_is_found_out(side: Side) -> None:
    desk = Desk(side, FaultyStore())
    desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.call(desk.guard.claim, B)
    desk.store.faults.extend(["reply lost"])
    assert len(desk.call(desk.guard.collect, B)) == 1
    desk.publish(B, {"x": b"3"})
    desk.call(desk.guard.claim, C)
    desk.store.faults.extend(["refused though done"])
    assert len(desk.call(desk.guard.collect, C)) == 1
    assert json.loads(bytes(desk.store.inner.get(POINTER).bytes()))["earlier"] == []


def test_a_collection_that_is_not_known_to_have_changed_the_pointer_deletes_nothing(side: Side) -> None:
    desk = Desk(side, FaultyStore(), timeout=0.2)
    desk.publish(A, {"x": b"1"}, claim=True)
    desk.publish(A, {"x": b"2"})
    desk.call(desk.guard.claim, B)
    desk.store.deaf_after_fault = True
    desk.store.faults.append("late")
    error = desk.side.expect(GuardUnavailable, desk.guard.collect, B)
    assert "nothing was deleted, call collect again" in str(error)
    desk.store.deaf = desk.store.deaf_after_fault = False
    assert len(data_keys(desk)) == 4
    assert len(decode(bytes(desk.store.inner.get(POINTER).bytes()), R).earlier) == 1
    assert desk.call(desk.store.land) == [True]
    assert len(desk.call(desk.guard.collect, B)) == 1
    assert desk.current == {"x": b"2"}
