"""The verdict of ``landed`` on a change to a pointer whose reply was lost, and why the verdict is never wrong.

Each write puts a random id of its own in front of the pointer's ``recent_writes``. So these are the latest part of its
history, without a gap. An :class:`~fencing.OutcomeUnknown` carries the ids that would be there if the write had landed.

- **Its id is there: True.** No other write has used that id.
- **An older one is there, but not its own: it has not landed.** Otherwise its id would stand in front of the older one.
- **It would have made the pointer, but another write did: it has not landed,** and cannot: a pointer is never deleted.
- **None of these: None.** Too many writes came after it, or this is not the store it was sent to.

``landed`` says False only of a write that also cannot land later. A write is conditional on one state, and states never
come back. So while the pointer may be in that very state, it is first moved to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencing.kernel.errors import OutcomeUnknown
from storage_guards.objects.pointer import CREATION, KEPT_WRITES, Pointer


def verdict(writes: Sequence[str], now: Pointer | None) -> bool | None:
    """Return whether a write is in the history of the pointer as it is now. None: that cannot be known.

    Args:
        writes: the ids that the pointer would remember if the write had been the last, its own id first.
    """
    if not writes:
        return None
    own, *older = writes
    creates = own.startswith(CREATION)
    if now is None:
        return False if creates else None
    if own in now.recent_writes:
        return True
    if set(older) & set(now.recent_writes):
        return False
    return False if creates and now.recent_writes[-1].startswith(CREATION) else None


def may_still_land(writes: Sequence[str], unknown: OutcomeUnknown, now: Pointer | None) -> bool:
    """Return whether ``now`` may be the very state that the write was conditional on."""
    own, *older = writes
    if own.startswith(CREATION):
        return now is None
    if now is None or tuple(older) != now.recent_writes[: KEPT_WRITES - 1]:
        return False
    fence, mark = unknown.fence, now.mark
    if mark is not None and mark.is_of(fence):
        return mark.readers < fence.number and mark.seq < unknown.seq
    return now.kept.newest < fence.number  # then it would have claimed as well


def verdict_in_place(writes: Sequence[str], now: Sequence[str], versions_return: bool) -> bool | None:
    """Return whether a write in place is in the history of the object as it is now. None: that cannot be known.

    It is False only where a version never comes back and the object has got another one since. Then a write that was
    conditional on the former can never land. A write that was to create the object might land after a deletion.

    Args:
        now: the recent writes in the object's metadata. Empty: it has none, or there is no object.
    """
    if not writes:
        return None
    own, *older = writes
    if own in now:
        return True
    moved_on = bool(older) and older[0] in now[1:]
    return False if moved_on and not versions_return else None
