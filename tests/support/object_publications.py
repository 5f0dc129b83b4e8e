"""Publications as a guard makes them, without a store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from fencing import Fence
from storage_guards import Entry
from storage_guards.objects.manifest import manifest_lines
from storage_guards.objects.pointer import Manifest, Published, summed

SHA256 = "0f" * 32


def published(fence: Fence, id_: str, at: datetime, objects: Mapping[str, Entry]) -> Published:
    """Return a publication with these objects."""
    return Published(id_, fence.number, fence.token, at, manifest_of(fence, id_, at, objects), dict(objects))


def manifest_of(fence: Fence, id_: str, at: datetime, objects: Mapping[str, Entry]) -> Manifest:
    written = written_manifest(fence, id_, at, objects)
    return Manifest(len(written), hashlib.sha256(written).hexdigest(), *summed(objects))


def written_manifest(fence: Fence, id_: str, at: datetime, objects: Mapping[str, Entry]) -> bytes:
    return b"".join(manifest_lines(fence, id_, at, objects))
