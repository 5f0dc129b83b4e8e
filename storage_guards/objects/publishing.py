"""A publication in the making: what it keeps, what is added to it, and the one change at its end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fencing.kernel.effects import Plan, Shielded
from fencing.kernel.errors import FencingError, StaleRead, TooOld
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.objects import pointer as states
from storage_guards.objects.bodies import PIECE, Bodies, Body, Gathered, as_bytes, read_once, restored, total_of
from storage_guards.objects.changes import Scope, plan_seen, unavailable
from storage_guards.objects.history import named_by, plan_whole
from storage_guards.objects.keys import check_name, check_new_name, new_id
from storage_guards.objects.manifest import MAX_MANIFEST_BYTES, manifest_lines
from storage_guards.objects.plans import ANYTHING, admit_change, plan_write_pointer
from storage_guards.objects.pointer import MAX_OBJECTS, Entry, Manifest, Pointer, Published, summed
from storage_guards.objects.reading import PublicationBase
from storage_guards.objects.requests import Close, Lost, Next, OpenBody, Progressed
from storage_guards.objects.seen import Seen
from storage_guards.objects.upload import Upload
from storage_guards.objects.uploads import SMALL, Incoming, Uploads
from storage_guards.once import already_done

NOT_CURRENT = "only what is current is carried over; restore() makes an earlier publication current first"
NOT_NAMED = "its data may be deleted, so it cannot be restored; publications() lists what can be"


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which conditions a publication becomes current.

    Args:
        claim: claim and publish at once.
        replacing: what must still be current: a publication, None for none, or ``ANYTHING``.
        once: the key of what it does once. None: it has none.
        holder: the lease or fence that the caller passed, for the error of a key that was done before.
        restoring: the id of the publication, current or earlier, whose objects it keeps. None: it restores none.
    """

    fence: Fence
    holder: Fence | HasFence
    claim: bool = False
    replacing: Any = ANYTHING
    once: str | None = None
    restoring: str | None = None

    def admit(self, scope: Scope, now: Pointer | None) -> Mark:
        """Return the mark under which the publication may replace this state. Raise what refuses it."""
        mark = admit_change(scope, now, self.fence, self.claim)
        if self.once is not None and now is not None:
            before = now.done.keys.get(self.once)
            if before is not None:
                raise already_done(self.holder, self.once, before.number, before.at.timestamp())
            if now.done.is_too_old(self.once):
                raise TooOld(resource=now.resource, key=self.once, floor=now.done.floor)
        current = None if now is None else now.published
        if self.replacing is not ANYTHING and (current and current.id) != (self.replacing and self.replacing.id):
            raise StaleRead(resource=scope.resource)
        if self.restoring is not None and all(each.id != self.restoring for each in named_by(now)):
            raise StaleRead(resource=scope.resource, hint=NOT_NAMED)
        return mark


