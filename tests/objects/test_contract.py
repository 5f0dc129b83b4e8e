"""Every guard behaviour on object stores: in memory, and over HTTP."""

from __future__ import annotations

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
        """Puts data and pointer, as a program would that knows no conditions."""
        directory = Layout("fencing/").directory(resource)
        mine = Fence(resource, 1, "u" * 22)
        key = directory.data_key(mine, new_id(), "value")
        data = b"%d" % value
        self.store.put(directory.full(key), data)
        mark, now = Mark(1, mine.token), datetime.now(UTC)
        pointer = with_publication(None, mine, mark, new_id(), now, {"value": Entry(key, len(data))})
        self.store.put(directory.pointer, encode(pointer))


class _AsyncObjects(_Objects):
    """AsyncObjectStoreGuard on ``self.store``."""

    kind = AsyncObjectStoreGuard

    async def read(self, resource: str) -> int:  # type: ignore[override]
        current = await self.guard.read(resource)
        return 0 if current is None else int(await current.read("value"))

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:  # type: ignore[override]
        await self.guard.publish(fence, {"value": b"%d" % value}, **options)


class TestMemoryStore(_Objects):
    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self.store = MemoryStore()


class TestAsyncMemoryStore(_AsyncObjects):
    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self.store = MemoryStore()


def _tried_out(server: ObjectServer, known: dict[str, tuple[Any, ProbeReport]] = {}) -> tuple[Any, ProbeReport]:  # noqa: B006
    """One bucket for all tests of a server, whose names are their own; tried out once, for they are many."""
    if server.url not in known:
        store = server.store()
        known[server.url] = store, ObjectStoreGuard(store).verify()
    return known[server.url]


class TestObjectStore(_Objects):
    """Each real server."""

    @pytest.fixture(autouse=True)
    def _store(self, object_server: ObjectServer) -> None:
        self.store, self.report = _tried_out(object_server)


class TestAsyncObjectStore(_AsyncObjects):
    @pytest.fixture(autouse=True)
    def _store(self, object_server: ObjectServer) -> None:
        self.store, self.report = _tried_out(object_server)
