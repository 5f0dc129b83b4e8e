"""The manifest of a publication: all its objects, in an immutable object beside their data. Tools can read it.

It is JSON Lines, of which the first is the header::

    {"format": "fencing-manifest/1", "resource": "orders:42", "id": ..., "number": 7, "token": "...", "at": ...,
     "objects": 1}
    {"key": ..., "name": ..., "sha256": ..., "size": 3}

The others are sorted by name. The pointer has the size and the SHA-256 of all these bytes. So what is read is what was
written, or it is refused. It is written and read piece by piece.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import Fence
from storage_guards.kept import members, newer_version, read_json
from storage_guards.objects.keys import Directory, check_name
from storage_guards.objects.pointer import (
    MAX_OBJECTS,
    Entry,
    Published,
    brief_reason,
    read_entry,
    shown_entry,
    summed,
)
from storage_guards.objects.requests import Open, Read

FORMAT = "fencing-manifest/1"
_OTHER_VERSION = re.compile(r"fencing-manifest/[1-9][0-9]{0,8}")

MAX_MANIFEST_BYTES = 2**29


def manifest_lines(fence: Fence, id_: str, at: datetime, objects: Mapping[str, Entry]) -> Iterator[bytes]:
    """Write a manifest, line by line. It looks at ``objects`` when the first line is asked for."""
    header = {
        "format": FORMAT,
        "resource": fence.resource,
        "id": id_,
        "number": fence.number,
        "token": fence.token,
        "at": at.isoformat(),
        "objects": len(objects),
    }
    yield json.dumps(header).encode() + b"\n"
    for name in sorted(objects):
        yield json.dumps({"name": name, **shown_entry(objects[name])}).encode() + b"\n"


def plan_read_manifest(
    resource: str, directory: Directory, published: Published, seconds: float
) -> Plan[dict[str, Entry] | None]:
    """Read the objects of a publication. None: its manifest is gone, so it was collected.

    Args:
        seconds: how long the store may make no progress.

    Raises:
        Lost: the store did not answer, or the reading broke off.
        GuardNotEnforceable: the manifest is damaged, too long, or of a newer version.
    """
    found, key = published.manifest, directory.full(published.manifest_key)
    if found.size > MAX_MANIFEST_BYTES or found.objects > MAX_OBJECTS:
        raise GuardNotEnforceable(
            f"the manifest {key!r} of {resource!r} has {found.size} bytes and {found.objects} objects, and "
            f"{MAX_MANIFEST_BYTES} and {MAX_OBJECTS} are the most that this version reads: upgrade, or publish again"
        )
    stream = yield Open(key, seconds)
    if stream is None:
        return None
    lines = _Lines(resource, published)
    try:
        while (piece := (yield Read(stream, key, seconds))) is not None:
            lines.add(piece)
        return lines.end()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuardNotEnforceable(
            f"the manifest {key!r} of {resource!r} is damaged, or something else wrote it ({brief_reason(error)}); "
            f"restore it from a backup, or publish again"
        ) from error


class _Lines:
    """The objects of a manifest, as its bytes come. Its methods raise KeyError, TypeError or ValueError for damage."""

    def __init__(self, resource: str, published: Published) -> None:
        self._resource = resource
        self._published = published
        self._received = 0
        self._digest = hashlib.sha256()
        self._rest = b""
        self._header: Any = None
        self._objects: dict[str, Entry] = {}

    def add(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._received > self._published.manifest.size:
            raise ValueError("it is longer than its pointer says")
        self._digest.update(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if self._header is None:
                self._header = read_json(line)
                self._check_header(self._header)
            else:
                self._add_object(read_json(line))

    def end(self) -> dict[str, Entry]:
        manifest = self._published.manifest
        if (self._received, self._digest.hexdigest()) != (manifest.size, manifest.sha256):
            raise ValueError("it has other bytes than its pointer says")
        if self._rest or self._header is None or summed(self._objects) != (manifest.objects, manifest.bytes):
            raise ValueError("it has other objects than its pointer says")
        return self._objects

    def _check_header(self, shown: Any) -> None:
        if shown["format"] != FORMAT:
            if _OTHER_VERSION.fullmatch(shown["format"]):
                raise newer_version(f"a manifest of {self._resource!r}", shown["format"])
            raise ValueError(f"its format is {shown['format']!r}")
        names = ("format", "resource", "id", "number", "token", "at", "objects")
        mine = self._published
        at = mine.at.isoformat()
        if members(shown, *names)[1:] != [self._resource, mine.id, mine.number, mine.token, at, mine.manifest.objects]:
            raise ValueError("it is of another publication")

    def _add_object(self, shown: Any) -> None:
        name = check_name(shown.pop("name"))
        if name in self._objects:
            raise ValueError("it has a name twice")
        self._objects[name] = read_entry(shown)