class Publishing:
    """A publication in the making. Several threads or tasks may add to it, each an object of its own.

    Bytes are uploaded when they are added. Nothing names them before :meth:`plan_end`.

    Args:
        kept: objects of the publication that it must replace, or that it restores, so that they are there.
        seconds: how long the store may make no progress.
        bodies: makes bodies of what the caller gives.
    """

    def __init__(
        self, scope: Scope, terms: Terms, kept: Mapping[str, Entry], *, seconds: float, bodies: Bodies
    ) -> None:
        self.bodies = bodies
        self._scope = scope
        self._terms = terms
        self._seconds = seconds
        self._uploads = Uploads(seconds)
        self._id = new_id()
        self._kept = dict(kept)
        self._added: dict[str, Entry | None] = {}  # None: its bytes are still coming
        self._left: set[str] = set()  # names whose bytes may still be on their way to their keys
        self._written: dict[str, Written] = {}  # those that are not over
        self._carried: list[Entry] = []
        replaced = terms.replacing if isinstance(terms.replacing, PublicationBase) else None
        self._before: Mapping[str, Entry] = {} if replaced is None else replaced
        self._known: dict[str, Mapping[str, Entry]] = {} if replaced is None else {replaced.id: replaced}
        self._seen: Seen | None = None

    # The beginning

    def plan_begin(self, carried: Iterable[Entry] = (), *, is_small: bool = False) -> Plan[None]:
        """Refuse, before anything is uploaded, what would be refused at the end.

        Args:
            carried: entries that will be added.
            is_small: all bodies are small together, by sizes that are known.
        """
        carried = list(carried)
        self._seen = self._stored_by_own(carried) if is_small else None
        if self._seen is None:
            self._seen = yield from plan_seen(self._scope)
            yield from self._plan_know(carried, self._seen.pointer)
            self._admit(self._seen.pointer, carried)
        yield from self._uploads.plan_begin()

    def _stored_by_own(self, carried: list[Entry]) -> Seen | None:
        """Return the state that this guard has stored under the fence, so that it need not be read. None: read it.

        It may be stale, and then the refusal comes after the upload. So this is for small bodies only. Where that state
        would be refused, it is read, because only a state of the store may refuse.
        """
        seen = self._scope.stored.take(self._scope.resource, self._terms.fence)
        if seen is None or self._scope.is_stale(seen):
            return None
        try:
            self._admit(seen.pointer, carried)
        except FencingError:
            return None
        return seen

    # Adding

    def plan_add(self, name: str, given: Any) -> Plan[None]:
        """Upload a body. Or carry an entry over, or what is the same as an object that is replaced."""
        if isinstance(given, Entry):  # it keeps its key
            self._begin_object(check_name(name))
            self._carried.append(given)
            self._added[name] = given
            return
        body = self.bodies.take(name, given)
        self._begin_object(check_new_name(name))
        try:
            entry = yield from self._plan_unchanged(name, body)
            if entry is None:
                key = self._key(name)
                entry = Entry(key, *(yield from self._uploads.plan_store(self._scope.directory.full(key), body, name)))
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            self._leave(name)
            raise self.explained(error)  # noqa: B904 - it sets the cause
        self._added[name] = entry

    def _plan_unchanged(self, name: str, body: Body) -> Plan[Entry | None]:
        """Return the object that this one would replace, where it has the same bytes. None: it must be uploaded.

        What the body gave once is compared, and it is not read again. So it may change at any time.
        """
        before = self._before.get(name)
        if before is None or not body.may_be_compared or body.size != before.size:
            return None
        pieces, total = yield OpenBody(body)
        digest, size = hashlib.sha256(), 0
        while (piece := (yield Next(pieces))) is not None:
            digest.update(piece)
            size += len(piece)
        yield Close(pieces)
        if (size, digest.hexdigest()) != (before.size, before.sha256):
            return None
        yield Progressed(name, size, total)
        return before

    def open(self, name: str, upload: Upload) -> Written:
        """Begin an object whose bytes a writer hands over.

        Args:
            upload: of no body: what the store keeps beside the bytes.
        """
        self.bodies.take(name, upload)  # it checks the tags
        self._begin_object(check_new_name(name))
        key = self._key(name)
        full = self._scope.directory.full(key)
        coming = Incoming(self._uploads, full, name, None, upload.attributes, upload.tags)
        written = self._written[name] = Written(self, name, key, coming)
        return written

    def remove(self, name: str) -> None:
        """Leave out an object, or all objects of a folder, whether kept or added."""
        inside = name.rstrip("/") + "/"
        for each in self.names:
            if each == name or each.startswith(inside):
                self.remove_object(each)

    def remove_object(self, name: str) -> None:
        """Leave out one object, whether kept or added."""
        if self._added.get(name, ...) is None:
            raise ValueError(f"{name!r} is still being written; close its writer first")
        self._kept.pop(name, None)
        if name in self._added:
            self._leave(name)

    @property
    def names(self) -> list[str]:
        """The names of all objects so far."""
        return [*self._kept, *(name for name in list(self._added) if name not in self._kept)]

    def _key(self, name: str) -> str:
        """Return a key that nothing else is written to: an upload that was given up may arrive late."""
        upload = new_id() if name in self._left else self._id
        return self._scope.directory.data_key(self._terms.fence, upload, name)

    def _leave(self, name: str) -> None:
        self._left.add(name)
        self._added.pop(name, None)

    def _begin_object(self, name: str) -> None:
        token: Any = object()
        if self._added.setdefault(name, token) is not token:
            raise ValueError(f"{name!r} was added before; remove it first, or choose another name")
        self._added[name] = None
        _check_number(self._added)

    def end_object(self, name: str, entry: Entry) -> None:
        """Note that all bytes of an object have come."""
        self._added[name] = entry
        self._written.pop(name, None)

    def forget_unfinished(self, name: str) -> None:
        """Leave out an object whose bytes have not all come."""
        if self._written.pop(name, None) is not None:
            self._leave(name)

    def explained(self, error: BaseException) -> BaseException:
        """Return the error to raise for ``error``, which ended an upload."""
        if not isinstance(error, Lost):
            return error
        new = unavailable(self._scope, error, "nothing was published, retry")
        new.__cause__ = error
        return new

    # The end

    def plan_end(self) -> Plan[Published]:
        """Make all of it current at once."""
        scope, fence = self._scope, self._terms.fence
        objects = dict(self._kept)
        for name, entry in self._added.items():
            if entry is None:
                raise ValueError(
                    f"{name!r} has no end, so nothing was published: close its writer; if it broke off, retry"
                )
            objects[name] = entry
        if not objects:
            raise ValueError("publish at least one object, or call delete() to make nothing current")
        _check_number(objects)
        if self._seen is not None:
            yield from self._plan_know(self._carried, self._seen.pointer)
        at = scope.now()
        key = scope.directory.full(scope.directory.manifest_key(fence.number, fence.token, self._id))
        lines = Body("the manifest", manifest_lines(fence, self._id, at, objects), asynchronous=False)
        try:
            stored = yield from self._uploads.plan_store(key, lines)
            yield from self._uploads.plan_finish()
        except Lost as error:
            raise self.explained(error) from error
        if stored[0] > MAX_MANIFEST_BYTES:
            raise ValueError(
                f"the manifest has {stored[0]} bytes, over {MAX_MANIFEST_BYTES}; use fewer or shorter names"
            )
        published = Published(self._id, fence.number, fence.token, at, Manifest(*stored, *summed(objects)), objects)
        shown = published if states.fit_inline(objects) else replace(published, objects=None)

        def decide(now: Pointer | None) -> Pointer:
            mark = self._admit(now, self._carried)
            return states.with_publication(now, fence, mark, shown, self._terms.once, scope.now())

        yield Shielded(plan_write_pointer(scope, fence, decide, self._seen, self._terms.once))
        return published

    def plan_abort(self) -> Plan[None]:
        """Give up what is under way."""
        for written in list(self._written.values()):
            yield from written.plan_drop()
        yield from self._uploads.plan_abort()

    # The rule

    def _admit(self, now: Pointer | None, carried: list[Entry]) -> Mark:
        mark = self._terms.admit(self._scope, now)
        if carried:
            self._check_carried(carried, None if now is None else now.published)
        return mark

    def _check_carried(self, carried: list[Entry], named: Published | None) -> None:
        """Raise StaleRead unless the pointer names all of these. All other data may be deleted, now or at any time."""
        objects = None if named is None else (named.objects or self._known.get(named.id))
        there = {} if objects is None else {entry.key: entry for entry in objects.values()}
        for entry in carried:
            if there.get(entry.key) != entry:
                raise StaleRead(resource=self._scope.resource, key=entry.key, hint=NOT_CURRENT)

    def _plan_know(self, carried: list[Entry], now: Pointer | None) -> Plan[None]:
        """Read the manifest of what is current where its objects are needed, and not known."""
        named = None if now is None else now.published
        if carried and named is not None and named.objects is None and named.id not in self._known:
            self._known[named.id] = (yield from plan_whole(self._scope, named, self._seconds)).objects or {}


