"""``hold_all``: several locks at once. ``several.py`` decides how they are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, overload

from fencing.locks.hold_several import HoldAll
from fencing.locks.hold_several_async import AsyncHoldAll
from fencing.locks.lock import FencedLock
from fencing.locks.lock_async import AsyncFencedLock
from fencing.locks.several import INSTEAD_OF_SLOTS, check_locks


@overload
def hold_all(locks: Iterable[FencedLock], timeout: float | None = None) -> HoldAll: ...
@overload
def hold_all(locks: Iterable[AsyncFencedLock], timeout: float | None = None) -> AsyncHoldAll: ...
def hold_all(locks: Iterable[Any], timeout: float | None = None) -> HoldAll | AsyncHoldAll:
    """Hold several locks for a ``with`` block: all of them or none. They may be of different coordinators.

    The locks are taken in one order, whatever order is given, so that two callers never wait for each other in a
    circle. This holds among callers of ``hold_all``. A ``hold`` inside another ``hold`` makes an order of its own: give
    it a time-out. Fences are claimed at the guards when all locks are held, so read after that.

    Args:
        locks: 1 to 100 locks, either all sync or all async, each with its own options. Each lock once.
        timeout: seconds to wait for all of them together, claims included; None waits for ever, 0 tries each once.

    Returns:
        A context manager: ``with`` for sync locks, ``async with`` for async ones. Its value is a tuple of the leases,
        in the order of ``locks``.

    Raises:
        LeaseLost: the block raised nothing, but one of the locks was lost; ``completed`` is True. Writes that guards
            acknowledged count, so do not simply repeat the block.
        NotAcquired: not all locks were free in time, or newer fences superseded a grant. None is held. Try later.
        CoordinatorUnavailable, GuardUnavailable: no answer in time; all locks were given back. Retry.
        MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    given = check_locks(_given(locks))
    return AsyncHoldAll(given, timeout) if isinstance(given[0], AsyncFencedLock) else HoldAll(given, timeout)


def _given(locks: Any) -> list[Any]:
    if isinstance(locks, (str, bytes, Set, Mapping)) or not isinstance(locks, Iterable):
        raise TypeError(f"hold_all takes a list of locks, not {type(locks).__name__}")
    given = list(locks)
    for each in given:
        if not isinstance(each, (FencedLock, AsyncFencedLock)):
            hint = "; coordinator.hold_all takes names" if isinstance(each, str) else ""
            if type(each).__name__ in ("Slots", "AsyncSlots"):  # which slot it will be is not known before
                hint = INSTEAD_OF_SLOTS
            raise TypeError(f"hold_all takes locks, such as coordinator.lock(name), not {type(each).__name__}{hint}")
    if len({type(each) for each in given}) > 1:
        raise TypeError("hold_all takes either sync or async locks, not both")
    return given
