"""What is kept in an object store has one form. A newer one is refused, and what this version does not fill stays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fencing import Fence, GuardNotEnforceable, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import Mark
from storage_guards.kept import Done, DoneKeys, NoHolder
from storage_guards.objects.keys import Directory, Layout
from storage_guards.objects.pointer import (
    Entry,
    Pointer,
    decode,
    encode,
    with_deletion,
    with_publication,
)
from tests.support.formats import unchanged
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.object_publications import SHA256, published, written_manifest
from tests.support.sides import Side

R, POINTER, KEY = "orders:1", "fencing/orders=3A1/pointer.json", "reports/today.csv"
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OLD, MINE, NEWER = Fence(R, 5, "o" * 22), Fence(R, 7, "m" * 22), Fence(R, 10, "n" * 22)
DONE = DoneKeys("2026-01-29", {"2026-01-30": Done(5, NOW), "ä 2": Done(7, NOW)})
DATA_KEY = "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/~/year=2026/part-0.csv"

CLAIMED = Pointer(R, Mark(7, MINE.token, 0), NOW, ("*" + "a" * 16,))
NEW = published(MINE, "u" * 16, NOW, {"year=2026/part-0.csv": Entry(DATA_KEY, 3, SHA256)})
PUBLISHED = with_publication(CLAIMED, MINE, Mark(7, MINE.token, 1), NEW)

GOLDEN_CLAIMED = b"""{
 "changed_at": "2026-01-31T12:00:00+00:00",
 "deleted": null,
 "done": {
  "floor": "",
  "keys": {}
 },
 "earlier": [],
 "format": "fencing-pointer/1",
 "mark": {
  "number": 7,
  "readers": 0,
  "seq": 0,
  "token": "mmmmmmmmmmmmmmmmmmmmmm"
 },
 "published": null,
 "recent_writes": [
  "*aaaaaaaaaaaaaaaa"
 ],
 "resource": "orders:1"
}"""
GOLDEN_PUBLISHED = b"""{
 "changed_at": "2026-01-31T12:00:00+00:00",
 "deleted": null,
 "done": {
  "floor": "",
  "keys": {}
 },
 "earlier": [],
 "format": "fencing-pointer/1",
 "mark": {
  "number": 7,
  "readers": 0,
  "seq": 1,
  "token": "mmmmmmmmmmmmmmmmmmmmmm"
 },
 "published": {
  "at": "2026-01-31T12:00:00+00:00",
  "id": "uuuuuuuuuuuuuuuu",
  "manifest": {
   "bytes": 3,
   "key": "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/manifest.jsonl",
   "objects": 1,
   "sha256": "ca82bca8219ee0bf26789ff916a411b47f9f8674f274fa71d4139d4014dd489a",
   "size": 397
  },
  "number": 7,
  "objects": {
   "year=2026/part-0.csv": {
    "key": "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/~/year=2026/part-0.csv",
    "sha256": "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
    "size": 3
   }
  },
  "token": "mmmmmmmmmmmmmmmmmmmmmm"
 },
 "recent_writes": [
  "uuuuuuuuuuuuuuuu",
  "*aaaaaaaaaaaaaaaa"
 ],
 "resource": "orders:1"
}"""
GOLDEN_DELETED = b"""{
 "changed_at": "2026-01-31T12:00:00+00:00",
 "deleted": {
  "at": "2026-01-31T12:00:00+00:00",
  "number": 7,
  "token": "mmmmmmmmmmmmmmmmmmmmmm"
 },
 "done": {
  "floor": "",
  "keys": {}
 },
 "earlier": [
  {
   "at": "2026-01-31T12:00:00+00:00",
   "id": "uuuuuuuuuuuuuuuu",
   "manifest": {
    "bytes": 3,
    "key": "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/manifest.jsonl",
    "objects": 1,
    "sha256": "ca82bca8219ee0bf26789ff916a411b47f9f8674f274fa71d4139d4014dd489a",
    "size": 397
   },
   "number": 7,
   "token": "mmmmmmmmmmmmmmmmmmmmmm",
   "until": "2026-01-31T12:00:00+00:00"
  }
 ],
 "format": "fencing-pointer/1",
 "mark": {
  "number": 7,
  "readers": 0,
  "seq": 2,
  "token": "mmmmmmmmmmmmmmmmmmmmmm"
 },
 "published": null,
 "recent_writes": [
  "dddddddddddddddd",
  "uuuuuuuuuuuuuuuu",
  "*aaaaaaaaaaaaaaaa"
 ],
 "resource": "orders:1"
}"""
GOLDEN_MANIFEST = (
    b'{"format": "fencing-manifest/1", "resource": "orders:1", "id": "uuuuuuuuuuuuuuuu", "number": 7, "tok'
    b'en": "mmmmmmmmmmmmmmmmmmmmmm", "at": "2026-01-31T12:00:00+00:00", "objects": 1}\n'
    b'{"name": "year=2026/part-0.csv", "key": "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuu'
    b'uu/~/year=2026/part-0.csv", "size": 3, "sha256": "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f'
    b'0f0f0f0f0f0f0f"}\n'
)
GOLDEN_OF_LATER = b"""{
 "changed_at": "2026-01-31T12:00:00+00:00",
 "deleted": null,
 "done": {
  "floor": "2026-01-29",
  "keys": {
   "2026-01-30": {
    "at": "2026-01-31T12:00:00+00:00",
    "number": 5
   },
   "\\u00e4 2": {
    "at": "2026-01-31T12:00:00+00:00",
    "number": 7
   }
  }
 },
 "earlier": [],
 "format": "fencing-pointer/1",
 "mark": {
  "number": 3,
  "readers": 9,
  "seq": 0,
  "token": ""
 },
 "published": null,
 "recent_writes": [
  "*aaaaaaaaaaaaaaaa"
 ],
 "resource": "orders:1"
}"""


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.thorough)])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param == "async")


@pytest.mark.parametrize(
    ("name", "pointer", "golden"),
    [
        ("claimed", CLAIMED, GOLDEN_CLAIMED),
        ("published", PUBLISHED, GOLDEN_PUBLISHED),
        ("deleted", with_deletion(PUBLISHED, MINE, Mark(7, MINE.token, 2), "d" * 16, NOW), GOLDEN_DELETED),
        ("of a later version", Pointer(R, NoHolder(3, 9), NOW, ("*" + "a" * 16,), done=DONE), GOLDEN_OF_LATER),
    ],
)
def test_a_pointer(name: str, pointer: Pointer, golden: bytes) -> None:
    unchanged(f"a pointer, {name}", encode(pointer), golden)
    assert decode(golden, R) == pointer


def test_a_pointer_whose_objects_are_in_the_manifest_alone() -> None:
    of_many = replace(PUBLISHED, published=replace(NEW, objects=None))
    head, _, rest = GOLDEN_PUBLISHED.partition(b'"objects": {')
    golden = head.replace(b"pointer/1", b"pointer/2") + b'"objects": null' + rest.partition(b"\n  }")[2]
    unchanged("a pointer of many objects", encode(of_many), golden)
    assert decode(golden, R) == of_many


def test_a_manifest() -> None:
    assert NEW.objects is not None
    unchanged("a manifest", written_manifest(MINE, "u" * 16, NOW, NEW.objects), GOLDEN_MANIFEST)


def test_the_keys() -> None:
    layout = Layout("fencing/")
    found = {
        "pointer": layout.directory(R).pointer,
        "pointer of a long name": layout.directory("ä" * 100).pointer,
        "probe": layout.probe,
        "manifest": Directory.manifest_key(7, MINE.token, "u" * 16),
    }
    names = ["year=2026/part-0.csv", "a b", "a b%/.c", "x" * 201, "year=" + "ä" * 100]
    found |= {name[:9]: layout.directory(R).full(Directory.data_key(MINE, "u" * 16, name)) for name in names}
    data = "fencing/orders=3A1/data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/~/"
    long = "8c8b9015d474565b2a23d5e5bf090051720ce25d08a503044204b3438b1e10ed"
    golden = {
        "pointer": "fencing/orders=3A1/pointer.json",
        "pointer of a long name": f"fencing/{'=C3=A4' * 22}=~{long}/pointer.json",
        "probe": "fencing/=probe/",
        "manifest": "data/0000000000000007.mmmmmmmmmmmmmmmmmmmmmm/uuuuuuuuuuuuuuuu/manifest.jsonl",
        "year=2026": f"{data}year=2026/part-0.csv",
        "a b": f"{data}!escaped/a%20b",
        "a b%/.c": f"{data}!escaped/~7f81383ee86586a9f5e6b4f31a48fe4045c2b7ce1e283350f3591027261d2ef9/a%20b%/%2Ec",
        "x" * 9: f"{data}!escaped/{'x' * 125}~84a0678c90937f5dcf9994d5866668da6b995109c8ad845410559b48a4ecafed",
        "year=ääää": f"{data}!escaped/year%3D{'%C3%A4' * 19}%C3"
        "~f402e2ed41424812fda02773c3122a527dc70d865d7565406455cb181fa29d24",
    }
    unchanged("the keys of objects", found, golden)


def test_the_metadata_of_an_object_that_is_written_in_place(desk: Desk) -> None:
    desk.call(desk.guard.write, MINE, KEY, b"1", claim=True)
    desk.call(desk.guard.write, MINE, KEY, b"2")
    found = {
        name: re.sub(r"[A-Za-z0-9_-]{16}\.(?=[0-9a-f]{16})", "<id>.", text) for name, text in metadata(desk).items()
    }
    golden = {
        "fencingmark": "7.mmmmmmmmmmmmmmmmmmmmmm.2",
        "fencingwrites": "<id>.1bf41ef6fd6f6f6c *<id>.f6fc42039fba3776",
    }
    unchanged("the metadata of an object that is written in place", found, golden)


def metadata(desk: Desk) -> dict[str, str]:
    attributes = desk.store.get(KEY).attributes
    return {name: text for name, text in attributes.items() if name.startswith("fencing")}


# What an earlier version has written


def test_a_pointer_of_an_earlier_version_is_read() -> None:
    shown = json.loads(GOLDEN_PUBLISHED)
    del shown["done"], shown["mark"]["readers"]
    assert decode(json.dumps(shown).encode(), R) == PUBLISHED


# What a later version writes into this format: it is kept, and it counts


def inner(desk: Desk) -> Any:
    return getattr(desk.store, "inner", desk.store)


def plant(desk: Desk, **changes: Any) -> None:
    inner(desk).put(POINTER, encode(replace(PUBLISHED, **changes)))


def stored(desk: Desk) -> Pointer:
    return decode(bytes(inner(desk).get(POINTER).bytes()), R)


def late(desk: Desk, fence: Fence, **options: Any) -> OutcomeUnknown:
    """Publish, with a put that is still on its way."""
    desk.store.faults.append("late")
    desk.store.deaf_after_fault = True
    error = desk.side.expect(OutcomeUnknown, desk.guard.publish, fence, {"x": b"late"}, **options)
    desk.store.deaf = desk.store.deaf_after_fault = False
    return error


READERS = Mark(5, OLD.token, 3, 6)

CHANGES: dict[str, Callable[[Desk], object]] = {
    "claim": lambda desk: desk.call(desk.guard.claim, MINE),
    "claim of several": lambda desk: desk.call(desk.guard.claim, MINE, Fence("orders:2", 7, "m" * 22)),
    "publish": lambda desk: desk.publish(MINE, {"x": b"1"}, claim=True),
    "delete": lambda desk: desk.call(desk.guard.delete, MINE, claim=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kept", [READERS, NoHolder(0, 6), NoHolder(6, 3)], ids=["readers", "no holder", "a floor"])
def test_each_change_keeps_what_is_not_its_own(desk: Desk, kept: Any, change: str) -> None:
    plant(desk, kept=kept, done=DONE)
    assert desk.call(desk.guard.mark, R) == (kept if isinstance(kept, Mark) else None)
    CHANGES[change](desk)
    now = stored(desk)
    assert (now.kept.number, now.kept.token, now.kept.readers) == (7, MINE.token, kept.readers)
    assert now.done == DONE
    assert now.recent_writes[-2:] == PUBLISHED.recent_writes
    assert (now.published == PUBLISHED.published) is change.startswith("claim")
    desk.publish(MINE, {"y": b"2"})
    assert (stored(desk).kept.readers, stored(desk).done) == (kept.readers, DONE)
    desk.call(desk.guard.collect, MINE)


@pytest.mark.parametrize("kept", [Mark(5, OLD.token, 3, 9), NoHolder(0, 9), NoHolder(9, 3)])
def test_a_claim_exceeds_readers_and_floor(desk: Desk, kept: Any) -> None:
    plant(desk, kept=kept)
    for number in (7, 9):
        fence = Fence(R, number, MINE.token)
        for action in (
            lambda fence=fence: desk.call(desk.guard.claim, fence),
            lambda fence=fence: desk.publish(fence, {"x": b"1"}, claim=True),
            lambda fence=fence: desk.call(desk.guard.delete, fence, claim=True),
            lambda fence=fence: desk.call(desk.guard.write, fence, KEY, b"1", claim=True),
        ):
            refused = desk.side.expect(StaleFence, action)
            assert (refused.mark, refused.floor) == ((kept, None) if isinstance(kept, Mark) else (None, 9))
    assert stored(desk) == replace(PUBLISHED, kept=kept)
    desk.call(desk.guard.claim, NEWER)
    assert stored(desk).kept == Mark(10, NEWER.token, 0, kept.readers)


@pytest.mark.parametrize(
    ("kept", "error"),
    [(Mark(7, MINE.token, 1, 9), StaleFence), (NoHolder(0, 9), UnclaimedFence), (NoHolder(7, 9), UnclaimedFence)],
)
def test_a_write_is_newer_than_each_reader_and_never_that_of_no_holder(
    desk: Desk, kept: Any, error: type[Exception]
) -> None:
    plant(desk, kept=kept)
    desk.refused(error, MINE, {"x": b"1"})
    for method, *arguments in (
        (desk.guard.delete, MINE),
        (desk.guard.write, MINE, KEY, b"1"),
        (desk.guard.collect, MINE),
    ):
        desk.side.expect(error, method, *arguments)
    assert stored(desk) == replace(PUBLISHED, kept=kept)


def test_a_reader_ends_what_was_acknowledged_to_an_older_holder(desk: Desk) -> None:
    """A guard that remembers its own last state asks the store all the same."""
    desk.call(desk.guard.claim, MINE)
    mark = stored(desk).kept
    inner(desk).put(POINTER, encode(replace(stored(desk), kept=replace(mark, readers=9))))
    assert "the newer reader 9 was admitted" in desk.refused(StaleFence, MINE, {"x": b"1"})


UNKNOWN = OutcomeUnknown(fence=MINE, seq=2, recent_writes=" ".join(("w" * 16, *PUBLISHED.recent_writes)))


@pytest.mark.parametrize("kept", [Mark(7, MINE.token, 1, 9), Mark(5, OLD.token, 3, 9), NoHolder(3, 9), NoHolder(9, 3)])
def test_a_write_that_a_reader_has_shut_out_never_lands(desk: Desk, kept: Any) -> None:
    """So the verdict changes nothing: another seq would refuse the reader."""
    plant(desk, kept=kept)
    assert desk.call(desk.guard.landed, UNKNOWN) is False
    assert stored(desk) == replace(PUBLISHED, kept=kept)


@pytest.mark.parametrize("kept", [Mark(7, MINE.token, 1, 6), Mark(5, OLD.token, 3, 6), NoHolder(3, 6)])
def test_a_write_that_may_still_land_is_made_impossible(desk: Desk, kept: Any) -> None:
    plant(desk, kept=kept, done=DONE)
    assert desk.call(desk.guard.landed, UNKNOWN) is False
    seq = 2 if kept.number == 7 else 0
    after = replace(PUBLISHED, kept=Mark(7, MINE.token, seq, 6), done=DONE, changed_at=stored(desk).changed_at)
    assert stored(desk) == after


@pytest.mark.thorough
@pytest.mark.parametrize("claim", [False, True])
def test_a_late_publication_that_a_reader_has_shut_out(side: Side, claim: bool) -> None:
    desk = Desk(side, FaultyStore(), timeout=1.0)
    plant(desk, kept=Mark(5, OLD.token, 3) if claim else PUBLISHED.kept)
    error = late(desk, MINE, claim=claim)
    plant(desk, kept=replace(stored(desk).kept, readers=9))
    before = stored(desk)
    assert desk.call(desk.guard.landed, error) is False
    assert stored(desk) == before
    assert side.call(desk.store.land) == [False]


@pytest.mark.thorough
def test_a_late_publication_above_a_pointer_without_a_holder(side: Side) -> None:
    desk = Desk(side, FaultyStore(), timeout=1.0)
    plant(desk, kept=NoHolder(3, 6), done=DONE)
    error = late(desk, MINE, claim=True)
    assert desk.call(desk.guard.landed, error) is False
    assert stored(desk).kept == Mark(7, MINE.token, 0, 6)
    assert stored(desk).done == DONE
    assert side.call(desk.store.land) == [False]


def test_a_restore_to_a_time_without_a_holder_is_noticed(desk: Desk) -> None:
    desk.call(desk.guard.claim, NEWER)
    desk.publish(NEWER, {"x": b"1"})
    plant(desk, kept=NoHolder(0, 6))
    desk.side.expect(UnclaimedFence, desk.guard.claim, NEWER)
    desk.side.expect(UnclaimedFence, desk.guard.delete, NEWER, claim=True)


# A newer version


ALL: dict[str, Callable[[Desk], object]] = {
    **CHANGES,
    "publish as the holder": lambda desk: desk.publish(MINE, {"x": b"1"}),
    "delete as the holder": lambda desk: desk.call(desk.guard.delete, MINE),
    "collect": lambda desk: desk.call(desk.guard.collect, NEWER),
    "write in place": lambda desk: desk.call(desk.guard.write, MINE, KEY, b"1"),
    "claim and write in place": lambda desk: desk.call(desk.guard.write, MINE, KEY, b"1", claim=True),
    "read": lambda desk: desk.call(desk.guard.read, R),
    "open": lambda desk: desk.call(desk.guard.open, R, "x"),
    "history": lambda desk: desk.call(desk.guard.history, R),
    "mark": lambda desk: desk.call(desk.guard.mark, R),
    "landed": lambda desk: desk.call(
        desk.guard.landed, OutcomeUnknown(fence=MINE, seq=1, recent_writes="w" * 16 + " *" + "a" * 16)
    ),
}


@pytest.mark.parametrize("action", ALL)
def test_a_newer_pointer_is_refused_and_stays(desk: Desk, action: str) -> None:
    newer = json.dumps({**json.loads(GOLDEN_PUBLISHED), "format": "fencing-pointer/3"}).encode()
    desk.store.put(POINTER, newer)
    desk.store.put(f"fencing/orders=3A1/{DATA_KEY}", b"old")
    refused = desk.side.expect(GuardNotEnforceable, lambda: ALL[action](desk))
    assert "was written by a newer version of this library (its format is 'fencing-pointer/3'); upgrade" in str(refused)
    found = {each["path"]: bytes(desk.store.get(each["path"]).bytes()) for each in desk.store.list().collect()}
    assert found == {POINTER: newer, f"fencing/orders=3A1/{DATA_KEY}": b"old"}


def test_a_newer_pointer_in_the_place_of_a_remembered_one_stays(desk: Desk) -> None:
    """The put was refused. But nobody can say that it had not been done before the newer version wrote."""
    desk.call(desk.guard.claim, MINE)
    newer = json.dumps({**json.loads(GOLDEN_PUBLISHED), "format": "fencing-pointer/3"}).encode()
    desk.store.put(POINTER, newer)
    unknown = desk.side.expect(OutcomeUnknown, desk.guard.publish, MINE, {"x": b"1"})
    assert "newer version of this library" in str(unknown.__cause__)
    desk.side.expect(GuardNotEnforceable, desk.guard.landed, unknown)
    assert bytes(desk.store.get(POINTER).bytes()) == newer


@pytest.mark.parametrize("text", ["", "2", "7.short.1", "0.mmmmmmmmmmmmmmmmmmmmmm.1", "2;7.mmmmmmmmmmmmmmmmmmmmmm.2.0"])
def test_an_object_in_place_of_another_form_is_refused_and_stays(desk: Desk, text: str) -> None:
    desk.call(desk.guard.claim, MINE)
    attributes = {"fencingmark": text, "fencingwrites": "x"}
    desk.store.put(KEY, b"new", attributes=attributes)
    unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes="w", key=KEY)
    for method, *arguments in (
        (desk.guard.get, KEY),
        (desk.guard.write, MINE, KEY, b"1"),
        (desk.guard.landed, unknown),
    ):
        refused = desk.side.expect(GuardNotEnforceable, method, *arguments)
        assert "was it written by a newer version, or by something else? Upgrade, or" in str(refused)
    assert (bytes(desk.store.get(KEY).bytes()), metadata(desk)) == (b"new", attributes)
