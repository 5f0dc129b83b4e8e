"""Every guard behaviour on object stores: in memory, and over HTTP."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from obstore.store import MemoryStore

from examples.servers.objects import ObjectServer
from fencing.kernel.fence import Fence, Mark
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.keys import Layout, new_id
from storage_guards.objects.pointer import Entry, encode, with_publication
from storage_guards.objects.probe import ProbeReport
from storage_guards.testing import GuardContract
from tests.support.object_guards import report_on
from tests.support.object_publications import published


class _Objects(GuardContract):
    """ObjectStoreGuard on ``self.store``; the int is the one object of a publication."""

    transactions = False
    kind: Any = ObjectStoreGuard
    store: Any
    report: ProbeReport | None = None

    def make(self) -> Any:
        guard = self.kind(self.store)
        guard._report = self.report
        return guard

    def read(self, resource: str) -> int:
        current = self.guard.read(resource)
        return 0 if current is None else int(current.read("value"))

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        self.guard.publish(fence, {"value": b"%d" % value}, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        """Put data and pointer without any condition."""
        directory = Layout("fencing/").directory(resource)
        mine = Fence(resource, 1, "u" * 22)
        key = directory.data_key(mine, new_id(), "value")
        data = b"%d" % value
        self.store.put(directory.full(key), data)
        mark, now = Mark(1, mine.token), datetime.now(UTC)
        new = published(mine, new_id(), now, {"value": Entry(key, len(data), hashlib.sha256(data).hexdigest())})
        pointer = with_publication(None, mine, mark, new)
        self.store.put(directory.pointer, encode(pointer))


class _AsyncObjects(_Objects):
    """AsyncObjectStoreGuard on ``self.store``."""

    kind = AsyncObjectStoreGuard

    async def read(self, resource: str) -> int:  # type: ignore[override]
        current = await self.guard.read(resource)
        return 0 if current is None else int(await current.read("value"))

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:  # type: ignore[override]
        await self.guard.publish(fence, {"value": b"%d" % value}, **options)


def shared_store(server: ObjectServer | None, known: dict[str, Any] = {}) -> Any:  # noqa: B006
    """One bucket for all tests of a server: each test has resource names of its own."""
    if server is None:
        return MemoryStore()
    if server.url not in known:
        known[server.url] = server.store()
    return known[server.url]


def contract(name: str, base: type[_Objects], server: str | None, *marks: pytest.MarkDecorator) -> type[_Objects]:
    """Return the contract of one guard on one store, as a class of that name."""

    @pytest.fixture(autouse=True)
    def use_store(self: _Objects, request: pytest.FixtureRequest) -> None:
        running: ObjectServer | None = request.getfixturevalue(f"{server}_server") if server else None
        self.store, self.report = shared_store(running), report_on(running)

    return type(name, (base,), {"use_store": use_store, "pytestmark": list(marks), "__module__": __name__})


# Each guard in memory and on one real server; the thorough run adds every other pair.
TABLE: list[tuple[Any, ...]] = [
    ("TestMemoryStore", _Objects, None),
    ("TestAsyncMemoryStore", _AsyncObjects, None),
    ("TestS3", _Objects, "s3"),
    ("TestAsyncGCS", _AsyncObjects, "gcs"),
    ("TestAsyncS3", _AsyncObjects, "s3", pytest.mark.thorough),
    ("TestGCS", _Objects, "gcs", pytest.mark.thorough),
    ("TestAzure", _Objects, "azure", pytest.mark.thorough),
    ("TestAsyncAzure", _AsyncObjects, "azure", pytest.mark.thorough),
]
globals().update({row[0]: contract(*row) for row in TABLE})
