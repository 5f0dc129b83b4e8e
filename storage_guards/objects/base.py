"""The base of both object-store guards. It makes plans of arguments."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fencing.kernel.admission import as_fence
from fencing.kernel.effects import Plan
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from storage_guards.bounds import check_timeout, wait_seconds
from storage_guards.continuity import Continuity
from storage_guards.kept import admit_claim_at
from storage_guards.objects.bodies import Bodies
from storage_guards.objects.changes import Scope, Trail, plan_read, plan_seen_all
from storage_guards.objects.collect import UploadFound, plan_collect
from storage_guards.objects.history import At, check_at, plan_publication
from storage_guards.objects.in_place import MOST_IN_PLACE, StoredObject, plan_get, plan_landed_in_place, plan_write
from storage_guards.objects.io import ObjectIO
from storage_guards.objects.keys import Layout, check_key, check_name, check_new_name
from storage_guards.objects.plans import ANYTHING, NOTHING, plan_claim, plan_delete, plan_landed
from storage_guards.objects.pointer import Entry, Published
from storage_guards.objects.probe import ProbeReport, plan_probe
from storage_guards.objects.publishing import Pairs, Publishing, Terms, plan_publish
from storage_guards.objects.reading import PublicationBase
from storage_guards.objects.requests import Deadline
from storage_guards.objects.seen import Seen, StoredPointers
from storage_guards.once import check_once
from storage_guards.sending import Sending


class ObjectGuard:
    """The base of both guards."""

    _asynchronous: bool

    def __init__(
        self, store: Any, *, prefix: str = "fencing/", timeout: float = 10.0, upload_timeout: float = 60.0
    ) -> None:
        self._io = ObjectIO(store)
        self._layout = Layout(prefix)
        self._timeout = check_timeout(timeout)
        self._upload_timeout = check_timeout(upload_timeout, "upload_timeout")
        self._report: ProbeReport | None = None
        self._continuity = Continuity(store, prefix)
        self._stored = StoredPointers()

    def __repr__(self) -> str:
        store = re.sub(" object at 0x[0-9a-f]+|^<|>$", "", repr(self._io.store))
        return f"<{type(self).__name__} on {store}, prefix {self._layout.prefix!r}, timeout {self._timeout:g} s>"

    def __reduce__(self) -> Any:
        """Make a guard of the same arguments elsewhere. It tries its store out anew, and has acknowledged nothing."""
        try:
            self._io.store.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except (TypeError, pickle.PicklingError) as error:
            raise TypeError(
                f"{type(self).__name__} cannot be pickled, because its store cannot ({error}); use a store that other "
                f"processes reach, such as obstore.store.S3Store"
            ) from error
        options: dict[str, Any] = {
            "prefix": self._layout.prefix,
            "timeout": self._timeout,
            "upload_timeout": self._upload_timeout,
        }
        return partial(type(self), **options), (self._io.store,)

    def _scope(self, resource: str, seconds: float | None = None) -> Scope:
        check_resource(resource)
        seconds = self._timeout if seconds is None else seconds
        return Scope(resource, self._layout.directory(resource), seconds, stored=self._stored)

    def _scope_of(self, holder: Fence | HasFence, fence: Fence, seconds: float, sending: Sending | None) -> Scope:
        trail = Trail(self._continuity, holder, fence)
        directory = self._layout.directory(fence.resource)
        return Scope(fence.resource, directory, seconds, trail, sending or Sending(), self._stored)

    def _holder(self, holder: Fence | HasFence, sending: Sending | None = None) -> tuple[Fence, Scope]:
        fence = as_fence(holder)
        return fence, self._scope_of(holder, fence, wait_seconds([holder], self._timeout), sending)

    def _deadline(self, timeout: float | None, holders: Sequence[Fence | HasFence] = ()) -> Deadline:
        return Deadline(wait_seconds(holders, self._timeout, timeout))

    def _store_report(self, report: ProbeReport) -> ProbeReport:
        self._io.form = report.etag_form
        self._report = report
        return report

    def _plan_probe(self, seconds: float) -> Plan[ProbeReport]:
        return plan_probe(self._layout, Deadline(seconds))

    def _plan_claim(
        self, fences: Sequence[Fence], deadline: Deadline, holders: Sequence[Fence | HasFence] = ()
    ) -> Plan[None]:
        by_fence = {as_fence(holder): holder for holder in holders}
        read: dict[Fence, Seen] = {}
        if len(fences) > 1:
            seen = yield from plan_seen_all([self._scope(fence.resource) for fence in fences], deadline)
            read = dict(zip(fences, seen, strict=True))
            for fence in fences:
                admit_claim_at(read[fence].kept, fence)
        for fence in fences:
            scope = self._scope_of(by_fence.get(fence, fence), fence, deadline.part(), None)
            yield from plan_claim(scope, fence, read.get(fence))

    def _plan_mark(self, scope: Scope) -> Plan[Mark | None]:
        pointer = yield from plan_read(scope)
        return None if pointer is None else pointer.mark

    def _plan_publication(self, scope: Scope, at: At | None) -> Plan[Published | None]:
        if at is not None:
            check_at(at)
        return plan_publication(scope, at, self._upload_timeout)

    def _plan_publish(
        self,
        holder: Fence | HasFence,
        objects: Any,
        claim: bool,
        replacing: Any,
        sending: Sending | None = None,
        once: str | None = None,
        keeping: Any = NOTHING,
        dropping: str | Iterable[str] = (),
    ) -> tuple[Scope, Plan[Published]]:
        scope, publishing = self._publishing(holder, replacing, sending, once, keeping, claim=claim)
        if dropping and not isinstance(keeping, PublicationBase | None):
            raise ValueError("dropping says what not to keep; pass keeping, too")
        for name in (dropping,) if isinstance(dropping, str) else dropping:
            publishing.remove(name)
        return scope, plan_publish(publishing, self._bodies(publishing, objects))

    def _bodies(self, publishing: Publishing, objects: Any) -> Mapping[str, Any] | Pairs:
        """Return what is to be published. All of a mapping is checked now, before anything is sent."""
        if not isinstance(objects, Mapping):
            return Pairs(objects, asynchronous=self._asynchronous)
        if not objects and not publishing.names:
            raise ValueError("objects is empty: publish at least one object, or call delete() to make nothing current")
        for name, body in objects.items():
            if isinstance(body, Entry):  # it keeps its key
                check_name(name)
            else:
                check_new_name(name)
        return {
            name: body if isinstance(body, Entry) else publishing.bodies.checked(name, body)
            for name, body in objects.items()
        }

    def _publishing(
        self,
        holder: Fence | HasFence,
        replacing: Any,
        sending: Sending | None,
        once: str | None,
        keeping: Any,
        *,
        claim: bool = False,
    ) -> tuple[Scope, Publishing]:
        fence, scope = self._holder(holder, sending)
        if once is not None:
            check_once(once, (holder,))
        kept: Mapping[str, Entry] = {}
        if keeping is not NOTHING:
            if replacing is not ANYTHING:
                raise ValueError("keeping also says what must still be current; leave out replacing")
            _check_current(keeping, fence, "keeping")
            kept, replacing = keeping or {}, keeping
        elif replacing is not ANYTHING:
            _check_current(replacing, fence, "replacing")
        return scope, self._new_publishing(scope, Terms(fence, holder, claim, replacing, once), kept)

    def _new_publishing(self, scope: Scope, terms: Terms, kept: Mapping[str, Entry]) -> Publishing:
        bodies = Bodies(asynchronous=self._asynchronous, has_tags=self._io.has_tags)
        return Publishing(scope, terms, kept, seconds=self._upload_timeout, bodies=bodies)

    def _plan_restore(
        self, holder: Fence | HasFence, publication: Any, replacing: Any, sending: Sending | None = None
    ) -> tuple[Scope, Plan[Published]]:
        fence, scope = self._holder(holder, sending)
        if not isinstance(publication, PublicationBase):
            raise TypeError(f"restore takes what read(at=...) gave, not {type(publication).__name__}")
        _check_of(publication, fence, "the publication")
        if replacing is not ANYTHING:
            _check_current(replacing, fence, "replacing")
        terms = Terms(fence, holder, replacing=replacing, restoring=publication.id)
        return scope, plan_publish(self._new_publishing(scope, terms, publication), {})

    def _plan_delete(self, holder: Fence | HasFence, claim: bool, sending: Sending | None = None) -> Plan[None]:
        fence, scope = self._holder(holder, sending)
        return plan_delete(scope, fence, claim=claim)

    def _plan_landed(self, error: OutcomeUnknown, deadline: Deadline, report: ProbeReport) -> Plan[bool | None]:
        scope = self._scope(error.fence.resource, deadline.part())
        if error.key is None:
            answer = yield from plan_landed(scope, error)
        else:
            answer = yield from plan_landed_in_place(scope, error, report.versions_return)
        if answer:
            own = error.recent_writes.partition(" ")[0]
            self._continuity.remember(error.fence, error.fence, error.seq, own, error.key or "")
        return answer

    def _plan_collect(
        self, holder: Fence | HasFence, keep: int, older_than: float | None, dry_run: bool
    ) -> Plan[list[UploadFound]]:
        fence, scope = self._holder(holder)
        if isinstance(keep, bool) or not isinstance(keep, int):
            raise TypeError(f"keep is a number of publications, not {type(keep).__name__}")
        if keep < 0:
            raise ValueError(f"keep is {keep}; pass 0 or more")
        given: object = older_than
        if isinstance(given, bool) or not isinstance(given, int | float | None):
            raise TypeError(f"older_than is a number of seconds, not {type(older_than).__name__}; a day is 86400")
        if older_than is not None and not 0 <= older_than < 1e9:
            raise ValueError(f"older_than is a number of seconds, not {older_than}")
        return plan_collect(scope, fence, keep, older_than, dry_run, self._upload_timeout)

    def _plan_write(
        self,
        holder: Fence | HasFence,
        key: str,
        body: Any,
        replacing: Any,
        claim: bool,
        sending: Sending | None = None,
    ) -> Plan[StoredObject]:
        fence, scope = self._holder(holder, sending)
        check_key(key, self._layout.prefix)
        data = _in_memory(key, body)
        if not (replacing is ANYTHING or replacing is None or isinstance(replacing, StoredObject)):
            raise TypeError(f"replacing is what get() gave, or None, not {type(replacing).__name__}")
        if isinstance(replacing, StoredObject) and replacing.key != key:
            raise ValueError(f"replacing is the object {replacing.key!r}, not {key!r}; pass what get({key!r}) gave")
        return self._plan_checked_write(scope, fence, key, data, claim=claim, replacing=replacing)

    def _plan_checked_write(self, *args: Any, **options: Any) -> Plan[StoredObject]:
        """Write in place when the probe has found out what the store does."""
        assert self._report is not None
        return (yield from plan_write(*args, **options, versions_return=self._report.versions_return))

    def _plan_get(self, key: str) -> Plan[StoredObject | None]:
        check_key(key, self._layout.prefix)
        return plan_get(Scope(key, self._layout.directory(key), self._timeout), key)


def _check_current(publication: Any, fence: Fence, label: str) -> None:
    if isinstance(publication, PublicationBase):
        _check_of(publication, fence, label)
    elif publication is not None:
        raise TypeError(f"{label} is a Publication or None, not {type(publication).__name__}")


def _check_of(publication: PublicationBase, fence: Fence, label: str) -> None:
    if publication.resource != fence.resource:
        raise ValueError(
            f"{label} is of {publication.resource!r}, but the fence is of {fence.resource!r}; use one resource"
        )


def _in_memory(key: str, body: Any) -> bytes:
    try:
        view = memoryview(body).cast("B")
    except TypeError:
        hint = "encode it" if isinstance(body, str) else "publish() takes files and iterables"
        raise TypeError(f"write takes bytes, not {type(body).__name__}; {hint}") from None
    if view.nbytes > MOST_IN_PLACE:
        raise ValueError(
            f"{key!r}: {view.nbytes} bytes are more than the {MOST_IN_PLACE} that write() takes; use publish()"
        )
    return bytes(view)
