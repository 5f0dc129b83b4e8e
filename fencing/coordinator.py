"""The bases of all coordinators: what mints fences, as its users see it.

A backend adds its plans and ``perform``: see ``fencing/locks/backend.py`` and docs/coordinators/your-own.md.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Self, Unpack

from fencing.kernel.fence import Fence
from fencing.locks.backend import Backend, ForcedRelease, Holder, check_capabilities
from fencing.locks.holding import Grant, Holding
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock import AsyncFencedLock, FencedLock, check_adoptable
from fencing.locks.renewal import AsyncRenewal, Renewal
from fencing.locks.settings import AsyncLockOptions, LockOptions, Settings


class Coordinator(Backend):
    """Mints fences, and takes locks. Thread-safe; make one per process and service.

    It does not make data safe: two clients can hold a lock at the same time, whenever a pause outlasts the ttl or the
    service loses data. The guards do, by refusing whoever is not the newest.

    Args:
        options: of its locks. ``ttl``: seconds after which a lock frees itself unless it is renewed, 10 by default.
            ``guards``: the storages at which every grant is claimed before its holder goes on. ``renew``: whether
            leases are renewed by themselves, every third of the ttl, from the grant until they are released, lost or
            garbage-collected. ``max_lifetime``: seconds after which a lease is not renewed by itself any more, so that
            a body that hangs does not hold its lock for ever; None: no such cap. ``owner``: the label that ``holder()``
            shows, up to 200 characters; None: host name and process id.

    Raises:
        TypeError, ValueError: an option is of the wrong kind, or asks what the service cannot do.
    """

    def __init__(self, **options: Unpack[LockOptions]) -> None:
        settings = Settings().changed(options, asynchronous=False, of=type(self))
        self.settings = check_capabilities(self, settings, settings.ttl)
        self._renewal = Renewal(self)

    @abstractmethod
    def perform(self, effect: Any) -> Any:
        """Do one effect that this coordinator's plans yielded, within the time it names."""

    def lock(self, resource: str, **options: Unpack[LockOptions]) -> FencedLock:
        """Return the lock of a resource; cheap, so make one whenever it is needed. Options as of the coordinator."""
        return FencedLock(self, resource, **options)

    def acquire(self, resource: str, timeout: float | None = None) -> Lease:
        """Take the lock, waiting so many seconds at most (None: for ever): see :meth:`FencedLock.acquire`."""
        return self.lock(resource).acquire(timeout)

    def try_acquire(self, resource: str) -> Lease | None:
        """Take the lock if it is free; None: it is not. See :meth:`FencedLock.try_acquire`."""
        return self.lock(resource).try_acquire()

    def hold(self, resource: str, timeout: float | None = None) -> AbstractContextManager[Lease]:
        """Hold the lock for a ``with`` block, waiting so many seconds at most (None: for ever): see
        :meth:`FencedLock.hold`."""
        return self.lock(resource).hold(timeout)

    def holder(self, resource: str) -> Holder | None:
        """Say who holds the lock, for people to look at; None: nobody. See :meth:`FencedLock.holder`."""
        return self.lock(resource).holder()

    def adopt(self, fence: Fence) -> Lease:
        """Take over the lock of a lease that was detached: see :meth:`FencedLock.adopt`."""
        return self.lock(check_adoptable(fence).resource).adopt(fence)

    def force_release(self, resource: str) -> ForcedRelease:
        """Take the lock from whoever holds it, and free it: see :meth:`FencedLock.force_release`."""
        return self.lock(resource).force_release()

    def track(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant, and renew it, until it ends."""
        return self._renewal.track(grant, settings)

    def close(self) -> None:
        """Close the connections, and renew no more. Leases that are still held free themselves after their ttl."""
        self.closed = True
        self._renewal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncCoordinator(Backend):
    """:class:`Coordinator` for asyncio: the same options, with async guards."""

    def __init__(self, **options: Unpack[AsyncLockOptions]) -> None:
        settings = Settings().changed(options, asynchronous=True, of=type(self))
        self.settings = check_capabilities(self, settings, settings.ttl)
        self._renewal = AsyncRenewal(self)

    @abstractmethod
    async def perform(self, effect: Any) -> Any:
        """Do one effect that this coordinator's plans yielded, within the time it names."""

    def lock(self, resource: str, **options: Unpack[AsyncLockOptions]) -> AsyncFencedLock:
        """Return the lock of a resource; cheap, so make one whenever it is needed. Options as of the coordinator."""
        return AsyncFencedLock(self, resource, **options)

    async def acquire(self, resource: str, timeout: float | None = None) -> AsyncLease:
        """Take the lock, waiting so many seconds at most (None: for ever): see :meth:`AsyncFencedLock.acquire`."""
        return await self.lock(resource).acquire(timeout)

    async def try_acquire(self, resource: str) -> AsyncLease | None:
        """Take the lock if it is free; None: it is not. See :meth:`AsyncFencedLock.try_acquire`."""
        return await self.lock(resource).try_acquire()

    def hold(
        self, resource: str, timeout: float | None = None, *, cancel_on_loss: bool = False
    ) -> AbstractAsyncContextManager[AsyncLease]:
        """Hold the lock for an ``async with`` block, waiting so many seconds at most (None: for ever): see
        :meth:`AsyncFencedLock.hold`."""
        return self.lock(resource).hold(timeout, cancel_on_loss=cancel_on_loss)

    async def holder(self, resource: str) -> Holder | None:
        """Say who holds the lock, for people to look at; None: nobody. See :meth:`AsyncFencedLock.holder`."""
        return await self.lock(resource).holder()

    async def adopt(self, fence: Fence) -> AsyncLease:
        """Take over the lock of a lease that was detached: see :meth:`AsyncFencedLock.adopt`."""
        return await self.lock(check_adoptable(fence).resource).adopt(fence)

    async def force_release(self, resource: str) -> ForcedRelease:
        """Take the lock from whoever holds it, and free it: see :meth:`AsyncFencedLock.force_release`."""
        return await self.lock(resource).force_release()

    def track(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant, and renew it, until it ends."""
        return self._renewal.track(grant, settings)

    async def close(self) -> None:
        """Close the connections of the running loop, and renew no more. Leases that are still held free themselves
        after their ttl."""
        self.closed = True
        self._renewal.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
