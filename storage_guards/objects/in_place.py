"""Plans that write an object in place, under a key of the caller's own. They promise less than a publication.

The object's user metadata hold the mark of the last guarded write, and the ids of the last ones. One put stores these
together with the bytes. An id ends in a digest of the bytes.

On S3 a version is a hash of the bytes, and nothing else makes a new one: no metadata, no other condition. So a write of
the same bytes brings the old version back, and with it the condition of a late put. Such a write is refused where it
can be told: if the object has these bytes, or had them at one of its last writes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, StaleRead
from fencing.kernel.fence import Fence, Mark
from storage_guards.objects.changes import (
    PUT_SHARE,
    ROUNDS,
    Scope,
    admitted,
    pause,
    pointer_request,
    seen_in,
    unavailable,
)
from storage_guards.objects.keys import new_id
from storage_guards.objects.outcome import verdict_in_place
from storage_guards.objects.plans import ANYTHING, plan_claim
from storage_guards.objects.pointer import CREATION, KEPT_WRITES
from storage_guards.objects.requests import CREATE, Conflict, Deadline, Found, Get, Lost, Put, Together, Version

MOST_IN_PLACE = 8 * 2**20
"""The most bytes of an object that is written in place: it is one put, which is in memory."""

# Names of one word: Azure takes no hyphens, and some proxies take no underscores.
MARK = "fencingmark"
WRITES = "fencingwrites"

OVERWRITTEN = Version(None, None)
"""The version of an object that was replaced before its version could be read. A write that replaces it is refused."""

_MARK = re.compile(r"([0-9]{1,16})\.([A-Za-z0-9_-]{22,128})\.([0-9]{1,16})")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it was read, or written.

    Args:
        key: in the store.
        data: its bytes.
        modified: when it was stored. None: this process has just stored it.
        mark: the fence of the last guarded write. None: no guard has written it.
    """

    __module__ = "storage_guards"

    key: str
    data: bytes = field(repr=False)
    modified: datetime | None
    mark: Mark | None
    version: Version = field(repr=False)
    recent_writes: tuple[str, ...] = field(repr=False, default=())


def plan_get(scope: Scope, key: str) -> Plan[StoredObject | None]:
    """Read the object."""
    try:
        found = yield Get(key, MOST_IN_PLACE, scope.seconds)
    except Lost as error:
        raise GuardUnavailable(f"the object store did not answer about {key!r}: {error}; retry") from error
    if found is None:
        return None
    if found.size > MOST_IN_PLACE:
        raise ValueError(
            f"{key!r} has {found.size} bytes, but get() reads at most {MOST_IN_PLACE}; read it with obstore"
        )
    return StoredObject(key, found.data, found.modified, _mark(key, found.attributes), found.version, _writes(found))


def _mark(key: str, attributes: Mapping[str, str]) -> Mark | None:
    text = attributes.get(MARK)
    if text is None:
        return None
    try:
        if match := _MARK.fullmatch(text):
            return Mark(int(match[1]), match[2], int(match[3]))
    except ValueError:
        pass
    raise GuardNotEnforceable(
        f"{key!r} has the metadata {MARK!r} in a form that this version does not know ({text!r:.80}): was it written "
        f"by a newer version, or by something else? Upgrade, or put the object there again without them"
    )


def _writes(found: Found) -> tuple[str, ...]:
    return tuple(found.attributes.get(WRITES, "").split()[:KEPT_WRITES])


def plan_write(
    scope: Scope, fence: Fence, key: str, data: bytes, *, claim: bool, replacing: Any, versions_return: bool
) -> Plan[StoredObject]:
    """Put the object, if the mark is the fence's and the object is the one to replace.

    Args:
        versions_return: the same bytes have the same version in this store.
    """
    if claim:
        yield from plan_claim(scope, fence)
    if isinstance(replacing, StoredObject) and replacing.version == OVERWRITTEN:
        raise StaleRead(resource=scope.resource, key=key)
    deadline = scope.deadline()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    id_ = f"{new_id()}.{digest}"
    is_checked = claim
    for attempt in range(ROUNDS):
        base = yield from _plan_base(scope, fence, key, replacing, deadline, is_checked=is_checked)
        is_checked = False
        last = None if base is None else base.mark
        if last is not None and last.number >= fence.number and not last.is_of(fence):
            raise StaleFence(fence=fence, mark=last)
        writes = (CREATION + id_,) if base is None else (id_, *base.recent_writes)[:KEPT_WRITES]
        if scope.trail is not None and replacing is ANYTHING:  # otherwise the condition of the put says it
            if versions_return and (hint := _late_put(scope, fence, key, last)):
                raise StaleRead(resource=scope.resource, key=key, hint=hint)
            scope.trail.check_in_place(key, last, () if base is None else base.recent_writes)
        if versions_return and base is not None and any(write.endswith(f".{digest}") for write in base.recent_writes):
            raise _no_new_version(key)
        seq = last.seq + 1 if last is not None and last.is_of(fence) else 1
        attributes = {MARK: f"{fence.number}.{fence.token}.{seq}", WRITES: " ".join(writes)}
        condition = CREATE if base is None else base.version
        put = Put(key, data, condition, deadline.part(PUT_SHARE), attributes)
        unknown = OutcomeUnknown(fence=fence, seq=seq, recent_writes=" ".join(writes), key=key)
        version = yield Shielded(_plan_put(scope, put, writes, unknown, deadline))
        if version is not None:
            if versions_return and base is not None and version.e_tag == base.version.e_tag:
                scope.sending.unknown = None  # the data are what they were
                raise _no_new_version(key)
            return StoredObject(key, data, None, Mark(fence.number, fence.token, seq), version, writes)
        if replacing is not ANYTHING:
            try:
                now = yield Get(key, 0, deadline.part(), head=True)
            except Lost as error:
                raise unavailable(scope, error) from error
            if (now and now.version) != (replacing and replacing.version):
                mark = now and _mark(key, now.attributes)
                hint = _late_put(scope, fence, key, mark) if versions_return else None
                raise StaleRead(resource=scope.resource, key=key, hint=hint)
        if deadline.over:
            break
        yield pause(attempt, deadline)
    raise GuardUnavailable(
        f"others changed {key!r} at each attempt; nothing was written, retry", resource=scope.resource
    )


