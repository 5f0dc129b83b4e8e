"""The base class of async coordinators, which mint fences.

Each has a backend, which knows the service: see ``fencing/locks/backend.py`` and docs/coordinators/your-own.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, Unpack, overload

# SYNC instead: from fencing.kernel.effects import run
from fencing.kernel.effects import require_asyncio, run_async
from fencing.kernel.errors import FencingError
from fencing.kernel.fence import Fence
from fencing.kernel.patterns import Pattern
from fencing.locks import plans
from fencing.locks.arguments import check_adoptable, without_reentrant
from fencing.locks.backend import Backend, ForcedRelease, Holder
from fencing.locks.capabilities import check_at_least
from fencing.locks.coordinator import CoordinatorBase
from fencing.locks.give_back import AsyncGiveBack, log_unreleased
from fencing.locks.hold_async import AsyncHold
from fencing.locks.hold_several_async import AsyncHoldAll
from fencing.locks.lease_async import AsyncLease
from fencing.locks.listing import check_listing, plan_page
from fencing.locks.lock_async import AsyncFencedLock
from fencing.locks.locked import MOST_NAMES, AsyncDecorator, Busy, OnBusy, check_busy, check_template, locked_async
from fencing.locks.renewal import AsyncRenewal
from fencing.locks.settings import AsyncCoordinatorOptions, AsyncLockOptions, check_timeout
from fencing.locks.several import check_locks, check_names
from fencing.locks.signatures import show_options
from fencing.locks.slots_async import AsyncSlots

if TYPE_CHECKING:  # loaded by who uses it
    from fencing.election.election_async import AsyncElection

Skipped = TypeVar("Skipped")


class AsyncCoordinator(CoordinatorBase):
    """The base of all async coordinators, which take locks and mint fences.

    Make one per process and service: one of a subclass, which has its backend.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl or
    the service loses data. The guards make data safe: they refuse every holder but the newest.

    Args:
        backend: what the service can do, for a coordinator of your own; no other coordinator may have it.
        options: the options of its locks. ``ttl``: seconds after which a lock frees itself unless it is renewed, 10
            by default. ``guards``: the guards (async ones) at which every fence is claimed before its holder
            continues. ``renew``: whether leases are renewed automatically, every third of the ttl, from the grant
            until they are released, lost or garbage-collected. ``max_lifetime``: seconds after which automatic
            renewal stops, so that a block that hangs does not hold its lock for ever; None: no limit. ``owner``: the
            label that ``holder()`` shows, up to 200 characters; None: host name and process id. ``max_waiters``: how
            many may wait for a lock; where so many do, ``acquire`` raises NotAcquired at once; None: any number.
            ``stall_limit``: seconds for which leases are renewed while their event loop does not answer, 3 ttls by
            default. And, of coordinators alone, ``prefix``: a namespace where applications share the service, such as
            ``"billing:"``. It ends with a separator. The resource of the lock ``"report"`` is then
            ``"billing:report"``, in fences, marks, listings and errors. A name that begins with the prefix is the
            whole resource already. None: each name is the resource.

    A lease is renewed beside its event loop, by another loop in a thread. So a task that computes keeps its locks. The
    loop is asked at each renewal; where it has not answered for ``stall_limit``, renewal stops, and the lease expires.

    Raises:
        TypeError, ValueError: an option has a wrong value, or the service cannot do it. Correct it as the message says.
    """

    # SYNC "Make one": It is thread-safe; make one
    # SYNC "``stall_limit``: ... by default.":
    # SYNC "A lease is renewed beside ... the lease expires.":

    __module__ = "fencing"

    @show_options(AsyncCoordinatorOptions)
    def __init__(self, backend: Backend, **options: Unpack[AsyncCoordinatorOptions]) -> None:
        # SYNC instead: self._begin(backend, options, asynchronous=False)
        self._begin(backend, options, asynchronous=True)
        self._renewal, self._give_back = AsyncRenewal(backend), AsyncGiveBack(backend)
        backend.track, backend.held = self._renewal.track, self._renewal.held
        backend.give_back_later = self._give_back.later

    @show_options(AsyncLockOptions)
    def lock(self, resource: str, *, reentrant: bool = False, **options: Unpack[AsyncLockOptions]) -> AsyncFencedLock:
        """Return the lock of a resource. It is cheap, so make one whenever you need it.

        Args:
            resource: the name of what is protected, such as ``"orders:42"``.
            reentrant: as :meth:`fencing.AsyncFencedLock.reentrant`.
            options: the same as the coordinator's; an option that is not given is the coordinator's.

        Raises:
            TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
        """
        return AsyncFencedLock(self, resource, reentrant=reentrant, **options)

    @show_options(AsyncLockOptions)
    async def acquire(
        self, resource: str, timeout: float | None = None, **options: Unpack[AsyncLockOptions]
    ) -> AsyncLease:
        """Wait for the lock, take it, and claim its fence at every guard: :meth:`fencing.AsyncFencedLock.acquire`.

        ``options`` are those of :meth:`lock`.
        """
        return await self.lock(resource, **without_reentrant(options, "acquire")).acquire(timeout)

    @show_options(AsyncLockOptions)
    async def try_acquire(self, resource: str, **options: Unpack[AsyncLockOptions]) -> AsyncLease | None:
        """Try once to take the lock, and claim its fence: :meth:`fencing.AsyncFencedLock.try_acquire`.

        ``options`` are those of :meth:`lock`.
        """
        return await self.lock(resource, **without_reentrant(options, "try_acquire")).try_acquire()

    @show_options(AsyncLockOptions)
    def hold(
        self,
        resource: str,
        timeout: float | None = None,
        *,
        at_least: float | None = None,
        cancel_on_loss: bool = False,  # ASYNC
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> AsyncHold:
        """Hold the lock for an ``async with`` block: :meth:`fencing.AsyncFencedLock.hold`.

        ``reentrant`` and ``options`` are those of :meth:`lock`.
        """
        lock = self.lock(resource, reentrant=reentrant, **options)
        # SYNC instead: return lock.hold(timeout, at_least=at_least)
        return lock.hold(timeout, at_least=at_least, cancel_on_loss=cancel_on_loss)

    @show_options(AsyncLockOptions)
    def hold_all(
        self, resources: Iterable[str], timeout: float | None = None, **options: Unpack[AsyncLockOptions]
    ) -> AsyncHoldAll:
        """Hold several locks for a block, all of them or none: :func:`fencing.hold_all`.

        ``options`` are those of :meth:`lock`, for each of them.
        """
        options = without_reentrant(options, "hold_all")
        return AsyncHoldAll(check_locks([self.lock(each, **options) for each in check_names(resources)]), timeout)

    @show_options(AsyncLockOptions)
    def slots(self, name: str, count: int, **options: Unpack[AsyncLockOptions]) -> AsyncSlots:
        """Return a few slots of one name: at most ``count`` holders at once, each with a slot of its own.

        Slots do not protect data that their holders share: that needs a lock of its own. ::

            async with coordinator.slots("gpu", 4).hold(timeout=5) as lease:
                device = devices[lease.slot]  # 0 … 3

        Each slot is a lock, with a fence and a mark of its own. The resource of slot 2 is ``"{gpu}#2"``, and with a
        prefix ``"billing:{gpu}#2"``.

        Args:
            name: what the slots are of, such as ``"gpu"``, without braces.
            count: how many slots there are, 1 to 64. All callers should pass the same. After a lower one, who holds a
                slot above goes on.
            options: those of :meth:`lock`, without ``max_waiters``.

        Raises:
            TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
        """
        return AsyncSlots(self, name, count, **options)

    @overload
    def locked(
        self,
        resource: str,
        timeout: float | None = None,
        *,
        busy: Literal["raise"] = "raise",
        at_least: float | None = None,
        cancel_on_loss: bool = False,  # ASYNC
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> AsyncDecorator[Never]: ...
    @overload
    def locked(
        self,
        resource: str,
        timeout: float | None = None,
        *,
        busy: Busy,
        at_least: float | None = None,
        cancel_on_loss: bool = False,  # ASYNC
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> AsyncDecorator[None]: ...
    @overload
    def locked(
        self,
        resource: str,
        timeout: float | None = None,
        *,
        busy: OnBusy[Skipped],
        at_least: float | None = None,
        cancel_on_loss: bool = False,  # ASYNC
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> AsyncDecorator[Skipped]: ...
    @show_options(AsyncLockOptions)
    def locked(
        self,
        resource: str,
        timeout: float | None = None,
        *,
        busy: Busy | OnBusy[Any] = "raise",
        at_least: float | None = None,
        cancel_on_loss: bool = False,  # ASYNC
        reentrant: bool = False,
        **options: Unpack[AsyncLockOptions],
    ) -> AsyncDecorator[Any]:
        """Decorate a coroutine function: each call holds the lock that its arguments name, as :meth:`hold` does.

        A parameter named ``lease`` is passed the lease, and callers leave it out::

            @coordinator.locked("orders:{order_id}", timeout=5)
            async def ship(lease: AsyncLease, order_id: int) -> None: ...

        Args:
            resource: the name of what is protected. ``{order_id}`` stands for the argument of that parameter, as in
                ``str.format``.
            timeout: seconds to wait, claims included; 0 tries once. None waits for ever, or not at all unless ``busy``
                is ``"raise"``.
            busy: ``"raise"``: a call that does not get the lock raises NotAcquired. ``"skip"``: if another holder has
                it, or ``max_waiters`` wait for it, the function is not called, and the call returns None. A plain
                function in place of the word is called with that NotAcquired then, and returns for the call, or
                raises. Every other error is raised with each: with CoordinatorUnavailable, nobody may have done the
                work.
            at_least: seconds from the grant for which the lock stays taken, also if the function ends before:
                :meth:`fencing.AsyncFencedLock.hold`.
            cancel_on_loss: cancel the function as soon as the lease is known to be lost, and raise LeaseLost.
            reentrant: as of :meth:`lock`.
            options: as of :meth:`lock`.

        Raises:
            TypeError: the function is sync, a generator or no function, or has no such parameter; or ``busy`` is no
                plain function. Change it as the message says. Each call raises what ``hold`` and the function raise.
            ValueError: an argument has a wrong value. Correct it as the message says.
        """
        # SYNC "a coroutine function": a function
        # SYNC "cancel_on_loss: ... raise LeaseLost.":
        # SYNC "the function is sync": the function is async
        check_template(resource)
        checked = self.lock("checked now", reentrant=reentrant, **options)
        if at_least is not None:
            check_at_least(self._backend, checked._settings, at_least)
        check_timeout(timeout)
        timeout = check_busy(busy, timeout)
        lock_of = lru_cache(MOST_NAMES)(lambda name: self.lock(name, reentrant=reentrant, **options))

        def hold(name: str) -> AbstractAsyncContextManager[AsyncLease]:
            # SYNC instead: return lock_of(name).hold(timeout, at_least=at_least)
            return lock_of(name).hold(timeout, at_least=at_least, cancel_on_loss=cancel_on_loss)

        return partial(locked_async, hold, resource, busy)

    @show_options(AsyncLockOptions)
    def election(self, name: str, *, value: str | None = None, **options: Unpack[AsyncLockOptions]) -> AsyncElection:
        """Return an election: of all replicas that take part in the one of this name, one leads at a time.

        Args:
            name: of the election, which is a lock's: ``lock(name)`` and ``election(name)`` exclude each other.
            value: what :meth:`fencing.AsyncElection.leader` tells of this replica, such as its address; up to 200
                printable characters. None: the coordinator's ``owner``.
            options: as of :meth:`lock`, but for ``owner``.

        Raises:
            TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
        """
        from fencing.election.election_async import AsyncElection
        from fencing.election.terms import options_with

        made = AsyncElection(self.lock(name, **options_with(value, options)))
        self._elections.add(made)
        return made

    async def holder(self, resource: str) -> Holder | None:
        """Describe the holder of the lock, for people; None if it is free: :meth:`fencing.AsyncFencedLock.holder`."""
        return await self.lock(resource).holder()

    def holders(self, pattern: str = "*") -> AsyncIterator[tuple[str, Holder]]:
        """Describe the holders of all locks whose resources match, for people: pairs of resource and holder.

        It asks page by page. A lock that is held all the time comes at least once; one that changes hands may come
        twice. Holders that use another library are not listed. It reads through all keys of the service, so do not
        call it for every request of yours.

        Args:
            pattern: ``*`` stands for any characters, ``?`` for one, such as ``"orders:*"``. With a prefix, only
                resources that begin with it match; leave it out of the pattern, or write it.

        Raises:
            CoordinatorUnavailable: no answer. Retry.
            TypeError: the coordinator cannot list holders. Ask :meth:`holder` for each.
        """
        return self._holders(check_listing(self._backend, pattern))

    async def _holders(self, pattern: Pattern) -> AsyncIterator[tuple[str, Holder]]:
        page: str | None = None
        while page != "":
            found, page = await run_async(plan_page(self._backend, pattern, page or ""), self._backend.perform)
            # SYNC: yield from found
            for each in found:  # ASYNC
                yield each

    async def adopt(self, fence: Fence) -> AsyncLease:
        """Take over the lock of a detached lease, within its ttl: :meth:`fencing.AsyncFencedLock.adopt`."""
        return await self.lock(check_adoptable(fence).resource).adopt(fence)

    @overload
    async def force_release(self, resource: str) -> ForcedRelease: ...
    @overload
    async def force_release(self, resource: str, number: int | None) -> ForcedRelease | None: ...
    @overload
    async def force_release(
        self, resource: str, number: int | None = None, *, holder: Holder
    ) -> ForcedRelease | None: ...
    async def force_release(
        self, resource: str, number: int | None = None, *, holder: Holder | None = None
    ) -> ForcedRelease | None:
        """Take the lock from its holder, and free it: :meth:`fencing.AsyncFencedLock.force_release`."""
        lock = self.lock(resource)
        if holder is None:
            return await lock.force_release(number)
        return await lock.force_release(number, holder=holder)

    async def release_all(self) -> None:
        """Release the locks that are held, and stop the elections; the coordinator stays open. For a process that ends.

        What holds a lock goes on without it: its lease has ended as by ``release()``, so guards refuse it. No loss is
        reported. The releases take at most a second together. The locks that could not be released are logged; they
        free themselves after their ttl. A request for a lock that is under way at this moment may still take it.

        :func:`fencing.on_sigterm` calls it when the process is told to end.
        """
        # SYNC "For a process that ends.": A signal handler may call it.
        require_asyncio()  # ASYNC
        self._stop_elections()
        await self._release_held("its coordinator's release_all() freed it, as at SIGTERM")

    async def _release_held(self, freed_by: str) -> None:
        """Release what is held, within a second, and log what could not be released.

        Args:
            freed_by: what this is, for the errors of those that go on with a lease.
        """
        backend, unreleased = self._backend, []
        closed_at = backend.give_back_deadline(backend.settings)
        for holding in backend.held():
            lease = holding.lease()
            try:
                if backend.clock() < closed_at:
                    if isinstance(lease, AsyncLease):
                        if lease._ended is None:
                            lease._freed_by = freed_by
                        await lease._release_until(closed_at)
                    elif holding.lose("gone"):  # it is being claimed; its plan notices, and asks for another grant
                        plan = plans.release(backend, holding, holding.settings, closed_at)
                        await run_async(plan, backend.perform)
                    continue
            except FencingError:
                pass
            unreleased.append(holding.fence.resource)
        log_unreleased(unreleased)

    async def close(self) -> None:
        """Release the locks that are still held, close the running loop's connections, and stop renewal. Idempotent.

        The releases take at most a second together. The locks that could not be released are logged; they free
        themselves after their ttl. A release at the end of a block is still possible.
        """
        require_asyncio()  # ASYNC
        backend = self._backend
        backend.closed = True
        self._renewal.close()
        await self._release_held("its coordinator was closed")
        await self._renewal.wait_until_over()  # ASYNC
        # SYNC instead: backend.close()
        closing = backend.close()
        if closing is not None:  # ASYNC
            await closing

    async def __aenter__(self) -> Self:
        require_asyncio()  # ASYNC
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
