"""A storage beside the nodes of Redlock: one mark, and the updates in its value. The rule is the kernel's."""

from __future__ import annotations

from typing import NamedTuple

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import Fence, Mark

__all__ = ["LOST", "GuardedStorage", "Storage", "TextbookStorage", "UnguardedStorage"]

LOST = "an acknowledged update is lost"


class Storage(NamedTuple):
    """What is stored, and which updates were acknowledged."""

    mark: Mark | None = None
    value: frozenset[int] = frozenset()
    acknowledged: frozenset[int] = frozenset()


class GuardedStorage:
    """Claims before a read, and checks each write. None: refused."""

    def claim(self, storage: Storage, fence: Fence) -> Storage | None:
        try:
            return storage._replace(mark=admit_claim(storage.mark, fence))
        except StaleFence:
            return None

    def check(self, storage: Storage, fence: Fence) -> Mark | None:
        try:
            return admit_write(storage.mark, fence)
        except (StaleFence, UnclaimedFence):
            return None

    def write(self, storage: Storage, fence: Fence, read: frozenset[int], update: int) -> Storage | None:
        """Write what was read with one more update in it."""
        mark = self.check(storage, fence)
        return None if mark is None else Storage(mark, read | {update}, storage.acknowledged | {update})


class TextbookStorage(GuardedStorage):
    """Without claims: a write is refused if a newer one came before."""

    def claim(self, storage: Storage, fence: Fence) -> Storage | None:
        return storage

    def check(self, storage: Storage, fence: Fence) -> Mark | None:
        is_older = storage.mark is not None and fence.number < storage.mark.number
        return None if is_older else Mark(fence.number, fence.token)


class UnguardedStorage(TextbookStorage):
    """The lock alone."""

    def check(self, storage: Storage, fence: Fence) -> Mark | None:
        return Mark(fence.number, fence.token)
