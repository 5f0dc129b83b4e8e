"""What else lies in a resource's directory, and its deletion, which is a write like any other.

Only data of fences **below** the collector's own are deleted, under its own claim, and nothing that the pointer names
which it read under that claim. So a collector that was paused deletes nothing newer holders have uploaded: their fences
are not below. Nor anything they have made current again: they can carry over only what the pointer named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fencing.errors import GuardUnavailable
from fencing.fence import Fence
from storage_guards.object_keys import DataKey, unescape_path
from storage_guards.object_plans import Scope, check, read, unavailable
from storage_guards.object_pointer import Pointer
from storage_guards.object_requests import Delete, List, Listed, Lost, Plan

__all__ = ["UploadFound", "collect", "history"]

MOST_LISTED = 100_000
"""Objects of a resource that are looked at, oldest fences first. What is left comes next time."""

BATCH = 250
"""Objects deleted by one request: Azure takes 256."""


@dataclass(frozen=True, slots=True)
class UploadFound:
    """One upload in the store: of a publication, or of an attempt at one.

    Args:
        number: of the fence that uploaded it.
        token: of that fence.
        sizes: bytes by name of the object. A very long name is cut, and ends in its hash.
        at: when the last of it was stored.
        current: whether any of it is current.
        id: of the upload.
    """

    number: int
    token: str
    sizes: Mapping[str, int]
    at: datetime
    current: bool
    id: str

    @property
    def size(self) -> int:
        """Bytes, together."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class _Found:
    upload: UploadFound
    superfluous: tuple[str, ...]
    """Keys that the pointer does not name."""


def history(scope: Scope) -> Plan[list[UploadFound]]:
    """Every upload there is, oldest fence first."""
    pointer = yield from read(scope)
    return [found.upload for found in (yield from _find(scope, pointer))]


def collect(scope: Scope, fence: Fence, keep: int, older_than: float | None) -> Plan[list[UploadFound]]:
    """Delete uploads that are not current, of fences below ``fence``; those deleted."""
    pointer = yield from check(scope, fence)
    below = [found for found in (yield from _find(scope, pointer)) if found.upload.number < fence.number]
    superfluous = sorted((found for found in below if found.superfluous), key=lambda found: found.upload.at)
    if keep:
        others = [found for found in superfluous if not found.upload.current]
        kept = {id(found) for found in others[-keep:]}
        superfluous = [found for found in superfluous if id(found) not in kept]
    if older_than is not None:
        before = scope.now() - timedelta(seconds=older_than)
        superfluous = [found for found in superfluous if found.upload.at <= before]
    keys = [scope.directory.full(key) for found in superfluous for key in found.superfluous]
    for start in range(0, len(keys), BATCH):
        try:
            yield Delete(keys[start : start + BATCH], scope.seconds)
        except Lost as error:
            raise GuardUnavailable(
                f"the object store did not answer about {scope.resource!r}: {error}; some may be deleted, call again",
                resource=scope.resource,
            ) from error
    return [found.upload for found in superfluous]


def _find(scope: Scope, pointer: Pointer | None) -> Plan[list[_Found]]:
    try:
        listed = yield List(scope.directory.data, MOST_LISTED, scope.seconds)
    except Lost as error:
        raise unavailable(scope, error, "retry") from error
    named = {} if pointer is None or pointer.published is None else pointer.published.objects
    current = {entry.key for entry in named.values()}
    groups: dict[tuple[int, str, str], list[tuple[DataKey, Listed]]] = {}
    for each in listed:
        key = DataKey.parse(scope.directory.relative(each.key))
        if key is not None:  # else it is nothing of ours, and stays
            groups.setdefault((key.number, key.token, key.upload), []).append((key, each))
    return [_found(members, current) for _, members in sorted(groups.items())]


def _found(members: list[tuple[DataKey, Listed]], current: set[str]) -> _Found:
    first = members[0][0]
    sizes = {unescape_path(key.name): each.size for key, each in members}
    at = max(each.modified for _, each in members)
    is_current = any(key.key in current for key, _ in members)
    superfluous = tuple(key.key for key, _ in members if key.key not in current)
    return _Found(UploadFound(first.number, first.token, sizes, at, is_current, first.upload), superfluous)
