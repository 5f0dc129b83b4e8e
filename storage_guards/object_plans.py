"""What the object-store guard does with a pointer, as plans: read it, change it under a condition, find out what became
of a change whose reply was lost.

A change is one put that is conditional on the very state it was made from. A state never comes back, so:

- the same put may be sent again, as often as need be: at most one of them lands;
- once the pointer is in another state, a put that was conditional on the former can never land any more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from fencing.errors import FencingError, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleRead
from fencing.fence import Fence, Mark, admit_claim, admit_write
from storage_guards import object_pointer as to
from storage_guards.object_keys import Directory, new_id
from storage_guards.object_outcome import may_still_land, verdict
from storage_guards.object_pointer import MAX_POINTER_BYTES, Entry, Pointer, Published, decode, encode
from storage_guards.object_requests import (
    CREATE,
    Clock,
    Conflict,
    Deadline,
    Get,
    Lost,
    Plan,
    Put,
    Shielded,
    Sleep,
    Version,
)

__all__ = ["ANYTHING", "Anything", "Scope", "check", "claim", "delete", "landed", "publish", "read", "unavailable"]

ROUNDS = 50
"""How often a change is made anew because others were faster. The deadline mostly comes first."""

PUT_SHARE = 0.6
"""The share of the time left that a put may take, so that there is some to look what became of it."""

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.5

ATTRIBUTES = {"Content-Type": "application/json"}


class Anything:
    """Whatever is there."""

    def __repr__(self) -> str:
        return "<whatever is there>"


ANYTHING = Anything()
"""That a write may replace whatever is there."""


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the plans about one resource share."""

    resource: str
    directory: Directory
    seconds: float
    clock: Clock = field(default=time.monotonic)
    now: Callable[[], datetime] = field(default=_now)

    def deadline(self) -> Deadline:
        return Deadline(self.seconds, self.clock)


@dataclass(frozen=True, slots=True)
class Seen:
    """The pointer as it was read, and the condition that it still is so."""

    pointer: Pointer | None
    condition: Version | Literal["create"]

    @property
    def mark(self) -> Mark | None:
        return None if self.pointer is None else self.pointer.mark


def unavailable(scope: Scope, error: BaseException, then: str = "nothing was written, retry") -> GuardUnavailable:
    """The error for a store that does not answer about a resource."""
    return GuardUnavailable(
        f"the object store did not answer about {scope.resource!r}: {error}; {then}", resource=scope.resource
    )


# Reading


def _look(scope: Scope, deadline: Deadline) -> Plan[Seen]:
    """The pointer as it is; Lost where the store does not say."""
    found = yield Get(scope.directory.pointer, MAX_POINTER_BYTES, deadline.part())
    if found is None:
        return Seen(None, CREATE)
    if found.size > MAX_POINTER_BYTES:
        raise GuardNotEnforceable(
            f"the pointer of {scope.resource!r} has {found.size} bytes: something else wrote it; repair it by hand"
        )
    return Seen(decode(found.data, scope.resource), found.version)


def read(scope: Scope) -> Plan[Pointer | None]:
    """The pointer as it is."""
    try:
        return (yield from _look(scope, scope.deadline())).pointer
    except Lost as error:
        raise unavailable(scope, error, "retry") from error


def check(scope: Scope, fence: Fence) -> Plan[Pointer]:
    """The pointer, read under the claim of ``fence``; its rule's errors."""
    pointer = yield from read(scope)
    admit_write(None if pointer is None else pointer.mark, fence)
    assert pointer is not None
    return pointer


# Changing


def _put(
    scope: Scope,
    seen: Seen,
    wanted: Pointer,
    landed: Callable[[Pointer | None], bool | None],
    unknown: Callable[[], FencingError],
    deadline: Deadline,
) -> Plan[bool]:
    """Put ``wanted`` in the place of what was seen.

    Args:
        landed: what a later state says of it: it did, it never will, or that cannot be known.
        unknown: makes the error for an outcome that stays unknown.

    Returns:
        Whether it is there; False: it is not, and never will be.
    """
    data = encode(wanted)
    pause = FIRST_PAUSE_SECONDS
    why: Exception | None = None
    while True:
        try:
            yield Put(scope.directory.pointer, data, seen.condition, deadline.part(PUT_SHARE), ATTRIBUTES)
            return True
        except (Conflict, Lost) as error:
            # Also a refusal may have come after it was done: the store's client had repeated it by itself.
            why = error
        except (Exception, GeneratorExit) as error:
            if why is None or isinstance(error, GeneratorExit):
                raise
            raise unknown() from error  # of this attempt it says that it was refused, not of those before
        except BaseException as error:  # Ctrl-C: the put may still be on its way
            raise error from unknown()
        try:
            now = yield from _look(scope, deadline)
        except Lost as error:
            why = error
        except GuardNotEnforceable as error:
            raise unknown() from error
        else:
            if now.pointer != seen.pointer:
                answer = landed(now.pointer)
                if answer is None:
                    raise unknown() from why
                return answer
        if deadline.over:
            raise unknown() from why
        yield Sleep(random.uniform(0.5, 1) * min(pause, deadline.part()))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _change(
    scope: Scope,
    decide: Callable[[Pointer | None], Pointer],
    landed: Callable[[Pointer, Pointer | None], bool | None],
    unknown: Callable[[Pointer], FencingError],
) -> Plan[Pointer]:
    """Change the pointer as ``decide`` says; decide anew where others were faster."""
    deadline = scope.deadline()
    pause = FIRST_PAUSE_SECONDS
    for _ in range(ROUNDS):
        try:
            seen = yield from _look(scope, deadline)
        except Lost as error:
            raise unavailable(scope, error) from error
        wanted = decide(seen.pointer)
        if wanted is seen.pointer:
            return wanted
        if (
            yield from _put(
                scope,
                seen,
                wanted,
                lambda now, wanted=wanted: landed(wanted, now),  # type: ignore[misc]
                lambda wanted=wanted: unknown(wanted),  # type: ignore[misc]
                deadline,
            )
        ):
            return wanted
        if deadline.over:
            break
        yield Sleep(random.uniform(0, 1) * min(pause, deadline.part()))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    raise GuardUnavailable(
        f"the pointer of {scope.resource!r} was changed by others each time; nothing was written, retry",
        resource=scope.resource,
    )


