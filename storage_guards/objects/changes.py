"""Plans that read a pointer, and change it under a condition, also where the reply to a change is lost.

A change is one put that is conditional on the state it was made from. A state never comes back, so:

- the same put may be sent again, any number of times: at most one of them lands;
- once the pointer is in another state, a put that was conditional on the former can never land any more;
- a put that lands proves that the state it was made from was still there. So that state may be an old read, or what
  the guard itself has stored. Where it is stale the put is refused, and the state is read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Literal

from fencing.kernel.admission import admit_write
from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import (
    FencingError,
    GuardNotEnforceable,
    GuardUnavailable,
    OutcomeUnknown,
    UnclaimedFence,
)
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.kernel.retry import Backoff
from storage_guards.continuity import Acknowledged, Continuity, check, check_mark
from storage_guards.objects.batch import ABORT_SECONDS
from storage_guards.objects.keys import Directory
from storage_guards.objects.pointer import MAX_POINTER_BYTES, Pointer, decode, encode
from storage_guards.objects.requests import (
    CREATE,
    Abort,
    Add,
    BeginBatch,
    Clock,
    Conflict,
    Deadline,
    Finish,
    Found,
    Get,
    Lost,
    Put,
)
from storage_guards.objects.seen import Seen, StoredPointers
from storage_guards.sending import Sending

ROUNDS = 50
"""How often a change is made again because others were faster. The deadline mostly comes first."""

PUT_SHARE = 0.6
"""The share of the time left that a put may take, so that some is left to find out its outcome."""

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.5

ATTRIBUTES = {"Content-Type": "application/json"}

FRESH_SECONDS = 5.0
"""The longest age of a state that a change begins from. A pointer remembers its last 16 writes only. So the longer ago
a state was seen, the likelier it is that nobody can say any more whether a refused put had been done before."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Trail:
    """The rule of continuity for one holder: what the store has acknowledged to it must still be there."""

    memory: Continuity
    holder: Fence | HasFence
    fence: Fence
    known: dict[str, Acknowledged | None] = field(default_factory=dict)

    def note(self, key: str = "") -> None:
        """Note what is acknowledged by now. Call it before a read, because other threads may share the fence."""
        self.known[key] = self.memory.last(self.holder, self.fence, key)

    def check(self, now: Pointer | None) -> None:
        """Raise UnclaimedFence if the pointer has forgotten something."""
        mark, writes = (None, ()) if now is None else (now.mark, now.recent_writes)
        check_mark(self.known.get(""), self.fence, mark, writes)

    def acknowledged(self, pointer: Pointer) -> None:
        self.memory.remember(self.holder, self.fence, pointer.kept.seq, pointer.recent_writes[0])

    def check_in_place(self, key: str, mark: Mark | None, writes: tuple[str, ...]) -> None:
        """Raise UnclaimedFence if an object that is written in place has forgotten something, or is gone."""
        seq = mark.seq if mark is not None and mark.is_of(self.fence) else 0
        check(self.known.get(key), self.fence, seq, writes)

    def acknowledged_in_place(self, key: str, seq: int, write_id: str) -> None:
        self.memory.remember(self.holder, self.fence, seq, write_id, key)


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that all plans about one resource share.

    Args:
        trail: of the holder that writes. None: nobody does.
        sending: of the caller's write.
        stored: what the guard has stored last.
    """

    resource: str
    directory: Directory
    seconds: float
    trail: Trail | None = None
    sending: Sending = field(default_factory=Sending)
    stored: StoredPointers = field(default_factory=StoredPointers)
    clock: Clock = field(default=time.monotonic)
    now: Callable[[], datetime] = field(default=_now)

    def check_continuity(self, now: Pointer | None) -> None:
        if self.trail is not None:
            self.trail.check(now)

    def is_stale(self, seen: Seen) -> bool:
        """Return whether a state is too old to begin a change from, or lacks what was acknowledged since."""
        if self.clock() - seen.at > FRESH_SECONDS:
            return True
        if self.trail is not None:
            self.trail.note()
            try:
                self.trail.check(seen.pointer)
            except UnclaimedFence:
                return True
        return False

    def acknowledged(self, pointer: Pointer) -> None:
        if self.trail is not None:
            self.trail.acknowledged(pointer)

    def deadline(self) -> Deadline:
        return Deadline(self.seconds, self.clock)


def pause(attempt: int, deadline: Deadline, least: float = 0.0) -> Sleep:
    """Return a pause before the next attempt: a random time, but at least the share ``least`` of the longest pause."""
    longest = min(LONGEST_PAUSE_SECONDS, deadline.part())
    return Sleep(Backoff(FIRST_PAUSE_SECONDS, longest, least).pause(attempt + 1))


def unavailable(scope: Scope, error: BaseException, then: str = "nothing was written, retry") -> GuardUnavailable:
    """Return the error for a store that does not answer about a resource."""
    return GuardUnavailable(
        f"the object store did not answer about {scope.resource!r}: {error}; {then}", resource=scope.resource
    )


# Reading


def plan_inspect(scope: Scope, deadline: Deadline) -> Plan[Seen]:
    """Read the pointer, with the condition that it still is so. Raise Lost where the store does not answer."""
    at = scope.clock()
    return seen_in(scope, (yield pointer_request(scope, deadline)), at)


def pointer_request(scope: Scope, deadline: Deadline) -> Get:
    """Return the request that reads the pointer. Its reply is for :func:`seen_in`."""
    if scope.trail is not None:
        scope.trail.note()
    return Get(scope.directory.pointer, MAX_POINTER_BYTES, deadline.part())


def seen_in(scope: Scope, found: Found | None, at: float) -> Seen:
    """Return the pointer that was found, checked."""
    if found is None:
        return Seen(None, CREATE, at)
    if found.size > MAX_POINTER_BYTES:
        raise GuardNotEnforceable(
            f"the pointer of {scope.resource!r} has {found.size} bytes, more than this version writes: was it written "
            f"by a newer one, or by something else? Upgrade, or repair it by hand"
        )
    return Seen(decode(found.data, scope.resource), found.version, at)


def plan_seen(scope: Scope) -> Plan[Seen]:
    """Read the pointer, as :func:`plan_inspect`. Raise GuardUnavailable where the store does not answer."""
    try:
        return (yield from plan_inspect(scope, scope.deadline()))
    except Lost as error:
        raise unavailable(scope, error, "retry") from error


def plan_read(scope: Scope) -> Plan[Pointer | None]:
    """Read the pointer. Raise GuardUnavailable where the store does not answer."""
    return (yield from plan_seen(scope)).pointer


def plan_seen_all(scopes: Sequence[Scope], deadline: Deadline) -> Plan[list[Seen]]:
    """Read the pointers of several resources, several at a time. Raise GuardUnavailable as :func:`plan_seen` does."""
    at = scopes[0].clock()
    try:
        found = yield from plan_gets((pointer_request(scope, deadline) for scope in scopes), deadline.part())
    except Lost as error:
        raise unavailable(scopes[0], error, "retry") from error
    return [seen_in(scope, each, at) for scope, each in zip(scopes, found, strict=True)]


def plan_gets(gets: Iterable[Get], seconds: float) -> Plan[list[Found | None]]:
    """Read objects, several at a time. Raise Lost where the store does not answer about one."""
    batch = yield BeginBatch(seconds)
    try:
        for get in gets:
            yield Add(batch, get)
        return (yield Finish(batch, 2 * seconds))  # type: ignore[no-any-return]
    except GeneratorExit:  # the plan was dropped: no request is possible any more
        raise
    except BaseException:
        yield Abort(batch, min(ABORT_SECONDS, seconds))
        raise


def plan_check(scope: Scope, fence: Fence) -> Plan[Pointer]:
    """Read the pointer and admit a write of ``fence``. Raise StaleFence or UnclaimedFence where the rule refuses it."""
    return admitted(scope, fence, (yield from plan_read(scope)))


def admitted(scope: Scope, fence: Fence, pointer: Pointer | None) -> Pointer:
    """Return the pointer if a write of ``fence`` is admitted. Raise StaleFence or UnclaimedFence otherwise."""
    admit_write(None if pointer is None else pointer.mark, fence)
    assert pointer is not None
    scope.check_continuity(pointer)
    return pointer


# Changing


def plan_put(
    scope: Scope,
    seen: Seen,
    wanted: Pointer,
    landed: Callable[[Pointer | None], bool | None],
    unknown: Callable[[], FencingError],
    deadline: Deadline,
) -> Plan[Literal[True] | Seen]:
    """Put ``wanted`` in the place of the state that was seen.

    Args:
        landed: says of a later state whether this put has landed: True, it never will: False, or that cannot be known:
            None.
        unknown: makes the error for an outcome that stays unknown.

    Returns:
        True: it has landed. Another state of the pointer: it has not, and never will.
    """
    data = encode(wanted)
    why: Exception | None = None
    refusal: GuardNotEnforceable | None = None  # of the last put, after repetitions by the store's client
    error_if_lost = unknown()
    if matters := isinstance(error_if_lost, OutcomeUnknown):  # a claim may just be repeated, and landed asked again
        scope.sending.unknown = error_if_lost
    for attempt in count():
        at = scope.clock()
        try:
            stored = yield Put(scope.directory.pointer, data, seen.condition, deadline.part(PUT_SHARE), ATTRIBUTES)
            scope.stored.put(Seen(wanted, stored, at))
            return True
        except (Conflict, Lost) as error:
            # Even a refused put may have been done: the store's client may have repeated it by itself.
            why = error
            refusal = error.refusal if isinstance(error, Lost) else None
            if isinstance(error, Conflict):
                scope.stored.refuse(seen)
        except GuardNotEnforceable as error:
            there = (yield from _plan_is_there(scope, landed, deadline)) if why is None else None
            if there:
                return True
            if there is None and matters:
                raise unknown() from error
            if why is None:
                scope.sending.unknown = None
            if why is None or not matters:
                raise
            raise unknown() from error  # this attempt was refused; the outcome of earlier ones is unknown
        try:
            now = yield from plan_inspect(scope, deadline)
        except Lost as error:
            why = error
        except GuardNotEnforceable as error:
            if not matters:
                raise
            raise unknown() from error
        else:
            if now.pointer != seen.pointer:
                answer = landed(now.pointer)
                if answer is None:
                    raise unknown() from why
                if not answer:
                    scope.sending.unknown = None
                return True if answer else now
            seen = now  # the same state: its version may differ where the state came from a backup
        if deadline.over:
            break
        yield pause(attempt, deadline, 0.5)
    if refusal is not None and not matters:
        raise refusal
    raise unknown() from why


def _plan_is_there(
    scope: Scope, landed: Callable[[Pointer | None], bool | None], deadline: Deadline
) -> Plan[bool | None]:
    """Return whether a put that was refused for good is there all the same. None: that cannot be known.

    Something between the guard and the store may have refused the answer, or may have repeated the put.
    """
    try:
        now = yield from plan_inspect(scope, deadline)
    except (Lost, GuardNotEnforceable):
        return None
    return landed(now.pointer)


def plan_change(
    scope: Scope,
    decide: Callable[[Pointer | None], Pointer],
    landed: Callable[[Pointer, Pointer | None], bool | None],
    unknown: Callable[[Pointer], FencingError],
    seen: Seen | None = None,
) -> Plan[Pointer]:
    """Change the pointer as ``decide`` says. Decide again where others were faster.

    Args:
        seen: the state to begin with, which may be stale. None: it is read.
    """
    deadline = scope.deadline()
    if seen is not None and scope.is_stale(seen):
        seen = None
    for attempt in range(ROUNDS):
        if not seen:
            try:
                seen = yield from plan_inspect(scope, deadline)
            except Lost as error:
                raise unavailable(scope, error) from error
        wanted = decide(seen.pointer)
        if wanted is seen.pointer:
            scope.stored.put(seen)
            return wanted
        ends = partial(landed, wanted), partial(unknown, wanted)
        now = yield from plan_put(scope, seen, wanted, *ends, deadline)
        if now is True:
            return wanted
        if deadline.over:
            break
        seen = now if attempt == 0 else None
        if not seen:  # several writers: let the others finish
            yield pause(attempt, deadline)
    raise GuardUnavailable(
        f"others changed the pointer of {scope.resource!r} at each attempt; nothing was written, retry",
        resource=scope.resource,
    )
