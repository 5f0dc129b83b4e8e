"""Reading publications: the current one, and the earlier ones whose data are kept."""

from __future__ import annotations

from dataclasses import replace

from fencing.kernel.effects import Plan
from fencing.kernel.errors import StaleRead
from storage_guards.objects.changes import Scope, plan_seen, unavailable
from storage_guards.objects.manifest import plan_read_manifest
from storage_guards.objects.pointer import Published
from storage_guards.objects.requests import Lost

OPEN_ROUNDS = 5
"""How often a name is resolved again, because what was current was replaced and collected meanwhile."""


def plan_current(scope: Scope, seconds: float) -> Plan[Published | None]:
    """Read the current publication with its objects.

    Args:
        seconds: how long the store may make no progress with a manifest.
    """
    for _ in range(OPEN_ROUNDS):
        seen = yield from plan_seen(scope)
        scope.stored.put(seen)  # a holder that reads mostly publishes next
        found = None if seen.pointer is None else seen.pointer.published
        if found is None or found.objects is not None:
            return found
        try:
            return (yield from plan_whole(scope, found, seconds))
        except StaleRead as error:
            stale = error
    raise stale


def plan_whole(scope: Scope, found: Published, seconds: float) -> Plan[Published]:
    """Return a publication with the objects of its manifest. Raise StaleRead where that is gone."""
    try:
        objects = yield from plan_read_manifest(scope.resource, scope.directory, found, seconds)
    except Lost as error:
        raise unavailable(scope, error, "retry") from error
    if objects is None:
        raise StaleRead(resource=scope.resource, key=scope.directory.full(found.manifest_key))
    return replace(found, objects=objects)
