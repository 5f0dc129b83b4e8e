"""One resource at one coordinator."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, NoReturn

from fencing.kernel.effects import run, run_async
from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import Fence, check_resource
from fencing.kernel.guard import AsyncGuard, Guard
from fencing.locks import plans
from fencing.locks.backend import (
    AsyncCoordinator,
    Coordinator,
    ForcedRelease,
    Holder,
    Settings,
    check_timeout,
)
from fencing.locks.cancel_on_loss import CancelOnLoss
from fencing.locks.holding import Holding
from fencing.locks.lease import AsyncLease, Lease

__all__ = ["AsyncFencedLock", "FencedLock"]


class _Unset:
    """The coordinator's own setting is to be used."""

    def __repr__(self) -> str:
        return "<the coordinator's>"


_UNSET = _Unset()


def _settings(base: Settings, *, asynchronous: bool, **given: Any) -> Settings:
    changed = {name: value for name, value in given.items() if value is not _UNSET}
    if not changed:
        return base
    merged = {name: changed.get(name, getattr(base, name)) for name in given}
    return Settings.checked(asynchronous=asynchronous, **merged)


def _adoptable(fence: object, resource: str) -> Fence:
    if not isinstance(fence, Fence):
        raise TypeError(f"adopt takes a Fence, not {type(fence).__name__}; read its text with Fence.parse first")
    if fence.resource != resource:
        raise ValueError(
            f"this is the lock of {resource!r}; the fence is of {fence.resource!r}, so adopt it with the lock of that"
        )
    return fence


class FencedLock:
    """A lock on one resource whose grants carry fences. Reusable, thread-safe; it holds no state of any holder.

    The lock is for speed and liveness: it keeps most of the work from being done twice. It does not make data safe by
    itself, for two clients can hold it at once; writes through a guard are what is safe. Nothing that was read before
    ``hold`` or ``acquire`` is protected: acquire first, then read.

    Args:
        client_or_coordinator: a ``redis.Redis``, whose locks then share one coordinator, or a coordinator.
        resource: the name of what is protected, such as ``"orders:42"``; 1 to 512 bytes of UTF-8.
        ttl, guards, renew, max_lifetime, clock_floor, owner: as of :class:`RedisCoordinator`; what is not given is the
            coordinator's.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind; the message says which.
    """

    def __init__(
        self,
        client_or_coordinator: Any,
        resource: str,
        *,
        ttl: float | _Unset = _UNSET,
        guards: Iterable[Guard] | _Unset = _UNSET,
        renew: bool | _Unset = _UNSET,
        max_lifetime: float | _Unset | None = _UNSET,
        clock_floor: bool | _Unset = _UNSET,
        owner: str | _Unset | None = _UNSET,
    ) -> None:
        self.resource = check_resource(resource)
        self.coordinator: Coordinator = _coordinator(client_or_coordinator, asynchronous=False)
        self._settings = _settings(
            self.coordinator.settings,
            asynchronous=False,
            ttl=ttl,
            guards=guards,
            renew=renew,
            max_lifetime=max_lifetime,
            clock_floor=clock_floor,
            owner=owner,
        )

    def acquire(self, timeout: float | None = None) -> Lease:
        """Wait for the lock, take it, and claim its fence at every guard. Prefer :meth:`hold`, which also releases.

        Args:
            timeout: seconds; None waits for ever, 0 tries once. Claims count against it.

        Returns:
            The lease. From now on, what is read is protected; what was read before is not.

        Raises:
            NotAcquired: somebody else held the lock all the time. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the lock was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken; the text says where.
        """
        plan = plans.acquire(self.coordinator, self.resource, self._settings, check_timeout(timeout))
        return self._lease(run(plan, self.coordinator.perform))

    def try_acquire(self) -> Lease | None:
        """:meth:`acquire` with one try; None: somebody else holds the lock."""
        try:
            return self.acquire(timeout=0)
        except NotAcquired:
            return None

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[Lease]:
        """Hold the lock for a ``with`` block: acquire, then release however the block is left.

        An error of the block comes out as it is. If the block raised none, but the lock turns out to have been lost,
        LeaseLost comes out, with ``completed=True``: others may have held it meanwhile. What guards acknowledged counts
        all the same, so do not simply do it all again.

        Args, Raises: as :meth:`acquire`.
        """
        with self.acquire(timeout) as lease:
            yield lease

    def __enter__(self) -> NoReturn:
        raise TypeError("a lock is reusable and is not held itself: write `with lock.hold(timeout=5) as lease:`")

    def __exit__(self, *error: object) -> None: ...  # so that ``with`` gets as far as the sentence above

    def adopt(self, fence: Fence) -> Lease:
        """Take over the lock of a lease that was detached, within its ttl; the lock is never free in between.

        The lease has a fence of its own, claimed at every guard. So the first who adopts is the only one, and what was
        read under the old fence is not protected: read again. ``with lock.adopt(fence) as lease:`` releases it.

        Raises:
            LeaseLost: the lock is not that fence's any more: its ttl is over, or somebody else adopted it. Acquire it.
            CoordinatorUnavailable, GuardUnavailable, NotAcquired: as :meth:`acquire`. The fence is used up: acquire.
            TypeError, ValueError: not a fence, or of another resource.
        """
        plan = plans.adopt(self.coordinator, _adoptable(fence, self.resource), self._settings)
        return self._lease(run(plan, self.coordinator.perform))

    def holder(self) -> Holder | None:
        """Who holds the lock, for people to look at; None: nobody. No basis for a decision: it may change at once.

        Raises:
            CoordinatorUnavailable: no answer. Retry.
        """
        return run(plans.holder(self.coordinator, self.resource, self._settings), self.coordinator.perform)

    def force_release(self) -> ForcedRelease:
        """Take the lock from whoever holds it, shut that holder out at every guard, and free the lock.

        Whoever holds it, also redis-py's own lock, and whatever string the key of that name holds.
        Without guards the holder is not shut out: ``fenced`` in the result is False, and the holder may write on until
        a newer one claims.

        Raises:
            CoordinatorUnavailable: no answer. Repeat it.
            GuardUnavailable, NotAcquired, LeaseLost: a guard did not answer, or somebody interfered; the lock is free,
                but the holder may not be shut out. Repeat it.
        """
        return run(plans.force_release(self.coordinator, self.resource, self._settings), self.coordinator.perform)

    def _lease(self, holding: Holding) -> Lease:
        return Lease(self.coordinator, holding)

    def __repr__(self) -> str:
        return f"<FencedLock of {self.resource!r}>"


