"""The background in which locks are given back that a request may have taken, but that nobody got.

The requests were interrupted, or got no answer. They may still run: a frozen server works them off when it continues.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Generator
from typing import Any

from fencing.kernel import process
from fencing.kernel.effects import background, run, run_async
from fencing.kernel.errors import FencingError
from fencing.kernel.retry import Backoff
from fencing.kernel.workers import PerLoop, Worker
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.holding import GrantOrFence
from fencing.locks.settings import Settings

logger = logging.getLogger("fencing")

SHORTEST_TRYING_SECONDS = 60.0
LONGEST_TRYING_SECONDS = 3600.0
"""For how long a lock is tried to be given back: its ttl, within these limits."""

MOST_LOCKS = 1000
"""How many locks wait to be given back. Further ones are freed by their ttl."""

ANSWERS = 2
"""How many releases must be answered. A late request may run beside the first one, but not after the second."""

PAUSES = Backoff(first=0.1, longest=5.0)

LATE_SECONDS = 1.0
"""The pause before a release that is to come behind a late request: one to a database may wait for a row meanwhile."""


def log_unreleased(resources: list[str]) -> None:
    """Log the locks that a coordinator could not release when it was closed, or had to release all."""
    if resources:
        logger.warning(
            "at the end of a coordinator %d locks were held that could not be released, such as %r; "
            "each frees itself when its ttl is over",
            len(resources),
            resources[0],
        )


class _Pending:
    """A lock that must be given back."""

    def __init__(self, grant: GrantOrFence, settings: Settings, free_at: float | None = None) -> None:
        self.grant = grant
        self._free_at = free_at
        self.settings = settings.for_one_try()
        self._until = time.monotonic() + min(max(settings.ttl or 0.0, SHORTEST_TRYING_SECONDS), LONGEST_TRYING_SECONDS)
        self._answers = 0
        self._failures = 0

    def plan(self, backend: Backend) -> Generator[Any, Any, None]:
        """Release it once more."""
        deadline = backend.clock() + self.settings.attempt_seconds
        try:
            yield from plans.release(backend, self.grant, self.settings, deadline, self._free_at)
            self._answers += 1
            self._failures = 0
        except FencingError:
            self._failures += 1

    @property
    def is_done(self) -> bool:
        return self._answers >= ANSWERS or time.monotonic() > self._until

    @property
    def pause(self) -> float:
        return PAUSES.pause(self._failures) if self._failures else LATE_SECONDS


class GiveBack:
    """The background for threads: a thread that lives while there are locks to give back."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._worker = Worker("fencing-give-back")
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._pending: dict[tuple[str, str], _Pending] = {}  # by resource and token

    def later(self, grant: GrantOrFence, settings: Settings, free_at: float | None = None) -> None:
        """Give back a lock, which stays taken until ``free_at`` if that is given. This returns at once."""
        if len(self._pending) >= MOST_LOCKS or sys.is_finalizing():
            return
        self._pending[grant.resource, grant.token] = _Pending(grant, settings, free_at)
        try:
            self._worker.wake(self._work)
        except RuntimeError:
            pass  # the interpreter is ending

    def _work(self) -> float | None:
        for key, pending in list(self._pending.items()):
            try:
                run(pending.plan(self._backend), self._backend.perform)
            except BaseException:  # noqa: BLE001 - the ttl frees the lock
                self._pending.pop(key, None)
            if pending.is_done:
                self._pending.pop(key, None)
        return min((pending.pause for pending in list(self._pending.values())), default=None)


class AsyncGiveBack:
    """The background for asyncio: a task for each lock."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tasks: PerLoop[set[asyncio.Task[None]]] = PerLoop(lambda _: set())  # a closed loop ends no task

    def later(self, grant: GrantOrFence, settings: Settings, free_at: float | None = None) -> None:
        """Give back a lock, which stays taken until ``free_at`` if that is given. This returns at once."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a loop that has ended, or another thread
        tasks = self._tasks[loop]
        if len(tasks) < MOST_LOCKS:
            task = background(loop, self._work(_Pending(grant, settings, free_at)), "fencing-give-back")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _work(self, pending: _Pending) -> None:
        while not pending.is_done:
            try:
                await run_async(pending.plan(self._backend), self._backend.perform)
            except Exception:  # noqa: BLE001 - such as of a closed loop; the ttl frees the lock
                return
            if not pending.is_done:
                await asyncio.sleep(pending.pause)
