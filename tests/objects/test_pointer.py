"""The pointer: what each change makes of it, and that nothing of it is believed unchecked."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import MAX_RESOURCE_BYTES, Fence, Mark
from storage_guards.kept import Done, DoneKeys
from storage_guards.objects.keys import Directory
from storage_guards.objects.outcome import may_still_land, verdict, verdict_in_place
from storage_guards.objects.pointer import (
    KEPT_WRITES,
    MAX_POINTER_BYTES,
    MOST_EARLIER,
    MOST_INLINE,
    MOST_INLINE_BYTES,
    Entry,
    Pointer,
    decode,
    encode,
    fit_inline,
    shown_entry,
    with_claim,
    with_deletion,
    with_next_seq,
    with_publication,
)
from tests.support.object_publications import SHA256, published, written_manifest

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINE, NEWER = Fence("orders:1", 7, "a" * 22), Fence("orders:1", 9, "b" * 22)


def an_id(number: int) -> str:
    return f"{number:016d}"


def entry(name: str = "x", size: int = 3) -> Entry:
    return Entry(Directory.data_key(MINE, "u" * 16, name), size, SHA256)


def write(now: Pointer | None, fence: Fence, number: int, objects: dict[str, Entry] | None = None) -> Pointer:
    mark = admit_write(admit_claim(now.mark if now else None, fence), fence)
    if objects is None:
        return with_deletion(now, fence, mark, an_id(number), NOW)
    return with_publication(now, fence, mark, published(fence, an_id(number), NOW, objects))


def example() -> Pointer:
    return write(first_publication(), MINE, 2, {"ä": entry("ä")})


def first_publication() -> Pointer:
    return write(None, MINE, 1, {"x": entry(), "a/b.txt": entry("a/b.txt", 0)})


def of_many() -> Pointer:
    """A pointer whose objects are in the manifest alone."""
    pointer = example()
    assert pointer.published is not None
    return replace(pointer, published=replace(pointer.published, objects=None))


def test_a_pointer_survives_encoding() -> None:
    pointer = example()
    claimed = with_claim(pointer, NEWER, Mark(9, NEWER.token), "x" * 8, NOW)
    for state in (pointer, write(pointer, NEWER, 3), claimed, of_many(), write(of_many(), NEWER, 3)):
        assert decode(encode(state), "orders:1") == state


def test_version_2_is_written_only_where_the_objects_are_in_the_manifest_alone() -> None:
    assert json.loads(encode(of_many()))["format"] == "fencing-pointer/2"
    assert json.loads(encode(of_many()))["published"]["objects"] is None
    for state in (example(), write(of_many(), MINE, 3), write(of_many(), MINE, 3, {"x": entry()})):
        assert json.loads(encode(state))["format"] == "fencing-pointer/1"


def test_it_remembers_earlier_publications() -> None:
    """Also behind a deletion. They have no objects: these are in their manifests."""
    state = None
    for number in range(40):
        state = write(state, MINE, number, None if number % 8 == 7 else {"x": entry()})
    assert state is not None
    ids = [an_id(number) for number in range(39, -1, -1) if number % 8 != 7]
    assert [each.id for each in state.earlier] == ids[:MOST_EARLIER]
    assert all(each.objects is None and each.until == NOW for each in state.earlier)


def test_other_tools_can_read_it() -> None:
    manifest = written_manifest(MINE, an_id(2), NOW, {"ä": entry("ä")})
    assert json.loads(encode(example())) == {
        "format": "fencing-pointer/1",
        "resource": "orders:1",
        "mark": {"number": 7, "token": "a" * 22, "seq": 2, "readers": 0},
        "changed_at": "2026-01-31T12:00:00+00:00",
        "recent_writes": [an_id(2), "*" + an_id(1)],
        "published": {
            "id": an_id(2),
            "number": 7,
            "token": "a" * 22,
            "at": "2026-01-31T12:00:00+00:00",
            "manifest": {
                "key": f"data/0000000000000007.{'a' * 22}/{an_id(2)}/manifest.jsonl",
                "size": len(manifest),
                "sha256": hashlib.sha256(manifest).hexdigest(),
                "objects": 1,
                "bytes": 3,
            },
            "objects": {"ä": {"key": entry("ä").key, "size": 3, "sha256": SHA256}},
        },
        "earlier": [
            {
                "id": an_id(1),
                "number": 7,
                "token": "a" * 22,
                "at": "2026-01-31T12:00:00+00:00",
                "until": "2026-01-31T12:00:00+00:00",
                "manifest": json.loads(encode(first_publication()))["published"]["manifest"],
            }
        ],
        "deleted": None,
        "done": {"floor": "", "keys": {}},
    }


def test_a_claim_changes_the_mark_alone() -> None:
    pointer = example()
    after = with_claim(pointer, NEWER, admit_claim(pointer.mark, NEWER), an_id(9), NOW)
    assert after.mark == Mark(9, NEWER.token, 0)
    assert (after.published, after.recent_writes) == (pointer.published, pointer.recent_writes)
    assert with_claim(None, MINE, Mark(7, MINE.token), an_id(1), NOW).recent_writes == ("*" + an_id(1),)


def test_a_deletion_is_a_tombstone_that_keeps_the_mark() -> None:
    after = write(example(), MINE, 3)
    assert after.mark == Mark(7, MINE.token, 3)
    assert after.published is None
    assert after.deleted is not None
    assert after.recent_writes == (an_id(3), an_id(2), "*" + an_id(1))


def test_no_two_states_have_the_same_bytes() -> None:
    """Whatever is done to it, with the same ids, at the same time: else an ETag that is a hash would come back."""
    seen: set[bytes] = set()
    state: Pointer | None = None
    chance = random.Random(3)
    number = 7
    for _ in range(300):
        fence = Fence("orders:1", number, "a" * 22)
        kind = chance.randrange(4)
        if kind == 0 or state is None:
            number += 1
            fence = Fence("orders:1", number, "a" * 22)
            state = with_claim(state, fence, admit_claim(state.mark if state else None, fence), an_id(1), NOW)
        elif kind == 1:
            state = write(state, fence, 1, {"x": entry()})
        elif kind == 2:
            state = write(state, fence, 1)
        else:
            state = with_next_seq(state, NOW)
        data = encode(state)
        assert data not in seen
        seen.add(data)


def test_it_remembers_its_last_writes() -> None:
    state = None
    for number in range(20):
        state = write(state, MINE, number, {"x": entry()})
    assert state is not None
    assert state.recent_writes == tuple(map(an_id, range(19, 3, -1)))
    assert len(state.recent_writes) == KEPT_WRITES


def test_it_is_bounded() -> None:
    many = {f"{number}": entry(f"{number}") for number in range(MOST_INLINE)}
    assert fit_inline(many)
    assert not fit_inline({**many, "x": entry()})
    long: dict[str, Entry] = {}
    while fit_inline(long):
        long[f"{len(long):04d}" + "\x01" * 1000] = Entry("k" * 370, 2**50, SHA256)
    assert len(long) < 100
    long.popitem()
    shown = {name: shown_entry(each) for name, each in long.items()}
    assert len(json.dumps({"published": {"objects": shown}}, indent=1)) < MOST_INLINE_BYTES


def test_the_longest_pointer_is_within_the_bound() -> None:
    fence = Fence("\x01" * MAX_RESOURCE_BYTES, 2**53 - 1, "a" * 128)
    at = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    state = None
    for number in range(MOST_EARLIER + 1):
        new = published(fence, an_id(number), at, {"x": Entry(entry().key, 2**50, SHA256)})
        state = with_publication(state, fence, Mark(fence.number, fence.token, number), new)
    assert state is not None
    done = DoneKeys("\x01" * 255, {f"{number:03d}" + "\x01" * 252: Done(2**53 - 1, at) for number in range(100)})
    assert len(encode(replace(state, done=done))) < MAX_POINTER_BYTES - MOST_INLINE_BYTES - 2**16


SHOWN = {"key": entry().key, "size": 3, "sha256": SHA256}
DONE = {"number": 7, "at": "2026-01-31T12:00:00+00:00"}


def broken(change: Any) -> bytes:
    shown = json.loads(encode(example()))
    change(shown)
    return json.dumps(shown).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"7", b"\xff", b"[" * 100_000, b'{"format": "fencing-pointer/1"}',
        broken(lambda it: it.update(format="fencing-pointer/0")),
        broken(lambda it: it.update(format=2)),
        broken(lambda it: it.update(other=1)),
        broken(lambda it: it.update(resource="orders:2")),
        broken(lambda it: it["mark"].update(number=0)),
        broken(lambda it: it["mark"].update(number=2**53)),
        broken(lambda it: it["mark"].update(number="7")),
        broken(lambda it: it["mark"].update(number=True)),
        broken(lambda it: it["mark"].update(seq=-1)),
        broken(lambda it: it["mark"].update(seq=2**63 - 1)),
        broken(lambda it: it["mark"].update(token="short")),
        broken(lambda it: it["mark"].update(readers=-1)),
        broken(lambda it: it["mark"].update(readers=2**53)),
        broken(lambda it: it["mark"].update(readers=None)),
        broken(lambda it: it["mark"].update(readers=True)),
        broken(lambda it: it["mark"].update(other=1)),
        broken(lambda it: it["mark"].update(token="")),  # with a seq
        broken(lambda it: it["mark"].update(token="", seq=0, number=-1)),
        broken(lambda it: it["mark"].update(token="", seq=0, number=None)),
        broken(lambda it: it["mark"].update(token="", seq=False)),
        broken(lambda it: it["mark"].update(token=None)),
        broken(lambda it: it.update(done=None)),
        broken(lambda it: it.update(done={"floor": ""})),
        broken(lambda it: it.update(done={"floor": "", "keys": {}, "other": 1})),
        broken(lambda it: it["done"].update(floor=None)),
        broken(lambda it: it["done"].update(floor="ä" * 128)),
        broken(lambda it: it["done"].update(keys=[])),
        broken(lambda it: it["done"].update(keys={"": DONE})),
        broken(lambda it: it["done"].update(keys={"ä" * 128: DONE})),
        broken(lambda it: it["done"].update(keys={"\ud800": DONE})),
        broken(lambda it: it["done"].update(keys={f"{number}": DONE for number in range(101)})),
        broken(lambda it: it["done"].update(keys={"x": {"number": 7}})),
        broken(lambda it: it["done"].update(keys={"x": {**DONE, "number": 0}})),
        broken(lambda it: it["done"].update(keys={"x": {**DONE, "at": "2026-01-31T12:00:00"}})),
        broken(lambda it: it["done"].update(keys={"x": {**DONE, "other": 1}})),
        broken(lambda it: it.update(mark=None)),
        broken(lambda it: it.update(recent_writes=[])),
        broken(lambda it: it.update(recent_writes=["two words"])),
        broken(lambda it: it.update(recent_writes=["x" * 16] * 17)),
        broken(lambda it: it.update(recent_writes="x" * 16)),
        broken(lambda it: it.update(changed_at="2026-01-31T12:00:00")),
        broken(lambda it: it.update(changed_at=7)),
        broken(lambda it: it["published"].update(objects=[])),
        broken(lambda it: it["published"].update(objects={})),
        broken(lambda it: it["published"].update(objects=None)),
        broken(lambda it: it.update(format="fencing-pointer/2")),
        broken(lambda it: it["published"].pop("manifest")),
        broken(lambda it: it["published"].update(id="x" * 15)),
        broken(lambda it: it["published"]["manifest"].update(key=entry().key)),
        broken(lambda it: it["published"]["manifest"].update(key=it["earlier"][0]["manifest"]["key"])),
        broken(lambda it: it["published"]["manifest"].update(size=-1)),
        broken(lambda it: it["published"]["manifest"].update(size=True)),
        broken(lambda it: it["published"]["manifest"].update(objects=2)),
        broken(lambda it: it["published"]["manifest"].update(bytes=2)),
        broken(lambda it: it["published"]["manifest"].update(sha256="0F" * 32)),
        broken(lambda it: it["published"]["manifest"].update(other=1)),
        broken(lambda it: it["published"]["objects"]["ä"].update(key=it["published"]["manifest"]["key"])),
        broken(lambda it: it["published"]["objects"]["ä"].update(sha256="")),
        broken(lambda it: it["published"]["objects"]["ä"].update(sha256=None)),
        broken(lambda it: it.pop("earlier")),
        broken(lambda it: it.update(earlier=None)),
        broken(lambda it: it.update(earlier=it["earlier"] * (MOST_EARLIER + 1))),
        broken(lambda it: it["earlier"][0].update(other=1)),
        broken(lambda it: it["earlier"][0].update(until=None)),
        broken(lambda it: it["earlier"][0].update(number=8)),
        broken(lambda it: it["published"]["objects"].update(x={"key": "../../etc", "size": 1, "sha256": SHA256})),
        broken(lambda it: it["published"]["objects"].update(x={"key": "data/x", "size": 1, "sha256": SHA256})),
        broken(lambda it: it["published"]["objects"].update(x={"key": entry().key, "size": -1, "sha256": SHA256})),
        broken(lambda it: it["published"]["objects"].update(x=None)),
        broken(lambda it: it["published"]["objects"].update(x={**SHOWN, "other": 1})),
        broken(lambda it: it["published"].update(other=1)),
        broken(lambda it: it["published"]["objects"].update({"": {"key": entry().key, "size": 1, "sha256": SHA256}})),
        broken(lambda it: it.update(deleted={"number": 7})),
        broken(lambda it: it.update(deleted={"number": 7, "token": "a" * 22, "at": DONE["at"], "other": 1})),
        broken(lambda it: it.pop("deleted")),
        broken(lambda it: None).replace(b'"readers": 0', b'"readers": 9, "readers": 0'),
        broken(lambda it: None).replace(b'"format": "f', b'"format": "fencing-pointer/3", "format": "f'),
        broken(lambda it: None).decode().encode("utf-16"),
        b"\xef\xbb\xbf" + broken(lambda it: None),
    ],
)  # fmt: skip
def test_unknown_content_is_refused(data: bytes) -> None:
    with pytest.raises(GuardNotEnforceable, match=r"is damaged, or something else wrote it: .*fencing-pointer/1"):
        decode(data, "orders:1")


@pytest.mark.parametrize("found", ["fencing-pointer/3", "fencing-pointer/10"])
def test_a_newer_version_is_named_whatever_else_it_has(found: str) -> None:
    with pytest.raises(GuardNotEnforceable, match=f"written by a newer version .*{found}.*; upgrade this one"):
        decode(json.dumps({"format": found}).encode(), "orders:1")


def test_random_damage_is_refused_or_read_as_what_it_says() -> None:
    chance = random.Random(11)
    whole = encode(example())
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            pointer = decode(bytes(data), "orders:1")
        except GuardNotEnforceable:
            continue
        assert decode(encode(pointer), "orders:1") == pointer


# What landed says, from two states


def unknown(wanted: Pointer, fence: Fence = MINE) -> OutcomeUnknown:
    return OutcomeUnknown(fence=fence, seq=wanted.kept.seq, recent_writes=" ".join(wanted.recent_writes))


@pytest.mark.thorough
def test_the_verdict_against_random_histories() -> None:
    """Of a pointer and a change to it that was lost: whatever comes after, what is said of it is so."""
    for seed in range(3000):
        chance = random.Random(seed)
        base = None if chance.random() < 0.2 else with_claim(None, MINE, Mark(7, MINE.token), an_id(0), NOW)
        number = 0
        for _ in range(chance.randrange(20) if base else 0):
            base = write(base, MINE, number := number + 1)
        wanted = write(base, MINE, 1000)
        happened = chance.random() < 0.5
        state = wanted if happened else base
        for _ in range(chance.randrange(20)):
            if state is None or chance.random() < 0.2:
                fence = Fence("orders:1", (state.kept.number if state else 7) + 1, "c" * 22)
                state = with_claim(state, fence, Mark(fence.number, fence.token), an_id(500), NOW)
            else:
                state = write(state, Fence("orders:1", state.kept.number, state.kept.token), number := number + 1)
        said = verdict(wanted.recent_writes, state)
        assert said in (happened, None), seed
        if state == base:
            assert said is False
            assert may_still_land(wanted.recent_writes, unknown(wanted), state), seed


def test_the_verdict_on_writes_in_place() -> None:
    mine = ("m" * 16, "b" * 16, "*" + "a" * 16)
    assert verdict_in_place(mine, mine, True) is True
    assert verdict_in_place(mine, ("x" * 16, *mine), True) is True
    assert verdict_in_place(mine, mine[1:], False) is None, "it may still be under way"
    later = ("x" * 16, *mine[1:])
    assert verdict_in_place(mine, later, False) is False
    assert verdict_in_place(mine, later, True) is None, "the version it was conditional on may come back"
    assert verdict_in_place(("*" + "m" * 16,), ("*" + "x" * 16,), False) is None, "somebody may delete that"
    assert verdict_in_place(mine, (), False) is None
    assert verdict_in_place((), mine, False) is None
