"""Garbage collection: the data in a resource's directory that are not current, and their deletion, which is a write.

A collector deletes only data of fences **below** its own, under its own claim. It keeps everything that the pointer
names, as it reads the pointer under that claim. So a collector that was paused deletes nothing that newer holders have
uploaded: their fences are not below. It also deletes nothing that they have made current again: they can carry over
only entries that the pointer named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from storage_guards.objects.changes import Scope, plan_check, plan_read, unavailable
from storage_guards.objects.history import plan_whole
from storage_guards.objects.keys import DataKey
from storage_guards.objects.pointer import Pointer
from storage_guards.objects.requests import Delete, List, Listed, Lost

MOST_LISTED = 100_000
"""How many objects of a resource are inspected, oldest fences first. The next collection inspects the rest."""

BATCH = 250
"""Objects deleted by one request: Azure takes 256."""


@dataclass(frozen=True, slots=True)
class UploadFound:
    """One upload in the store: of a publication, or of an attempt at one.

    Args:
        number: of the fence that uploaded it.
        token: of that fence.
        sizes: bytes by name of the object. A very long name is cut, and ends in its hash. One that is
            escaped and has a ``%`` begins with it.
        at: when the last of it was stored.
        current: whether any of it is current.
        id: of the upload.
    """

    __module__ = "storage_guards"

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


_Member = tuple[DataKey, Listed]


def plan_history(scope: Scope) -> Plan[list[UploadFound]]:
    """Find every upload there is, oldest fence first."""
    groups, current = yield from _plan_find(scope, (yield from plan_read(scope)))
    return [_upload(members, current) for members in groups]


def plan_collect(scope: Scope, fence: Fence, keep: int, older_than: float | None) -> Plan[list[UploadFound]]:
    """Delete uploads of fences below ``fence``, except their current parts. Return what was deleted."""
    groups, current = yield from _plan_find(scope, (yield from plan_check(scope, fence)))
    left = [[(key, each) for key, each in members if key.key not in current] for members in groups]
    superfluous = [(_upload(rest, current), rest) for rest in left if rest and rest[0][0].number < fence.number]
    superfluous.sort(key=lambda found: found[0].at)
    if keep:
        del superfluous[-keep:]
    if older_than is not None:
        before = scope.now() - timedelta(seconds=older_than)
        superfluous = [found for found in superfluous if found[0].at <= before]
    keys = [each.key for _, rest in superfluous for _, each in rest]
    for start in range(0, len(keys), BATCH):
        try:
            yield Delete(keys[start : start + BATCH], scope.seconds)
        except Lost as error:
            raise unavailable(scope, error, "some data may be deleted, call collect again") from error
    return [upload for upload, _ in superfluous]


def _plan_find(scope: Scope, pointer: Pointer | None) -> Plan[tuple[list[list[_Member]], set[str]]]:
    """List the data by upload, oldest fence first. Return them with the keys of the current objects."""
    try:
        listed = yield List(scope.directory.data, MOST_LISTED, scope.seconds)
    except Lost as error:
        raise unavailable(scope, error, "retry") from error
    named: set[str] = set()
    if pointer is not None and (current := pointer.published) is not None:
        objects = current.objects
        if objects is None:
            objects = (yield from plan_whole(scope, current, scope.seconds)).objects or {}
        named = {current.manifest_key, *(entry.key for entry in objects.values())}
    groups: dict[tuple[int, str, str], list[_Member]] = {}
    for each in listed:
        key = DataKey.parse(scope.directory.relative(each.key))
        if key is not None:  # an object with another key is not the guard's, and stays
            groups.setdefault((key.number, key.token, key.upload), []).append((key, each))
    return [members for _, members in sorted(groups.items())], named


def _upload(members: list[_Member], current: set[str]) -> UploadFound:
    first = members[0][0]
    sizes = {key.name: each.size for key, each in members if key.name is not None}
    at = max(each.modified for _, each in members)
    is_current = any(key.key in current for key, _ in members)
    return UploadFound(first.number, first.token, sizes, at, is_current, first.upload)