def _check_number(objects: Collection[str]) -> None:
    if len(objects) > MAX_OBJECTS:
        raise ValueError(f"a publication has at most {MAX_OBJECTS} objects, with those it keeps; pack some together")


class Written:
    """One object whose bytes a writer hands over."""

    def __init__(self, publishing: Publishing, name: str, key: str, coming: Incoming) -> None:
        self.name = name
        self._publishing = publishing
        self._key = key
        self._coming = coming
        self._gathered = Gathered()
        self._is_over = False

    def plan_write(self, data: Any) -> Plan[int]:
        """Take bytes, and return how many. They are copied."""
        view = as_bytes(data)
        if self._is_over:
            raise ValueError(f"the writer of {self.name!r} is closed, or broke off; open a new one")
        try:
            for start in range(0, view.nbytes, PIECE):
                if piece := self._gathered.add(view[start : start + PIECE]):
                    yield from self._coming.plan_take(piece)
        except GeneratorExit:  # the plan was dropped: no request is possible any more
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            yield from self._plan_break()
            raise self._publishing.explained(error)  # noqa: B904 - it sets the cause
        return view.nbytes

    def plan_close(self) -> Plan[None]:
        """Make the object a part of the publication. After an error of the writer it is none."""
        if self._is_over:
            return
        try:
            if self._gathered.rest:
                yield from self._coming.plan_take(bytes(self._gathered.rest))
            yield from self._coming.plan_end()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            yield from self._plan_break()
            raise self._publishing.explained(error)  # noqa: B904 - it sets the cause
        self._is_over = True
        self._publishing.end_object(self.name, Entry(self._key, self._coming.size, self._coming.sha256))

    def plan_drop(self) -> Plan[None]:
        """Leave the object out."""
        if not self._is_over:
            yield from self._plan_break()
        self._publishing.forget_unfinished(self.name)

    def _plan_break(self) -> Plan[None]:
        self._is_over = True  # its name stays: a publication that lacks it would be no whole
        yield from self._coming.plan_abort()


