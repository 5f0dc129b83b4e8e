"""Every guard behaviour, sync and async, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fencing.kernel.fence import Fence
from storage_guards import AsyncMemoryGuard, MemoryGuard
from storage_guards.testing import GuardContract


class TestMemoryGuard(GuardContract):
    several_guards = False

    def make(self) -> Any:
        return MemoryGuard()

    def read(self, resource: str) -> int:
        return int(self.guard.data.get(resource, 0))

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        return self.guard.write(fence, resource, value, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        self.guard._data[resource] = value

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with self.guard.begin(fence, **options) as data:
            value = data.get(resource, 0)
            between()
            data[resource] = value + 1


class TestAsyncMemoryGuard(TestMemoryGuard):
    def make(self) -> Any:
        return AsyncMemoryGuard()

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as data:
            value = data.get(resource, 0)
            await asyncio.to_thread(between)
            data[resource] = value + 1
