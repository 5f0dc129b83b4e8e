# Made from slots_async.py by `make faces`: change that file, not this one.
"""Async slots: a few locks of one name, of which any will do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from fencing.kernel.effects import run
from fencing.kernel.errors import NotAcquired
from fencing.locks.any_slot import acquire_slot, check_slot_options, check_slot_settings, check_slots
from fencing.locks.arguments import NOT_PICKLED, settings_of
from fencing.locks.capabilities import check_at_least
from fencing.locks.coordinator import CoordinatorBase
from fencing.locks.hold import TWICE, Hold
from fencing.locks.holding import Grant
from fencing.locks.lease import Lease
from fencing.locks.lock import FencedLock
from fencing.locks.reentrant import begun, blocks
from fencing.locks.settings import LockOptions, check_timeout
from fencing.locks.signatures import show_options


class Slots:
    """A few slots of one name: at most so many holders at once. Thread-safe. ``coordinator.slots("gpu", 4)`` makes it.

    Slots do not protect data that their holders share: that needs a lock of its own.

    Each slot is a lock of its own, with a fence of its own: ``lease.slot`` is its number, from 0 on, and
    ``lease.fence.resource`` its name, such as ``"{gpu}#2"``. A guard refuses who has lost a slot as soon as its next
    holder has claimed. As with a lock, two clients can hold the same slot at the same time: only writes through a
    guard are safe.

    Args:
        coordinator: which takes the slots.
        name, count, options: as of :meth:`Coordinator.slots`.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    __module__ = "fencing"

    _is_reentrant = False

    @show_options(LockOptions)
    def __init__(self, coordinator: CoordinatorBase, name: str, count: int, **options: Unpack[LockOptions]) -> None:
        self.coordinator = coordinator
        self._backend = backend = coordinator._backend
        self.resource, self.resources = check_slots(name, count, backend.prefix)
        check_slot_options(options)
        settings = settings_of(backend, options, asynchronous=False) if options else backend.settings
        self._settings = check_slot_settings(settings)
        self._key = id(backend), self.resource
        self._keys = frozenset((id(backend), each) for each in self.resources)
        self._lease: Callable[[Grant], Lease] = partial(Lease, backend)

    def acquire(self, timeout: float | None = None) -> Lease:
        """Wait for a slot, take it, and claim its fence at every guard. Prefer :meth:`hold`, which also releases it.

        Waiters ask again and again, at most every 0.2 seconds. No order is promised. Only data that is read after this
        returns is protected.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries each slot once.

        Raises:
            NotAcquired: no slot was free in time, or newer fences superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        plan = acquire_slot(
            self._backend, self.resource, self.resources, self._settings, check_timeout(timeout), self._lease
        )
        return run(plan, self._backend.perform)

    def try_acquire(self) -> Lease | None:
        """Try each slot once until one is free, take it, and claim its fence at every guard.

        Returns:
            The lease; None: no slot was acquired.

        Raises:
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        """
        try:
            return self.acquire(timeout=0)
        except NotAcquired:
            return None

    def hold(self, timeout: float | None = None, *, at_least: float | None = None) -> SlotHold:
        """Hold a slot for a ``with`` block: acquire it, and release it when the block ends.

        An error of the block is raised unchanged.

        Args:
            timeout: seconds to wait, claims included; None waits for ever, 0 tries each slot once.
            at_least: seconds from the grant for which the slot stays taken, also if the block ends before, as with
                :meth:`fencing.FencedLock.hold`; None: its end frees the slot.

        Raises:
            LeaseLost: the block raised nothing, but the slot was lost; ``completed`` is True. Other holders may have
                had it meanwhile. Writes that guards acknowledged count, so do not simply repeat the block.
            NotAcquired: no slot was free in time, or newer fences superseded each grant. Try later.
            CoordinatorUnavailable, GuardUnavailable: no answer in time; the slot was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            TypeError, ValueError: ``at_least`` is refused, as there. Change it as the message says.
        """
        if at_least is not None:
            at_least = check_at_least(self._backend, self._settings, at_least)
        return SlotHold(self, timeout, at_least)

    if not TYPE_CHECKING:  # type checkers report ``with slots`` themselves

        def __enter__(self) -> NoReturn:
            raise TypeError("slots are reusable and are not held themselves; write `with slots.hold(timeout=5)`")

        def __exit__(self, *error: object) -> None: ...  # it is needed to reach __enter__ and its message

    def __repr__(self) -> str:
        return f"<Slots of {self.resource!r}, {len(self.resources)}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(NOT_PICKLED)


class SlotHold(Hold):
    """The context manager that :meth:`fencing.Slots.hold` returns. Used as ``with``, once, or as a decorator."""

    __slots__ = ()

    def __enter__(self) -> Lease:
        """Acquire a slot. Inside a block of another slot of the same name, it is one more.

        Raises:
            NotAcquired, CoordinatorUnavailable, GuardUnavailable, MarkImplausible, GuardNotEnforceable: as ``acquire``.
            RuntimeError: the thread holds all slots, in blocks around this one, and would wait for itself for ever.
            TypeError: this object was used before. Call ``hold`` for each block.
        """
        if self._used:
            raise TypeError(TWICE)
        self._used = True
        slots: Any = self._lock
        lease: Lease
        is_own = self._holds_all(slots._keys)
        if is_own and self._timeout is None:
            raise RuntimeError(
                f"this {self._waiter} holds all {len(slots.resources)} slots of {slots.resource!r}, in blocks around "
                f"this one, and would wait for itself for ever; leave one of the blocks, or pass its lease on"
            )
        try:
            self._lease = lease = slots.acquire(self._timeout)
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
        slot = FencedLock(slots.coordinator, lease.fence.resource)
        slot._settings = slots._settings
        self._lock = slot  # from here on the block is one of that slot's lock
        self._begin(begun(blocks.get()))
        return lease
