# Made from guard_async.py by `make faces`: change that file, not this one.
"""The sync reference guard: marks and data in the memory of one process. Use it in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fencing.kernel.admission import sorted_fences
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from fencing.kernel.waking import Turns, Wake
from storage_guards.blocks import block
from storage_guards.bounds import check_unknown, wait_seconds
from storage_guards.memory.base import MemoryBase
from storage_guards.once import check_once


class MemoryGuard(MemoryBase):
    """A guard that keeps marks and a dict in the memory of this process, for the threads of one process.

    It does **not** outlive the process. It protects nothing outside the process, and nothing that was read before the
    claim.

    Args:
        timeout: the longest wait for another transaction to end, in seconds.
    """

    __module__ = "storage_guards"

    def _reset(self) -> None:
        self._turns = Turns()

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence, all or none. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed, and nothing was changed. Stop.
            GuardUnavailable: another transaction did not end in time. Retry.
        """
        fences = sorted_fences(holders)
        with self._exclusive(fences, wait_seconds(holders, self._timeout, timeout)):
            self._claim(fences)

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it."""
        return self._marks.get(check_resource(resource))

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return None: in memory no outcome is unknown, so this error came from another guard.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the error that a ``write`` or ``begin`` raised.
        """
        check_unknown(error)
        return None

    @block
    def begin(
        self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None
    ) -> Iterator[dict[Any, Any]]:
        """Run one transaction: it is checked first, and is alone on the guard until its end.

        An exception undoes what the block stored in the dict. It does not undo changes inside a stored object, so store
        new values.

        Args:
            holders: leases or fences of all resources that the block writes.
            claim: claim and check at once. It is right only if nothing was read outside the block.
            once: a key of what the block does: at most one block of this resource with this key is ever committed. It
                needs exactly one lease. All keys are kept.

        Returns:
            A context manager; its value is a dict of the data, to read and to change.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here. Pass ``guards=[guard]`` to the lock, or claim first.
            AlreadyDone: a block with this ``once`` was committed before. Go on without it.
            GuardUnavailable: another transaction did not end in time. Retry.
        """
        if once is not None:
            check_once(once, holders)
        fences = sorted_fences(holders)
        with (
            self._exclusive(fences, wait_seconds(holders, self._timeout)),
            self._transaction(holders, fences, claim, once) as data,
        ):
            yield data

    def write(
        self, holder: Fence | HasFence, key: Any, value: Any, *, claim: bool = False, once: str | None = None
    ) -> None:
        """Store one value in a transaction of its own.

        Args:
            holder: a lease or a fence.
            key: where to store the value.
            value: the value.
            claim: claim and write at once. It is right only if the value depends on nothing read before.
            once: as for :meth:`begin`.

        Raises:
            StaleFence, UnclaimedFence, AlreadyDone, GuardUnavailable: as :meth:`begin`.
        """
        with self.begin(holder, claim=claim, once=once) as data:
            data[key] = value

    @contextmanager
    def _exclusive(self, fences: list[Fence], seconds: float) -> Iterator[None]:
        turns, turn = self._turns, Wake()
        try:
            if not turns.take(turn, seconds):
                raise self._unavailable(fences, seconds)
            yield
        finally:
            turns.queue.pop(turn, None)
            turns.wake_first()
