"""The contract of coordinators, in memory."""

from __future__ import annotations

from typing import Any

from fencing import AsyncMemoryCoordinator, LockTable, MemoryCoordinator
from fencing.testing import CoordinatorContract

WAYS: dict[str, Any] = {
    "TestMemoryCoordinator": MemoryCoordinator,
    "TestAsyncMemoryCoordinator": AsyncMemoryCoordinator,
}


class _InMemory(CoordinatorContract):
    short_ttl = 0.1
    kind: Any
    table: LockTable

    def make(self, **options: Any) -> Any:
        return self.kind(self.table, **options)


for _name, _kind in WAYS.items():
    globals()[_name] = type(_name, (_InMemory,), {"kind": _kind, "table": LockTable(), "__module__": __name__})
