"""The pointer of a resource: its mark, and what is current, in one small object. No I/O: text in, text out.

The object is only ever replaced under a condition. It is JSON with sorted keys, so that other tools can read it.
Version 1 is::

    {"format": "fencing-pointer/1", "resource": "orders:42",
     "mark": {"number": 7, "token": "...", "seq": 3, "readers": 0},
     "changed_at": "2026-01-31T12:00:00+00:00",
     "recent_writes": ["newest id", ..., "*the id that made the pointer"],
     "published": null or {"id": ..., "number": 7, "token": "...", "at": ...,
                           "objects": {name: {"key": ..., "size": 3}}},
     "deleted": null or {"number": 7, "token": "...", "at": ...},
     "done": {"floor": "", "keys": {}}}

The keys of objects are relative to the pointer's directory. Times are for people. ``(number, token, seq, readers)``
never comes back, so the bytes of no two states are equal. Therefore an ETag that is a hash of the content is a true
version.

``readers`` is the highest number of a reader. With the token ``""`` there is no holder yet, and ``number`` is that of
a floor. No version writes more than the above in these two yet. ``done`` has the keys that were done once, and the
highest one that went. Earlier pointers have neither ``readers`` nor ``done``. A change keeps all that is not its own.
So no other member is accepted: it would be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from storage_guards.objects.keys import DataKey, check_name

FORMAT = "fencing-pointer/1"
_OTHER_VERSION = re.compile(r"fencing-pointer/[1-9][0-9]{0,8}")
MAX_POINTER_BYTES = 2**20
ROOM = 4096
"""Bytes that a publication leaves free, because later claims and ids make its pointer longer."""

MAX_OBJECTS = 1000
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
        sha256: of its bytes, 64 hexadecimal digits. Empty: not known, because an earlier version stored it.
    """

    __module__ = "storage_guards"

    key: str
    size: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The objects of the current publication, by name."""

    id: str
    number: int
    token: str
    at: datetime
    objects: Mapping[str, Entry] = field(default_factory=dict)


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
    """

    resource: str
    kept: Kept
    changed_at: datetime
    recent_writes: tuple[str, ...]
    published: Published | None = None
    deleted: Deleted | None = None
    done: DoneKeys = NOTHING_DONE

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
    id_: str,
    at: datetime,
    objects: Mapping[str, Entry],
    once: str | None = None,
) -> Pointer:
    """Return the state after a publication, which does ``once`` if that is a key."""
    new = Published(id_, fence.number, fence.token, at, dict(objects))
    after = _after_write(now, fence, mark, id_, at, published=new)
    return after if once is None else replace(after, done=after.done.with_key(once, Done(fence.number, at)))


def with_deletion(now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime) -> Pointer:
    """Return the state after a deletion: the mark stays, with a tombstone."""
    gone = Deleted(fence.number, fence.token, at)
    return _after_write(now, fence, mark, id_, at, deleted=gone)


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
    writes = (id_, *now.recent_writes)[:KEPT_WRITES]
    return replace(now, kept=mark, changed_at=at, recent_writes=writes, published=published, deleted=deleted)


# To bytes, and back


def encode(pointer: Pointer, room: int = 0) -> bytes:
    """Return the bytes of a pointer, and leave so many free.

    Raises:
        ValueError: too many objects, or names so long that it grows too big.
    """
    new, gone = pointer.published, pointer.deleted
    if new is not None and len(new.objects) > MAX_OBJECTS:
        raise ValueError(f"a publication has at most {MAX_OBJECTS} objects, not {len(new.objects)}; pack some together")
    kept = pointer.kept
    mark = {"number": kept.number, "token": kept.token, "seq": kept.seq, "readers": kept.readers}
    shown = {
        "format": FORMAT,
        "resource": pointer.resource,
        "mark": mark,
        "changed_at": pointer.changed_at.isoformat(),
        "recent_writes": list(pointer.recent_writes),
        "published": new
        and {
            "id": new.id,
            "number": new.number,
            "token": new.token,
            "at": new.at.isoformat(),
            "objects": {name: _shown(entry) for name, entry in new.objects.items()},
        },
        "deleted": gone and {"number": gone.number, "token": gone.token, "at": gone.at.isoformat()},
        "done": pointer.done.shown(),
    }
    data = json.dumps(shown, sort_keys=True, indent=1).encode()
    most = MAX_POINTER_BYTES - room
    if len(data) > most:
        raise ValueError(
            f"the names of a publication make a pointer of {len(data)} bytes, over {most}; use fewer or shorter names"
        )
    return data


