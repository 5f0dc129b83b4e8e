"""The probe: it tries out whether a store keeps the promises that the guard relies on.

Some stores that call themselves compatible ignore the conditions of a put, so two puts under one condition both
succeed. A guard on such a store would protect nothing, so the guard refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from storage_guards.objects.keys import Layout, new_id
from storage_guards.objects.requests import (
    CREATE,
    Condition,
    Conflict,
    Deadline,
    Delete,
    Found,
    Get,
    List,
    Lost,
    Put,
    Together,
    Unrepeated,
    Version,
)

RACERS = 12
"""How many clients race. Their connections are warm, so that their puts meet."""

ROUNDS = 3

RACE_SHARE = 0.1
"""The share of the time left that a race may take. A store that takes one write a second of a key lets the losers
wait, and nothing depends on their answers."""

ONCE_SHARE = 0.1
"""The share of the time left that an attempt by the client without repetitions may take."""

CLEAN_SHARE = 0.5
"""The share of the time left for deleting the keys. The caller of the probe may need the rest."""

FORMS = ("as given", "unquoted", "quoted")
"""The forms of an ETag in a condition."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The probe's findings about a usable store.

    Args:
        etag_form: how ETags are written into conditions: ``"as given"``, ``"unquoted"`` or ``"quoted"``.
        versions_return: whether the same bytes have the same version, as on S3, where an ETag is a hash of them.
            Publications work all the same. A write in place is then refused if it brings bytes back, where that can be
            told, and ``landed`` can never say that it did not happen.
        races: how many races between conditional puts had one winner.
        seconds: how long it took.
    """

    __module__ = "storage_guards"

    etag_form: str
    versions_return: bool
    races: int
    seconds: float


LEAST_RACE_SECONDS = 0.5

_FIRST = b"first"


class _Refused(Exception):
    """The store refused a conditional put that it should have accepted."""


def plan_probe(layout: Layout, deadline: Deadline) -> Plan[ProbeReport]:
    """Try the store out under random keys, which are deleted afterwards.

    Raises:
        GuardNotEnforceable: the store does not keep one of the promises. The text says which.
        GuardUnavailable: the store did not answer.
    """
    directory = f"{layout.probe}{new_id()}/"
    used: list[str] = []
    try:
        report = yield from _plan_trials(directory, used, deadline)
    except Lost as error:
        if error.refusal is None:
            raise GuardUnavailable(f"the object store did not answer the guard's probe: {error}; retry") from error
        refusal = error.refusal
    except _Refused as error:
        refusal = _broken(str(error))
        refusal.__cause__ = error
    except GuardNotEnforceable as error:
        refusal = error
    else:
        yield from _plan_clean(directory, used, deadline)
        return report
    yield from _plan_clean(directory, used, deadline)
    raise refusal


def _plan_clean(directory: str, used: list[str], deadline: Deadline) -> Plan[None]:
    keys = [directory + name for name in used]
    try:
        try:
            yield Unrepeated(Delete(keys, deadline.part(ONCE_SHARE)))
        except Lost:
            yield Delete(keys, deadline.part(CLEAN_SHARE))
    except (Lost, GuardNotEnforceable):
        pass  # a few bytes stay below the probe's directory; claims and publications do not need the right to delete


def _plan_trials(directory: str, used: list[str], deadline: Deadline) -> Plan[ProbeReport]:
    """Try each promise under a key of its own: some stores take one write a second of a key, and throttle others."""
    exists, changed, same, *raced = names = ["one", "changed", "same", *(f"race-{number}" for number in range(ROUNDS))]
    used += [*names, "absent", *(f"race-create-{number}" for number in range(ROUNDS))]
    first: dict[str, Version] = {}
    absent = directory + "absent"
    replies = yield Together([Get(absent, 0, deadline.part()) for _ in range(RACERS)])  # to open the connections
    if all(isinstance(reply, Lost) for reply in replies):  # what follows would have no time left to say why
        raise replies[0]
    for name in names:
        first[name] = yield from _plan_expect(directory + name, _FIRST, CREATE, deadline, unrepeated=name == exists)
    try:
        listed = yield Unrepeated(List(directory, 10, deadline.part(ONCE_SHARE)))
    except Lost:
        listed = yield List(directory, 10, deadline.part())
    if sorted(each.key for each in listed) != sorted(directory + name for name in names):
        raise _broken("does not list what was just stored")
    yield from _plan_refuse(
        directory + exists, b"2", CREATE, "created an object that existed (it ignores If-None-Match: *)", deadline
    )
    yield from _plan_read(directory + exists, _FIRST, deadline)
    form = yield from _plan_form(directory + changed, b"third", first[changed], deadline)
    now = yield from _plan_read(directory + changed, b"third", deadline)
    if now == first[changed]:
        raise _broken("gives all states of an object the same version")
    yield from _plan_refuse(
        directory + changed,
        b"4",
        first[changed],
        "replaced an object that had changed (it ignores If-Match)",
        deadline,
        form,
    )
    yield from _plan_read(directory + changed, b"third", deadline)
    races = 0
    for number, name in enumerate(raced):
        creation = f"{directory}race-create-{number}"
        races += yield from _plan_race(creation, CREATE, f"create {number}", "creations of one key", deadline, form)
        races += yield from _plan_race(
            directory + name, first[name], f"update {number}", "updates of one version", deadline, form
        )
    if races < ROUNDS:
        raise Lost("conditional puts at the same time all failed")
    yield from _plan_refuse(
        absent,
        b"none",
        now,
        "created an object although If-Match named a version that is gone",
        deadline,
        form,
    )
    if (yield Get(absent, 0, deadline.part())) is not None:
        raise _broken("refused a put with If-Match on a missing key, but created the object")
    versions_return = yield from _plan_returns(directory + same, first[same], deadline, form)
    return ProbeReport(form, versions_return, races, deadline.seconds - deadline.left)


def _plan_expect(
    key: str,
    data: bytes,
    condition: Condition,
    deadline: Deadline,
    form: str | None = None,
    *,
    unrepeated: bool = False,
) -> Plan[Version]:
    """Put an object that the store must accept. A refused put may have been accepted before obstore repeated it.

    Args:
        unrepeated: try it first by the client without repetitions.
    """
    if unrepeated:
        try:
            found = yield Unrepeated(Put(key, data, condition, deadline.part(ONCE_SHARE), form=form))
            return _version(found)
        except Lost:
            pass
    try:
        yield Put(key, data, condition, deadline.part(), form=form)
    except (Conflict, Lost) as error:
        now = yield Get(key, 100, deadline.part())
        if now is None or now.data != data:
            if isinstance(error, Lost):
                raise
            raise _Refused(f"refuses a conditional put that it should accept ({error})") from error
    return (yield from _plan_read(key, data, deadline))


def _plan_form(key: str, data: bytes, condition: Version, deadline: Deadline) -> Plan[str]:
    """Find the form of ETag that the store accepts."""
    for form in FORMS:
        try:
            yield from _plan_expect(key, data, condition, deadline, form, unrepeated=form == FORMS[0])
            return form
        except _Refused as error:
            refused = error
    raise refused


def _plan_refuse(
    key: str, data: bytes, condition: Condition, otherwise: str, deadline: Deadline, form: str | None = None
) -> Plan[None]:
    try:
        yield Put(key, data, condition, deadline.part(), form=form)
    except Conflict:
        return
    raise _broken(otherwise)


def _plan_returns(key: str, first: Version, deadline: Deadline, form: str) -> Plan[bool]:
    """Put the same bytes again. Return whether a put under the condition of the first version is done then.

    The versions that the store shows do not tell: a bucket with versioning gives each put an id, but compares the ETag.
    """
    yield Put(key, _FIRST, None, deadline.part())
    yield from _plan_read(key, _FIRST, deadline)
    late = b"late"
    try:
        yield Put(key, late, first, deadline.part(), form=form)
        return True
    except Conflict:  # perhaps of a repetition by the store's client
        now: Found | None = yield Get(key, 100, deadline.part())
        return now is not None and now.data == late


def _plan_read(key: str, data: bytes, deadline: Deadline) -> Plan[Version]:
    found: Found | None = yield Get(key, 100, deadline.part())
    if found is None or found.data != data:
        raise _broken("does not show what was just stored, but something older")
    return _version(found)


def _version(found: Found) -> Version:
    if found.version.e_tag is None and found.version.version is None:
        raise _broken("gives neither an ETag nor a version, so that nothing can be replaced under a condition")
    return found.version


def _plan_race(key: str, condition: Condition, name: str, puts_tried: str, deadline: Deadline, form: str) -> Plan[int]:
    """Race conditional puts. Return 1 if one of them won, 0 if none did. Refuse the store where more than one did."""
    bodies = [f"{name} by {racer}".encode() for racer in range(RACERS)]
    seconds = min(deadline.part(), max(deadline.part(RACE_SHARE), LEAST_RACE_SECONDS))
    puts = [Put(key, body, condition, seconds, form=form) for body in bodies]
    replies: Sequence[object] = yield Together(puts)
    for reply in replies:
        if isinstance(reply, BaseException) and not isinstance(reply, (Conflict, Lost)):
            raise reply
    winners = [body for body, reply in zip(bodies, replies, strict=True) if isinstance(reply, Version)]
    if len(winners) > 1:
        raise _broken(f"let {len(winners)} of {RACERS} {puts_tried} at the same time succeed")
    now: Found | None = yield Get(key, 100, deadline.part())
    if winners and (now is None or now.data != winners[0]):
        raise _broken(f"acknowledged one of {RACERS} {puts_tried}, but did not keep it")
    return len(winners)


def _broken(fault: str) -> GuardNotEnforceable:
    return GuardNotEnforceable(
        f"this object store {fault}, so it cannot enforce fences: use one with conditional writes (S3, Google Cloud "
        f"Storage, Azure Blob Storage and others have them), or another guard"
    )
