"""What the sync and the asyncio object-store guard share: everything but ``await``. Arguments become plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fencing.kernel.admission import admit_claim, as_fence
from fencing.kernel.effects import Plan
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from storage_guards.bounds import check_timeout, wait_seconds
from storage_guards.objects import collect as object_collect
from storage_guards.objects import in_place as object_inplace
from storage_guards.objects import plans as object_plans
from storage_guards.objects.bodies import check_body, upload
from storage_guards.objects.changes import Scope, read
from storage_guards.objects.io import ObjectIO
from storage_guards.objects.keys import Layout, check_key, check_name
from storage_guards.objects.plans import ANYTHING
from storage_guards.objects.pointer import Entry, Pointer, Published
from storage_guards.objects.probe import Report, probe
from storage_guards.objects.publication import PublicationBase
from storage_guards.objects.requests import Deadline

__all__ = ["OPEN_ROUNDS", "ObjectGuard", "Progress"]

OPEN_ROUNDS = 5
"""How often ``open`` resolves a name anew because what was current has been replaced and collected meanwhile."""

Progress = Callable[[str, int, int | None], object]
"""Called with a name, the bytes of it handed over so far, and all of them where that is known."""


class ObjectGuard:
    """The base of both guards."""

    _asynchronous: bool

    def __init__(self, store: Any, *, prefix: str, timeout: float, upload_timeout: float) -> None:
        self._io = ObjectIO(store)
        self._layout = Layout(prefix)
        self._timeout = check_timeout(timeout)
        self._upload_timeout = check_timeout(upload_timeout, "upload_timeout")

    def _scope(self, resource: str, seconds: float | None = None) -> Scope:
        check_resource(resource)
        return Scope(resource, self._layout.directory(resource), self._timeout if seconds is None else seconds)

    def _holder(self, holder: Fence | HasFence, seconds: float | None = None) -> tuple[Fence, Scope]:
        fence = as_fence(holder)
        return fence, self._scope(fence.resource, wait_seconds([holder], self._timeout) if seconds is None else seconds)

    def _deadline(self, timeout: float | None, holders: Sequence[Fence | HasFence] = ()) -> Deadline:
        return Deadline(wait_seconds(holders, self._timeout, timeout))

    def _probe(self, seconds: float) -> Plan[Report]:
        return probe(self._layout, Deadline(seconds))

    def _learned(self, report: Report) -> None:
        self._io.form = report.etag_form

    # Each operation as a plan

    def _claim(self, fences: Sequence[Fence], deadline: Deadline) -> Plan[None]:
        if len(fences) > 1:
            for fence in fences:
                admit_claim((yield from self._mark(self._scope(fence.resource, deadline.part()))), fence)
        for fence in fences:
            yield from object_plans.claim(self._scope(fence.resource, deadline.part()), fence)

    def _mark(self, scope: Scope) -> Plan[Mark | None]:
        pointer = yield from read(scope)
        return None if pointer is None else pointer.mark

    def _current(self, scope: Scope) -> Plan[Published | None]:
        pointer: Pointer | None = yield from read(scope)
        return None if pointer is None else pointer.published

    def _publish(
        self,
        holder: Fence | HasFence,
        objects: Mapping[str, Any],
        claim: bool,
        replacing: Any,
        progress: Progress | None,
    ) -> tuple[Scope, Plan[Published]]:
        fence, scope = self._holder(holder)
        if not isinstance(objects, Mapping):
            raise TypeError(f"publish takes a mapping of names to bodies, not {type(objects).__name__}")
        if not objects:
            raise ValueError("nothing to publish: give at least one object; delete() takes away what is current")
        for name, body in objects.items():
            check_name(name)
            if not isinstance(body, Entry):
                check_body(name, body, asynchronous=self._asynchronous)
        if not (replacing is ANYTHING or replacing is None or isinstance(replacing, PublicationBase)):
            raise TypeError(f"replacing is a Publication or None, not {type(replacing).__name__}")
        if isinstance(replacing, PublicationBase) and replacing.resource != fence.resource:
            raise ValueError(f"replacing is of {replacing.resource!r}, the fence of {fence.resource!r}")

        def send(key: str, body: Any, report: Callable[[int, int | None], object] | None) -> Plan[int]:
            return upload(key, body, report, self._upload_timeout, self._asynchronous)

        return scope, object_plans.publish(
            scope, fence, dict(objects), claim=claim, replacing=replacing, progress=progress, send=send
        )

    def _delete(self, holder: Fence | HasFence, claim: bool) -> Plan[None]:
        fence, scope = self._holder(holder)
        return object_plans.delete(scope, fence, claim=claim)

    def _landed(self, error: OutcomeUnknown, deadline: Deadline, report: Report) -> Plan[bool | None]:
        scope = self._scope(error.fence.resource, deadline.part())
        if error.key is None:
            return object_plans.landed(scope, error)
        return object_inplace.landed_in_place(scope, error, report.versions_return)

    def _collect(self, holder: Fence | HasFence, keep: int, older_than: float | None) -> Plan[Any]:
        fence, scope = self._holder(holder)
        if isinstance(keep, bool) or not isinstance(keep, int):
            raise TypeError(f"keep is a number of uploads, not {type(keep).__name__}")
        if keep < 0:
            raise ValueError(f"keep is 0 or more, not {keep}")
        if older_than is not None and not 0 <= older_than < 1e9:
            raise ValueError(f"older_than is a number of seconds, not {older_than}")
        return object_collect.collect(scope, fence, keep, older_than)

    def _write(
        self, holder: Fence | HasFence, key: str, body: Any, replacing: Any, claim: bool
    ) -> Plan[object_inplace.StoredObject]:
        fence, scope = self._holder(holder)
        check_key(key, self._layout.prefix)
        data = _in_memory(key, body)
        if not (replacing is ANYTHING or replacing is None or isinstance(replacing, object_inplace.StoredObject)):
            raise TypeError(f"replacing is what get() gave, or None, not {type(replacing).__name__}")
        if isinstance(replacing, object_inplace.StoredObject) and replacing.key != key:
            raise ValueError(f"replacing is {replacing.key!r}, not {key!r}")
        return self._claim_and_write(scope, fence, key, data, replacing, claim)

    def _claim_and_write(
        self, scope: Scope, fence: Fence, key: str, data: bytes, replacing: Any, claim: bool
    ) -> Plan[object_inplace.StoredObject]:
        if claim:
            yield from object_plans.claim(scope, fence)
        return (yield from object_inplace.write(scope, fence, key, data, replacing))

    def _get(self, key: str) -> Plan[object_inplace.StoredObject | None]:
        check_key(key, self._layout.prefix)
        return object_inplace.get(Scope(key, self._layout.directory(key), self._timeout), key)


def _in_memory(key: str, body: Any) -> bytes:
    try:
        view = memoryview(body).cast("B")
    except TypeError:
        hint = "encode it" if isinstance(body, str) else "publish() takes files and iterables"
        raise TypeError(f"write takes bytes, not {type(body).__name__}; {hint}") from None
    most = object_inplace.MOST_IN_PLACE
    if view.nbytes > most:
        raise ValueError(f"{key!r}: {view.nbytes} bytes are too many to write in place, over {most}; use publish()")
    return bytes(view)
