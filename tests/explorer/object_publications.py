"""Publications of one resource: appends, restores and collections, in every order of their requests.

Each client runs the library's own plans, one after the other, over a store that is a set of objects. No lock keeps them
apart. A step is a request, as the store does it: of the pointer, of a manifest, of the data of one upload together with
their manifest, a listing, a deletion. A reply can be lost. A request can hang, and then it arrives at any later time,
or never. The version of a pointer is a hash of its bytes, as on S3.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, NamedTuple
from unittest import mock

from fencing.kernel.effects import Plan, Shielded, Sleep
from fencing.kernel.errors import FencingError, GuardNotEnforceable
from fencing.kernel.fence import Fence
from storage_guards.objects import collect as object_collect
from storage_guards.objects import plans
from storage_guards.objects import pointer as pointers
from storage_guards.objects.bodies import Body
from storage_guards.objects.changes import Scope
from storage_guards.objects.history import named_by, plan_publication, plan_publications
from storage_guards.objects.keys import Directory
from storage_guards.objects.plans import ANYTHING, plan_claim, plan_publish
from storage_guards.objects.pointer import Entry, Pointer, Published, decode
from storage_guards.objects.publication import Publication
from storage_guards.objects.requests import (
    CREATE,
    Abort,
    Add,
    BeginBatch,
    Close,
    Conflict,
    Delete,
    Finish,
    Found,
    Get,
    List,
    Listed,
    Lost,
    Next,
    Open,
    OpenBody,
    Progressed,
    Put,
    Read,
    Version,
)
from tests.explorer.state import Step

__all__ = [
    "BROKEN",
    "LOST_OBJECT",
    "REFUSED",
    "PublicationScenario",
    "PublicationWorld",
    "appends",
    "appends_blindly",
    "appends_what_it_read_before",
    "collects",
    "collects_and_keeps_one",
    "collects_unclaimed",
    "forget",
    "publishes",
    "replaces_and_collects",
    "restores",
]

BROKEN = "a publication that the pointer names is not whole"
LOST_OBJECT = "an append has lost an object"
REFUSED = "a guard cannot read what a guard has written"

R = "r"
DIRECTORY = Directory("d/")
NOW = datetime(2026, 1, 31, tzinfo=UTC)
NAMES = "ABCD"
SECONDS = 10.0

Client = Callable[[Scope, Fence, str], Plan[None]]


# What clients do. A name of an object is also its body.


def _read(scope: Scope, at: str | None = None) -> Plan[Publication | None]:
    found = yield from plan_publication(scope, at, SECONDS)
    return None if found is None else Publication(R, found, None)  # it does no request of its own here


def _publish(scope: Scope, fence: Fence, bodies: Mapping[str, Any], replacing: Any, **options: Any) -> Plan[Published]:
    options = {"claim": False, **options}
    return plan_publish(scope, fence, bodies, replacing=replacing, upload_seconds=SECONDS, **options)


def _body(name: str) -> dict[str, Body]:
    return {name: Body(name, name.encode(), asynchronous=False)}


def appends(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Claim, read, and publish what is there with one more object."""
    yield from plan_claim(scope, fence)
    current = yield from _read(scope)
    yield from _publish(scope, fence, {**(current or {}), **_body(name)}, current)


