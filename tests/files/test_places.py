"""The folder of a resource: its lock, the copies of its descriptor, links in it, and two publications at once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencing import Fence, GuardNotEnforceable, GuardUnavailable
from storage_guards import FileGuard
from storage_guards.files import io
from tests.support.forks import in_child
from tests.support.sides import Side

MINE = Fence("r", 5, "a" * 22)
NEWER = Fence("r", 6, "b" * 22)

NewGuard = Callable[..., Any]


def place(folder: Path) -> Path:
    return Path(io.path_of(str(folder), "r"))


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path, timeout=1)
    read, write = os.pipe()
    with guard.begin(MINE, claim=True):
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        guard.claim(NEWER)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_copy_of_the_descriptor_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A lock belongs to all copies of its descriptor. A forked child may have one, and close it late."""
    guard = FileGuard(tmp_path, timeout=1)
    with guard.begin(MINE, claim=True) as file:
        copy = os.dup(file._place.fd)
    try:
        guard.claim(NEWER)
    finally:
        os.close(copy)


def test_a_fork_while_another_thread_opens_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread knows no descriptor yet, so the child must find it: it would keep the lock if the parent is killed."""
    guard = FileGuard(tmp_path)
    guard.claim(MINE)
    opened, forked = threading.Event(), threading.Event()
    real = os.open

    def slow_open(path: str, *arguments: int, **options: int) -> int:
        fd = real(path, *arguments, **options)
        if path == str(place(tmp_path.resolve())):
            opened.set()
            forked.wait(10)
        return fd

    def copies() -> int:
        found = 0
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # of the listing itself
                found += os.readlink(f"/proc/self/fd/{fd}") == str(place(tmp_path.resolve()))
        return found

    monkeypatch.setattr(os, "open", slow_open)
    thread = threading.Thread(target=guard.claim, args=(NEWER,))
    thread.start()
    assert opened.wait(10)
    assert copies() == 1

    def child() -> None:
        assert copies() == 0

    try:
        in_child(child)
    finally:
        forked.set()
        thread.join()


def test_locks_of_this_process_and_of_others_are_told_as_such(side: Side, new_guard: NewGuard) -> None:
    guard = new_guard(timeout=0.05)
    side.call(guard.claim, MINE)
    other = FileGuard(guard._folder)
    with other.begin(MINE):
        assert "another block of this one" in str(side.expect(GuardUnavailable, guard.write, MINE, b"2"))


@pytest.mark.parametrize("call", ["write", "claim", "publish", "begin"])
def test_a_call_inside_its_own_block_is_refused_at_once(side: Side, new_guard: NewGuard, call: str) -> None:
    guard = new_guard(timeout=60)
    side.call(guard.claim, MINE)
    arguments: Any = {"write": [b"2"], "publish": [{"a": b"2"}]}.get(call, [])
    refused = pytest.raises(RuntimeError, match=r"'r'.*would wait for itself; .* or its data; or end the block first")
    started = time.monotonic()

    async def in_async_blocks() -> None:
        async with guard.begin(MINE) as file:
            with refused:
                if call == "begin":
                    await guard.begin(MINE).__aenter__()
                await getattr(guard, call)(MINE, *arguments)
            file.data = b"3"
        await guard.write(MINE, await guard.read("r") + b"4")

    if side.asynchronous:
        side.call(in_async_blocks)
    else:
        with guard.begin(MINE) as file:
            with refused:
                if call == "begin":
                    guard.begin(MINE).__enter__()
                getattr(guard, call)(MINE, *arguments)
            file.data = b"3"
        guard.write(MINE, guard.read("r") + b"4")
    assert time.monotonic() - started < 50
    assert side.call(guard.read, "r") == b"34"


def test_what_was_left_as_a_link_is_not_written_through(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    guard, other = new_guard(), tmp_path / "other"
    side.call(guard.write, MINE, b"1", claim=True)
    other.write_bytes(b"keep")
    for link in (os.link, os.symlink):
        link(other, place(tmp_path) / "new")
        side.call(guard.write, MINE, b"2")
        assert other.read_bytes() == b"keep"
        assert os.listdir(place(tmp_path)) == ["current"]


def test_a_resource_whose_folder_is_elsewhere(side: Side, new_guard: NewGuard, tmp_path: Path) -> None:
    """Its file system was not checked, and locks there may not hold."""
    guard, elsewhere = new_guard(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.symlink(elsewhere, place(tmp_path))
    assert "links" in str(side.expect(GuardNotEnforceable, guard.claim, MINE))
    assert os.listdir(elsewhere) == []
    other = io.Place("/dev/shm")  # something is mounted there
    with pytest.raises(OSError, match="another file system"):
        other.check_file_system()


def test_a_folder_that_is_replaced_again_and_again(
    side: Side, new_guard: NewGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait has a bound, and pauses."""
    guard = new_guard(timeout=0.1)
    side.call(guard.claim, MINE)
    asked = 0

    def is_current(_: io.Place) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(io.Place, "is_current", is_current)
    assert "again and again" in str(side.expect(GuardUnavailable, guard.write, MINE, b"2"))
    assert asked < 50


def test_publications_at_once_disturb_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removes the folders that nobody uses. A folder that another one has just made is used."""
    guard = FileGuard(tmp_path)
    guard.publish(MINE, {"a": b"0"}, claim=True)
    others: list[threading.Thread] = []
    real = os.mkdir

    def mkdir(path: Path, *arguments: Any) -> None:
        real(path, *arguments)
        if not others:  # the folder is made, and not locked yet
            others.append(threading.Thread(target=guard.publish, args=(MINE, {"a": b"other"})))
            others[0].start()
            others[0].join(0.2)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert (guard.publish(MINE, {"a": b"mine"}) / "a").read_bytes() == b"mine"
    others[0].join()
    assert sorted((path / "a").read_bytes() for path in place(tmp_path).glob("folder-*")) == [b"mine", b"other"]


def test_a_folder_that_is_removed_while_one_waits_for_it(tmp_path: Path) -> None:
    guard = FileGuard(tmp_path)
    place(tmp_path).mkdir()
    first = io.Place(str(place(tmp_path)))
    assert first.try_lock()
    os.rmdir(first.path)
    assert not first.is_current()
    guard.write(MINE, b"1", claim=True)
    assert guard.read("r") == b"1"
