"""The worked example of docs/guards/your-own.md passes the contract, and its locks outlast no process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.directory_guard import DirectoryGuard
from examples.servers import freeze
from fencing.kernel.errors import GuardUnavailable, OutcomeUnknown, StaleFence
from fencing.kernel.fence import Fence
from storage_guards.testing import GuardContract

MINE = Fence("r", 5, "a" * 22)
NEWER = Fence("r", 6, "b" * 22)


class TestDirectoryGuard(GuardContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> DirectoryGuard:
        return DirectoryGuard(self.folder)

    def read(self, resource: str) -> int:
        return int(self.guard.read(resource) or 0)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        self.guard.write(fence, b"%d" % value, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        path = self.guard._path(resource, "data")
        mark = path.read_bytes().partition(b"\n")[0] if path.exists() else b"1 %s 0" % (b"0" * 22)
        new = path.with_suffix(f".{time.monotonic_ns()}")
        new.write_bytes(mark + b"\n%d" % value)
        new.replace(path)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with self.guard.begin(fence, **options) as content:
            value = int(content.data or 0)
            between()
            content.data = b"%d" % (value + 1)


HOLDER = """
import sys, time
from pathlib import Path
from examples.directory_guard import DirectoryGuard
from fencing.kernel.fence import Fence
with DirectoryGuard(Path(sys.argv[1])).begin(Fence("r", 5, "a" * 22)) as content:
    content.data = b"late"
    print("inside", flush=True)
    time.sleep(60)
"""


def test_a_frozen_holder_keeps_others_out_until_it_is_killed(tmp_path: Path) -> None:
    guard = DirectoryGuard(tmp_path, timeout=0.2)
    guard.write(MINE, b"first", claim=True)
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=root, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "inside\n"
        freeze(holder)
        with pytest.raises(GuardUnavailable):
            guard.claim(NEWER)
        holder.kill()
    DirectoryGuard(tmp_path, timeout=10.0).claim(NEWER)
    assert guard.read("r") == b"first"
    with pytest.raises(StaleFence):
        guard.write(MINE, b"later still")


def test_a_disk_that_fails_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = DirectoryGuard(tmp_path)
    guard.claim(MINE)
    real, calls = os.fsync, iter([False, True])

    def fsync(descriptor: int) -> None:
        if next(calls):
            raise OSError("the disk")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutcomeUnknown) as unknown:
        guard.write(MINE, b"1")
    assert unknown.value.seq == 1
    assert guard.landed(unknown.value) is None
