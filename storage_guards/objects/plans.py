"""The plans of publications: claim, upload, publish, delete, and find out the outcome of a write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fencing.kernel.admission import admit_write
from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import FencingError, GuardUnavailable, OutcomeUnknown, StaleRead, TooOld
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.kept import admit_claim_at
from storage_guards.objects import pointer as states
from storage_guards.objects.bodies import Body, restored
from storage_guards.objects.changes import (
    ROUNDS,
    Scope,
    plan_change,
    plan_inspect,
    plan_put,
    plan_seen,
    unavailable,
)
from storage_guards.objects.keys import new_id
from storage_guards.objects.outcome import may_still_land, verdict
from storage_guards.objects.pointer import ROOM, Entry, Pointer, Published, encode
from storage_guards.objects.requests import Lost
from storage_guards.objects.seen import Seen
from storage_guards.objects.uploads import SMALL, plan_uploads
from storage_guards.once import already_done


class Anything:
    """Any state: the default of ``replacing``."""

    def __repr__(self) -> str:
        return "<any state>"


ANYTHING = Anything()
"""The value of ``replacing`` that lets a write replace any state."""


def plan_claim(scope: Scope, fence: Fence, seen: Seen | None = None) -> Plan[None]:
    """Raise the mark to ``fence``.

    Args:
        seen: the state that this claim has already read. None: it is read.
    """
    id_ = new_id()

    def decide(now: Pointer | None) -> Pointer:
        mark = admit_claim_at(None if now is None else now.kept, fence)
        scope.check_continuity(now)
        return now if now is not None and mark == now.kept else states.with_claim(now, fence, mark, id_, scope.now())

    def unknown(_: Pointer) -> FencingError:
        text = f"the object store did not answer about {scope.resource!r}; the claim may have happened; repeat it"
        return GuardUnavailable(text, resource=scope.resource)

    def landed(wanted: Pointer, now: Pointer | None) -> bool:
        if now is None or now.mark is None or not now.mark.is_of(fence):
            return False
        return wanted.recent_writes[0] in now.recent_writes  # otherwise another task has created it with this fence

    pointer = yield from plan_change(scope, decide, landed, unknown, seen)
    scope.acknowledged(pointer)


def plan_publish(
    scope: Scope,
    fence: Fence,
    bodies: Mapping[str, Any],
    *,
    claim: bool,
    replacing: Any,
    upload_seconds: float,
    once: str | None = None,
    holder: Fence | HasFence | None = None,
) -> Plan[Published]:
    """Upload the new bodies, then make all objects current at once.

    Args:
        upload_seconds: how long the store may make no progress with a body.
        once: the key of what this does once. None: it has none.
        holder: the lease or fence that the caller passed, for the error of a key that was done before.
    """
    carried = {name: body for name, body in bodies.items() if isinstance(body, Entry)}
    upload = new_id()
    directory = scope.directory
    objects = {name: carried.get(name) or Entry(directory.data_key(fence, upload, name), 2**50) for name in bodies}

    def decide(now: Pointer | None) -> Pointer:
        mark = _admit(scope, now, fence, claim)
        if once is not None and now is not None:
            _require_new(now, once, holder or fence)
        current = None if now is None else now.published
        if replacing is not ANYTHING and (current and current.id) != (replacing and replacing.id):
            raise StaleRead(resource=scope.resource)
        there = set() if current is None else set(current.objects.values())
        for entry in carried.values():
            if entry not in there:  # its data may be deleted, now or at any time
                raise StaleRead(resource=scope.resource, key=entry.key)
        return states.with_publication(now, fence, mark, upload, scope.now(), objects, once)

    seen = _stored_by_own(scope, fence, bodies, decide)
    if seen is None:
        seen = yield from plan_seen(scope)
        encode(decide(seen.pointer), ROOM)  # a refusal comes before the first upload
    with restored(bodies):
        new = {name: body for name, body in bodies.items() if name not in carried}
        keys = {name: directory.full(objects[name].key) for name in new}
        try:
            stored = yield from plan_uploads(new, keys, upload_seconds)
        except Lost as error:
            raise unavailable(scope, error, "nothing was published, retry") from error
        for name, (size, sha256) in stored.items():
            objects[name] = Entry(objects[name].key, size, sha256)
        pointer = yield Shielded(_plan_write(scope, fence, decide, seen, once))
    return pointer.published  # type: ignore[no-any-return]


def _require_new(now: Pointer, once: str, holder: Fence | HasFence) -> None:
    """Raise AlreadyDone or TooOld where the pointer has the key, or had it perhaps."""
    before = now.done.keys.get(once)
    if before is not None:
        raise already_done(holder, once, before.number, before.at.timestamp())
    if now.done.is_too_old(once):
        raise TooOld(resource=now.resource, key=once, floor=now.done.floor)


def _stored_by_own(
    scope: Scope, fence: Fence, bodies: Mapping[str, Any], decide: Callable[[Pointer | None], Pointer]
) -> Seen | None:
    """Return the state that this guard has stored under ``fence``, so that it need not be read. None: read it.

    It may be stale, and then the refusal comes after the upload. So this is for small bodies only. Where that state
    would be refused, it is read, because only a state of the store may refuse.
    """
    seen = scope.stored.take(scope.resource, fence)
    if seen is None or scope.is_stale(seen) or not _are_small(bodies):
        return None
    try:
        encode(decide(seen.pointer), ROOM)
    except (FencingError, ValueError):
        return None
    return seen


def _are_small(bodies: Mapping[str, Any]) -> bool:
    """Return whether all bodies to upload are small together, by sizes that are known."""
    total = 0
    for body in bodies.values():
        if isinstance(body, Body):
            try:
                size = body.size
            except OSError:  # the upload raises it
                return False
            if size is None or (total := total + size) > SMALL:
                return False
    return True


def plan_delete(scope: Scope, fence: Fence, *, claim: bool) -> Plan[None]:
    """Make nothing current. The mark stays."""
    id_ = new_id()

    def decide(now: Pointer | None) -> Pointer:
        return states.with_deletion(now, fence, _admit(scope, now, fence, claim), id_, scope.now())

    yield Shielded(_plan_write(scope, fence, decide))


def _admit(scope: Scope, now: Pointer | None, fence: Fence, claim: bool) -> Mark:
    if claim:
        mark: Mark | None = admit_claim_at(None if now is None else now.kept, fence)
    else:
        mark = None if now is None else now.mark
    admitted = admit_write(mark, fence)
    scope.check_continuity(now)
    return admitted


def _plan_write(
    scope: Scope,
    fence: Fence,
    decide: Callable[[Pointer | None], Pointer],
    seen: Seen | None = None,
    once: str | None = None,
) -> Plan[Pointer]:
    def unknown(wanted: Pointer) -> FencingError:
        writes = " ".join(wanted.recent_writes)
        return OutcomeUnknown(fence=fence, seq=wanted.kept.seq, recent_writes=writes, once=once)

    def landed(wanted: Pointer, now: Pointer | None) -> bool | None:
        return verdict(wanted.recent_writes, now)

    pointer = yield from plan_change(scope, decide, landed, unknown, seen)
    scope.acknowledged(pointer)
    return pointer


def plan_landed(scope: Scope, error: OutcomeUnknown) -> Plan[bool | None]:
    """Find out whether a change happened. If it may still land, first make that impossible."""
    deadline = scope.deadline()
    writes = tuple(error.recent_writes.split())
    fence = error.fence

    def still_open() -> FencingError:
        text = f"the object store did not answer about {scope.resource!r}; the outcome is still open, ask again"
        return GuardUnavailable(text, resource=scope.resource)

    for _ in range(ROUNDS):
        try:
            seen = yield from plan_inspect(scope, deadline)
        except Lost as lost:
            raise still_open() from lost
        answer = verdict(writes, seen.pointer)
        if answer is not False or not may_still_land(writes, error, seen.pointer):
            return answer
        if seen.pointer is not None and seen.mark is not None and seen.mark.is_of(fence):
            other = states.with_next_seq(seen.pointer, scope.now())
        else:
            other = states.with_claim(seen.pointer, fence, admit_claim_at(seen.kept, fence), new_id(), scope.now())
        if (yield from plan_put(scope, seen, other, lambda _: False, still_open, deadline)) is True:
            return False
    raise still_open()
