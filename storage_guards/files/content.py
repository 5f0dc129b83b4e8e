"""The pointer file of a resource: its mark, its last writes, and its data or the folder that has them. No I/O.

It is four lines of ASCII, and the data. Version 1 is::

    fencing 1 <number>.<token>.<resource> <seq> <readers>
    <newest id> ... <oldest id>
    nothing, or: data [<folder> ...], or: folder <folder> [<folder>]
    {"floor": "", "keys": {}}
    <data>

The first line has the fence that was admitted last, as ``str(fence)``, and the highest number of a reader. Without a
token there is no holder yet, and ``number`` is that of a floor. The fourth line has keys that are done. No version
writes more than the above there yet. Earlier files have neither ``readers`` nor the fourth line. A change keeps what
is not its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import Fence, Mark, granted_fence
from storage_guards.continuity import Acknowledged, check_mark
from storage_guards.kept import NOTHING_DONE, DoneKeys, Kept, kept_mark, mark_of, newer_version, read_json

MOST_BYTES = 64 * 2**20
"""The most bytes of one file: every claim writes it again. Larger ones are published in a folder."""

_VERSION = re.compile(rb"(fencing ([1-9][0-9]{0,8}))[ \n]")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NOTHING_DONE = json.dumps(NOTHING_DONE.shown()).encode()
_ANY_TOKEN = "0" * 22


@dataclass(frozen=True)
class Content:
    """What a pointer file has.

    Args:
        resource: whose file it is.
        kept: its mark, or what stands in its place.
        writes: the ids of the last writes, the newest first.
        folders: of the newest publication, and of the one before, for their readers.
        data: the bytes of the one file; None: there is none, or the newest publication is current.
        done: the keys that are done.
    """

    resource: str
    kept: Kept
    writes: tuple[str, ...]
    folders: tuple[str, ...] = ()
    data: bytes | None = None
    done: DoneKeys = NOTHING_DONE

    @property
    def mark(self) -> Mark | None:
        """The mark; None: there is no holder's yet."""
        return mark_of(self.kept)

    @property
    def fence(self) -> Fence | None:
        """The newest fence that was admitted; None: there is no holder's yet."""
        return granted_fence(self.resource, self.kept.number, self.kept.token) if self.mark else None

    @property
    def current(self) -> str | None:
        """The folder that is current; None: there is none."""
        return self.folders[0] if self.folders and self.data is None else None

    def unknown(self) -> OutcomeUnknown:
        """Return the error to raise if nobody knows whether this content, with its newest write, is stored."""
        assert self.fence is not None
        return OutcomeUnknown(fence=self.fence, seq=self.kept.seq, recent_writes=" ".join(self.writes))

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        kind = "data" if self.data is not None else "folder" if self.folders else "nothing"
        kept, done = self.kept, self.done
        _, _, resource = str(granted_fence(self.resource, 1, "")).partition("..")
        head = f"fencing 1 {kept.number}.{kept.token}.{resource} {kept.seq} {kept.readers}"
        lines = f"{head}\n{' '.join(self.writes)}\n{' '.join((kind, *self.folders))}\n"
        keys = _NOTHING_DONE if done is NOTHING_DONE else json.dumps(done.shown(), sort_keys=True).encode()
        return b"".join((lines.encode(), keys, b"\n", self.data or b""))


def decode(stored: bytes, path: str, probably: Fence | None = None) -> Content:
    """Return the content of a pointer file.

    Args:
        stored: its bytes.
        path: its path, for the error.
        probably: the fence that it probably has, which is then not parsed.

    Raises:
        GuardNotEnforceable: a newer version of the library wrote it, or it is damaged.
    """
    version = _VERSION.match(stored)
    if version is not None and version[2] != b"1":
        raise newer_version(f"the pointer file {path!r}", version[1].decode())
    try:
        if version is None:
            raise ValueError(f"it begins with {stored[:20]!r}")
        words = stored[: stored.index(b"\n")].decode("ascii").split(" ")
        is_earlier = len(words) == 4  # without readers
        _, _, text, seq, readers = (*words, "0") if is_earlier else words
        _, second, third, *others = stored.split(b"\n", 3 if is_earlier else 4)
        done, data = (_NOTHING_DONE, *others) if is_earlier else others
        kind, *folders = third.decode("ascii").split()
        if kind not in ("data", "folder" if folders else "nothing"):
            raise ValueError(f"unknown kind {kind!r}")
        writes = tuple(second.decode("ascii").split())
        resource, kept = _kept(text, _number(seq), _number(readers), probably)
        keys = NOTHING_DONE if done == _NOTHING_DONE else DoneKeys.read(read_json(done))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise GuardNotEnforceable(
            f"the pointer file {path!r} is damaged ({error!s:.100}): an operator must restore it with its data"
        ) from error
    return Content(resource, kept, writes, tuple(folders), data if kind == "data" else None, keys)


def _kept(text: str, seq: int, readers: int, probably: Fence | None) -> tuple[str, Kept]:
    """Return the resource in a text of a fence, and its mark, or what stands in its place."""
    number, _, rest = text.partition(".")
    if rest.startswith("."):  # there is no token
        fence = Fence.parse(f"1.{_ANY_TOKEN}{rest}")
        return fence.resource, kept_mark(_number(number), "", seq, readers)
    fence = probably if probably is not None and text == str(probably) else Fence.parse(text)
    return fence.resource, kept_mark(fence.number, fence.token, seq, readers)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r:.30} is no number")
    return int(text)


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
