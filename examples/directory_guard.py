"""A guard for a storage of your own, worked out: files in a directory, one for each resource.

What it does **not** promise: more than the rule for one file. Several files are claimed together, but a crash in
between leaves some claimed. It needs flock and an atomic rename, so a local disk on a POSIX system, no NFS. A holder
that is frozen inside ``begin`` keeps others out until it wakes or is killed: flock has no bound, only their waits have.
Whoever opens the files without the guard is not kept out, and a deleted ``.lock`` file frees its lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencing.kernel import (
    Fence,
    GuardUnavailable,
    HasFence,
    Mark,
    OutcomeUnknown,
    admit_claim,
    admit_write,
    check_resource,
    sorted_fences,
)
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds


@dataclass
class Content:
    """What is stored for a resource: its mark, and the data, in one file, so that one rename replaces both."""

    mark: Mark | None
    data: bytes


class DirectoryGuard:
    """Keeps each resource's mark in the file with its data."""

    def __init__(self, folder: Path, *, timeout: float = 10.0) -> None:
        self._folder = folder
        self._timeout = check_timeout(timeout)

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        fences = sorted_fences(holders)  # every guard locks in this order, so two cannot block each other
        deadline = time.monotonic() + wait_seconds(holders, self._timeout, timeout)
        with ExitStack() as locks:
            for fence in fences:
                locks.enter_context(self._locked(fence, deadline))
            found = [self._load(fence.resource) for fence in fences]
            marks = [admit_claim(content.mark, fence) for content, fence in zip(found, fences, strict=True)]
            for fence, content, mark in zip(fences, found, marks, strict=True):
                self._store(fence, Content(mark, content.data))

    def mark(self, resource: str) -> Mark | None:
        return self._load(check_resource(resource)).mark

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        check_unknown(error)
        return None  # look at the data, under a lease

    def read(self, resource: str) -> bytes:
        return self._load(check_resource(resource)).data

    @contextmanager
    def begin(self, holder: Fence | HasFence, *, claim: bool = False) -> Iterator[Content]:
        """Read and change ``.data``; it is stored as the block ends, unless by an exception."""
        [fence] = sorted_fences([holder])
        with self._locked(fence, time.monotonic() + wait_seconds([holder], self._timeout)):
            content = self._load(fence.resource)
            claimed = admit_claim(content.mark, fence) if claim else content.mark
            content.mark = admit_write(claimed, fence)
            yield content
            self._store(fence, content)

    def write(self, holder: Fence | HasFence, data: bytes, *, claim: bool = False) -> None:
        with self.begin(holder, claim=claim) as content:
            content.data = data

    @contextmanager
    def _locked(self, fence: Fence, deadline: float) -> Iterator[None]:
        """From the check until the rename is done. The end of the process frees it, too."""
        with self._path(fence.resource, "lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise GuardUnavailable("the file stayed locked; retry", resource=fence.resource) from None
                time.sleep(0.005)
            yield

    def _path(self, resource: str, kind: str) -> Path:
        return self._folder / f"{hashlib.sha256(resource.encode()).hexdigest()}.{kind}"  # exact, and never too long

    def _load(self, resource: str) -> Content:
        try:
            head, _, data = self._path(resource, "data").read_bytes().partition(b"\n")
        except FileNotFoundError:
            return Content(None, b"")
        number, token, seq = head.decode().split()
        return Content(Mark(int(number), token, int(seq)), data)

    def _store(self, fence: Fence, content: Content) -> None:
        mark = content.mark or Mark(fence.number, fence.token)
        new, path = self._path(fence.resource, "new"), self._path(fence.resource, "data")
        with new.open("wb") as file:
            file.write(f"{mark.number} {mark.token} {mark.seq}\n".encode() + content.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:  # it is there, and a crash may still undo it
            raise OutcomeUnknown(fence=fence, seq=mark.seq) from error
        finally:
            os.close(folder)
