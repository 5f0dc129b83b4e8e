"""The async coordinator of a table in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from fencing.coordinator_async import AsyncCoordinator
from fencing.kernel import process
from fencing.locks.settings import AsyncCoordinatorOptions
from fencing.locks.signatures import show_options
from fencing.memory.plans import MemoryPlans
from fencing.memory.table import LockTable, Request


class AsyncMemoryBackend(MemoryPlans):
    """The backend of a table for asyncio."""

    async def perform(self, effect: Request) -> Any:
        """Perform one request at the table."""
        return self.table.ask(effect, self.clock())


class AsyncMemoryCoordinator(AsyncCoordinator):
    """A coordinator whose locks are in this process' memory, for tasks of one process and for tests.

    It does not exclude other processes, and its locks end with this process. Numbers start from the wall clock in
    microseconds, so they are higher than those of an earlier process. It may share a table with a coordinator for
    threads.

    Args:
        table: the table that several coordinators share; None: a table of its own.
        clock: returns seconds since any moment; a test moves a ``fencing.testing.ManualClock`` by hand.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    # SYNC "for tasks of one process": for threads of one process
    # SYNC "for threads.": for asyncio.

    __module__ = "fencing"

    _backend: AsyncMemoryBackend

    @show_options(AsyncCoordinatorOptions)
    def __init__(
        self,
        table: LockTable | None = None,
        *,
        clock: Callable[[], float] = process.now,
        **options: Unpack[AsyncCoordinatorOptions],
    ) -> None:
        super().__init__(AsyncMemoryBackend(table, clock), **options)

    @property
    def table(self) -> LockTable:
        """The table with its locks, for another coordinator that shares it."""
        return self._backend.table
