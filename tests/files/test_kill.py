"""A process that is killed before any of its system calls leaves the old state or the new one, whole.

That proves nothing of fsync: the kernel outlives the process, and with it what was written. That each fsync comes
before what depends on it is shown by the table of calls alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencing import Fence
from storage_guards import FileGuard
from storage_guards.files import base, io

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guards" / "files.md"

MINE = Fence("r", 5, "a" * 22)
NEWER = Fence("r", 6, "b" * 22)
WATCHED = ("open", "mkdir", "read", "write", "fsync", "replace", "unlink", "close", "listdir")

WRITE = [
    "open folder", "flock", "open current", "read", "read", "close",
    "open new", "write", "fsync", "close", "replace", "fsync", "flock", "close",
]  # fmt: skip
"""The calls of a write: the bytes are on the disk before the rename, and the rename before the write returns."""

PUBLISH = [
    "open folder", "flock", "open current", "read", "read", "close",
    "mkdir folder-", "open folder-", "flock", "flock", "close",
    "open a", "write", "fsync", "close", "open b", "write", "fsync", "close",
    "fsync", "open folder", "flock", "open current", "read", "read", "close", "fsync",
    "open new", "write", "fsync", "close", "replace", "fsync", "listdir", "flock", "close", "flock", "close",
]  # fmt: skip
"""Those of a publication: the files and their names are on the disk before the pointer has their folder's name."""

FIRST = ["mkdir folder", "open parent", "fsync", "replace"]
"""What the first claim adds: the disk has the folder's own name before the folder has a pointer."""


class Calls:
    """Watches the system calls of the guard, and kills the process before one of them."""

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch, kill_at: int = -1) -> None:
        self.made: list[str] = []
        self._folder, self._kill_at = Path(folder), kill_at
        watched: Any = SimpleNamespace(**vars(os))
        for name in WATCHED:
            setattr(watched, name, self._watching(name, getattr(os, name)))
        for module in (io, base):
            monkeypatch.setattr(module, "os", watched)
        locks: Any = SimpleNamespace(**vars(fcntl))
        locks.flock = self._watching("flock", fcntl.flock)
        monkeypatch.setattr(io, "fcntl", locks)

    def _watching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(self.made) == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            target = self._name(Path(args[0])) if isinstance(args[0], str) and name != "replace" else ""
            self.made.append(f"{name} {target}".strip())
            return real(*args, **options)

        return call

    def _name(self, path: Path) -> str:
        if path == self._folder:
            return "parent"
        if path.parent == self._folder:
            return "folder"
        return "folder-" if path.name.startswith("folder-") else path.name


def test_the_table_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = FileGuard(tmp_path)
    guard.write(MINE, b"old", claim=True)
    with monkeypatch.context() as patched:
        calls = Calls(guard._folder, patched)
        guard.write(MINE, b"new")
        assert calls.made == WRITE
        calls.made.clear()
        guard.publish(MINE, {"a": b"1", "b": b"2"})
        assert calls.made == PUBLISH
        calls.made.clear()
        guard.claim(Fence("another", 5, "c" * 22))
        assert in_order(calls.made, FIRST)
        assert calls.made.count("fsync") == 3
        os.mkdir(io.path_of(guard._folder, "left"))  # by a process that was killed at once
        calls.made.clear()
        guard.claim(Fence("left", 5, "c" * 22))
        assert in_order(calls.made, FIRST[1:])


def in_order(made: list[str], expected: list[str]) -> bool:
    """Whether the expected calls were made one after another, perhaps with others in between."""
    left = iter(made)
    return all(call in left for call in expected)


def test_the_table_of_calls_of_the_page() -> None:
    page = PAGE.read_text("utf-8")
    table = page.partition("| step | calls |")[2].partition("\n\n")[0]
    calls = re.findall(r"`(\w+)`", table)
    in_order = [call.split()[0] for call in WRITE]
    position = 0
    for call in calls:  # each call of the page comes in this order; the end of a file is read once more
        position = in_order.index(call, position) + 1
    assert position == len(in_order)


def state(folder: Path) -> Any:
    """What a reader sees."""
    guard = FileGuard(folder)
    path = guard.path("r")
    if path is None:
        return guard.read("r")
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("work", "new", "calls"),
    [
        (lambda guard: guard.write(MINE, b"new"), b"new", WRITE),
        (lambda guard: guard.publish(MINE, {"a": b"1", "b": b"2"}), {"a": b"1", "b": b"2"}, PUBLISH),
        (lambda guard: guard.claim(NEWER), b"old", WRITE),
    ],
    ids=["write", "publish", "claim"],
)
def test_a_kill_before_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[FileGuard], Any], new: Any, calls: list[str]
) -> None:
    seen = []
    for step in range(len(calls) + 1):
        folder = tmp_path / str(step)
        folder.mkdir()
        guard = FileGuard(folder, timeout=2)
        guard.write(MINE, b"old", claim=True)
        child = os.fork()
        if not child:
            Calls(guard._folder, monkeypatch, kill_at=step)
            work(guard)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert killed == (0 if step == len(calls) else -signal.SIGKILL)
        found = state(folder)
        assert found in (b"old", new), f"killed before call {step}, {calls[step]}"
        mark = guard.mark("r")
        assert mark is not None
        seen.append((found, mark))
        following = Fence("r", 7, "d" * 22)
        guard.claim(following)  # the lock is free, and what was left does not disturb
        guard.publish(following, {"c": b"3"})
        assert state(folder) == {"c": b"3"}
    turn = calls.index("replace") + 1
    assert len(set(map(repr, seen[:turn]))) == 1, "nothing has changed before the rename"
    assert len(set(map(repr, seen[turn:]))) == 1, "everything has changed after it"
    assert seen[0] != seen[-1]
