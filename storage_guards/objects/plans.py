"""The plans of publications: claim, upload, publish, delete, and find out the outcome of a write."""

from __future__ import annotations

from collections.abc import Callable

from fencing.kernel.admission import admit_write
from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import FencingError, GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence, Mark
from storage_guards.kept import admit_claim_at
from storage_guards.objects import pointer as states
from storage_guards.objects.changes import (
    ROUNDS,
    Scope,
    plan_change,
    plan_inspect,
    plan_put,
)
from storage_guards.objects.keys import new_id
from storage_guards.objects.outcome import may_still_land, verdict
from storage_guards.objects.pointer import Pointer
from storage_guards.objects.requests import Lost
from storage_guards.objects.seen import Seen


class Anything:
    """Any state: the default of ``replacing``."""

    def __repr__(self) -> str:
        return "<any state>"


ANYTHING = Anything()
"""The value of ``replacing`` that lets a write replace any state."""


class Nothing:
    """No objects: the default of ``keeping``."""

    def __repr__(self) -> str:
        return "<nothing>"


NOTHING = Nothing()
"""The value of ``keeping`` that keeps no object. None is another: nothing must be current."""


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


def plan_delete(scope: Scope, fence: Fence, *, claim: bool) -> Plan[None]:
    """Make nothing current. The mark stays."""
    id_ = new_id()

    def decide(now: Pointer | None) -> Pointer:
        return states.with_deletion(now, fence, admit_change(scope, now, fence, claim), id_, scope.now())

    yield Shielded(plan_write_pointer(scope, fence, decide))


def admit_change(scope: Scope, now: Pointer | None, fence: Fence, claim: bool) -> Mark:
    """Return the mark under which ``fence`` may change this state. Raise what refuses it."""
    if claim:
        mark: Mark | None = admit_claim_at(None if now is None else now.kept, fence)
    else:
        mark = None if now is None else now.mark
    admitted = admit_write(mark, fence)
    scope.check_continuity(now)
    return admitted


def plan_write_pointer(
    scope: Scope,
    fence: Fence,
    decide: Callable[[Pointer | None], Pointer],
    seen: Seen | None = None,
    once: str | None = None,
) -> Plan[Pointer]:
    """Change the pointer as ``decide`` says. Raise OutcomeUnknown where nobody can say whether that happened."""

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
