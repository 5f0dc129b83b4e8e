"""Async slots: a few locks of one name, of which any will do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from fencing.kernel.effects import run_async
from fencing.kernel.errors import NotAcquired
from fencing.locks.any_slot import acquire_slot, check_slot_options, check_slot_settings, check_slots
from fencing.locks.arguments import NOT_PICKLED, settings_of
from fencing.locks.capabilities import check_at_least
from fencing.locks.coordinator import CoordinatorBase
from fencing.locks.hold_async import TWICE, AsyncHold
from fencing.locks.holding import Grant
from fencing.locks.lease_async import AsyncLease
from fencing.locks.lock_async import AsyncFencedLock
from fencing.locks.reentrant import begun, blocks
from fencing.locks.settings import AsyncLockOptions, check_timeout
from fencing.locks.signatures import show_options


class AsyncSlots:
    """A few slots of one name for asyncio: at most so many holders at once. ``coordinator.slots("gpu", 4)`` makes it.

    Slots do not protect data that their holders share: that needs a lock of its own.

    Each slot is a lock of its own, with a fence of its own: ``lease.slot`` is its number, from 0 on, and
    ``lease.fence.resource`` its name, such as ``"{gpu}#2"``. A guard refuses who has lost a slot as soon as its next
    holder has claimed. As with a lock, two clients can hold the same slot at the same time: only writes through a
    guard are safe.

    Args:
        coordinator: which takes the slots.
        name, count, options: as of :meth:`AsyncCoordinator.slots`.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    # SYNC "so many holders at once.": so many holders at once. Thread-safe.

    __module__ = "fencing"

    _is_reentrant = False

    @show_options(AsyncLockOptions)
    def __init__(
        self, coordinator: CoordinatorBase, name: str, count: int, **options: Unpack[AsyncLockOptions]
    ) -> None:
        self.coordinator = coordinator
        self._backend = backend = coordinator._backend
        self.resource, self.resources = check_slots(name, count, backend.prefix)
        check_slot_options(options)
        settings = settings_of(backend, options, asynchronous=True) if options else backend.settings
        self._settings = check_slot_settings(settings)
        self._key = id(backend), self.resource
        self._keys = frozenset((id(backend), each) for each in self.resources)
        self._lease: Callable[[Grant], AsyncLease] = partial(AsyncLease, backend)

    async def acquire(self, timeout: float | None = None) -> AsyncLease:
        """Wait for a slot, take it, and claim its fence at every guard. Prefer :meth:`hold`, which also releases it.

        Waiters ask again and again, at most every 0.2 seconds. No order is promised. Only data that is read after this
        was awaited is protected.

        If the task is cancelled, the slot is given back first.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries each slot once.

        Raises:
            NotAcquired: no slot was free in time, or newer fences superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        # SYNC "If the task is cancelled ...":
        # SYNC "this was awaited": this returns
        plan = acquire_slot(
            self._backend, self.resource, self.resources, self._settings, check_timeout(timeout), self._lease
        )
        return await run_async(plan, self._backend.perform)

    async def try_acquire(self) -> AsyncLease | None:
        """Try each slot once until one is free, take it, and claim its fence at every guard.

        If the task is cancelled, the slot is given back first.

        Returns:
            The lease; None: no slot was acquired.

        Raises:
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        # SYNC "If the task is cancelled ...":
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    # SYNC instead: def hold(self, timeout: float | None = None, *, at_least: float | None = None) -> SlotHold:
    def hold(
        self, timeout: float | None = None, *, at_least: float | None = None, cancel_on_loss: bool = False
    ) -> AsyncSlotHold:
        """Hold a slot for an ``async with`` block: acquire it, and release it when the block ends.

        An error of the block is raised unchanged. Cancelling the task, even twice, does not prevent the release.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries each slot once.
            at_least: seconds from the grant for which the slot stays taken, also if the block ends before, as with
                :meth:`fencing.AsyncFencedLock.hold`; None: its end frees the slot.
            cancel_on_loss: cancel the block as soon as the lease is known to be lost, and raise LeaseLost.

        Raises:
            LeaseLost: the slot was lost. If ``completed`` is True, the block had run to its end. Other holders may have
                had the slot meanwhile. Writes that guards acknowledged count, so do not simply repeat the block.
            NotAcquired: no slot was free in time, or newer fences superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            TypeError, ValueError: ``at_least`` is refused, as there. Change it as the message says.
        """
        # SYNC "Cancelling the task, even twice, does not prevent the release.":
        # SYNC "cancel_on_loss: ... raise LeaseLost.":
        # SYNC "the slot was lost. If ... its end.": the block raised nothing, but the slot was lost; ``completed`` is
        #     True.
        # SYNC "had the slot meanwhile": had it meanwhile
        if at_least is not None:
            at_least = check_at_least(self._backend, self._settings, at_least)
        # SYNC instead: return SlotHold(self, timeout, at_least)
        return AsyncSlotHold(self, timeout, cancel_on_loss, at_least)

    if not TYPE_CHECKING:  # type checkers report ``async with slots`` themselves

        async def __aenter__(self) -> NoReturn:
            raise TypeError("slots are reusable and are not held themselves; write `async with slots.hold(timeout=5)`")

        async def __aexit__(self, *error: object) -> None: ...  # it is needed to reach __aenter__ and its message

    def __repr__(self) -> str:
        return f"<AsyncSlots of {self.resource!r}, {len(self.resources)}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(NOT_PICKLED)


class AsyncSlotHold(AsyncHold):
    """The context manager that :meth:`fencing.AsyncSlots.hold` returns. Used as ``async with``, once, or as a
    decorator."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncLease:
        """Acquire a slot. Inside a block of another slot of the same name, it is one more.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            RuntimeError: the task holds all slots, in blocks around this one, and would wait for itself for ever.
            TypeError: this object was used before. Call ``hold`` for each block.
        """
        # SYNC "the task holds": the thread holds
        if self._used:
            raise TypeError(TWICE)
        self._used = True
        slots: Any = self._lock
        lease: AsyncLease
        is_own = self._holds_all(slots._keys)
        if is_own and self._timeout is None:
            raise RuntimeError(
                f"this {self._waiter} holds all {len(slots.resources)} slots of {slots.resource!r}, in blocks around "
                f"this one, and would wait for itself for ever; leave one of the blocks, or pass its lease on"
            )
        try:
            self._lease = lease = await slots.acquire(self._timeout)
        except NotAcquired as error:
            if not is_own or error.reason != "held":
                raise
            raise NotAcquired(
                resource=error.resource,
                reason="held",
                waited=error.waited,
                owner=error.owner,
                held_by_this=self._waiter,
                slots=error.slots,
            ) from None
        if self._at_least is not None:
            lease._stay(self._at_least)
        slot = AsyncFencedLock(slots.coordinator, lease.fence.resource)
        slot._settings = slots._settings
        self._lock = slot  # from here on the block is one of that slot's lock
        self._begin(begun(blocks.get()))
        # SYNC instead: return lease
        return self._watched(lease) if self._cancel_on_loss else lease
