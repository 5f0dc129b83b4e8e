"""States of pointers as a guard saw them, and the memory of those that it saw last."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from fencing.kernel.fence import Fence, Mark
from storage_guards.kept import Kept
from storage_guards.objects.pointer import Pointer
from storage_guards.objects.requests import Condition, Version

MOST_STORED = 128
"""How many pointers a guard remembers."""

MOST_OBJECTS_STORED = 4096
"""How many objects these may name together."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The pointer as it was read or stored, the condition that it still is so, and when the request for it began."""

    pointer: Pointer | None
    condition: Condition
    at: float

    @property
    def kept(self) -> Kept | None:
        return None if self.pointer is None else self.pointer.kept

    @property
    def mark(self) -> Mark | None:
        return None if self.pointer is None else self.pointer.mark


class StoredPointers:
    """The pointers as this guard object has last stored or read them: states to begin a change from, without a read.

    Such a state may be stale. So it serves only for the condition of a put, and never for an answer or a refusal. It
    is bounded, and needs no lock: a state that is lost costs one read.
    """

    def __init__(self) -> None:
        self._stored: OrderedDict[str, Seen | Mark] = OrderedDict()  # a mark: states with this mark are of no use

    def put(self, seen: Seen) -> None:
        if seen.pointer is None or seen.condition == Version(None, None):  # a reply may have no version
            return
        resource, mark = seen.pointer.resource, seen.mark
        if mark is None:  # no holder has made it, so no holder takes it
            return
        before = self._stored.get(resource)
        known = before.mark if isinstance(before, Seen) else before
        if known is not None and (known.number, known.token) == (mark.number, mark.token):
            is_refused, is_newer = known is before, known.seq > mark.seq  # newer: this thread is a slow one
            if is_refused or is_newer:
                return
        self._replace(resource, seen)

    def take(self, resource: str, fence: Fence) -> Seen | None:
        """Take out the state of a resource if its mark is the fence's own. A change that fails leaves none."""
        seen = self._stored.get(resource)
        if not isinstance(seen, Seen) or seen.mark is None or not seen.mark.is_of(fence):
            return None
        self._stored.pop(resource, None)
        return seen

    def refuse(self, seen: Seen) -> None:
        """Remember no more states with this mark: it was stale once, so others write under the same fence."""
        if seen.pointer is not None and seen.mark is not None:
            self._replace(seen.pointer.resource, seen.mark)

    def _replace(self, resource: str, stored: Seen | Mark) -> None:
        self._stored.pop(resource, None)
        self._stored[resource] = stored
        while True:
            states = list(self._stored.values())
            if len(states) <= MOST_STORED and sum(map(_objects_in, states)) <= MOST_OBJECTS_STORED:
                return
            try:
                self._stored.popitem(last=False)
            except KeyError:  # another thread has taken the last one
                return


def _objects_in(stored: Seen | Mark) -> int:
    published = None if isinstance(stored, Mark) or stored.pointer is None else stored.pointer.published
    return 0 if published is None or published.objects is None else len(published.objects)
