"""Garbage collection: the deletion of data that no publication needs any more, which is a write.

A collector deletes only data of fences **below** its own, under its own claim. It spares all that the current
publication and the kept ones name, as it reads the pointer and their manifests under that claim. So a collector that
was paused deletes nothing that newer holders have uploaded: their fences are not below. It also deletes nothing that
they have made current again: they can carry over or restore only what the pointer names.

Therefore it first takes the publications that it does not keep out of the pointer, by a conditional put. Then nobody
can restore them any more, and it deletes their data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from fencing.kernel.admission import admit_write
from fencing.kernel.effects import Plan
from fencing.kernel.errors import FencingError, GuardNotEnforceable, StaleRead
from fencing.kernel.fence import Fence
from storage_guards.objects import pointer as states
from storage_guards.objects.changes import (
    ROUNDS,
    Scope,
    admitted,
    pause,
    plan_check,
    plan_put,
    plan_read,
    plan_seen,
    unavailable,
)
from storage_guards.objects.history import named_by, plan_whole
from storage_guards.objects.keys import DataKey, new_id
from storage_guards.objects.outcome import verdict
from storage_guards.objects.pointer import Pointer, Published
from storage_guards.objects.requests import Delete, List, Listed, Lost

MOST_LISTED = 100_000
"""How many objects of a resource are inspected at once, oldest fences first. A collection ends when some of these are
to be deleted. The next one inspects the rest."""

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
        current: whether any of it is current. Earlier publications that are kept do not count.
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


def plan_history(scope: Scope, seconds: float) -> Plan[list[UploadFound]]:
    """Find every upload there is, oldest fence first.

    Args:
        seconds: how long the store may make no progress with a manifest.
    """
    pointer = yield from plan_read(scope)
    named = set[str]()
    if pointer is not None and pointer.published is not None:
        named = yield from _plan_named(scope, [pointer.published], seconds)
    groups = _by_upload(scope, (yield from _plan_list(scope, "")))
    return [_upload(members, named) for members in groups]


def plan_collect(
    scope: Scope, fence: Fence, keep: int, older_than: float | None, dry_run: bool, seconds: float
) -> Plan[list[UploadFound]]:
    """Delete what neither the current nor a kept publication names, of fences below ``fence``. Return what was deleted.

    Args:
        dry_run: delete nothing, and change nothing.
        seconds: how long the store may make no progress with a manifest.
    """
    before = None if older_than is None else scope.now() - timedelta(seconds=older_than)
    named = yield from _plan_keep(scope, fence, keep, before, dry_run, seconds)
    after, superfluous = "", list[tuple[UploadFound, list[_Member]]]()
    while not superfluous:
        listed = yield from _plan_list(scope, after)
        for members in _by_upload(scope, listed):
            rest = [(key, each) for key, each in members if key.key not in named]
            if rest and rest[0][0].number < fence.number:
                upload = _upload(rest, named)
                if before is None or upload.at <= before:
                    superfluous.append((upload, rest))
        if len(listed) < MOST_LISTED:
            break
        after = listed[-1].key
    keys = [] if dry_run else [each.key for _, rest in superfluous for _, each in rest]
    for start in range(0, len(keys), BATCH):
        try:
            yield Delete(keys[start : start + BATCH], scope.seconds)
        except Lost as error:
            raise unavailable(scope, error, "some data may be deleted, call collect again") from error
    return [upload for upload, _ in superfluous]


def _plan_keep(
    scope: Scope, fence: Fence, keep: int, before: datetime | None, dry_run: bool, seconds: float
) -> Plan[set[str]]:
    """Take the publications that are not kept out of the pointer. Return the keys that the others name."""
    deadline, id_ = scope.deadline(), new_id()

    def unknown() -> FencingError:
        return unavailable(scope, Lost("no answer to a change"), "nothing was deleted, call collect again")

    for attempt in range(ROUNDS):
        seen = yield from plan_seen(scope)
        pointer = admitted(scope, fence, seen.pointer)
        kept = _kept(pointer, keep, before)
        try:
            named = yield from _plan_named(scope, named_by(replace(pointer, earlier=kept)), seconds)
        except (GuardNotEnforceable, StaleRead) as error:
            # A newer collector may have deleted it, and then this is stale; or another one with this fence.
            if (yield from plan_check(scope, fence)) != pointer:
                continue
            raise GuardNotEnforceable(
                f"the collection of {scope.resource!r} has deleted nothing: a manifest cannot be read ({error}); "
                f"a collection that does not keep this publication does not need it; if it is current, publish first"
            ) from error
        if dry_run or kept == pointer.earlier:
            return named
        wanted = states.with_earlier(pointer, admit_write(pointer.mark, fence), id_, scope.now(), kept)
        done = yield from plan_put(scope, seen, wanted, partial(verdict, wanted.recent_writes), unknown, deadline)
        if done is True:
            scope.acknowledged(wanted)
            return named
        if deadline.over:
            break
        yield pause(attempt, deadline)
    raise unavailable(scope, Lost("others changed the pointer at each attempt"), "nothing was deleted, call again")


def _kept(pointer: Pointer, keep: int, before: datetime | None) -> tuple[Published, ...]:
    """Return the newest earlier publications: so many, and all that were still current at a time."""
    for number, each in enumerate(pointer.earlier, 1):
        if before is not None and each.until is not None and each.until > before:
            keep = max(keep, number)
    return pointer.earlier[:keep]


def _plan_named(scope: Scope, publications: Iterable[Published], seconds: float) -> Plan[set[str]]:
    """Return the keys of the data and the manifests of publications."""
    named: set[str] = set()
    for each in publications:
        objects = each.objects
        if objects is None:
            objects = (yield from plan_whole(scope, each, seconds)).objects or {}
        named.add(each.manifest_key)
        named.update(entry.key for entry in objects.values())
    return named


def _plan_list(scope: Scope, after: str) -> Plan[list[Listed]]:
    try:
        return (yield List(scope.directory.data, MOST_LISTED, scope.seconds, after))  # type: ignore[no-any-return]
    except Lost as error:
        raise unavailable(scope, error, "retry") from error


def _by_upload(scope: Scope, listed: Iterable[Listed]) -> list[list[_Member]]:
    """Return the data by upload, oldest fence first."""
    groups: dict[tuple[int, str, str], list[_Member]] = {}
    for each in listed:
        key = DataKey.parse(scope.directory.relative(each.key))
        if key is not None:  # an object with another key is not the guard's, and stays
            groups.setdefault((key.number, key.token, key.upload), []).append((key, each))
    return [members for _, members in sorted(groups.items())]


def _upload(members: list[_Member], current: set[str]) -> UploadFound:
    first = members[0][0]
    sizes = {key.name: each.size for key, each in members if key.name is not None}
    at = max(each.modified for _, each in members)
    is_current = any(key.key in current for key, _ in members)
    return UploadFound(first.number, first.token, sizes, at, is_current, first.upload)