def appends_blindly(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Do the same, and replace whatever is current: a mistake of threads that share a fence."""
    yield from plan_claim(scope, fence)
    current = yield from _read(scope)
    yield from _publish(scope, fence, {**(current or {}), **_body(name)}, ANYTHING)


def appends_what_it_read_before(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Read, claim, and publish what was there with one more object, whatever it replaces: a mistake."""
    current = yield from _read(scope)
    yield from plan_claim(scope, fence)
    yield from _publish(scope, fence, {**(current or {}), **_body(name)}, ANYTHING)


def publishes(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Publish one object, and claim with that."""
    yield from _publish(scope, fence, _body(name), ANYTHING, claim=True)


def restores(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Read the oldest publication, claim, and restore it."""
    *_, oldest = yield from plan_publications(scope)
    chosen = yield from _read(scope, oldest.id)
    assert chosen is not None
    yield from plan_claim(scope, fence)
    yield from _publish(scope, fence, chosen, ANYTHING, restoring=chosen.id)


def collects(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Claim, and delete all that is not current."""
    yield from plan_claim(scope, fence)
    yield from object_collect.plan_collect(scope, fence, 0, None, False, SECONDS)


def collects_and_keeps_one(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Claim, and delete what neither the current publication nor the one before has."""
    yield from plan_claim(scope, fence)
    yield from object_collect.plan_collect(scope, fence, 1, None, False, SECONDS)


def replaces_and_collects(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Claim, publish one object, and delete all else."""
    yield from publishes(scope, fence, name)
    yield from object_collect.plan_collect(scope, fence, 0, None, False, SECONDS)


def collects_unclaimed(scope: Scope, fence: Fence, name: str) -> Plan[None]:
    """Delete what is not current, and do not claim: a mistake."""
    yield from object_collect.plan_collect(scope, fence, 0, None, False, SECONDS)


@dataclass(frozen=True)
class PublicationScenario:
    """Clients that change the publications of a resource, each once, and what may happen to them.

    There are two publications, of the fence 1. The current one has carried over an object of the other.

    Args:
        clients: what they do, by the order of their fences, from 2 on.
        same: the two last clients have the same fence, as threads that share a lease.
        lost: how many replies are lost at most.
        late: how many requests hang at most.
        inline: how many objects a pointer has itself.
        ignores_conditions: the store does.
    """

    name: str
    clients: tuple[Client, ...]
    same: bool = False
    lost: int = 0
    late: int = 0
    inline: int = 1000
    ignores_conditions: bool = False

    def fence(self, client: int) -> Fence:
        number = 2 + client - (self.same and client == len(self.clients) - 1)
        return Fence(R, number, "abcdefgh"[number] * 22)


class State(NamedTuple):
    """Everything; hashable."""

    replies: tuple[tuple[Any, ...], ...]  # of each client
    pointer: bytes | None
    objects: frozenset[tuple[str, bytes]]
    hanging: tuple[Any, ...] = ()
    lost: int = 0
    late: int = 0


class _End(NamedTuple):
    """A client has come to its end."""

    error: type[BaseException] | None


class _Batch(NamedTuple):
    """Puts of data that are done together."""

    puts: tuple[Put, ...]


LOST = "lost"
CONFLICT = "conflict"
DONE = "done"


class PublicationWorld:
    """The steps of a scenario, for the search."""

    most_refusals = 0

    def __init__(self, scenario: PublicationScenario) -> None:
        self._scenario = scenario

    def start(self) -> State:
        return _start(len(self._scenario.clients), self._scenario.inline)

    def steps(self, state: State) -> Iterator[Step]:
        do = partial(_do, checks=not self._scenario.ignores_conditions)
        for client in range(len(self._scenario.clients)):
            request = _next(self._scenario, client, state.replies[client])
            if isinstance(request, _End):
                continue
            label = f"{NAMES[client]} {_label(request)}"
            after, reply = do(state, request)
            yield self._step(state, client, label, after, reply)
            is_write = isinstance(request, (Put, _Batch, Delete))
            if is_write and state.lost < self._scenario.lost:
                yield self._step(state, client, f"{label}, no reply", after._replace(lost=state.lost + 1), LOST)
            if is_write and state.late < self._scenario.late:
                hangs = state._replace(hanging=(*state.hanging, (client, request)), late=state.late + 1)
                yield self._step(state, client, f"{label}, which hangs", hangs, LOST)
        for index, (client, request) in enumerate(state.hanging):
            rest = (*state.hanging[:index], *state.hanging[index + 1 :])
            after, _ = do(state._replace(hanging=rest), request)
            yield self._step(state, None, f"{NAMES[client]}'s late {_label(request)} arrives", after, None)

    def _step(self, before: State, client: int | None, label: str, after: State, reply: Any) -> Step:
        if client is not None:
            replies = (*after.replies[client], reply)
            after = after._replace(replies=(*after.replies[:client], replies, *after.replies[client + 1 :]))
            end = _next(self._scenario, client, replies)
            if isinstance(end, _End) and end.error is GuardNotEnforceable:
                return Step(label, after, (REFUSED,))
        violated = []
        if (after.pointer, after.objects) != (before.pointer, before.objects):
            if not _are_whole(after.pointer, after.objects):
                violated.append(BROKEN)
            elif after.pointer != before.pointer and self._loses(before, after):
                violated.append(LOST_OBJECT)
        return Step(label, after, tuple(violated))

    def _loses(self, before: State, after: State) -> bool:
        """Return whether an append that has landed lacks an object of what it replaced."""
        old, new = _decoded(before.pointer).published, _decoded(after.pointer).published
        assert old is not None
        assert new is not None
        by = next((c for c in range(len(self._scenario.clients)) if new.id.startswith(NAMES[c])), None)
        if new.id == old.id or by is None or self._scenario.clients[by] not in (appends, appends_blindly):
            return False
        there = dict(after.objects)
        replaced, made = (_needed(there[DIRECTORY.full(each.manifest_key)]) for each in (old, new))
        return not made.items() >= replaced.items()


def _do(state: State, request: Any, checks: bool = True) -> tuple[State, Any]:
    """Return what the store does, and its reply. ``checks``: whether it keeps the conditions of puts."""
    match request:
        case Get():
            return state, state.pointer
        case Open(key=key):
            return state, dict(state.objects).get(key)
        case List():
            return state, tuple(sorted(key for key, _ in state.objects))
        case Delete(keys=keys):
            return state._replace(objects=frozenset(each for each in state.objects if each[0] not in keys)), DONE
        case _Batch(puts=puts):
            return state._replace(objects=state.objects | {(put.key, put.data) for put in puts}), DONE
        case Put(condition=None):
            return state._replace(objects=state.objects | {(request.key, request.data)}), DONE
        case Put(condition=condition):
            if checks and condition != (CREATE if state.pointer is None else _version(state.pointer)):
                return state, CONFLICT
            return state._replace(pointer=request.data), DONE
    raise AssertionError(request)


# The plans of a client, run again from their beginning with the replies that it has received


@cache
def _next(scenario: PublicationScenario, client: int, replies: tuple[Any, ...]) -> Any:
    """Return the next request of a client, or its end."""
    fence, ids = scenario.fence(client), iter(range(1000))
    new_id = lambda: f"{NAMES[client]}{next(ids):015d}"  # noqa: E731
    with _patched(new_id, scenario.inline):
        moves = _visible(scenario.clients[client](_scope(), fence, NAMES[client].lower()))
        try:
            request = next(moves)
            for reply in replies:
                request = moves.send(reply)
        except StopIteration:
            return _End(None)
        except (FencingError, KeyError) as error:
            return _End(type(error))
        return request


def _visible(plan: Plan[Any]) -> Generator[Any, Any, Any]:
    """Run a plan. Do what only its client sees, and yield what the store sees."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = plan.send(result) if error is None else plan.throw(error)
        except StopIteration as stop:
            return stop.value
        result = error = None
        try:
            result = yield from _performed(request)
        except (Lost, Conflict, FencingError) as raised:
            error = raised


def _performed(request: Any) -> Generator[Any, Any, Any]:
    match request:
        case Shielded(plan=plan):
            return (yield from _visible(plan))
        case Sleep() | Close() | Progressed() | Abort():
            return None
        case OpenBody(body=Body() as body):
            return body.pieces(), body.size
        case Next(pieces=pieces):
            return next(pieces, None)  # type: ignore[call-overload]
        case BeginBatch():
            return []
        case Add(batch=list() as puts):
            puts.append(request.request)
            return None
        case Finish(upload=list() as puts):
            _reply((yield _Batch(tuple(map(_bare, puts)))))
            return [None] * len(puts)
        case Open():
            data = yield request
            return None if data is None else [data]
        case Read(stream=list() as pieces):
            return pieces.pop() if pieces else None
        case Get():
            data = yield request
            return None if data is None else Found(data, _version(data), len(data), NOW)
        case Put():
            _reply((yield _bare(request)))
            return _version(request.data)
        case List():
            return [Listed(key, 1, NOW) for key in (yield request)]
        case Delete():
            return _reply((yield replace(request, keys=tuple(request.keys))))
    raise AssertionError(request)


def _bare(put: Put) -> Put:
    """Return a put that can be part of a state."""
    return replace(put, attributes=())  # type: ignore[arg-type]


def _reply(reply: Any) -> None:
    if reply == LOST:
        raise Lost("no answer")
    if reply == CONFLICT:
        raise Conflict("another version")


def _version(pointer: bytes) -> Version:
    return Version(hashlib.sha256(pointer).hexdigest(), None)


def _label(request: Any) -> str:
    match request:
        case Get():
            return "gets the pointer"
        case Open():
            return "gets a manifest"
        case List():
            return "lists the data"
        case Delete():
            return "deletes data"
        case _Batch() | Put(condition=None):
            return "uploads"
        case Put():
            return f"puts the pointer ({_said(request.data)})"
    raise AssertionError(request)


def _said(pointer: bytes) -> str:
    now = _decoded(pointer)
    assert now.published is not None
    names = " ".join(sorted(now.published.objects or ()))
    return f"number {now.kept.number}, {names}, {len(now.earlier)} earlier"


# What must hold


@cache
def _decoded(pointer: bytes | None) -> Pointer:
    assert pointer is not None
    return decode(pointer, R)


@cache
def _needed(manifest: bytes) -> dict[str, str]:
    """Return the hashes of the objects of a manifest, by their keys."""
    lines = [json.loads(line) for line in manifest.splitlines()]
    return {each["key"]: each["sha256"] for each in lines[1:]}


@cache
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _are_whole(pointer: bytes | None, objects: frozenset[tuple[str, bytes]]) -> bool:
    there = dict(objects)
    for each in named_by(_decoded(pointer)):
        manifest = there.get(DIRECTORY.full(each.manifest_key))
        if manifest is None or _sha256(manifest) != each.manifest.sha256:
            return False
        for key, sha256 in _needed(manifest).items():
            data = there.get(DIRECTORY.full(key))
            if data is None or _sha256(data) != sha256:
                return False
    return True


def forget() -> None:
    """Forget the plans that were run, because a rule is switched on or off."""
    for each in (_next, _decoded, _needed, _sha256, _start):
        each.cache_clear()


@cache
def _start(clients: int, inline: int) -> State:
    """The state after two publications of the fence 1."""
    fence, ids = Fence(R, 1, "a" * 22), map("{:016d}".format, range(1000))
    state = State(((),) * clients, None, frozenset())
    with _patched(ids.__next__, inline):
        first: dict[str, Entry] = {}
        for kept, names in ((), "xy"), ("x", "z"):
            bodies = {name: first[name] for name in kept} | {name: _body(name)[name] for name in names}
            moves = _visible(_publish(_scope(), fence, bodies, ANYTHING, claim=True))
            reply: Any = None
            try:
                while True:
                    state, reply = _do(state, moves.send(reply))
            except StopIteration as stop:
                first = first or stop.value.objects
    return state


@contextmanager
def _patched(new_id: Callable[[], str], inline: int) -> Iterator[None]:
    """Give plans their ids, and pointers so many objects."""
    with (
        mock.patch.object(plans, "new_id", new_id),
        mock.patch.object(object_collect, "new_id", new_id),
        mock.patch.object(pointers, "MOST_INLINE", inline),
    ):
        yield


def _scope() -> Scope:
    return Scope(R, DIRECTORY, SECONDS, clock=lambda: 0.0, now=lambda: NOW)
