"""The object-store guard for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from fencing.kernel.admission import sorted_fences
from fencing.kernel.effects import Plan, run_async
from fencing.kernel.errors import GuardUnavailable, OutcomeUnknown, StaleRead
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.bounds import check_unknown
from storage_guards.objects.base import OPEN_ROUNDS, ObjectGuard, Progress
from storage_guards.objects.collect import UploadFound, history
from storage_guards.objects.in_place import StoredObject
from storage_guards.objects.plans import ANYTHING, Anything
from storage_guards.objects.probe import Report
from storage_guards.objects.publication import AsyncPublication, AsyncStream
from storage_guards.objects.requests import Close, Next

__all__ = ["AsyncObjectStoreGuard"]

T = TypeVar("T")

PROBE_GRACE = 0.5
"""Seconds that a task waits for the probe beyond its own bound, so that the probe's own error comes first."""


class AsyncObjectStoreGuard(ObjectGuard):
    """:class:`ObjectStoreGuard`, which see, for asyncio.

    A cancelled ``publish``, ``delete`` or ``write`` carries the one put that counts to its answer first, within the
    guard's bound. If there was none, the ``CancelledError``'s ``__cause__`` is the ``OutcomeUnknown``; if it was
    refused, that error; if it has none, the write happened or was never begun.
    """

    _asynchronous = True

    def __init__(
        self, store: Any, *, prefix: str = "fencing/", timeout: float = 10.0, upload_timeout: float = 60.0
    ) -> None:
        super().__init__(store, prefix=prefix, timeout=timeout, upload_timeout=upload_timeout)
        self._verifying: tuple[asyncio.AbstractEventLoop, asyncio.Task[Report]] | None = None
        self._report: Report | None = None

    async def verify(self, *, timeout: float | None = None) -> Report:
        """See :meth:`ObjectStoreGuard.verify`."""
        return await self._verified(self._deadline(timeout).seconds)

    async def _verified(self, seconds: float) -> Report:
        if self._report is not None:
            return self._report
        loop = asyncio.get_running_loop()
        if self._verifying is None or self._verifying[0] is not loop or self._verifying[1].done():
            self._verifying = loop, asyncio.ensure_future(self._run(self._probe(seconds)))
            self._verifying[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # looked at
        task = self._verifying[1]
        await asyncio.wait([task], timeout=seconds + PROBE_GRACE)  # not cancelled with this one of its waiters
        if not task.done():
            raise GuardUnavailable(f"another task's probe of the object store took over {seconds:.3g} s; retry")
        report = task.result()
        self._learned(report)
        self._report = report
        return report

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`ObjectStoreGuard.claim`."""
        fences, deadline = sorted_fences(holders), self._deadline(timeout, holders)
        await self._verified(deadline.part())
        await self._run(self._claim(fences, deadline))

    async def mark(self, resource: str) -> Mark | None:
        """See :meth:`ObjectStoreGuard.mark`."""
        return await self._run(self._mark(self._scope(resource)))

    async def publish(
        self,
        holder: Fence | HasFence,
        objects: Mapping[str, Any],
        *,
        claim: bool = False,
        replacing: AsyncPublication | Anything | None = ANYTHING,
        progress: Progress | None = None,
    ) -> AsyncPublication:
        """See :meth:`ObjectStoreGuard.publish`. A body may be an async iterable, too. Files are read in a thread; a
        sync iterable is iterated here, and should not wait."""
        scope, plan = self._publish(holder, objects, claim, replacing, progress)
        await self._verified(scope.seconds)
        published = await self._run(plan)
        return AsyncPublication(scope.resource, published, scope.directory, self._run, self._upload_timeout)

    async def read(self, resource: str) -> AsyncPublication | None:
        """See :meth:`ObjectStoreGuard.read`."""
        scope = self._scope(resource)
        current = await self._run(self._current(scope))
        if current is None:
            return None
        return AsyncPublication(resource, current, scope.directory, self._run, self._upload_timeout)

    async def open(self, resource: str, name: str) -> AsyncStream:
        """See :meth:`ObjectStoreGuard.open`."""
        for _ in range(OPEN_ROUNDS):
            current = await self.read(resource)
            if current is None:
                raise KeyError(name)
            try:
                return await current.open(name)
            except StaleRead as error:
                stale = error
        raise stale

    async def delete(self, holder: Fence | HasFence, *, claim: bool = False) -> None:
        """See :meth:`ObjectStoreGuard.delete`."""
        plan = self._delete(holder, claim)
        await self._verified(self._timeout)
        await self._run(plan)

    async def history(self, resource: str) -> list[UploadFound]:
        """See :meth:`ObjectStoreGuard.history`."""
        return await self._run(history(self._scope(resource)))

    async def collect(
        self, holder: Fence | HasFence, *, keep: int = 0, older_than: float | None = None
    ) -> list[UploadFound]:
        """See :meth:`ObjectStoreGuard.collect`."""
        plan = self._collect(holder, keep, older_than)
        await self._verified(self._timeout)
        return await self._run(plan)

    async def write(
        self,
        holder: Fence | HasFence,
        key: str,
        body: Any,
        *,
        replacing: StoredObject | Anything | None = ANYTHING,
        claim: bool = False,
    ) -> StoredObject:
        """See :meth:`ObjectStoreGuard.write`, above all what it does not promise."""
        plan = self._write(holder, key, body, replacing, claim)
        await self._verified(self._timeout)
        return await self._run(plan)

    async def get(self, key: str) -> StoredObject | None:
        """See :meth:`ObjectStoreGuard.get`."""
        return await self._run(self._get(key))

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """See :meth:`ObjectStoreGuard.landed`."""
        unknown, deadline = check_unknown(error), self._deadline(timeout)
        return await self._run(self._landed(unknown, deadline, await self._verified(deadline.part())))

    async def _run(self, plan: Plan[T]) -> T:
        return await run_async(plan, self._perform)

    async def _perform(self, request: Any) -> Any:
        if isinstance(request, Next):
            return await anext(request.pieces, None)
        if isinstance(request, Close):
            return await request.pieces.aclose()
        return await self._io.perform(request)