def decode(data: bytes, resource: str) -> Pointer:
    """Read a pointer back, and check all of it.

    Raises:
        GuardNotEnforceable: it is of a newer version, or no pointer of this resource.
    """
    try:
        shown = read_json(data)
        if shown["format"] != FORMAT:
            if _OTHER_VERSION.fullmatch(shown["format"]):
                raise newer_version(f"the pointer of {resource!r}", shown["format"])
            raise ValueError(f"its format is {shown['format']!r}")
        return _decode(shown, resource)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuardNotEnforceable(
            f"the pointer of {resource!r} is damaged, or something else wrote it: it is not in the format {FORMAT} "
            f"({_brief(error)}); restore it with its data, or repair it by hand; deleting it would drop the mark"
        ) from error


_MEMBERS = ("format", "resource", "mark", "changed_at", "recent_writes", "published", "deleted")
_NOTHING_DONE = NOTHING_DONE.shown()


def _decode(shown: Any, resource: str) -> Pointer:
    _, of, mark, changed_at, writes, new, gone, done = members(shown, *_MEMBERS, done=_NOTHING_DONE)
    if of != resource:
        raise ValueError("it is of another resource")
    kept = kept_mark(*members(mark, "number", "token", "seq", readers=0))
    if kept.seq > MAX_SEQ // 2:
        raise ValueError("its seq leaves no room for writes")
    if not isinstance(writes, list) or not 1 <= len(writes) <= KEPT_WRITES or not all(map(_is_id, writes)):
        raise ValueError("its recent_writes are no list of ids")
    return Pointer(
        resource,
        kept,
        read_time(changed_at),
        tuple(writes),
        None if new is None else _published(new),
        None if gone is None else _deleted(gone),
        DoneKeys.read(done),
    )


def _published(shown: Any) -> Published:
    id_, number, token, at, objects = members(shown, "id", "number", "token", "at", "objects")
    if not _is_id(id_) or not isinstance(objects, dict) or len(objects) > MAX_OBJECTS:
        raise ValueError("its publication is malformed")
    entries = {check_name(name): _entry(entry) for name, entry in objects.items()}
    return Published(id_, check_number(number), check_token(token), read_time(at), entries)


def _deleted(shown: Any) -> Deleted:
    number, token, at = members(shown, "number", "token", "at")
    return Deleted(check_number(number), check_token(token), read_time(at))


def _shown(entry: Entry) -> dict[str, Any]:
    shown = {"key": entry.key, "size": entry.size}
    return {**shown, "sha256": entry.sha256} if entry.sha256 else shown


def _entry(shown: Any) -> Entry:
    key, size, sha256 = members(shown, "key", "size", sha256="")
    if not isinstance(key, str) or DataKey.parse(key) is None or type(size) is not int or size < 0:
        raise ValueError("an object in it is malformed")
    if "sha256" in shown and (not isinstance(sha256, str) or not _is_sha256(sha256)):
        raise ValueError("the sha256 of an object in it is malformed")
    return Entry(key, size, sha256)


_is_sha256 = re.compile("[0-9a-f]{64}").fullmatch


def _is_id(text: object) -> bool:
    return isinstance(text, str) and 8 <= len(text) <= 64 and text.isascii() and text.isprintable() and " " not in text


def _brief(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 120 else text[:117] + "..."
