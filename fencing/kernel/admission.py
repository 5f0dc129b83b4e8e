"""The admission rule. Pure.

A storage keeps one mark per resource: the newest fence it has admitted. Two functions decide everything:
:func:`admit_claim` before a holder reads, :func:`admit_write` when it writes. Every guard, whatever its storage, does
what they say; the SQL and the scripts are the same rule in another language.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencing.kernel.errors import LeaseLost, StaleFence, UnclaimedFence
from fencing.kernel.fence import Fence, HasFence, Mark


def admit_claim(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """The rule for a claim: admitted iff the fence is newer than the mark, or is the mark's own (so a lost reply can
    be retried).

    Args:
        mark: what the storage holds for the resource; None: nothing yet.
        fence: who claims.
        floor: the highest number among marks that were pruned; a claim on an absent mark must exceed it.

    Returns:
        The mark to store. The claimant may read once it is stored, not before.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was admitted. Nothing is to be stored.
    """
    if mark is None:
        if fence.number <= floor:
            raise StaleFence(fence=fence, mark=None, floor=floor)
        return Mark(fence.number, fence.token)
    if mark.is_of(fence):
        return mark
    if fence.number > mark.number:
        return Mark(fence.number, fence.token)
    raise StaleFence(fence=fence, mark=mark)


def admit_write(mark: Mark | None, fence: Fence) -> Mark:
    """The rule for a write: admitted iff the mark is this very fence's. Check and write must be atomic through commit.

    Returns:
        The mark to store with the write: ``seq`` one higher.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was claimed. The holder must stop.
        UnclaimedFence: this fence is newer than the mark and was never claimed here.
    """
    if mark is not None and mark.is_of(fence):
        return Mark(mark.number, mark.token, mark.seq + 1)
    if mark is None or mark.number < fence.number:
        raise UnclaimedFence(fence=fence, mark=mark)
    raise StaleFence(fence=fence, mark=mark)


def as_fence(holder: Fence | HasFence) -> Fence:
    """The fence of a lease, or the fence itself. Guards call it on whatever they are given.

    Raises:
        TypeError: there is no fence in it.
        LeaseLost: it is a lease that was released or detached here; its fence must not be used any more.
    """
    if isinstance(holder, Fence):
        return holder
    fence = getattr(holder, "fence", None)
    if not isinstance(fence, Fence):
        hint = ""
        if isinstance(holder, str):
            hint = "; read its text with Fence.parse first"
        elif isinstance(holder, Iterable):
            hint = "; give several as arguments of their own, one by one"
        elif hasattr(holder, "try_acquire"):
            hint = "; acquire it, and give the lease"
        raise TypeError(f"a guard takes a lease or a Fence, not {type(holder).__name__}{hint}")
    ended = getattr(holder, "ended", None)
    if ended is not None:
        raise LeaseLost(fence=fence, reason=ended)
    return fence


def sorted_fences(holders: Iterable[Fence | HasFence]) -> list[Fence]:
    """The fences of ``holders``, ordered by resource so that two callers lock the marks in the same order.

    Raises:
        TypeError: there is none, or one of them is no fence.
        ValueError: two different fences name the same resource. The same fence twice counts once.
    """
    by_resource: dict[str, Fence] = {}
    for holder in holders:
        fence = as_fence(holder)
        if by_resource.setdefault(fence.resource, fence) != fence:
            raise ValueError(
                f"two different fences were given for the resource {fence.resource!r}; give the newest one"
            )
    if not by_resource:
        raise TypeError("at least one lease or Fence is needed")
    return [by_resource[resource] for resource in sorted(by_resource)]