class AsyncFencedLock:
    """:class:`FencedLock` for asyncio: with a ``redis.asyncio.Redis`` or an async coordinator, and async guards."""

    def __init__(
        self,
        client_or_coordinator: Any,
        resource: str,
        *,
        ttl: float | _Unset = _UNSET,
        guards: Iterable[AsyncGuard] | _Unset = _UNSET,
        renew: bool | _Unset = _UNSET,
        max_lifetime: float | _Unset | None = _UNSET,
        clock_floor: bool | _Unset = _UNSET,
        owner: str | _Unset | None = _UNSET,
    ) -> None:
        self.resource = check_resource(resource)
        self.coordinator: AsyncCoordinator = _coordinator(client_or_coordinator, asynchronous=True)
        self._settings = _settings(
            self.coordinator.settings,
            asynchronous=True,
            ttl=ttl,
            guards=guards,
            renew=renew,
            max_lifetime=max_lifetime,
            clock_floor=clock_floor,
            owner=owner,
        )

    async def acquire(self, timeout: float | None = None) -> AsyncLease:
        """See :meth:`FencedLock.acquire`. If it is cancelled, the lock is given back first."""
        plan = plans.acquire(self.coordinator, self.resource, self._settings, check_timeout(timeout))
        return self._lease(await run_async(plan, self.coordinator.perform))

    async def try_acquire(self) -> AsyncLease | None:
        """See :meth:`FencedLock.try_acquire`."""
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    @asynccontextmanager
    async def hold(self, timeout: float | None = None, *, cancel_on_loss: bool = False) -> AsyncIterator[AsyncLease]:
        """See :meth:`FencedLock.hold`. Cancelling the holder, even twice, does not lose the release.

        Args:
            timeout: as of :meth:`FencedLock.acquire`.
            cancel_on_loss: cancel the block the moment the lease is known to be lost; LeaseLost comes out then.
        """
        async with await self.acquire(timeout) as lease:
            with CancelOnLoss(lease) if cancel_on_loss else nullcontext():
                yield lease

    async def __aenter__(self) -> NoReturn:
        raise TypeError("a lock is reusable and is not held itself: write `async with lock.hold(timeout=5) as lease:`")

    async def __aexit__(self, *error: object) -> None: ...

    async def adopt(self, fence: Fence) -> AsyncLease:
        """See :meth:`FencedLock.adopt`."""
        plan = plans.adopt(self.coordinator, _adoptable(fence, self.resource), self._settings)
        return self._lease(await run_async(plan, self.coordinator.perform))

    async def holder(self) -> Holder | None:
        """See :meth:`FencedLock.holder`."""
        plan = plans.holder(self.coordinator, self.resource, self._settings)
        return await run_async(plan, self.coordinator.perform)

    async def force_release(self) -> ForcedRelease:
        """See :meth:`FencedLock.force_release`."""
        plan = plans.force_release(self.coordinator, self.resource, self._settings)
        return await run_async(plan, self.coordinator.perform)

    def _lease(self, holding: Holding) -> AsyncLease:
        return AsyncLease(self.coordinator, holding)

    def __repr__(self) -> str:
        return f"<AsyncFencedLock of {self.resource!r}>"


def _coordinator(given: Any, *, asynchronous: bool) -> Any:
    """The coordinator itself, or the one that a Redis client's locks share."""
    if not hasattr(given, "plan_acquire"):
        from fencing.redis import coordinator as redis_coordinator

        return (redis_coordinator.AsyncRedisCoordinator if asynchronous else redis_coordinator.RedisCoordinator).of(
            given
        )
    if inspect.iscoroutinefunction(given.perform) is not asynchronous:
        ours, wanted = ("AsyncFencedLock", "an async") if asynchronous else ("FencedLock", "a sync")
        raise TypeError(f"{ours} takes {wanted} coordinator, not {type(given).__name__}")
    return given
