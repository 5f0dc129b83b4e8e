"""The pointer of a resource: its mark, and what is current, in one small object. No I/O: text in, text out.

The object is only ever replaced under a condition. It is JSON with sorted keys, so that other tools can read it.
Version 1 is::

    {"format": "fencing-pointer/1", "resource": "orders:42",
     "mark": {"number": 7, "token": "...", "seq": 3},
     "changed_at": "2026-01-31T12:00:00+00:00",
     "recent_writes": ["newest id", ..., "*the id that made the pointer"],
     "published": null or {"id": ..., "number": 7, "token": "...", "at": ...,
                           "objects": {name: {"key": ..., "size": 3}}},
     "deleted": null or {"number": 7, "token": "...", "at": ...}}

Keys are relative to the pointer's directory. Times are for people. ``(number, token, seq)`` never comes back, so the
bytes of no two states are equal. Therefore an ETag that is a hash of the content is a true version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import MAX_SEQ, Fence, Mark, check_number, check_token
from storage_guards.objects.keys import DataKey, check_name

FORMAT = "fencing-pointer/1"
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
    """

    __module__ = "storage_guards"

    key: str
    size: int


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
    """One state of a resource."""

    resource: str
    mark: Mark
    changed_at: datetime
    recent_writes: tuple[str, ...]
    published: Published | None = None
    deleted: Deleted | None = None


# The states after a change. The rules of fencing.kernel have already admitted it, and gave the mark.


def with_claim(now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime) -> Pointer:
    """Return the state after a claim: another mark, the same data."""
    if now is None:
        return Pointer(fence.resource, mark, at, (CREATION + id_,))
    return replace(now, mark=mark, changed_at=at)


def with_publication(
    now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime, objects: Mapping[str, Entry]
) -> Pointer:
    """Return the state after a publication."""
    new = Published(id_, fence.number, fence.token, at, dict(objects))
    return Pointer(fence.resource, mark, at, _written(now, id_), published=new)


def with_deletion(now: Pointer | None, fence: Fence, mark: Mark, id_: str, at: datetime) -> Pointer:
    """Return the state after a deletion: the mark stays, with a tombstone."""
    gone = Deleted(fence.number, fence.token, at)
    return Pointer(fence.resource, mark, at, _written(now, id_), deleted=gone)


def with_next_seq(now: Pointer, at: datetime) -> Pointer:
    """Return the same state under the next seq. A put that was conditional on ``now`` can then never land."""
    return replace(now, mark=replace(now.mark, seq=now.mark.seq + 1), changed_at=at)


def _written(now: Pointer | None, id_: str) -> tuple[str, ...]:
    return (CREATION + id_,) if now is None else (id_, *now.recent_writes)[:KEPT_WRITES]


# To bytes, and back


def encode(pointer: Pointer, room: int = 0) -> bytes:
    """Return the bytes of a pointer, and leave so many free.

    Raises:
        ValueError: too many objects, or names so long that it grows too big.
    """
    new, gone = pointer.published, pointer.deleted
    if new is not None and len(new.objects) > MAX_OBJECTS:
        raise ValueError(f"a publication has at most {MAX_OBJECTS} objects, not {len(new.objects)}; pack some together")
    mark = {"number": pointer.mark.number, "token": pointer.mark.token, "seq": pointer.mark.seq}
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
            "objects": {name: {"key": entry.key, "size": entry.size} for name, entry in new.objects.items()},
        },
        "deleted": gone and {"number": gone.number, "token": gone.token, "at": gone.at.isoformat()},
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
        GuardNotEnforceable: it is no pointer, or of another format or resource.
    """
    try:
        return _decode(json.loads(data), resource)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuardNotEnforceable(
            f"the pointer of {resource!r} is not in the format {FORMAT} ({_brief(error)}): was it written by a newer "
            f"version, or by something else? Upgrade, or repair it by hand; deleting it would drop the mark"
        ) from error


def _decode(shown: Any, resource: str) -> Pointer:
    if shown["format"] != FORMAT:
        raise ValueError(f"its format is {shown['format']!r}")
    if shown["resource"] != resource:
        raise ValueError("it is of another resource")
    mark = Mark(shown["mark"]["number"], shown["mark"]["token"], shown["mark"]["seq"])
    if mark.seq > MAX_SEQ // 2:
        raise ValueError("its seq leaves no room for writes")
    writes = shown["recent_writes"]
    if not isinstance(writes, list) or not 1 <= len(writes) <= KEPT_WRITES or not all(map(_is_id, writes)):
        raise ValueError("its recent_writes are no list of ids")
    new, gone = shown["published"], shown["deleted"]
    return Pointer(
        resource,
        mark,
        _time(shown["changed_at"]),
        tuple(writes),
        None if new is None else _published(new),
        None if gone is None else Deleted(check_number(gone["number"]), check_token(gone["token"]), _time(gone["at"])),
    )


def _published(shown: Any) -> Published:
    if not _is_id(shown["id"]) or not isinstance(shown["objects"], dict) or len(shown["objects"]) > MAX_OBJECTS:
        raise ValueError("its publication is malformed")
    objects = {check_name(name): _entry(entry) for name, entry in shown["objects"].items()}
    number, token = check_number(shown["number"]), check_token(shown["token"])
    return Published(shown["id"], number, token, _time(shown["at"]), objects)


def _entry(shown: Any) -> Entry:
    key, size = shown["key"], shown["size"]
    if not isinstance(key, str) or DataKey.parse(key) is None or type(size) is not int or size < 0:
        raise ValueError("an object in it is malformed")
    return Entry(key, size)


def _is_id(text: object) -> bool:
    return isinstance(text, str) and 8 <= len(text) <= 64 and text.isascii() and text.isprintable() and " " not in text


def _time(text: Any) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time in it has no zone")
    return time


def _brief(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 120 else text[:117] + "..."
