"""The pointer of a resource: its mark, and what is current, in one small object. No I/O: text in, text out.

The object is only ever replaced under a condition. It is JSON with sorted keys, so that other tools can read it.
Version 1 is::

    {"format": "fencing-pointer/1", "resource": "orders:42",
     "mark": {"number": 7, "token": "...", "seq": 3, "readers": 0},
     "changed_at": "2026-01-31T12:00:00+00:00",
     "recent_writes": ["newest id", ..., "*the id that made the pointer"],
     "published": null or {"id": ..., "number": 7, "token": "...", "at": ...,
                           "manifest": {"key": ..., "size": 300, "sha256": ..., "objects": 1, "bytes": 3},
                           "objects": {name: {"key": ..., "size": 3, "sha256": ...}}},
     "deleted": null or {"number": 7, "token": "...", "at": ...},
     "earlier": [{"id": ..., "number": 6, "token": "...", "at": ..., "until": ..., "manifest": ...}, ...],
     "done": {"floor": "", "keys": {}}}

In version 2, ``published.objects`` is null: the objects are in the manifest alone. It is written only where they are
too many for the pointer, or their names too long.

The keys of objects are relative to the pointer's directory. Times are for people, and for who asks what was current
then. ``(number, token, seq, readers)`` never comes back, so the bytes of no two states are equal. Therefore an ETag
that is a hash of the content is a true version.

``earlier`` has the publications that were replaced or deleted, and whose data are kept: the newest first.

``readers`` is the highest number of a reader. With the token ``""`` there is no holder yet, and ``number`` is that of
a floor. No version writes more than the above in these two yet. ``done`` has the keys that were done once, and the
highest one that went. Earlier pointers have neither ``readers`` nor ``done``. A change keeps all that is not its own.
So no other member is accepted: it would be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import MAX_SEQ, Fence, Mark, check_number, check_token
from storage_guards.kept import (
    NOTHING_DONE,
    Done,
    DoneKeys,
    Kept,
    kept_mark,
    mark_of,
    members,
    newer_version,
    read_json,
    read_time,
)
from storage_guards.objects.keys import DataKey, Directory, check_name

FORMAT = "fencing-pointer/1"
FORMAT_OF_MANY = "fencing-pointer/2"
_OTHER_VERSION = re.compile(r"fencing-pointer/[1-9][0-9]{0,8}")
MAX_POINTER_BYTES = 2**20
MAX_OBJECTS = 1_000_000
MOST_INLINE = 1000
"""How many objects a pointer has itself."""

MOST_INLINE_BYTES = 2**19
"""How many bytes these take, about. The rest of a pointer has less."""

MOST_EARLIER = 32
"""How many earlier publications a pointer has."""

KEPT_WRITES = 16
"""How many ids of its last writes a pointer remembers, for ``landed``."""

CREATION = "*"
"""Begins the id of the write that made a pointer, which is the end of its history."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a publication. As a body of ``publish`` it is carried over without a copy.

    Args:
        key: of its bytes, relative to the directory of its resource. Nothing is ever written there again.
        size: in bytes.
        sha256: of its bytes, 64 hexadecimal digits.
    """

    __module__ = "storage_guards"

    key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a pointer says of the manifest of a publication.

    Args:
        size: of the manifest, in bytes.
        sha256: of the manifest.
        objects: how many there are in it.
        bytes: of these objects, together.
    """

    size: int
    sha256: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Published:
    """A publication.

    Args:
        objects: by name. None: they are in the manifest alone.
        until: when it was replaced or deleted. None: it is current.
    """

    id: str
    number: int
    token: str
    at: datetime
    manifest: Manifest
    objects: Mapping[str, Entry] | None = None
    until: datetime | None = None

    @property
    def manifest_key(self) -> str:
        """The key of its manifest, relative to the pointer's directory."""
        return Directory.manifest_key(self.number, self.token, self.id)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A tombstone: the fence and the time of the deletion."""

    number: int
    token: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Pointer:
    """One state of a resource.

    Args:
        kept: its mark, or what stands in its place.
        earlier: the publications whose data are kept, the newest first.
    """

    resource: str
    kept: Kept
    changed_at: datetime
    recent_writes: tuple[str, ...]
    published: Published | None = None
    deleted: Deleted | None = None
    done: DoneKeys = NOTHING_DONE
    earlier: tuple[Published, ...] = ()

    @property
    def mark(self) -> Mark | None:
        """The mark; None: there is no holder's yet."""
        return mark_of(self.kept)


# The states after a change. The rules of fencing.kernel have already admitted it, and gave the mark.