class Pairs:
    """Names and bodies that come one after the other. They are read as the pieces of a body are.

    What can be read only once is refused the second time: it would give only a rest.
    """

    size = None

    def __init__(self, source: Any, *, asynchronous: bool) -> None:
        if isinstance(source, AsyncIterable) and not isinstance(source, Iterable) and not asynchronous:
            raise TypeError("objects are an async iterable, and this guard is sync; use AsyncObjectStoreGuard")
        if isinstance(source, (str, bytes, os.PathLike)) or not isinstance(source, (Iterable, AsyncIterable)):
            raise TypeError(
                f"objects are a mapping of names to bodies, or an iterable of both, not {type(source).__name__}; for a "
                f"folder, call publish_dir()"
            )
        self._source: Any = source
        if not isinstance(source, Collection):
            read_once(source, "the iterable of objects")

    def pieces(self) -> Iterator[tuple[str, Any]]:
        """Give the pairs."""
        yield from map(_checked, self._source)

    async def pieces_async(self) -> AsyncIterator[tuple[str, Any]]:
        """Give the pairs, of a sync iterable in this task."""
        if isinstance(self._source, AsyncIterable):
            async for pair in self._source:
                yield _checked(pair)
        else:
            for each in self.pieces():
                yield each


def _checked(pair: Any) -> tuple[str, Any]:
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise TypeError(f"objects gave a {type(pair).__name__}; an iterable must give tuples of a name and a body")
    return pair


def plan_publish(publishing: Publishing, objects: Mapping[str, Any] | Pairs) -> Plan[Published]:
    """Upload the bodies, then make all objects current at once."""
    pairs = None
    with restored(publishing.bodies.read):
        try:
            if isinstance(objects, Mapping):
                total = total_of(objects, SMALL)
                carried = [entry for entry in objects.values() if isinstance(entry, Entry)]
                yield from publishing.plan_begin(carried, is_small=total is not None and total <= SMALL)
                for name, body in objects.items():
                    yield from publishing.plan_add(name, body)
            else:
                yield from publishing.plan_begin()
                pairs, _ = yield OpenBody(objects)
                while (pair := (yield Next(pairs))) is not None:
                    yield from publishing.plan_add(*pair)
            return (yield from publishing.plan_end())
        except GeneratorExit:  # the plan was dropped: no request is possible any more
            raise
        except BaseException:
            yield from publishing.plan_abort()
            if pairs is not None:
                yield Close(pairs)
            raise
