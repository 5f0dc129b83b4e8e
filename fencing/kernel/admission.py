"""The admission rule, as pure functions.

A storage keeps one mark per resource: the newest fence it has admitted. Two functions make all decisions:
:func:`admit_claim` before a holder reads, :func:`admit_write` when it writes. Every guard follows them. The SQL of the
guards is the same rule in another language.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencing.kernel.errors import LeaseLost, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER, Fence, HasFence, Mark

PLAUSIBLE_STEP = 2**49
"""How far above the clock, in microseconds, a number is still plausible at a storage: 17 years. It is half of what a
coordinator may lift its counter by (``fencing.locks.backend``), because clocks differ. So a new fence can exceed it."""


def admit_claim(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """Apply the rule for a claim. It is admitted if the fence is newer than the mark, or is the mark's own fence, and
    if it is newer than each reader.

    A claim whose reply was lost can therefore be repeated.

    Args:
        mark: the storage's mark for the resource; None: there is none, or no holder's yet.
        fence: the fence that claims.
        floor: the highest number among pruned marks, and of a reader where there was no holder yet. A claim where there
            is no mark must exceed it.

    Returns:
        The mark to store. The holder may read after it is stored, not before.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was admitted, or a newer reader. Store
            nothing.
    """
    if mark is None:
        if fence.number <= floor:
            raise StaleFence(fence=fence, mark=None, floor=floor)
        return Mark(fence.number, fence.token)
    if mark.is_of(fence) and fence.number > mark.readers:
        return mark
    if fence.number > mark.newest:
        return Mark(fence.number, fence.token, 0, mark.readers)
    raise StaleFence(fence=fence, mark=mark)


def admit_write(mark: Mark | None, fence: Fence) -> Mark:
    """Apply the rule for a write. It is admitted if the mark is this fence's own, and it is newer than each reader.

    The storage must keep check and write atomic through the commit.

    Returns:
        The mark to store with the write: its ``seq`` is one higher.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was claimed, or a newer reader was
            admitted. The holder must stop.
        UnclaimedFence: this fence is newer than the mark and was never claimed here. Claim before reading.
    """
    if mark is not None and mark.is_of(fence) and fence.number > mark.readers:
        return Mark(mark.number, mark.token, mark.seq + 1, mark.readers)
    if mark is None or mark.newest < fence.number:
        raise UnclaimedFence(fence=fence, mark=mark)
    raise StaleFence(fence=fence, mark=mark)


def highest_plausible(clock_us: int, step: int = PLAUSIBLE_STEP) -> int:
    """Return the highest number that a coordinator can have minted by now, within the errors of clocks.

    Args:
        clock_us: the clock of the storage, or of its program, in microseconds.
        step: how far above it a number may be, in microseconds.
    """
    return min(clock_us + step, MAX_NUMBER - 1)


def as_fence(holder: Fence | HasFence) -> Fence:
    """Return the fence of a lease, or the fence itself. Guards call it on each argument.

    Raises:
        TypeError: the argument has no fence. Pass a lease or a Fence.
        LeaseLost: the lease was released or detached here. Stop; its fence must not be used any more.
    """
    if isinstance(holder, Fence):
        return holder
    fence = getattr(holder, "fence", None)
    if not isinstance(fence, Fence):
        hint = ""
        if holder is None:
            hint = "; try_acquire() returns None where the lock was not acquired"
        elif isinstance(holder, str):
            hint = "; convert its text with Fence.parse first; or hold the lock of that name, and pass the lease"
        elif isinstance(holder, Iterable):
            hint = "; pass several as separate arguments"
        elif hasattr(holder, "try_acquire"):
            hint = "; acquire the lock, and pass the lease"
        elif hasattr(holder, "__enter__") or hasattr(holder, "__aenter__"):
            hint = "; write `with … as lease:`, and pass the lease"
        raise TypeError(f"a guard takes a lease or a Fence, not {type(holder).__name__}{hint}")
    ended = getattr(holder, "_ended", None)
    if ended is not None:
        raise LeaseLost(fence=fence, reason=ended)
    return fence


def sorted_fences(holders: Iterable[Fence | HasFence]) -> list[Fence]:
    """Return the fences of ``holders``, ordered by resource, so that all callers lock the marks in the same order.

    The same fence twice counts once.

    Raises:
        TypeError: there is none, or one of them has no fence. Pass leases or Fences.
        ValueError: two different fences are of the same resource. Pass the newest one.
    """
    by_resource: dict[str, Fence] = {}
    for holder in holders:
        fence = as_fence(holder)
        if by_resource.setdefault(fence.resource, fence) != fence:
            raise ValueError(
                f"two different fences were passed for the resource {fence.resource!r}; pass the newest one"
            )
    if not by_resource:
        raise TypeError("at least one lease or Fence is needed")
    return [by_resource[resource] for resource in sorted(by_resource)]
