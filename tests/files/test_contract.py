"""The contract of guards on files, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencing.kernel.fence import Fence, Mark
from storage_guards import AsyncFileGuard, FileGuard
from storage_guards.files import io
from storage_guards.files.content import Content
from storage_guards.testing import GuardContract


class TestFileGuard(GuardContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> Any:
        return FileGuard(self.folder)

    def read(self, resource: str) -> Any:
        return int(self.guard.read(resource) or 0)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        return self.guard.write(fence, b"%d" % value, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        path = Path(io.path_of(str(self.folder), resource))
        path.mkdir(exist_ok=True)
        found = io.load(str(path)) or Content(resource, Mark(1, "0" * 22), ())
        new = path / f"unguarded-{threading.get_ident()}"
        new.write_bytes(replace(found, data=b"%d" % value).encode())
        new.replace(path / "current")

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with self.guard.begin(fence, **options) as file:
            value = int(file.data or 0)
            between()
            file.data = b"%d" % (value + 1)


class TestAsyncFileGuard(TestFileGuard):
    def make(self) -> Any:
        return AsyncFileGuard(self.folder)

    async def read(self, resource: str) -> int:
        return int(await self.guard.read(resource) or 0)

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as file:
            value = int(file.data or 0)
            await asyncio.to_thread(between)
            file.data = b"%d" % (value + 1)
