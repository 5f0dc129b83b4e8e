"""An object store in memory that loses requests and replies on request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from obstore.exceptions import GenericError, PreconditionError
from obstore.store import MemoryStore

FAULTS = ("request lost", "reply lost", "refused though done", "late", "silent", "silent though done")


class FaultyStore:
    """The part of an obstore store that guards use.

    Attributes:
        faults: one for each of the next puts of pointers, or of keys that contain ``about``.
        old_reads: what the next reads of pointers show, once no fault is left.
        deaf: whether every request fails, reads included.
        late: puts that were sent and have not arrived yet; :meth:`land` makes them arrive.
        entered: set when a fault begins.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner or MemoryStore()
        self.faults: deque[str] = deque()
        self.old_reads: deque[Any] = deque()
        self.about = "pointer.json"
        self.deaf = False
        self.late: list[tuple[str, bytes, dict[str, Any]]] = []
        self.puts: list[str] = []
        self.deaf_after_fault = False
        self.in_flight = 0

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        self.puts.append(path)
        fault = self.faults.popleft() if self.faults and self.about in path else ""
        if fault:
            self.deaf = self.deaf_after_fault
        elif self.deaf:
            raise GenericError("no answer")
        if fault == "request lost":
            raise GenericError("the connection broke")
        if fault == "refused":
            raise PreconditionError("something else was in the way")
        if fault == "taken for a read":  # as after a redirection of the kind that turns a put into a get
            return {key: self.inner.head(path)[key] for key in ("e_tag", "version")}
        if fault == "late":
            self.late.append((path, bytes(file), options))
            raise GenericError("the connection broke, the request is on its way")
        if fault == "silent":
            await self._silence()
        result = await self.inner.put_async(path, file, **options)
        if fault == "reply lost":
            raise GenericError("the connection broke after the request")
        if fault == "refused though done":
            raise PreconditionError("the second attempt was refused")
        if fault == "silent though done":
            await self._silence()
        return result

    async def _silence(self) -> None:
        self.in_flight += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.in_flight -= 1

    async def land(self) -> list[bool]:
        """Let the late puts arrive; return for each whether its condition held."""
        landed = []
        for path, data, options in self.late:
            try:
                await self.inner.put_async(path, data, **options)
                landed.append(True)
            except Exception:  # noqa: BLE001 - refused, in whatever way
                landed.append(False)
        self.late.clear()
        return landed

    async def get_async(self, path: str, **options: Any) -> Any:
        if self.deaf:
            raise GenericError("no answer")
        if self.old_reads and path.endswith("pointer.json") and not self.faults:
            return self.old_reads.popleft()
        return await self.inner.get_async(path, **options)

    async def delete_async(self, paths: Any) -> None:
        if self.deaf:
            raise GenericError("no answer")
        await self.inner.delete_async(paths)

    def list(self, prefix: str | None = None, **options: Any) -> AsyncIterator[Any]:
        return self.inner.list(prefix, **options)
