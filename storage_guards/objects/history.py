"""Reading publications: the current one, and the earlier ones whose data are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from fencing.kernel.effects import Plan
from fencing.kernel.errors import StaleRead
from storage_guards.objects.changes import Scope, plan_read, plan_seen, unavailable
from storage_guards.objects.manifest import plan_read_manifest
from storage_guards.objects.pointer import MOST_EARLIER, Pointer, Published
from storage_guards.objects.requests import Lost

OPEN_ROUNDS = 5
"""How often a name is resolved again, because what was current was replaced and collected meanwhile."""

GONE = "if this stays so, something else than a guard has deleted it: restore it from a backup, or publish again"

At = str | int | datetime
"""What names a publication: its id, the number of the fence that made it, or a time at which it was current."""


@dataclass(frozen=True, slots=True)
class PublicationFound:
    """A publication that can be read, compared and restored.

    Args:
        id: unique.
        number: of the fence that published it.
        token: of that fence.
        at: when its data were complete, by the publisher's clock. It became current when another one ended, which may
            be later.
        until: when it was replaced or deleted, by the clock of who did that. None: it is current.
        objects: how many it has.
        size: their bytes, together.
    """

    __module__ = "storage_guards"

    id: str
    number: int
    token: str
    at: datetime
    until: datetime | None
    objects: int
    size: int


def plan_publications(scope: Scope) -> Plan[list[PublicationFound]]:
    """List the publications that can be read, the newest first."""
    return [
        PublicationFound(
            each.id, each.number, each.token, each.at, each.until, each.manifest.objects, each.manifest.bytes
        )
        for each in named_by((yield from plan_read(scope)))
    ]


def named_by(pointer: Pointer | None) -> list[Published]:
    """Return the publications that a pointer names: the current one, then the earlier ones, the newest first."""
    if pointer is None:
        return []
    return [*([] if pointer.published is None else [pointer.published]), *pointer.earlier]


def check_at(at: object) -> None:
    """Raise TypeError or ValueError where ``at`` names no publication."""
    if isinstance(at, bool) or not isinstance(at, (str, int, datetime)):
        raise TypeError(f"at is the id of a publication, a fence's number, or a datetime, not {type(at).__name__}")
    if isinstance(at, datetime) and at.utcoffset() is None:
        raise ValueError("at is a datetime without a time zone; pass one with tzinfo, such as datetime.now(UTC)")


def plan_publication(scope: Scope, at: At | None, seconds: float) -> Plan[Published | None]:
    """Read a publication with its objects.

    Args:
        at: which one. None: the current one.
        seconds: how long the store may make no progress with a manifest.
    """
    for _ in range(OPEN_ROUNDS):
        seen = yield from plan_seen(scope)
        scope.stored.put(seen)  # a holder that reads mostly publishes next
        pointer = seen.pointer
        if at is None:
            found = None if pointer is None else pointer.published
        else:
            found = _publication_at(scope.resource, pointer, at)
        if found is None or found.objects is not None:
            return found
        try:
            return (yield from plan_whole(scope, found, seconds))
        except StaleRead as error:  # it was collected, or something else has deleted its manifest
            key = error.key
    raise StaleRead(resource=scope.resource, key=key, hint=GONE)


def _publication_at(resource: str, pointer: Pointer | None, at: At) -> Published | None:
    """Return a publication. None: nothing was current then. Raise KeyError where the pointer does not name it."""
    named = named_by(pointer)
    if isinstance(at, datetime):
        if begun := [each for each in named if each.at <= at]:
            if begun[0].at == at:  # its own time is a name of it
                return begun[0]
            # The oldest of them: a publication may have been made long before it replaced another.
            return next((each for each in reversed(begun) if each.until is None or at < each.until), None)
    else:
        for each in named:
            if at == (each.id if isinstance(at, str) else each.number):
                return each
    text = at.isoformat() if isinstance(at, datetime) else repr(at)
    raise KeyError(
        f"{resource!r} has no publication {text}, or has it no more: the last {MOST_EARLIER} stay until they are "
        f"collected; publications() lists those that are there"
    )


def plan_whole(scope: Scope, found: Published, seconds: float) -> Plan[Published]:
    """Return a publication with the objects of its manifest. Raise StaleRead where that is gone."""
    try:
        objects = yield from plan_read_manifest(scope.resource, scope.directory, found, seconds)
    except Lost as error:
        raise unavailable(scope, error, "retry") from error
    if objects is None:
        raise StaleRead(resource=scope.resource, key=scope.directory.full(found.manifest_key), hint=GONE)
    return replace(found, objects=objects)
