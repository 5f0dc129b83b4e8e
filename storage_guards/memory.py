"""The reference guard: marks and data in the memory of one process. Use it in tests, and read it to learn how a guard
works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any

from fencing.kernel import process
from fencing.kernel.admission import admit_claim, admit_write, sorted_fences
from fencing.kernel.errors import GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from fencing.kernel.waking import Turns, Wake
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds


class _Memory:
    """The marks, the data and the rule of both memory guards. The caller holds the guard's lock."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        self._timeout = check_timeout(timeout)
        self._marks: dict[str, Mark] = {}
        self._data: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, timeout {self._timeout:g} s>"

    @property
    def data(self) -> Mapping[Any, Any]:
        """The committed data, read-only.

        A holder reads inside :meth:`begin`, or here after its claim. Each access gives a snapshot, which later commits
        do not change.
        """
        return MappingProxyType(self._data)

    def _claim(self, fences: list[Fence]) -> None:
        self._marks.update({fence.resource: admit_claim(self._marks.get(fence.resource), fence) for fence in fences})

    @contextmanager
    def _transaction(self, fences: list[Fence], claim: bool) -> Iterator[dict[Any, Any]]:
        marks, data = dict(self._marks), dict(self._data)
        for fence in fences:
            if claim:
                marks[fence.resource] = admit_claim(marks.get(fence.resource), fence)
            marks[fence.resource] = admit_write(marks.get(fence.resource), fence)
        yield data
        self._marks, self._data = marks, dict(data)

    def _unavailable(self, fences: list[Fence], seconds: float) -> GuardUnavailable:
        resource = fences[0].resource
        return GuardUnavailable(
            f"another transaction kept the memory guard locked for {seconds:.3g} s, so the mark of {resource!r} "
            f"was not reached; retry",
            resource=resource,
        )


class MemoryGuard(_Memory):
    """A guard that keeps marks and a dict in the memory of this process, for the threads of one process.

    It does **not** outlive the process. It protects nothing outside the process, and nothing that was read before the
    claim.

    Args:
        timeout: the longest wait for another transaction to end, in seconds.
    """

    def __init__(self, *, timeout: float = 10.0) -> None:
        super().__init__(timeout=timeout)
        self._reset()
        process.after_fork(self._reset)

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

    @contextmanager
    def begin(self, *holders: Fence | HasFence, claim: bool = False) -> Iterator[dict[Any, Any]]:
        """Run one transaction: it is checked first, and is alone on the guard until its end.

        An exception undoes what the block stored in the dict. It does not undo changes inside a stored object, so store
        new values.

        Args:
            holders: leases or fences of all resources that the block writes.
            claim: claim and check at once. It is right only if nothing was read outside the block.

        Returns:
            A context manager; its value is a dict of the data, to read and to change.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here. Pass ``guards=[guard]`` to the lock, or claim first.
            GuardUnavailable: another transaction did not end in time. Retry.
        """
        fences = sorted_fences(holders)
        with self._exclusive(fences, wait_seconds(holders, self._timeout)), self._transaction(fences, claim) as data:
            yield data

    def write(self, holder: Fence | HasFence, key: Any, value: Any, *, claim: bool = False) -> None:
        """Store one value in a transaction of its own.

        Args:
            holder: a lease or a fence.
            key: where to store the value.
            value: the value.
            claim: claim and write at once. It is right only if the value depends on nothing read before.

        Raises:
            StaleFence, UnclaimedFence, GuardUnavailable: as :meth:`begin`.
        """
        with self.begin(holder, claim=claim) as data:
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


class AsyncMemoryGuard(_Memory):
    """A memory guard for the tasks of one event loop: :class:`MemoryGuard` for asyncio.

    Args:
        timeout: the longest wait for another transaction to end, in seconds.
    """

    def __init__(self, *, timeout: float = 10.0) -> None:
        super().__init__(timeout=timeout)
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = asyncio.Lock()

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
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
        async with self._exclusive(fences, wait_seconds(holders, self._timeout, timeout)):
            self._claim(fences)

    async def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it."""
        return self._marks.get(check_resource(resource))

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return None: in memory no outcome is unknown, so this error came from another guard.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the error that a ``write`` or ``begin`` raised.
        """
        check_unknown(error)
        return None

    @asynccontextmanager
    async def begin(self, *holders: Fence | HasFence, claim: bool = False) -> AsyncIterator[dict[Any, Any]]:
        """Run one transaction: it is checked first, and is alone on the guard until its end.

        An exception undoes what the block stored in the dict. It does not undo changes inside a stored object, so store
        new values.

        Args:
            holders: leases or fences of all resources that the block writes.
            claim: claim and check at once. It is right only if nothing was read outside the block.

        Returns:
            An async context manager; its value is a dict of the data, to read and to change.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here. Pass ``guards=[guard]`` to the lock, or claim first.
            GuardUnavailable: another transaction did not end in time. Retry.
        """
        fences = sorted_fences(holders)
        async with self._exclusive(fences, wait_seconds(holders, self._timeout)):
            with self._transaction(fences, claim) as data:
                yield data

    async def write(self, holder: Fence | HasFence, key: Any, value: Any, *, claim: bool = False) -> None:
        """Store one value in a transaction of its own.

        Args:
            holder: a lease or a fence.
            key: where to store the value.
            value: the value.
            claim: claim and write at once. It is right only if the value depends on nothing read before.

        Raises:
            StaleFence, UnclaimedFence, GuardUnavailable: as :meth:`begin`.
        """
        async with self.begin(holder, claim=claim) as data:
            data[key] = value

    @asynccontextmanager
    async def _exclusive(self, fences: list[Fence], seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):  # wait_for could swallow a cancellation as it returns
                await self._lock.acquire()
        except TimeoutError:
            raise self._unavailable(fences, seconds) from None
        try:
            yield
        finally:
            self._lock.release()
