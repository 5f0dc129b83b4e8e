"""Leases that renew themselves: when, in which batches, and what follows. One worker per coordinator does the asking.

A timer (``fencing.timer``, or the event loop) does no I/O: it hands leases whose renewal is due to the worker, and
declares lost whose deadline has passed. So a silent server delays neither the news nor another coordinator's leases.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fencing import plans
from fencing.coordinator import AsyncCoordinator, Coordinator, CoordinatorPlans, Grant, Settings
from fencing.effects import run, run_async
from fencing.holding import Handle, Holding
from fencing.timer import LINGER_SECONDS, timer

__all__ = ["AsyncRenewal", "Renewal"]

logger = logging.getLogger("fencing")

LEAST_ATTEMPT_SECONDS = 0.1
"""What one request gets at the least, however short some lock's ttl is."""


class _Renewal:
    """What both colours share: the calendar of a holding."""

    def __init__(self, coordinator: CoordinatorPlans) -> None:
        self._clock = coordinator.clock
        self._closed = False
        self._attempt_seconds = float("inf")  # a third of the shortest ttl that was ever kept

    def close(self) -> None:
        """Renew no more. The deadlines of what is held are still watched."""
        self._closed = True

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant from now on, and renew it, until it ends."""
        self._attempt_seconds = min(self._attempt_seconds, max(settings.attempt_seconds, LEAST_ATTEMPT_SECONDS))
        holding = Holding(grant, settings, self._clock())
        self._schedule(holding)
        return holding

    def _schedule(self, holding: Holding) -> None:
        """The next moment at which something is to be done: a renewal, or the end of the lease."""
        if holding.fate is None and holding.settings.ttl is not None:
            when = holding.deadline if holding.due is None else min(holding.due, holding.deadline)
            holding.timer = self._call_at(when, partial(self._tick, holding))
            if holding.fate is not None:  # it ended meanwhile, and did not see the timer
                holding.timer.cancel()

    def _tick(self, holding: Holding) -> None:
        now = self._clock()
        if now >= holding.deadline:
            holding.lose("expired")
        elif holding.due is not None and now >= holding.due:
            holding.due = None  # on its way; the deadline is watched all the same
            self._schedule(holding)
            if not self._closed:
                self._submit(holding)
        else:
            self._schedule(holding)

    def _reschedule(self, holdings: list[Holding]) -> None:
        for holding in holdings:
            timer, holding.timer = holding.timer, None
            if timer is not None:
                timer.cancel()
            self._schedule(holding)

    def _failed(self, holdings: list[Holding]) -> None:
        """Renewing broke in a way nobody foresaw. The leases are tried again until their deadlines."""
        logger.error("renewing %d leases failed; they are tried again", len(holdings), exc_info=True)
        for holding in holdings:
            holding.not_renewed(self._clock())

    def _call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        raise AssertionError("each colour has its own")

    def _submit(self, holding: Holding) -> None:
        raise AssertionError("each colour has its own")


class Renewal(_Renewal):
    """For threads: a daemon thread, which starts when a renewal is due, and ends a second after the last one."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator)
        self._coordinator = coordinator
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._queue: deque[Holding] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._awake = False  # the thread will look at the queue again without being told

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        if os.getpid() != self._pid:
            self._reset()
        return super().keep(grant, settings)

    def _call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        return timer().call_at(when, callback)

    def _submit(self, holding: Holding) -> None:
        self._queue.append(holding)
        if self._awake:
            return
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="fencing-renewal", daemon=True)
                thread.start()
                self._thread = thread
            else:
                self._changed.notify()
            self._awake = True

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                run(plans.renew_all(self._coordinator, batch, self._attempt_seconds), self._coordinator.perform)
            except BaseException:  # noqa: BLE001 - it is logged, and the thread goes on
                self._failed(batch)
            finally:
                self._reschedule(batch)

    def _next_batch(self) -> list[Holding]:
        """All that is due; empty: nothing has been due for a while, and the thread ends."""
        with self._changed:
            self._awake = False
            if not self._queue:  # looked at after the line above: who submits in between, wakes
                self._changed.wait(LINGER_SECONDS)
            batch = [self._queue.popleft() for _ in range(len(self._queue))]
            self._awake = bool(batch)
            if not batch:
                self._thread = None
            return batch


class AsyncRenewal(_Renewal):
    """For asyncio: a task per event loop, which lives while renewals are due."""

    def __init__(self, coordinator: AsyncCoordinator) -> None:
        super().__init__(coordinator)
        self._coordinator = coordinator
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = weakref.WeakKeyDictionary()

    def _call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        return asyncio.get_running_loop().call_later(max(0.0, when - self._clock()), callback)

    def _submit(self, holding: Holding) -> None:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            mine = self._loops[loop] = _LoopQueue()
        mine.due.append(holding)
        if mine.task is None:
            mine.task = loop.create_task(self._work(mine), name="fencing-renewal")
            mine.task.add_done_callback(partial(self._done, mine))

    async def _work(self, mine: _LoopQueue) -> None:
        while mine.due:
            mine.batch, mine.due = mine.due, []
            try:
                plan = plans.renew_all(self._coordinator, mine.batch, self._attempt_seconds)
                await run_async(plan, self._coordinator.perform)
            except Exception:  # noqa: BLE001 - it is logged, and the task goes on
                self._failed(mine.batch)
            self._reschedule(mine.batch)
            mine.batch = []

    def _done(self, mine: _LoopQueue, task: asyncio.Task[None]) -> None:
        """The task has ended; if it was cancelled (somebody cancels all tasks), its leases are due again soon."""
        mine.task = None
        unfinished, mine.batch, mine.due = [*mine.batch, *mine.due], [], []
        for holding in unfinished:
            holding.not_renewed(self._clock())
        self._reschedule(unfinished)


class _LoopQueue:
    def __init__(self) -> None:
        self.due: list[Holding] = []
        self.batch: list[Holding] = []
        self.task: asyncio.Task[Any] | None = None