def with_claim(now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime) -> Pointer:
    """Return the state after a claim: another mark, the same data."""
    if now is None:
        return Pointer(fence.resource, mark, at, (CREATION + id_,))
    return replace(now, kept=mark, changed_at=at)


def with_publication(
    now: Pointer | None,
    fence: Fence,
    mark: Mark,
    new: Published,
    once: str | None = None,
    at: datetime | None = None,
) -> Pointer:
    """Return the state after a publication, which does ``once`` if that is a key.

    Args:
        at: when it becomes current, which may be long after ``new.at``: the process may have stood still in between.
            None: then.
    """
    at = new.at if at is None else max(at, new.at)  # clocks go back
    after = _after_write(now, fence, mark, new.id, at, published=new)
    return after if once is None else replace(after, done=after.done.with_key(once, Done(fence.number, at)))


def with_deletion(now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime) -> Pointer:
    """Return the state after a deletion: the mark stays, with a tombstone."""
    gone = Deleted(fence.number, fence.token, at)
    return _after_write(now, fence, mark, id_, at, deleted=gone)


def with_earlier(now: Pointer, mark: Mark, id_: str, at: datetime, earlier: tuple[Published, ...]) -> Pointer:
    """Return the state after a write that changes nothing but the earlier publications."""
    writes = (id_, *now.recent_writes)[:KEPT_WRITES]
    return replace(now, kept=mark, changed_at=at, recent_writes=writes, earlier=earlier)


def with_next_seq(now: Pointer, at: datetime) -> Pointer:
    """Return the same state under the next seq. A put that was conditional on ``now`` can then never land."""
    assert isinstance(now.kept, Mark)
    return replace(now, kept=replace(now.kept, seq=now.kept.seq + 1), changed_at=at)


def _after_write(
    now: Pointer | None,
    fence: Fence,
    mark: Mark,
    id_: str,
    at: datetime,
    published: Published | None = None,
    deleted: Deleted | None = None,
) -> Pointer:
    if now is None:
        return Pointer(fence.resource, mark, at, (CREATION + id_,), published, deleted)
    earlier = now.earlier
    if now.published is not None:
        earlier = (replace(now.published, objects=None, until=at), *earlier)[:MOST_EARLIER]
    after = with_earlier(now, mark, id_, at, earlier)
    return replace(after, published=published, deleted=deleted)


def fit_inline(objects: Mapping[str, Entry]) -> bool:
    """Return whether a pointer has these objects itself."""
    if len(objects) > MOST_INLINE:
        return False
    return sum(map(_shown_size, objects, objects.values())) <= MOST_INLINE_BYTES


def _shown_size(name: str, entry: Entry) -> int:
    return len(json.dumps(name)) + len(entry.key) + 160


# To bytes, and back


def encode(pointer: Pointer) -> bytes:
    """Return the bytes of a pointer."""
    new, gone = pointer.published, pointer.deleted
    kept = pointer.kept
    mark = {"number": kept.number, "token": kept.token, "seq": kept.seq, "readers": kept.readers}
    shown = {
        "format": FORMAT if new is None or new.objects is not None else FORMAT_OF_MANY,
        "resource": pointer.resource,
        "mark": mark,
        "changed_at": pointer.changed_at.isoformat(),
        "recent_writes": list(pointer.recent_writes),
        "published": new
        and {
            **_shown_header(new),
            "objects": None
            if new.objects is None
            else {name: shown_entry(entry) for name, entry in new.objects.items()},
        },
        "deleted": gone and {"number": gone.number, "token": gone.token, "at": gone.at.isoformat()},
        "earlier": [
            {**_shown_header(each), "until": each.until and each.until.isoformat()} for each in pointer.earlier
        ],
        "done": pointer.done.shown(),
    }
    data = json.dumps(shown, sort_keys=True, indent=1).encode()
    assert len(data) <= MAX_POINTER_BYTES, "its parts are bounded"
    return data


def _shown_header(new: Published) -> dict[str, Any]:
    found = new.manifest
    return {
        "id": new.id,
        "number": new.number,
        "token": new.token,
        "at": new.at.isoformat(),
        "manifest": {
            "key": new.manifest_key,
            "size": found.size,
            "sha256": found.sha256,
            "objects": found.objects,
            "bytes": found.bytes,
        },
    }


def shown_entry(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "size": entry.size, "sha256": entry.sha256}


