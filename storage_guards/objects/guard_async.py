"""The object-store guard for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, TypeVar

from fencing.kernel.admission import sorted_fences
from fencing.kernel.effects import Plan, run_async
from fencing.kernel.errors import GuardUnavailable, OutcomeUnknown, StaleRead
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.bounds import check_unknown
from storage_guards.objects.base import OPEN_ROUNDS, ObjectGuard, Progress
from storage_guards.objects.bodies import read_pieces_async, size_of
from storage_guards.objects.collect import UploadFound, plan_history
from storage_guards.objects.in_place import StoredObject
from storage_guards.objects.plans import ANYTHING, Anything
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.publication import AsyncPublication, AsyncStream
from storage_guards.objects.requests import Close, Next, OpenBody, Progressed

T = TypeVar("T")

PROBE_GRACE = 0.5
"""Seconds that a task waits for the probe beyond its own bound, so that the probe's own error comes first."""


class AsyncObjectStoreGuard(ObjectGuard):
    """:class:`ObjectStoreGuard`, which see, for asyncio.

    A cancelled ``publish``, ``delete`` or ``write`` carries the one put that counts to its answer first, within the
    guard's bound. Without an answer, the ``CancelledError``'s ``__cause__`` is the ``OutcomeUnknown``; after a refusal,
    that error. If it has no cause, the write happened or was never begun.
    """

    _asynchronous = True

    _verifying: tuple[asyncio.AbstractEventLoop, asyncio.Task[ProbeReport]] | None = None

    async def verify(self, *, timeout: float | None = None) -> ProbeReport:
        """See :meth:`ObjectStoreGuard.verify`."""
        return await self._verified(self._deadline(timeout).seconds)

    async def _verified(self, seconds: float) -> ProbeReport:
        if self._report is not None:
            return self._report
        loop = asyncio.get_running_loop()
        if self._verifying is None or self._verifying[0] is not loop or self._verifying[1].done():
            self._verifying = loop, asyncio.ensure_future(self._run(self._plan_probe(seconds)))
            self._verifying[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # looked at
        task = self._verifying[1]
        await asyncio.wait([task], timeout=seconds + PROBE_GRACE)  # not cancelled with this one of its waiters
        if not task.done():
            raise GuardUnavailable(f"another task's probe of the object store took over {seconds:.3g} s; retry")
        return self._store_report(task.result())

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`ObjectStoreGuard.claim`."""
        fences, deadline = sorted_fences(holders), self._deadline(timeout, holders)
        await self._verified(deadline.part())
        await self._run(self._plan_claim(fences, deadline))

    async def mark(self, resource: str) -> Mark | None:
        """See :meth:`ObjectStoreGuard.mark`."""
        return await self._run(self._plan_mark(self._scope(resource)))

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
        scope, plan = self._plan_publish(holder, objects, claim, replacing)
        await self._verified(scope.seconds)
        published = await self._run(plan, progress)
        return AsyncPublication(scope.resource, published, scope.directory, self._run, self._upload_timeout)

    async def read(self, resource: str) -> AsyncPublication | None:
        """See :meth:`ObjectStoreGuard.read`."""
        scope = self._scope(resource)
        current = await self._run(self._plan_current(scope))
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
        plan = self._plan_delete(holder, claim)
        await self._verified(self._timeout)
        await self._run(plan)

    async def history(self, resource: str) -> list[UploadFound]:
        """See :meth:`ObjectStoreGuard.history`."""
        return await self._run(plan_history(self._scope(resource)))

    async def collect(
        self, holder: Fence | HasFence, *, keep: int = 0, older_than: float | None = None
    ) -> list[UploadFound]:
        """See :meth:`ObjectStoreGuard.collect`."""
        plan = self._plan_collect(holder, keep, older_than)
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
        plan = self._plan_write(holder, key, body, replacing, claim)
        await self._verified(self._timeout)
        return await self._run(plan)

    async def get(self, key: str) -> StoredObject | None:
        """See :meth:`ObjectStoreGuard.get`."""
        return await self._run(self._plan_get(key))

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """See :meth:`ObjectStoreGuard.landed`."""
        unknown, deadline = check_unknown(error), self._deadline(timeout)
        return await self._run(self._plan_landed(unknown, deadline, await self._verified(deadline.part())))

    async def _run(self, plan: Plan[T], progress: Progress | None = None) -> T:
        return await run_async(plan, self._perform if progress is None else partial(self._perform, progress=progress))

    async def _perform(self, request: Any, progress: Progress | None = None) -> Any:
        match request:
            case OpenBody(body):
                return read_pieces_async(body), size_of(body)
            case Next(AsyncGenerator() as body):
                return await anext(body, None)
            case Close(AsyncGenerator() as body):
                return await body.aclose()
            case Progressed(name, sent, total):
                return None if progress is None else progress(name, sent, total)
            case _:
                return await self._io.perform(request)
