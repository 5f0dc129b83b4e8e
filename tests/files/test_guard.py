"""Files behind the guard: publications, refusals, and what a disk that fails leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.servers import freeze
from fencing import (
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
    Mark,
    OutcomeUnknown,
    StaleFence,
    UnclaimedFence,
)
from storage_guards import FileGuard
from storage_guards.files import content, io, systems
from tests.support.sides import Side

MINE = Fence("r", 5, "a" * 22)
NEWER = Fence("r", 6, "b" * 22)
ROOT = Path(__file__).resolve().parents[2]

NewGuard = Callable[..., Any]


def place(folder: Path) -> Path:
    return Path(io.path_of(str(folder), "r"))


def folders(folder: Path) -> set[str]:
    return {name for name in os.listdir(place(folder)) if name.startswith("folder-")}


def test_one_file(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    guard = new_guard()
    assert side.call(guard.read, "r") is None
    assert not place(tmp_path).exists(), "reading makes nothing"
    side.call(guard.write, MINE, b"", claim=True)
    assert side.call(guard.read, "r") == b""
    side.call(guard.write, MINE, b"\n\nwhat\x00ever\n")
    assert side.call(guard.read, "r") == b"\n\nwhat\x00ever\n"
    side.call(guard.claim, NEWER)
    assert side.call(guard.read, "r") == b"\n\nwhat\x00ever\n", "a claim leaves the data alone"
    assert os.listdir(place(tmp_path)) == ["current"]


def test_a_folder_changes_as_one(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    guard = new_guard()
    copied = tmp_path / "copied"
    copied.write_bytes(b"x" * 3_000_000)
    first = side.call(guard.publish, MINE, {"a": b"1", "b": copied}, claim=True)
    assert side.call(guard.path, "r") == first
    assert (first / "b").read_bytes() == copied.read_bytes()
    second = side.call(guard.publish, MINE, {"a": b"2"})
    assert sorted(os.listdir(second)) == ["a"], "nothing of the one before"
    assert (first / "a").read_bytes() == b"1", "its readers still have it"
    side.call(guard.publish, MINE, {"a": b"3"})
    assert not first.exists()
    assert len(folders(tmp_path)) == 2
    side.expect(ValueError, guard.read, "r")
    side.call(guard.claim, NEWER)
    side.expect(StaleFence, guard.publish, MINE, {"a": b"4"})
    assert len(folders(tmp_path)) == 2, "nothing was copied"
    side.call(guard.write, NEWER, b"one file again")
    assert side.call(guard.path, "r") is None


def test_a_write_between_two_publications_removes_nothing_early(
    side: Side, new_guard: NewGuard, tmp_path: Path
) -> None:
    """A folder stays until the second publication after it: its readers count on that."""
    guard = new_guard()
    first = side.call(guard.publish, MINE, {"a": b"1"}, claim=True)
    side.call(guard.write, MINE, b"one file")
    assert side.call(guard.path, "r") is None
    side.call(guard.claim, NEWER)
    assert side.call(guard.read, "r") == b"one file"
    second = side.call(guard.publish, NEWER, {"a": b"2"})
    assert side.call(guard.path, "r") == second
    assert (first / "a").read_bytes() == b"1"
    side.call(guard.write, NEWER, b"one file")
    side.call(guard.write, NEWER, b"another")
    side.call(guard.publish, NEWER, {"a": b"3"})
    assert not first.exists()
    assert (second / "a").read_bytes() == b"2"
    assert len(folders(tmp_path)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda source: os.truncate(source, 10),
        lambda source: os.truncate(source, 50),
        lambda source: source.write_bytes(b"y" * 30),
    ],
    ids=["cut", "extended", "rewritten"],
)
def test_a_file_that_is_changed_while_it_is_copied_is_refused(
    side: Side,
    new_guard: NewGuard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], Any],
) -> None:
    guard, source = new_guard(), tmp_path / "source"
    source.write_bytes(b"x" * 30)
    os.utime(source, (0, 0))  # so that a change is a change of this time, too
    side.call(guard.write, MINE, b"before", claim=True)
    real = io._write_all

    def then_change(fd: int, data: bytes) -> None:
        real(fd, data)
        if not changed:
            changed.append(change(source))

    changed: list[Any] = []
    monkeypatch.setattr(io, "CHUNK", 10)
    monkeypatch.setattr(io, "_write_all", then_change)
    said = str(side.expect(ValueError, guard.publish, MINE, {"a": source}))
    assert str(source) in said
    assert "changed while it was copied" in said
    assert side.call(guard.read, "r") == b"before"
    published = side.call(guard.publish, MINE, {"a": source})
    assert (published / "a").read_bytes() == source.read_bytes()


def test_a_publication_that_is_being_built_is_not_removed(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.claim(MINE)
    building = io.new_folder(io.Place(str(place(tmp_path))), "folder-slow", [])
    for number in range(3):
        guard.publish(MINE, {"a": b"%d" % number})
    io.build(building, {"a": b"1"})
    assert os.listdir(building.path) == ["a"]
    building.close()
    guard.publish(MINE, {"a": b"4"})
    assert "folder-slow" not in folders(tmp_path), "a process that was killed while it built left it"


def test_a_foreign_entry_ends_no_cleaning_up(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.claim(MINE)
    for number in range(9):
        (place(tmp_path) / f"folder-{number}").symlink_to(tmp_path)
    for number in range(4):
        guard.publish(MINE, {"a": b"%d" % number})
    assert len(folders(tmp_path)) == 9 + 2


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({}, ValueError),
        ({"../x": b""}, ValueError),
        ({"a/b": b""}, ValueError),
        ({"..": b""}, ValueError),
        ({"": b""}, ValueError),
        ({"x" * 256: b""}, ValueError),
        ({"a": "text"}, TypeError),
        ({b"a": b""}, TypeError),
        ([b"a"], TypeError),
    ],
    ids=repr,
)
def test_files_that_are_refused(
    side: Side, new_guard: NewGuard, tmp_path: Path, files: Any, error: type[Exception]
) -> None:
    side.expect(error, new_guard().publish, MINE, files, claim=True)
    assert os.listdir(tmp_path) == []


def test_data_that_are_refused(
    side: Side, new_guard: NewGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = new_guard()
    side.expect(TypeError, guard.write, MINE, "text", claim=True)
    monkeypatch.setattr("storage_guards.files.base.MOST_BYTES", 10)
    assert "publish()" in str(side.expect(ValueError, guard.write, MINE, b"x" * 11, claim=True))
    assert os.listdir(tmp_path) == []
    os.mkfifo(tmp_path / "pipe")
    for source in ("absent", "pipe", "."):
        refused = side.expect(ValueError, guard.publish, MINE, {"a": tmp_path / source}, claim=True)
        assert str(tmp_path / source) in str(refused), "the source is at fault, and not the guard's folder"
    assert side.call(guard.mark, "r") is None


# Folders and file systems that cannot be used


def test_folders_that_are_refused(side: Side, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for folder in (tmp_path / "absent", file):
        with pytest.raises(GuardNotEnforceable, match="no folder"):
            FileGuard(folder)
    with pytest.raises(TypeError, match="a path"):
        FileGuard(5)  # type: ignore[arg-type]


def test_file_systems_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert systems.type_of(str(tmp_path)) in systems.ALLOWED
    with pytest.raises(GuardNotEnforceable, match="an unknown file system"):
        FileGuard("/proc")
    for kind, name in ((0x6969, "NFS"), (0x65735546, "FUSE")):
        monkeypatch.setattr(systems, "type_of", lambda _, kind=kind: kind)
        with pytest.raises(GuardNotEnforceable, match=name):
            FileGuard(tmp_path)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(GuardNotEnforceable, match="Linux"):
        FileGuard(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_this_user_may_not_write(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    guard.write(MINE, b"1", claim=True)
    os.chmod(tmp_path, 0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(GuardNotEnforceable, match="nothing was written"):
            guard.claim(NEWER)
        with pytest.raises(GuardNotEnforceable, match="nothing was written"):
            guard.claim(Fence("another", 5, "c" * 22))
    finally:
        os.seteuid(0)
    assert guard.read("r") == b"1"
    assert guard.mark("r") is not None
    guard.write(MINE, b"2")


def test_a_pointer_that_is_damaged(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    guard = new_guard()
    side.call(guard.write, MINE, b"1", claim=True)
    current = place(tmp_path) / "current"
    stored = current.read_bytes()
    for damaged in (b"", stored[:20], b"fencing 2" + stored[9:], stored.replace(b"\ndata\n", b"\nfolder\n")):
        current.write_bytes(damaged)
        side.expect(GuardNotEnforceable, guard.claim, NEWER)
        side.expect(GuardNotEnforceable, guard.write, MINE, b"2")
        assert current.read_bytes() == damaged


# A disk that fails, and a restore


@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_changes_nothing(
    side: Side, new_guard: NewGuard, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    guard = new_guard()
    side.call(guard.write, MINE, b"1", claim=True)

    def fsync(_: int) -> None:
        raise OSError(failing, os.strerror(failing))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fsync)
        side.expect(GuardUnavailable, guard.write, MINE, b"2")
        side.expect(GuardUnavailable, guard.publish, MINE, {"a": b"2"})
    assert side.call(guard.read, "r") == b"1"
    side.call(guard.write, MINE, b"3")
    assert side.call(guard.mark, "r").seq == 2


@pytest.mark.parametrize("landed", [True, False])
def test_a_disk_that_fails_at_the_rename(
    side: Side, new_guard: NewGuard, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Nobody knows what it did. The id of the write decides, under the lock."""
    guard = new_guard()
    side.call(guard.write, MINE, b"1", claim=True)
    real = os.replace

    def rename(*paths: Any, **folders: Any) -> None:
        if landed and len(paths) == 2:
            real(*paths, **folders)
        raise OSError(errno.EIO, "the disk")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", rename)
        unknown = side.expect(OutcomeUnknown, guard.write, MINE, b"2")
    assert unknown.seq == 2
    assert isinstance(unknown.__cause__, GuardUnavailable)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", rename)
        if landed:  # it says so only if the disk has it
            side.expect(GuardUnavailable, guard.landed, unknown)
        else:
            assert side.call(guard.landed, unknown) is False
    assert side.call(guard.landed, unknown) is landed
    assert side.call(guard.read, "r") == (b"2" if landed else b"1")
    for _ in range(17):
        side.call(guard.write, MINE, b"3")
    assert side.call(guard.landed, unknown) is None


