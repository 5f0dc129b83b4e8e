"""The pointer file of a resource: its mark, its last writes, and its data or the folder that has them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import Fence, Mark
from storage_guards.continuity import Acknowledged, check_mark

MOST_BYTES = 64 * 2**20
"""The most bytes of one file: every claim writes it again. Larger ones are published in a folder."""

_HEAD = "fencing 1"


@dataclass(frozen=True)
class Content:
    """What a pointer file has.

    Args:
        fence: the newest one that was admitted.
        mark: the same, with the number of its writes.
        writes: the ids of the last writes, the newest first.
        folders: of the newest publication, and of the one before, for their readers.
        data: the bytes of the one file; None: there is none, or the newest publication is current.
    """

    fence: Fence
    mark: Mark
    writes: tuple[str, ...]
    folders: tuple[str, ...] = ()
    data: bytes | None = None

    @property
    def current(self) -> str | None:
        """The folder that is current; None: there is none."""
        return self.folders[0] if self.folders and self.data is None else None

    def unknown(self) -> OutcomeUnknown:
        """Return the error to raise if nobody knows whether this content, with its newest write, is stored."""
        return OutcomeUnknown(fence=self.fence, seq=self.mark.seq, recent_writes=" ".join(self.writes))

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        kind = "data" if self.data is not None else "folder" if self.folders else "nothing"
        head = f"{_HEAD} {self.fence} {self.mark.seq}\n{' '.join(self.writes)}\n{' '.join((kind, *self.folders))}\n"
        return head.encode() + (self.data or b"")


def decode(stored: bytes, path: str, probably: Fence | None = None) -> Content:
    """Return the content of a pointer file.

    Args:
        stored: its bytes.
        path: its path, for the error.
        probably: the fence that it probably has, which is then not parsed.

    Raises:
        GuardNotEnforceable: it is damaged, or another version of the library wrote it.
    """
    try:
        first, second, third, data = stored.split(b"\n", 3)
        head, text, seq = first.decode("ascii").rsplit(" ", 2)
        kind, *folders = third.decode("ascii").split()
        if head != _HEAD or kind not in ("data", "folder" if folders else "nothing"):
            raise ValueError(f"unknown format {head!r} {kind!r}")
        writes = tuple(second.decode("ascii").split())
        fence = probably if probably is not None and text == str(probably) else Fence.parse(text)
        mark = Mark(fence.number, fence.token, int(seq))
    except (ValueError, UnicodeDecodeError) as error:
        raise GuardNotEnforceable(
            f"the pointer file {path!r} is damaged ({error!s:.100}): an operator must restore it with its data"
        ) from error
    return Content(fence, mark, writes, tuple(folders), data if kind == "data" else None)


def check_continuity(found: Content | None, fence: Fence, last: Acknowledged | None) -> None:
    """Refuse a storage that has lost what it had acknowledged under this fence, also if the claim itself is lost."""
    mark, writes = (None, ()) if found is None else (found.mark, found.writes)
    check_mark(last, fence, mark, writes)


def verdict(unknown: OutcomeUnknown, found: Content | None) -> bool | None:
    """Return whether a write has landed, now that its lock is free, and so the write is over."""
    own, *older = unknown.recent_writes.split() or [""]
    if found is None or not own:
        return None
    if own in found.writes:
        return True
    return False if set(older) & set(found.writes) else None


def check_name(name: object) -> str:
    """Return the name of a file in a publication.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a file is a str, not {type(name).__name__}")
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name.encode()) > 255:
        raise ValueError(f"{name[:80]!r} is no name of a file: 1 to 255 bytes, without '/'")
    return name