def decode(data: bytes, resource: str) -> Pointer:
    """Read a pointer back, and check all of it.

    Raises:
        GuardNotEnforceable: it is of a newer version, or no pointer of this resource.
    """
    try:
        shown = read_json(data)
        if shown["format"] not in (FORMAT, FORMAT_OF_MANY):
            if _OTHER_VERSION.fullmatch(shown["format"]):
                raise newer_version(f"the pointer of {resource!r}", shown["format"])
            raise ValueError(f"its format is {shown['format']!r}")
        return _decode(shown, resource)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuardNotEnforceable(
            f"the pointer of {resource!r} is damaged, or something else wrote it: it is not in the format {FORMAT} "
            f"({brief_reason(error)}); restore it with its data, or repair it by hand; deleting it would drop the mark"
        ) from error


_MEMBERS = ("format", "resource", "mark", "changed_at", "recent_writes", "published", "deleted", "earlier")
_HEADER = ("id", "number", "token", "at", "manifest")
_NOTHING_DONE = NOTHING_DONE.shown()


def _decode(shown: Any, resource: str) -> Pointer:
    form, of, mark, changed_at, writes, new, gone, earlier, done = members(shown, *_MEMBERS, done=_NOTHING_DONE)
    if of != resource:
        raise ValueError("it is of another resource")
    kept = kept_mark(*members(mark, "number", "token", "seq", readers=0))
    if kept.seq > MAX_SEQ // 2:
        raise ValueError("its seq leaves no room for writes")
    if not isinstance(writes, list) or not 1 <= len(writes) <= KEPT_WRITES or not all(map(_is_id, writes)):
        raise ValueError("its recent_writes are no list of ids")
    if not isinstance(earlier, list) or len(earlier) > MOST_EARLIER:
        raise ValueError("its earlier publications are malformed, or too many")
    published = None if new is None else _published(new)
    if (published is not None and published.objects is None) is not (form == FORMAT_OF_MANY):
        raise ValueError("its objects are not where its version has them")
    return Pointer(
        resource,
        kept,
        read_time(changed_at),
        tuple(writes),
        published,
        None if gone is None else _deleted(gone),
        DoneKeys.read(done),
        tuple(map(_earlier, earlier)),
    )


def _published(shown: Any) -> Published:
    *header, objects = members(shown, *_HEADER, "objects")
    published = _read_header(*header)
    if objects is None:
        return published
    if not isinstance(objects, dict) or len(objects) > MOST_INLINE:
        raise ValueError("its publication is malformed")
    entries = {check_name(name): read_entry(entry) for name, entry in objects.items()}
    if summed(entries) != (published.manifest.objects, published.manifest.bytes):
        raise ValueError("its publication has other objects than its manifest")
    return replace(published, objects=entries)


def _earlier(shown: Any) -> Published:
    *header, until = members(shown, *_HEADER, "until")
    return replace(_read_header(*header), until=read_time(until))


def _read_header(id_: Any, number: Any, token: Any, at: Any, manifest: Any) -> Published:
    key, size, sha256, objects, total = members(manifest, "key", "size", "sha256", "objects", "bytes")
    for each in (size, objects, total):
        if type(each) is not int or each < 0:
            raise ValueError("the manifest of a publication is malformed")
    found = Manifest(size, check_sha256(sha256), objects, total)
    published = Published(id_, check_number(number), check_token(token), read_time(at), found)
    if key != published.manifest_key or DataKey.parse(key) is None:
        raise ValueError("the manifest of a publication has another key")
    return published


def _deleted(shown: Any) -> Deleted:
    number, token, at = members(shown, "number", "token", "at")
    return Deleted(check_number(number), check_token(token), read_time(at))


def read_entry(shown: Any) -> Entry:
    """Return an object of a publication. Raise KeyError, TypeError or ValueError where it is malformed."""
    key, size, sha256 = members(shown, "key", "size", "sha256")
    parsed = DataKey.parse(key) if isinstance(key, str) else None
    if parsed is None or parsed.name is None or type(size) is not int or size < 0:
        raise ValueError("an object in it is malformed")
    return Entry(key, size, check_sha256(sha256))


def summed(objects: Mapping[str, Entry]) -> tuple[int, int]:
    """Return the number of objects, and their bytes together."""
    return len(objects), sum(entry.size for entry in objects.values())


def check_sha256(text: Any) -> str:
    """Return a SHA-256 in hexadecimal digits. Raise ValueError if it is none."""
    if not isinstance(text, str) or not _is_sha256(text):
        raise ValueError("a sha256 in it is malformed")
    return text


_is_sha256 = re.compile("[0-9a-f]{64}").fullmatch


def _is_id(text: object) -> bool:
    return isinstance(text, str) and 8 <= len(text) <= 64 and text.isascii() and text.isprintable() and " " not in text


def brief_reason(error: Exception) -> str:
    """Return why something kept was refused, in at most 120 characters."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 120 else text[:117] + "..."