def claim(scope: Scope, fence: Fence) -> Plan[None]:
    """Raise the mark to ``fence``."""
    id_ = new_id()

    def decide(now: Pointer | None) -> Pointer:
        mark = admit_claim(None if now is None else now.mark, fence)
        return now if now is not None and mark == now.mark else to.claimed(now, fence, mark, id_, scope.now())

    def unknown(_: Pointer) -> FencingError:
        text = f"the object store did not answer about {scope.resource!r}; the claim may have happened; repeat it"
        return GuardUnavailable(text, resource=scope.resource)

    yield from _change(scope, decide, lambda _, now: now is not None and now.mark.is_of(fence), unknown)


def publish(
    scope: Scope,
    fence: Fence,
    bodies: Mapping[str, Any],
    *,
    claim: bool,
    replacing: Any,
    progress: Callable[[str, int, int | None], object] | None,
    send: Callable[[str, Any, Callable[[int, int | None], object] | None], Plan[int]],
) -> Plan[Published]:
    """Upload what is new, then make all of it current at once.

    Args:
        send: the plan that uploads one body.
    """
    carried = {name: body for name, body in bodies.items() if isinstance(body, Entry)}
    upload = new_id()
    directory = scope.directory
    objects = {name: carried.get(name) or Entry(directory.data_key(fence, upload, name), 2**50) for name in bodies}

    def decide(now: Pointer | None) -> Pointer:
        mark = _admit(now, fence, claim)
        current = None if now is None else now.published
        if replacing is not ANYTHING and (current and current.id) != (replacing and replacing.id):
            raise StaleRead(resource=scope.resource)
        for entry in carried.values():
            if current is None or not current.names(entry.key):  # it may be gone, or be deleted at any time
                raise StaleRead(resource=scope.resource, key=entry.key)
        return to.published(now, fence, mark, upload, scope.now(), objects)

    encode(decide((yield from read(scope))))  # refused before anything is uploaded
    for name, body in bodies.items():
        if name not in carried:
            key = objects[name].key
            report = None if progress is None else _progress(progress, name)
            try:
                size = yield from send(directory.full(key), body, report)
            except Lost as error:
                raise unavailable(scope, error, "nothing was published, retry") from error
            objects[name] = Entry(key, size)
    pointer = yield Shielded(_write(scope, fence, decide))
    return pointer.published  # type: ignore[no-any-return]


def _progress(progress: Callable[[str, int, int | None], object], name: str) -> Callable[[int, int | None], object]:
    return lambda sent, total: progress(name, sent, total)


def delete(scope: Scope, fence: Fence, *, claim: bool) -> Plan[None]:
    """Make nothing current. The mark stays."""
    id_ = new_id()

    def decide(now: Pointer | None) -> Pointer:
        return to.deleted(now, fence, _admit(now, fence, claim), id_, scope.now())

    yield Shielded(_write(scope, fence, decide))


def _admit(now: Pointer | None, fence: Fence, claim: bool) -> Mark:
    mark = None if now is None else now.mark
    return admit_write(admit_claim(mark, fence) if claim else mark, fence)


def _write(scope: Scope, fence: Fence, decide: Callable[[Pointer | None], Pointer]) -> Plan[Pointer]:
    def unknown(wanted: Pointer) -> FencingError:
        return OutcomeUnknown(fence=fence, seq=wanted.mark.seq, recent_writes=" ".join(wanted.recent_writes))

    return (yield from _change(scope, decide, lambda wanted, now: verdict(wanted.recent_writes, now), unknown))


def landed(scope: Scope, error: OutcomeUnknown) -> Plan[bool | None]:
    """Whether a change happened. Where it may still come, it is made impossible first."""
    deadline = scope.deadline()
    writes = tuple(error.recent_writes.split())
    fence = error.fence

    def still_open() -> FencingError:
        text = f"the object store did not answer about {scope.resource!r}; the outcome is still open, ask again"
        return GuardUnavailable(text, resource=scope.resource)

    for _ in range(ROUNDS):
        try:
            seen = yield from _look(scope, deadline)
        except Lost as lost:
            raise still_open() from lost
        answer = verdict(writes, seen.pointer)
        if answer is not False or not may_still_land(writes, error, seen.pointer):
            return answer
        if seen.pointer is not None and seen.pointer.mark.is_of(fence):
            other = to.moved(seen.pointer, scope.now())
        else:
            other = to.claimed(seen.pointer, fence, admit_claim(seen.mark, fence), new_id(), scope.now())
        if (yield from _put(scope, seen, other, lambda _: False, still_open, deadline)):
            return False
    raise still_open()