def _no_new_version(key: str) -> GuardNotEnforceable:
    return GuardNotEnforceable(
        f"{key!r} has these bytes, or had them at one of its last {KEPT_WRITES} writes, and in this store the same "
        f"bytes are the same version: a late put of an older holder could replace this write, so it is refused; the "
        f"data are unchanged; put something new into the bytes, such as the fence's number, or use publish()"
    )


def _late_put(scope: Scope, fence: Fence, key: str, mark: Mark | None) -> str | None:
    """Return the probable cause if an older fence's write is where this fence's was acknowledged."""
    known = None if scope.trail is None else scope.trail.known.get(key)
    if known is None or mark is None or mark.number >= fence.number:
        return None
    return (
        f"a late put of the older fence {mark.number} has replaced what was acknowledged under {fence.number}, for in "
        f"this store the same bytes are the same version; or the object was restored; pass what get() gives as "
        f"replacing"
    )


def _plan_base(
    scope: Scope, fence: Fence, key: str, replacing: Any, deadline: Deadline, *, is_checked: bool
) -> Plan[StoredObject | None]:
    """Check the mark, and return the object that is to be replaced. None: there must be none.

    Both are read at the same time. The put is conditional on the object. So no newer holder can write it unseen after
    the check, whichever of the two the store reads first.

    Args:
        is_checked: the mark was just claimed, so only the object is read.
    """
    if scope.trail is not None:
        scope.trail.note(key)
    requests = [] if is_checked else [pointer_request(scope, deadline)]
    if replacing is ANYTHING:
        requests.append(Get(key, 0, deadline.part(), head=True))
    at = scope.clock()
    replies = (yield Together(requests)) if requests else []
    for reply in replies:
        if isinstance(reply, Lost):
            raise unavailable(scope, reply) from reply
        if isinstance(reply, BaseException):
            raise reply
    if not is_checked:
        admitted(scope, fence, seen_in(scope, replies[0], at).pointer)
    if replacing is not ANYTHING:
        return replacing  # type: ignore[no-any-return]
    found: Found | None = replies[-1]
    if found is None:
        return None
    return StoredObject(key, b"", found.modified, _mark(key, found.attributes), found.version, _writes(found))


def _plan_put(
    scope: Scope, put: Put, writes: tuple[str, ...], unknown: OutcomeUnknown, deadline: Deadline
) -> Plan[Version | None]:
    """Put the object and return its version. None: the put was refused, and never lands."""
    scope.sending.unknown = unknown
    version = yield from _plan_put_once(scope, put, writes, unknown, deadline)
    if version is None:
        scope.sending.unknown = None
    elif scope.trail is not None:
        scope.trail.acknowledged_in_place(put.key, unknown.seq, writes[0])
    return version


def _plan_put_once(
    scope: Scope, put: Put, writes: tuple[str, ...], unknown: OutcomeUnknown, deadline: Deadline
) -> Plan[Version | None]:
    why: Exception | None = None
    for attempt in count():
        refusal: GuardNotEnforceable | None = None
        try:
            return (yield put)  # type: ignore[no-any-return]
        except (Conflict, Lost) as error:
            why = error
        except GuardNotEnforceable as error:
            if why is not None:
                raise unknown from error
            refusal = error  # perhaps only of the answer, by something between the guard and the store
        try:
            now = yield Get(put.key, 0, deadline.part(), head=True)
        except (Lost, GuardNotEnforceable):
            if refusal is not None:
                raise unknown from refusal
            break
        stored = () if now is None else _writes(now)
        if writes[0] in stored:
            return now.version if writes[0] == stored[0] else OVERWRITTEN
        if refusal is not None:
            scope.sending.unknown = None
            raise refusal
        if isinstance(why, Conflict) and (CREATE if now is None else now.version) != put.condition:
            return None
        if isinstance(why, Lost) or deadline.over:
            break
        yield pause(attempt, deadline, 0.5)  # refused although the condition holds: something else was in the way
    raise unknown from why


def plan_landed_in_place(scope: Scope, error: OutcomeUnknown, versions_return: bool) -> Plan[bool | None]:
    """Find out whether a write in place happened, and change nothing."""
    assert error.key is not None
    try:
        now = yield Get(error.key, 0, scope.seconds, head=True)
    except Lost as lost:
        raise unavailable(scope, lost, "the outcome is still open, ask again") from lost
    if now is not None:
        _mark(error.key, now.attributes)  # refuses what a newer version has written
    stored = () if now is None else _writes(now)
    return verdict_in_place(tuple(error.recent_writes.split()), stored, versions_return)
