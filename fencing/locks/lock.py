"""One resource at one coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from fencing.kernel.effects import run, run_async
from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import Fence, check_resource
from fencing.locks import plans
from fencing.locks.backend import Backend, ForcedRelease, Holder, check_capabilities
from fencing.locks.clients import coordinator_of
from fencing.locks.holding import Holding
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease, CancelOnLoss
from fencing.locks.settings import AsyncLockOptions, LockOptions, Settings, check_timeout


def _settings(backend: Backend, options: Mapping[str, Any], *, asynchronous: bool) -> Settings:
    if not options:
        return backend.settings
    return check_capabilities(
        backend, backend.settings.changed(options, asynchronous=asynchronous), backend.settings.ttl
    )


def check_adoptable(fence: object) -> Fence:
    """Return ``fence`` if it is one; TypeError otherwise."""
    if not isinstance(fence, Fence):
        cure = "give what its detach() returns" if hasattr(fence, "detach") else "read its text with Fence.parse first"
        raise TypeError(f"adopt takes a Fence, not {type(fence).__name__}; {cure}")
    return fence


def _of_this_lock(fence: Fence, resource: str) -> Fence:
    if check_adoptable(fence).resource != resource:
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
        options: ``ttl``, ``guards``, ``renew``, ``max_lifetime``, ``owner`` as of the coordinator; what is not given is
            the coordinator's.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind, or asks what the coordinator cannot do; the message
            says which.
    """

    def __init__(self, client_or_coordinator: Any, resource: str, **options: Unpack[LockOptions]) -> None:
        self.resource = check_resource(resource)
        self.coordinator = coordinator_of(client_or_coordinator, asynchronous=False)
        self._settings = _settings(self.coordinator, options, asynchronous=False)

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

    if not TYPE_CHECKING:  # for type checkers ``with lock`` is an error of its own

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
        plan = plans.adopt(self.coordinator, _of_this_lock(fence, self.resource), self._settings)
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

    def __init__(self, client_or_coordinator: Any, resource: str, **options: Unpack[AsyncLockOptions]) -> None:
        self.resource = check_resource(resource)
        self.coordinator = coordinator_of(client_or_coordinator, asynchronous=True)
        self._settings = _settings(self.coordinator, options, asynchronous=True)

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

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a lock is reusable and is not held itself: write `async with lock.hold(timeout=5) as lease:`"
            )

        async def __aexit__(self, *error: object) -> None: ...

    async def adopt(self, fence: Fence) -> AsyncLease:
        """See :meth:`FencedLock.adopt`."""
        plan = plans.adopt(self.coordinator, _of_this_lock(fence, self.resource), self._settings)
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
