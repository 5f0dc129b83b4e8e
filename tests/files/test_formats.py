"""What is kept in files has one form. A newer one is refused, and what this version does not fill stays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fencing import Fence, GuardNotEnforceable, Mark, OutcomeUnknown, StaleFence, UnclaimedFence
from storage_guards.files import io
from storage_guards.files.content import Content, decode
from storage_guards.kept import Done, DoneKeys, NoHolder
from tests.support.formats import unchanged
from tests.support.sides import Side

R = "orders:1 a..b"
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OLD, MINE, NEWER = Fence(R, 5, "o" * 22), Fence(R, 7, "m" * 22), Fence(R, 10, "n" * 22)
DONE = DoneKeys("2026-01-29", {"2026-01-30": Done(5, NOW), "ä 2\n": Done(7, NOW)})
WRITES = ("bbbb/bbbbbbb", "aaaa+aaaaaaa")
CONTENT = Content(R, Mark(7, MINE.token, 2), WRITES, data=b"old\n\n")

NewGuard = Callable[..., Any]


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.thorough)])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param == "async")


def place(folder: Path) -> Path:
    return Path(io.path_of(str(folder), R))


def plant(folder: Path, stored: bytes | Content) -> None:
    place(folder).mkdir(exist_ok=True)
    (place(folder) / "current").write_bytes(stored.encode() if isinstance(stored, Content) else stored)


def found_in(folder: Path) -> Content:
    found = io.load(str(place(folder)))
    assert found is not None
    return found


HEAD = b"fencing 1 7.mmmmmmmmmmmmmmmmmmmmmm.orders:1%20a..b 2 0\nbbbb/bbbbbbb aaaa+aaaaaaa\n"
NOTHING = b'{"floor": "", "keys": {}}\n'


@pytest.mark.parametrize(
    ("name", "content", "golden"),
    [
        ("claimed", replace(CONTENT, data=None), HEAD + b"nothing\n" + NOTHING),
        ("with data", CONTENT, HEAD + b"data\n" + NOTHING + b"old\n\n"),
        (
            "with a folder",
            replace(CONTENT, folders=("folder-n", "folder-o"), data=None),
            HEAD + b"folder folder-n folder-o\n" + NOTHING,
        ),
        (
            "with data over a folder",
            replace(CONTENT, folders=("folder-n",)),
            HEAD + b"data folder-n\n" + NOTHING + b"old\n\n",
        ),
        (
            "of a later version",
            replace(CONTENT, kept=NoHolder(3, 9), writes=WRITES[1:], data=None, done=DONE),
            (
                b"fencing 1 3..orders:1%20a..b 0 9\naaaa+aaaaaaa\nnothing\n"
                b'{"floor": "2026-01-29", "keys": {"2026-01-30": {"at": "2026-01-31T12:00:00+00:00", "number": 5}, '
                b'"\\u00e4 2\\n": {"at": "2026-01-31T12:00:00+00:00", "number": 7}}}\n'
            ),
        ),
    ],
)
def test_a_pointer_file(name: str, content: Content, golden: bytes) -> None:
    unchanged(f"a pointer file, {name}", content.encode(), golden)
    assert decode(golden, "p") == content


def test_the_names(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    side.call(new_guard().publish, MINE, {"part 0": b"1"}, claim=True)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    found = [re.sub("folder-[A-Za-z0-9+-]{12}", "folder-<id>", name) for name in names]
    digest = "66660265db3ef51e917811b025fd0c80baa8e758e84622e0ed4a40c8c7801ab2"  # SHA-256 of the resource
    unchanged(
        "the names in a guard's folder",
        found,
        [digest, f"{digest}/current", f"{digest}/folder-<id>", f"{digest}/folder-<id>/part 0"],
    )
    assert (io.NEW, io.PREFIX) == ("new", "folder-")


# What an earlier version has written

EARLIER = b"fencing 1 7.mmmmmmmmmmmmmmmmmmmmmm.orders:1%20a..b 2\nbbbb/bbbbbbb aaaa+aaaaaaa\ndata\nold\n\n"


def test_a_file_of_an_earlier_version_is_read(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    plant(tmp_path, EARLIER)
    assert decode(EARLIER, "p") == CONTENT
    guard = new_guard()
    assert side.call(guard.read, R) == b"old\n\n"
    side.call(guard.write, MINE, b"new")
    assert found_in(tmp_path).kept == Mark(7, MINE.token, 3)
    assert (place(tmp_path) / "current").read_bytes().startswith(HEAD.splitlines()[0].replace(b" 2 0", b" 3 0\n"))


# What a later version writes into this format: it is kept, and it counts

CHANGES: dict[str, Callable[[Side, Any], object]] = {
    "claim": lambda side, guard: side.call(guard.claim, MINE),
    "write": lambda side, guard: side.call(guard.write, MINE, b"new", claim=True),
    "publish": lambda side, guard: side.call(guard.publish, MINE, {"x": b"new"}, claim=True),
}
KEPT = [Mark(5, OLD.token, 3, 6), NoHolder(0, 6), NoHolder(6, 3)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kept", KEPT, ids=["readers", "no holder", "a floor"])
def test_each_change_keeps_what_is_not_its_own(
    side: Side, new_guard: NewGuard, tmp_path: Path, kept: Any, change: str
) -> None:
    plant(tmp_path, replace(CONTENT, kept=kept, done=DONE))
    guard = new_guard()
    assert side.call(guard.mark, R) == (kept if isinstance(kept, Mark) else None)
    CHANGES[change](side, guard)
    now = found_in(tmp_path)
    seq = 0 if change == "claim" else 1
    assert now.kept == Mark(7, MINE.token, seq, kept.readers)
    assert now.done == DONE
    assert now.writes[-2:] == WRITES
    side.call(guard.write, MINE, b"newer")
    assert (found_in(tmp_path).kept.readers, found_in(tmp_path).done) == (kept.readers, DONE)


@pytest.mark.parametrize("kept", [Mark(5, OLD.token, 3, 9), NoHolder(0, 9), NoHolder(9, 3)])
def test_a_claim_exceeds_readers_and_floor(side: Side, new_guard: NewGuard, tmp_path: Path, kept: Any) -> None:
    plant(tmp_path, replace(CONTENT, kept=kept))
    before, guard = found_in(tmp_path), new_guard()
    for change in CHANGES.values():
        refused = side.expect(StaleFence, lambda change=change: change(side, guard))
        assert (refused.mark, refused.floor) == ((kept, None) if isinstance(kept, Mark) else (None, 9))
    assert found_in(tmp_path) == before
    side.call(guard.claim, NEWER)
    assert found_in(tmp_path).kept == Mark(10, NEWER.token, 0, kept.readers)


@pytest.mark.parametrize(
    ("kept", "error"),
    [(Mark(7, MINE.token, 1, 9), StaleFence), (NoHolder(0, 9), UnclaimedFence), (NoHolder(7, 9), UnclaimedFence)],
)
def test_a_write_is_newer_than_each_reader_and_never_that_of_no_holder(
    side: Side, new_guard: NewGuard, tmp_path: Path, kept: Any, error: type[Exception]
) -> None:
    plant(tmp_path, replace(CONTENT, kept=kept))
    before, guard = found_in(tmp_path), new_guard()
    side.expect(error, guard.write, MINE, b"new")
    side.expect(error, guard.publish, MINE, {"x": b"new"})
    assert found_in(tmp_path) == before
    assert os.listdir(place(tmp_path)) == ["current"]


def test_landed_where_there_is_no_holder(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    plant(tmp_path, replace(CONTENT, kept=NoHolder(0, 6)))
    unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes=" ".join(("cccccccccccc", *WRITES)))
    assert side.call(new_guard().landed, unknown) is False


# A newer version

ALL: dict[str, Callable[[Side, Any], object]] = {
    **CHANGES,
    "write as the holder": lambda side, guard: side.call(guard.write, MINE, b"new"),
    "publish as the holder": lambda side, guard: side.call(guard.publish, MINE, {"x": b"new"}),
    "read": lambda side, guard: side.call(guard.read, R),
    "path": lambda side, guard: side.call(guard.path, R),
    "mark": lambda side, guard: side.call(guard.mark, R),
    "landed": lambda side, guard: side.call(
        guard.landed, OutcomeUnknown(fence=MINE, seq=1, recent_writes=" ".join(WRITES))
    ),
}


@pytest.mark.parametrize("action", ALL)
def test_a_newer_pointer_file_is_refused_and_stays(
    side: Side, new_guard: NewGuard, tmp_path: Path, action: str
) -> None:
    newer = HEAD.replace(b"fencing 1", b"fencing 2") + b"nothing\n" + NOTHING
    plant(tmp_path, newer)
    (place(tmp_path) / "folder-old").mkdir()
    refused = side.expect(GuardNotEnforceable, lambda: ALL[action](side, new_guard()))
    assert "was written by a newer version of this library (its format is 'fencing 2'); upgrade" in str(refused)
    assert (place(tmp_path) / "current").read_bytes() == newer
    assert sorted(os.listdir(place(tmp_path))) == ["current", "folder-old"]


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"fencing",
        b"fencing 0 1",
        b"fencing 1",
        b"fencing 1\n",
        b"fencing 01" + HEAD[9:] + b"nothing\n" + NOTHING,
        HEAD,
        HEAD + b"nothing\n",
        HEAD + b"nothing\n{}\n",
        HEAD + b"nothing\n[]\n",
        HEAD + b"nothing\n" + NOTHING[:-1],
        HEAD + b'nothing\n{"floor": "", "keys": {}, "other": 1}\n',
        HEAD + b'nothing\n{"floor": "x", "keys": {}, "floor": ""}\n',
        HEAD + b"something\n" + NOTHING,
        HEAD.replace(b" 2 0\n", b" 2 0 0\n") + b"nothing\n" + NOTHING,
        *(
            HEAD.replace(b" 2 0\n", b" %s\n" % other) + b"nothing\n" + NOTHING
            for other in (b"-1 0", b"2 -1", b"2 9007199254740992", b"+2 0", b"2 01", b"2 ", b" 0", b"x 0", b"2 x")
        ),
        *(
            HEAD.replace(b" 7.mmmmmmmmmmmmmmmmmmmmmm.", b" %s" % other) + b"nothing\n" + NOTHING
            for other in (b"7..", b"..", b"-1..", b"07..", b"9007199254740992..", b"7...", b"7.short.", b"0.")
        ),
        b"fencing 1 7..orders:1 0 9\n\nnothing",
        b"fencing 1 7.. 0 9\n\nnothing\n" + NOTHING,
        b"fencing 1 7..orders%3A1 0 9\n\nnothing\n" + NOTHING,
        b"fencing 1 7s.mmmmmmmmmmmmmmmmmmmmmm.r 0 9\n\nnothing\n" + NOTHING,
    ],
)
def test_a_damaged_pointer_file_is_refused(stored: bytes) -> None:
    with pytest.raises(GuardNotEnforceable, match="the pointer file 'p' is damaged"):
        decode(stored, "p")
