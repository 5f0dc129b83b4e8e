"""Sync and async locks in memory behind one face, under a clock that the test moves: no server, and no waiting."""

from __future__ import annotations

import threading
from typing import Any

from fencing import AsyncMemoryCoordinator, LockTable, MemoryCoordinator
from fencing.kernel.retry import NoReply
from fencing.testing import Contract, ManualClock
from tests.support.loops import until


class MemorySide(Contract):
    """Makes coordinators, all sync or all async, with one table and one clock."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.clock = ManualClock()
        self.table = LockTable()
        self.kind: Any = AsyncMemoryCoordinator if asynchronous else MemoryCoordinator
        self._operator = MemoryCoordinator(self.table, clock=self.clock, owner="an operator")

    def coordinator(self, **options: Any) -> Any:
        return self.kind(self.table, clock=self.clock, **options)

    def holder(self, resource: str = "r") -> Any:
        """Return the holder as the table has it. Also for code on the event loop."""
        return self._operator.holder(resource)

    def take_away(self, resource: str = "r") -> None:
        """Free the lock without its holder. Also for code on the event loop."""
        self._operator.force_release(resource)

    def cut_off(self, coordinator: Any) -> None:
        """Leave every further request of this coordinator without an answer."""

        backend = coordinator._backend

        def perform(effect: Any) -> Any:
            raise backend.unanswered("r", NoReply(ConnectionError("the test has cut it off"), may_have_run=False))

        async def perform_async(effect: Any) -> Any:
            perform(effect)

        backend.perform = perform_async if self.asynchronous else perform

    def reconnect(self, coordinator: Any) -> None:
        """End what `cut_off` began."""
        del coordinator._backend.perform


class SlowCoordinator(AsyncMemoryCoordinator):
    """Requests of one kind wait for the test's permission.

    Args:
        slow: which kind: "acquire", "renew", "release" …
    """

    def __init__(self, slow: str, **options: Any) -> None:
        super().__init__(**options)
        self.slow = slow
        self.asked, self.permitted = threading.Event(), threading.Event()  # renewals have a loop of their own
        self._perform, self._backend.perform = self._backend.perform, self._slowly  # type: ignore[method-assign]

    async def _slowly(self, effect: Any) -> Any:
        if effect.operation == self.slow:
            self.asked.set()
            await until(self.permitted.is_set)
        return await self._perform(effect)
