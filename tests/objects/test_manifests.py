"""The manifest of a publication: what it has, when a pointer has nothing else, and that none of it is believed
unchecked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleRead
from storage_guards.objects import pointer as pointers
from storage_guards.objects.manifest import MAX_MANIFEST_BYTES
from storage_guards.objects.pointer import MAX_OBJECTS, decode, encode
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R, PLACE = "orders:1", "fencing/orders=3A1/"
POINTER = PLACE + "pointer.json"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
THREE = {"year=2026/a": b"1", "ä": b"", "c d": b"333"}


@pytest.fixture
def few_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pointer has at most two objects itself."""
    monkeypatch.setattr(pointers, "MOST_INLINE", 2)


def stored(desk: Desk, key: str) -> bytes:
    return bytes(getattr(desk.store, "inner", desk.store).get(key).bytes())


def manifest_lines(desk: Desk) -> list[Any]:
    key = json.loads(stored(desk, POINTER))["published"]["manifest"]["key"]
    return [json.loads(line) for line in stored(desk, PLACE + key).splitlines()]


def test_each_publication_has_a_manifest_with_sizes_and_hashes(desk: Desk) -> None:
    new = desk.publish(A, {**THREE, "big": [bytes(2**20)] * 9}, claim=True)
    header, *lines = manifest_lines(desk)
    assert header == {
        "format": "fencing-manifest/1",
        "resource": R,
        "id": new.id,
        "number": 1,
        "token": A.token,
        "at": new.published_at.isoformat(),
        "objects": 4,
    }
    assert [each["name"] for each in lines] == sorted([*THREE, "big"])
    for each in lines:
        data = stored(desk, PLACE + each["key"])
        assert (each["size"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert new[each["name"]] == desk.call(desk.guard.read, R)[each["name"]]
        assert new[each["name"]].sha256 == each["sha256"]


def test_the_hash_is_of_what_was_sent(desk: Desk) -> None:
    """A body that changes while it is read."""
    body = bytearray(b"x" * 100)

    def chunks() -> Any:
        yield memoryview(body)
        body[:] = b"y" * 100
        yield memoryview(body)

    entry = desk.publish(A, {"x": chunks()}, claim=True)["x"]
    assert entry.sha256 == hashlib.sha256(stored(desk, PLACE + entry.key)).hexdigest()


@pytest.mark.usefixtures("few_inline")
def test_more_objects_than_a_pointer_has_are_in_the_manifest_alone(desk: Desk) -> None:
    first = desk.publish(A, THREE, claim=True)
    shown = json.loads(stored(desk, POINTER))
    assert (shown["format"], shown["published"]["objects"]) == ("fencing-pointer/2", None)
    current = desk.call(desk.guard.read, R)
    assert dict(current) == dict(first)
    assert desk.current == THREE
    desk.call(desk.guard.claim, B)
    second = desk.publish(B, {**current, "d": b"4"})
    assert desk.current == {**THREE, "d": b"4"}
    desk.publish(B, {"a": second["ä"], "d": second["d"]}, replacing=second)
    assert json.loads(stored(desk, POINTER))["format"] == "fencing-pointer/1"
    assert desk.current == {"a": b"", "d": b"4"}


@pytest.mark.usefixtures("few_inline")
def test_an_entry_is_of_the_current_publication_also_where_the_pointer_does_not_have_it(desk: Desk) -> None:
    old = desk.publish(A, THREE, claim=True)
    current = desk.publish(A, {**THREE, "kept": old["c d"]})
    desk.publish(A, {"kept": current["kept"], **THREE})
    for options in ({}, {"replacing": current}):
        desk.side.expect(StaleRead, lambda options=options: desk.publish(A, {"x": old["ä"]}, **options))
    latest = desk.call(desk.guard.read, R)
    for options in ({}, {"replacing": latest}):
        desk.refused(StaleRead, A, {"x": replace(latest["ä"], size=7)}, **options)


@pytest.mark.usefixtures("few_inline")
def test_long_names_and_many_objects_are_refused_before_they_are_current(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_guards.objects.publishing.MAX_MANIFEST_BYTES", 600)
    assert "use fewer or shorter names" in desk.refused(ValueError, A, THREE, claim=True)
    monkeypatch.setattr("storage_guards.objects.publishing.MAX_OBJECTS", 2)
    assert "at most 2 objects" in desk.refused(ValueError, A, THREE, claim=True)


# What is found in its place


def rewritten(change: Callable[[list[Any]], object]) -> Callable[[bytes], bytes]:
    """A change of the lines, which the pointer's hash and size then fit."""

    def rewrite(data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        change(lines)
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    return rewrite


OTHER_BYTES = {
    "another byte": lambda data: data.replace(b'"c d"', b'"c e"'),
    "another size": lambda data: data.replace(b'"size": 3', b'"size": 4'),
    "cut": lambda data: data[:-5],
    "longer": lambda data: data + b"\n" * 2**22,
    "empty": lambda _: b"",
    "no text": lambda data: b"\xff" * len(data),
}
OTHER_LINES = {
    "a line less": rewritten(lambda lines: lines.pop()),
    "a line twice": rewritten(lambda lines: lines.append(lines[-1])),
    "no header": rewritten(lambda lines: lines.pop(0)),
    "of another publication": rewritten(lambda lines: lines[0].update(id="x" * 16)),
    "of another resource": rewritten(lambda lines: lines[0].update(resource="orders:2")),
    "another member": rewritten(lambda lines: lines[1].update(other=1)),
    "a foreign key": rewritten(lambda lines: lines[1].update(key="../pointer.json")),
    "no hash": rewritten(lambda lines: lines[1].pop("sha256")),
    "an empty name": rewritten(lambda lines: lines[1].update(name="")),
    "no end": lambda data: data[:-1],
    "no JSON": lambda data: data[:-3] + b"!}\n",
    "a list": rewritten(lambda lines: lines.insert(1, [])),
    "deep": lambda data: data + b"[" * 200_000 + b"\n",
}


@pytest.mark.usefixtures("few_inline")
@pytest.mark.parametrize("change", [*OTHER_BYTES, *OTHER_LINES])
def test_a_damaged_manifest_is_refused_in_words(desk: Desk, change: str) -> None:
    desk.publish(A, THREE, claim=True)
    pointer = decode(stored(desk, POINTER), R)
    assert pointer.published is not None
    changes: dict[str, Callable[[bytes], bytes]] = {**OTHER_BYTES, **OTHER_LINES}
    data = changes[change](stored(desk, key := PLACE + pointer.published.manifest_key))
    desk.store.put(key, data)
    if change in OTHER_LINES:
        fits = replace(pointer.published.manifest, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        desk.store.put(POINTER, encode(replace(pointer, published=replace(pointer.published, manifest=fits))))
    error = str(desk.side.expect(GuardNotEnforceable, desk.guard.read, R))
    assert f"{key!r} of 'orders:1' is damaged, or something else wrote it" in error
    assert "restore it from a backup, or publish again" in error
    desk.publish(A, THREE)
    assert desk.current == THREE


@pytest.mark.usefixtures("few_inline")
def test_a_newer_manifest_is_refused_in_words(desk: Desk) -> None:
    desk.publish(A, THREE, claim=True)
    published = decode(stored(desk, POINTER), R).published
    assert published is not None
    desk.store.put(key := PLACE + published.manifest_key, stored(desk, key).replace(b"manifest/1", b"manifest/2"))
    error = desk.side.expect(GuardNotEnforceable, desk.guard.read, R)
    assert "written by a newer version of this library (its format is 'fencing-manifest/2'); upgrade" in str(error)


@pytest.mark.usefixtures("few_inline")
@pytest.mark.parametrize("too_much", [{"size": 2**31}, {"size": MAX_MANIFEST_BYTES + 1}, {"objects": MAX_OBJECTS + 1}])
def test_a_manifest_that_is_too_long_is_not_read(side: Side, too_much: dict[str, Any]) -> None:
    desk = Desk(side, FaultyStore())
    desk.publish(A, THREE, claim=True)
    pointer = decode(stored(desk, POINTER), R)
    assert pointer.published is not None
    long = replace(pointer.published, manifest=replace(pointer.published.manifest, **too_much))
    desk.store.inner.put(POINTER, encode(replace(pointer, published=long)))
    assert "are the most that this version reads" in str(desk.side.expect(GuardNotEnforceable, desk.guard.read, R))


@pytest.mark.usefixtures("few_inline")
def test_a_manifest_that_is_gone_was_collected(desk: Desk) -> None:
    published = desk.publish(A, THREE, claim=True)
    desk.store.delete(PLACE + f"data/{1:016d}.{A.token}/{published.id}/manifest.jsonl")
    assert "/manifest.jsonl" in str(desk.side.expect(StaleRead, desk.guard.read, R))
    desk.refused(StaleRead, A, {"x": published["ä"]})


@pytest.mark.usefixtures("few_inline")
def test_a_silent_store_is_unavailable(side: Side) -> None:
    class Silent(FaultyStore):
        async def get_async(self, path: str, **options: Any) -> Any:
            if path.endswith("/manifest.jsonl"):
                self.deaf = True
            return await super().get_async(path, **options)

    desk = Desk(side, Silent())
    desk.publish(A, THREE, claim=True)
    assert "retry" in str(desk.side.expect(GuardUnavailable, desk.guard.read, R))