def test_a_folder_that_was_restored(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    """Its marks went back with the data: the holder that has seen more is refused."""
    guard, current = new_guard(), place(tmp_path) / "current"
    side.call(guard.write, MINE, b"1", claim=True)
    backup = current.read_bytes()
    side.call(guard.write, MINE, b"2")
    current.write_bytes(backup)
    assert side.expect(UnclaimedFence, guard.write, MINE, b"3").acknowledged == 2
    side.expect(UnclaimedFence, guard.claim, MINE)
    side.call(guard.claim, NEWER)
    assert side.call(guard.read, "r") == b"1"


class Lease:
    """A holder, as a lease is one."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence


def test_all_guards_of_a_folder_know_what_was_acknowledged_to_a_lease(
    side: Side, new_guard: NewGuard, tmp_path: Path
) -> None:
    lease, backup = Lease(MINE), tmp_path.parent / f"{tmp_path.name}-backup"
    side.call(new_guard().write, lease, b"1", claim=True)
    shutil.copytree(tmp_path, backup)
    side.call(new_guard().write, lease, b"2")
    shutil.rmtree(tmp_path)
    shutil.copytree(backup, tmp_path)
    side.expect(UnclaimedFence, new_guard().write, lease, b"3")
    with pytest.raises(UnclaimedFence):
        FileGuard(os.path.relpath(tmp_path)).claim(lease)
    assert side.call(new_guard().read, "r") == b"1"


@pytest.mark.parametrize("backup", ["nothing", "an older fence"])
def test_a_claim_after_a_restore_that_took_the_claim(
    side: Side, new_guard: NewGuard, tmp_path: Path, backup: str
) -> None:
    guard, older, current = new_guard(), Fence("r", 4, "o" * 22), place(tmp_path) / "current"
    if backup == "an older fence":
        FileGuard(tmp_path).write(older, b"1", claim=True)
    before = current.read_bytes() if current.exists() else None
    side.call(guard.write, MINE, b"2", claim=True)
    current.unlink()
    if before is not None:
        current.write_bytes(before)
    side.expect(UnclaimedFence, guard.claim, MINE)
    side.expect(UnclaimedFence, guard.write, MINE, b"3", claim=True)
    assert current.exists() is (before is not None), "nothing was stored"
    side.call(guard.claim, NEWER)
    side.expect(StaleFence, guard.claim, MINE)


# Holders that stop


HOLDER = """
import sys, time
from fencing import Fence
from storage_guards import FileGuard
with FileGuard(sys.argv[1]).begin(Fence("r", 5, "a" * 22)) as file:
    file.data = b"late"
    print("inside", flush=True)
    time.sleep(60)
"""


@pytest.mark.thorough
def test_a_frozen_holder_keeps_others_out_until_it_is_killed(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    guard = new_guard(timeout=0.2)
    side.call(guard.write, MINE, b"first", claim=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "inside\n"
        freeze(holder)
        side.expect(GuardUnavailable, guard.claim, NEWER)
        assert side.call(guard.read, "r") == b"first", "readers need no lock"
        holder.kill()
    side.call(new_guard().claim, NEWER)
    side.expect(StaleFence, guard.write, MINE, b"later still")


def test_the_pointer_file_can_be_read_by_people(tmp_path: Path) -> None:
    FileGuard(tmp_path).write(MINE, b"1", claim=True)
    head, _, kind, done, data = (place(tmp_path) / "current").read_bytes().split(b"\n")
    assert (head, kind, data) == (f"fencing 1 {MINE} 1 0".encode(), b"data", b"1")
    assert json.loads(done) == {"floor": "", "keys": {}}
    assert content.decode((place(tmp_path) / "current").read_bytes(), "x").mark == Mark(5, MINE.token, 1)


@pytest.mark.parametrize("then", ["nothing", "another claims"])
def test_a_folder_that_is_replaced_during_a_block(tmp_path: Path, then: str) -> None:
    """As by a restore: the late holder writes nothing into the new folder, and is not acknowledged."""
    guard, backup = FileGuard(tmp_path), tmp_path.parent / f"{tmp_path.name}-backup"
    guard.write(MINE, b"before", claim=True)
    shutil.copytree(tmp_path, backup)
    [folder] = tmp_path.iterdir()
    with pytest.raises(GuardUnavailable, match="replaced meanwhile"), guard.begin(MINE) as file:  # noqa: PT012 - the block is meant
        shutil.rmtree(folder)
        shutil.copytree(backup / folder.name, folder)
        if then == "another claims":
            FileGuard(tmp_path).write(NEWER, b"newer", claim=True)
        file.data = b"late"
    assert guard.read(MINE.resource) == (b"before" if then == "nothing" else b"newer")
    mark = guard.mark(MINE.resource)
    assert mark is not None
    assert mark.number == (MINE if then == "nothing" else NEWER).number


def test_a_folder_that_is_replaced_at_the_rename(
    side: Side, new_guard: NewGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last look before the rename: the write is not acknowledged, and the restored folder is as it was."""
    guard, moved = new_guard(), tmp_path / "moved"
    side.call(guard.write, MINE, b"before", claim=True)
    real = os.replace

    def then_restore(*names: Any, **folders: Any) -> None:
        shutil.move(place(tmp_path), moved)
        shutil.copytree(moved, place(tmp_path))
        real(*names, **folders)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", then_restore)
        unknown = side.expect(OutcomeUnknown, guard.write, MINE, b"late")
    assert side.call(guard.read, "r") == b"before"
    assert side.call(guard.landed, unknown) is False
