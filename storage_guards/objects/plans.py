"""The plans of publications: claim, upload, publish, delete, and find out the outcome of a write."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fencing.kernel.admission import admit_write
from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import FencingError, GuardUnavailable, OutcomeUnknown, StaleRead, TooOld
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.kept import admit_claim_at
from storage_guards.objects import pointer as states
from storage_guards.objects.batch import ABORT_SECONDS
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
from storage_guards.objects.history import named_by, plan_whole
from storage_guards.objects.keys import Directory, new_id
from storage_guards.objects.manifest import MAX_MANIFEST_BYTES, manifest_lines
from storage_guards.objects.outcome import may_still_land, verdict
from storage_guards.objects.pointer import MAX_OBJECTS, Entry, Manifest, Pointer, Published, summed
from storage_guards.objects.reading import PublicationBase
from storage_guards.objects.requests import (
    Abort,
    Add,
    Begin,
    BeginBatch,
    Close,
    Finish,
    Lost,
    Next,
    OpenBody,
    Progressed,
    Put,
    Send,
)
from storage_guards.objects.seen import Seen
from storage_guards.once import already_done

PART = 8 * 2**20
"""Bytes of a part. S3 takes 10,000 parts, so 80 GB of a body whose size is not known."""

MOST_PARTS = 9_000

SMALL = PART
"""A body up to this size is one put."""


NOT_NAMED = "its data may be deleted, so it cannot be restored; publications() lists what can be"


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
    restoring: str | None = None,
) -> Plan[Published]:
    """Upload the new bodies, then make all objects current at once.

    Args:
        upload_seconds: how long the store may make no progress with a body.
        once: the key of what this does once. None: it has none.
        holder: the lease or fence that the caller passed, for the error of a key that was done before.
        restoring: the id of the publication, current or earlier, whose entries all bodies are. None: bodies that are
            entries are of the current one.
    """
    carried = _Carried(bodies, [each for each in (replacing,) if isinstance(each, PublicationBase)])

    def admit(now: Pointer | None) -> Mark:
        mark = _admit(scope, now, fence, claim)
        if once is not None and now is not None:
            _require_new(now, once, holder or fence)
        current = None if now is None else now.published
        if replacing is not ANYTHING and (current and current.id) != (replacing and replacing.id):
            raise StaleRead(resource=scope.resource)
        if restoring is None:
            carried.check(scope.resource, current)
        elif all(each.id != restoring for each in named_by(now)):
            raise StaleRead(resource=scope.resource, hint=NOT_NAMED)
        return mark

    seen = _stored_by_own(scope, fence, bodies, admit)
    if seen is None:
        seen = yield from plan_seen(scope)
        if restoring is None:
            yield from carried.plan_know(scope, seen.pointer.published if seen.pointer else None, upload_seconds)
        admit(seen.pointer)  # a refusal comes before the first upload
    with restored(bodies):
        try:
            published = yield from plan_upload(scope, fence, bodies, upload_seconds)
        except Lost as error:
            raise unavailable(scope, error, "nothing was published, retry") from error
        assert published.objects is not None
        stored = published if states.fit_inline(published.objects) else replace(published, objects=None)

        def decide(now: Pointer | None) -> Pointer:
            return states.with_publication(now, fence, admit(now), stored, once)

        yield Shielded(_plan_write(scope, fence, decide, seen, once))
    return published


class _Carried:
    """The entries that a publication carries over: only such as the pointer names. All other data may be deleted, now
    or at any time.

    Args:
        bodies: of the publication.
        publications: that the caller has read. Their objects need not be read again.
    """

    def __init__(self, bodies: Mapping[str, Any], publications: Iterable[PublicationBase]) -> None:
        self._entries = [body for body in bodies.values() if isinstance(body, Entry)]
        self._known: dict[str, Mapping[str, Entry]] = {each.id: each for each in publications}
        self._missing: dict[str, Entry | None] = {}  # by publication: the first that it has not

    def plan_know(self, scope: Scope, named: Published | None, seconds: float) -> Plan[None]:
        """Read the manifest of a publication where its objects are needed, and not known."""
        if self._entries and named is not None and named.objects is None and named.id not in self._known:
            self._known[named.id] = (yield from plan_whole(scope, named, seconds)).objects or {}

    def check(self, resource: str, named: Published | None) -> None:
        """Raise StaleRead unless all are of this publication."""
        if not self._entries:
            return
        missing: Entry | None = self._entries[0]
        there = None if named is None else (named.objects or self._known.get(named.id))
        if named is not None and there is not None:
            if named.id not in self._missing:
                self._missing[named.id] = _first_missing(self._entries, there)
            missing = self._missing[named.id]
        if missing is not None:
            raise StaleRead(resource=resource, key=missing.key)


def _first_missing(entries: Iterable[Entry], objects: Mapping[str, Entry]) -> Entry | None:
    there = {entry.key: entry for entry in objects.values()}
    return next((entry for entry in entries if there.get(entry.key) != entry), None)


def _require_new(now: Pointer, once: str, holder: Fence | HasFence) -> None:
    """Raise AlreadyDone or TooOld where the pointer has the key, or had it perhaps."""
    before = now.done.keys.get(once)
    if before is not None:
        raise already_done(holder, once, before.number, before.at.timestamp())
    if now.done.is_too_old(once):
        raise TooOld(resource=now.resource, key=once, floor=now.done.floor)


def _stored_by_own(
    scope: Scope, fence: Fence, bodies: Mapping[str, Any], admit: Callable[[Pointer | None], Mark]
) -> Seen | None:
    """Return the state that this guard has stored under ``fence``, so that it need not be read. None: read it.

    It may be stale, and then the refusal comes after the upload. So this is for small bodies only. Where that state
    would be refused, it is read, because only a state of the store may refuse.
    """
    seen = scope.stored.take(scope.resource, fence)
    if seen is None or scope.is_stale(seen) or not _are_small(bodies):
        return None
    try:
        admit(seen.pointer)
    except FencingError:
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


def plan_upload(scope: Scope, fence: Fence, bodies: Mapping[str, Any], seconds: float) -> Plan[Published]:
    """Store the bodies of a publication under keys that no other upload writes, and its manifest. Nothing names them.

    Entries are not bodies: they are in the manifest only. The manifest is written last, when all sizes and hashes are
    known: with the small bodies at the same time.

    Bodies are read one after the other. Small ones are uploaded while the next are read, several at a time. Of a big
    one a few parts are under way at a time, and no other body. An upload that fails or is aborted leaves no object, at
    worst unfinished parts: have the bucket's lifecycle rules delete those.

    Args:
        seconds: how long the store may make no progress.

    Raises:
        Lost: the store did not take all of them. None is under way any more.
    """
    if len(bodies) > MAX_OBJECTS:
        raise ValueError(f"a publication has at most {MAX_OBJECTS} objects, not {len(bodies)}; pack some together")
    id_ = new_id()
    objects = {name: body for name, body in bodies.items() if isinstance(body, Entry)}
    uploads = _Uploads(scope.directory, seconds)
    try:
        for name, body in bodies.items():
            if name not in objects:
                key = scope.directory.data_key(fence, id_, name)
                objects[name] = Entry(key, *(yield from uploads.plan_store(key, body, name)))
        at = scope.now()
        key = scope.directory.manifest_key(fence.number, fence.token, id_)
        lines = Body("the manifest", manifest_lines(fence, id_, at, objects), asynchronous=False)
        stored = yield from uploads.plan_store(key, lines)
        yield from uploads.plan_finish()
    except GeneratorExit:  # the plan was dropped: no request is possible any more
        raise
    except BaseException:
        yield from uploads.plan_abort()
        raise
    if stored[0] > MAX_MANIFEST_BYTES:
        raise ValueError(f"the manifest has {stored[0]} bytes, over {MAX_MANIFEST_BYTES}; use fewer or shorter names")
    return Published(id_, fence.number, fence.token, at, Manifest(*stored, *summed(objects)), objects)


class _Uploads:
    """The uploads of one publication, of which several may be under way."""

    def __init__(self, directory: Directory, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._batch: object = None
        self._upload: object = None
        self._pieces: object = None

    def plan_store(self, key: str, body: Body, name: str | None = None) -> Plan[tuple[int, str]]:
        """Read a body to its end. Return its size, and the SHA-256 of what was handed over.

        Args:
            name: for the reports of progress. None: there are none, and nothing comes behind it.
        """
        seconds, key, digest = self._seconds, self._directory.full(key), hashlib.sha256()
        pieces, total = yield OpenBody(body)
        self._pieces = pieces
        sent, head = 0, []
        while sent <= SMALL and (piece := (yield Next(pieces))) is not None:
            head.append(bytes(piece))  # a copy: what is hashed is what is sent
            sent += len(piece)
        if sent <= SMALL:
            put = Put(key, b"".join(head), None, seconds)
            digest.update(put.data)
            if name is None and self._batch is None:
                yield put
            else:
                self._batch = self._batch or (yield BeginBatch(seconds))
                yield Add(self._batch, put)
            if name is not None:
                yield Progressed(name, sent, total)
        else:
            yield from self.plan_finish()
            self._upload = yield Begin(key, max(PART, (total or 0) // MOST_PARTS + 1), seconds)
            sent, head = 0, head[::-1]
            while (piece := head.pop() if head else (yield Next(pieces))) is not None:
                piece = bytes(piece)
                digest.update(piece)
                yield Send(self._upload, piece, seconds)
                sent += len(piece)
                if name is not None:
                    yield Progressed(name, sent, total)
            yield Finish(self._upload, 2 * seconds)  # the last piece, and the end
            self._upload = None
        yield Close(pieces)
        return sent, digest.hexdigest()

    def plan_finish(self) -> Plan[None]:
        """Wait until all of it is stored."""
        if self._batch is not None:
            yield Finish(self._batch, 2 * self._seconds)

    def plan_abort(self) -> Plan[None]:
        """End what is under way."""
        for begun in (self._upload, self._batch):
            if begun is not None:
                yield Abort(begun, min(ABORT_SECONDS, self._seconds))
        if self._pieces is not None:
            yield Close(self._pieces)


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
