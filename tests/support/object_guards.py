"""Guards of object stores, sync or async, on stores that a probe has accepted before."""

from __future__ import annotations

from typing import Any, NamedTuple

from obstore.store import MemoryStore

from examples.servers.objects import ObjectServer
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.probe import ProbeReport
from tests.support.sides import Side


class Place(NamedTuple):
    """Where a story over HTTP takes place."""

    side: Side
    server: ObjectServer


_reports: dict[str, ProbeReport] = {}


def report_on(server: ObjectServer | None) -> ProbeReport:
    """Return what the probe says of a server, or of obstore's store in memory. It runs once a process."""
    key = server.url if server else "memory"
    if key not in _reports:
        _reports[key] = ObjectStoreGuard(server.store() if server else MemoryStore()).verify()
    return _reports[key]


def guard_on(side: Side, store: Any, **options: Any) -> Any:
    """Return a guard that has yet to probe its store."""
    return (AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard)(store, **options)


def probed(guard: Any, server: ObjectServer | None = None) -> Any:
    """Return the guard as it is after its probe: of this server, or of a store in memory."""
    guard._report = report_on(server)
    return guard


class Desk:
    """A guard, sync or async, another one on the same store, and short forms."""

    def __init__(self, side: Side, store: Any, server: ObjectServer | None = None, **options: Any) -> None:
        self.side, self.store = side, store
        self.guard = probed(guard_on(side, store, **options), server)
        self.beside = probed(ObjectStoreGuard(getattr(store, "inner", store), **options), server)

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        return self.side.call(method, *args, **options)


class PublicationDesk(Desk):
    """A guard that publishes under the resource ``RESOURCE``."""

    RESOURCE = "orders:1"

    def publish(self, fence: Any, objects: Any, **options: Any) -> Any:
        return self.call(self.guard.publish, fence, objects, **options)

    def refused(self, error: type[Exception], fence: Any, objects: Any, **options: Any) -> str:
        """Publish in vain, which changes no mark; returns the error's text."""
        before = self.beside.mark(fence.resource)
        text = str(self.side.expect(error, lambda: self.publish(fence, objects, **options)))
        assert self.beside.mark(fence.resource) == before
        return text

    @property
    def current(self) -> dict[str, bytes] | None:
        read = self.call(self.guard.read, self.RESOURCE)
        return None if read is None else {name: self.call(read.read, name) for name in read}
