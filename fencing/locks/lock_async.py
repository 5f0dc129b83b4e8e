"""The async lock of one resource at one coordinator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from fencing.kernel.effects import run_async
from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import Fence, check_resource
from fencing.locks import plans
from fencing.locks.arguments import NOT_PICKLED, check_forced, check_resource_of, settings_of
from fencing.locks.backend import ForcedRelease, Holder
from fencing.locks.capabilities import check_at_least
from fencing.locks.clients import Client, coordinator_of
from fencing.locks.coordinator import CoordinatorBase
from fencing.locks.hold_async import AsyncHold
from fencing.locks.holding import Grant
from fencing.locks.lease_async import AsyncLease
from fencing.locks.settings import AsyncLockOptions, check_flag, check_timeout
from fencing.locks.signatures import show_options


class AsyncFencedLock:
    """A lock on one resource for asyncio, whose grants carry fences. Reusable; it has no state of any holder.

    The lock is for speed and liveness: it prevents most work from being done twice. It does not make data safe: two
    clients can hold it at the same time. Only writes through a guard are safe. Acquire first, then read: data that was
    read before ``hold`` or ``acquire`` is not protected.

    Args:
        client_or_coordinator: a ``redis.asyncio.Redis``, an async engine of SQLAlchemy, or an async coordinator. All
            locks of one client, or of clients with one pool, share a coordinator.
        resource: the name of what is protected, such as ``"orders:42"``; 1 to 512 bytes of UTF-8, with the
            coordinator's prefix. That of a client has none.
        reentrant: as :meth:`reentrant`.
        options: ``ttl``, ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner`` and ``max_waiters``, as in
            :class:`fencing.AsyncCoordinator`. An option that is not given is the coordinator's.

    Raises:
        TypeError, ValueError: an argument has a wrong value, or the coordinator cannot do it. Correct it as the message
            says.
    """

    # SYNC "Reusable; it": Reusable and thread-safe; it

    __module__ = "fencing"

    @show_options(AsyncLockOptions)
    def __init__(
        self,
        client_or_coordinator: Client | CoordinatorBase,
        resource: str,
        *,
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> None:
        self._is_reentrant = reentrant if reentrant is False else check_flag(reentrant, "reentrant")
        given = client_or_coordinator
        # SYNC instead: if isinstance(given, CoordinatorBase) and given._backend.asynchronous is False:
        if isinstance(given, CoordinatorBase) and given._backend.asynchronous is True:
            self.coordinator = given
        else:
            self.coordinator = coordinator_of(given, asynchronous=True)
        self._backend = backend = self.coordinator._backend
        self.resource = check_resource(resource, backend.prefix)
        self._settings = settings_of(backend, options, asynchronous=True) if options else backend.settings
        self._key = id(backend), self.resource
        self._lease: Callable[[Grant], AsyncLease] = partial(AsyncLease, backend)

    async def acquire(self, timeout: float | None = None) -> AsyncLease:
        """Wait for the lock, take it, and claim its fence at every guard. Prefer :meth:`hold`, which also releases it.

        Only data that is read after this was awaited is protected.

        If the task is cancelled, the lock is given back first.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries once.

        Raises:
            NotAcquired: the lock was not free in time, as many wait as ``max_waiters`` allows, or newer fences
                superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the lock was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        # SYNC "If the task is cancelled ...":
        # SYNC "this was awaited": this returns
        plan = plans.acquire(self._backend, self.resource, self._settings, check_timeout(timeout), self._lease)
        return await run_async(plan, self._backend.perform)

    async def try_acquire(self) -> AsyncLease | None:
        """Try once to take the lock, and claim its fence at every guard.

        If the task is cancelled, the lock is given back first.

        Returns:
            The lease; None: the lock was not acquired.

        Raises:
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the lock was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        # SYNC "If the task is cancelled ...":
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    def reentrant(self) -> AsyncFencedLock:
        """Return the same lock, with re-entrant blocks: ``hold`` inside its own ``hold`` gives the same lease.

        Inside means: in a block that the same task has begun with the same coordinator. Only the end of the outermost
        block releases the lock. Inside, ``timeout`` has no effect, and the other options must be those of the outermost
        block. ``acquire``, ``try_acquire`` and ``adopt`` are not re-entrant: they wait for the block around them.
        """
        # SYNC "the same task has": the same thread and asyncio task have
        made = AsyncFencedLock(self.coordinator, self.resource, reentrant=True)
        made._settings = self._settings
        return made

    # SYNC instead: def hold(self, timeout: float | None = None, *, at_least: float | None = None) -> Hold:
    def hold(
        self, timeout: float | None = None, *, at_least: float | None = None, cancel_on_loss: bool = False
    ) -> AsyncHold:
        """Hold the lock for an ``async with`` block: acquire it, and release it when the block ends.

        An error of the block is raised unchanged. Cancelling the task, even twice, does not prevent the release.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries once.
            at_least: seconds from the grant for which the lock stays taken, also if the block ends before; None: it is
                free at its end. So a replica whose clock is late does not repeat a short job. A process that dies frees
                it with its ttl; ``release()`` and ``release_all()`` free it at once.
            cancel_on_loss: cancel the block as soon as the lease is known to be lost, and raise LeaseLost.

        Raises:
            LeaseLost: the lock was lost. If ``completed`` is True, the block had run to its end. Other holders may have
                had the lock meanwhile. Writes that guards acknowledged count, so do not simply repeat the block.
            NotAcquired: the lock was not free in time, as many wait as ``max_waiters`` allows, or newer fences
                superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the lock was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            TypeError, ValueError: ``at_least`` is no such number, is above ``max_lifetime``, or the coordinator cannot
                do it: Redlock, etcd and ZooKeeper cannot. Change it as the message says.
        """
        # SYNC "Cancelling the task, even twice, does not prevent the release.":
        # SYNC "cancel_on_loss: ... raise LeaseLost.":
        # SYNC "the lock was lost. If ... its end.": the block raised nothing, but the lock was lost; ``completed`` is
        #     True.
        # SYNC "had the lock meanwhile": had it meanwhile
        if at_least is not None:
            at_least = check_at_least(self._backend, self._settings, at_least)
        # SYNC instead: return Hold(self, timeout, at_least)
        return AsyncHold(self, timeout, cancel_on_loss, at_least)

    if not TYPE_CHECKING:  # type checkers report ``async with lock`` themselves

        async def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a lock is reusable and is not held itself; write `async with lock.hold(timeout=5) as lease:`"
            )

        async def __aexit__(self, *error: object) -> None: ...  # it is needed to reach __aenter__ and its message

    async def adopt(self, fence: Fence) -> AsyncLease:
        """Take over the lock of a detached lease, within its ttl. The lock is never free in between.

        The new lease has a fence of its own, claimed at every guard. So only one process can adopt a fence. Read again:
        data that was read under the old fence is not protected. Use it as
        ``async with await lock.adopt(fence) as lease:``.

        Args:
            fence: the fence that ``detach()`` returned.

        Raises:
            LeaseLost: the lock is no longer the fence's: its ttl is over, or another process adopted it. Acquire it.
            CoordinatorUnavailable, GuardUnavailable: no answer, and the lock is kept. Repeat it with this coordinator,
                within the ttl.
            NotAcquired: the lock was given back, and the fence is used up. Acquire the lock.
            TypeError, ValueError: ``fence`` is not a Fence, or is of another resource. Pass the right one.
        """
        plan = plans.adopt(self._backend, check_resource_of(fence, self.resource), self._settings, self._lease)
        return await run_async(plan, self._backend.perform)

    async def holder(self) -> Holder | None:
        """Describe the holder of the lock, for people; None: the lock is free.

        It may change at once, so it is no basis for a decision.

        Raises:
            CoordinatorUnavailable: no answer. Retry.
        """
        plan = plans.holder(self._backend, self.resource, self._settings)
        return await run_async(plan, self._backend.perform)

    @overload
    async def force_release(self) -> ForcedRelease: ...
    @overload
    async def force_release(self, number: int | None) -> ForcedRelease | None: ...
    @overload
    async def force_release(self, number: int | None = None, *, holder: Holder) -> ForcedRelease | None: ...
    async def force_release(self, number: int | None = None, *, holder: Holder | None = None) -> ForcedRelease | None:
        """Take the lock from its holder, shut that holder out at every guard, and free the lock.

        On Redis the holder may also be redis-py's own lock, or any string under the lock's key. Without guards the
        holder is not shut out: ``fenced`` in the result is False, and the holder can still write until a newer one
        claims.

        A late request takes the lock from nobody else: it names the grant that was read just before.

        Args:
            number: the number of a grant, as ``holder()`` or ``holders()`` named it: only it is forced out. None:
                whoever holds the lock.
            holder: in place of the number, what ``holder()`` or ``holders()`` returned: only it is forced out, also
                where it has no number, as another library's lock. Two such locks with the same value look the same.

        Returns:
            What was done; None: this grant does not hold the lock, and nothing was done. A lock that is free counts so
            only without guards. With them, that grant's holder is shut out all the same: an earlier attempt may have
            freed the lock, and got no further.

        Raises:
            CoordinatorUnavailable: no answer, or the lock keeps changing hands. Repeat it.
            GuardUnavailable, NotAcquired, LeaseLost: a guard did not answer, or another process interfered. The lock is
                free, but the holder may not be shut out. Repeat it.
            TypeError, ValueError: ``number`` is no fencing number, or ``holder`` no Holder. Pass the holder, or its
                ``number``.
        """
        plan = plans.force_release(self._backend, self.resource, self._settings, check_forced(number, holder))
        return await run_async(plan, self._backend.perform)

    def __repr__(self) -> str:
        return f"<AsyncFencedLock of {self.resource!r}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(NOT_PICKLED)
