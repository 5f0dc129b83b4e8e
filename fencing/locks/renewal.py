"""Leases that renew themselves: when, in which batches, and what follows. One worker per coordinator does the asking.

A timer (``timer.py``, or the event loop) does no I/O: it hands leases whose renewal is due to the worker, and
declares lost whose deadline has passed. So a silent server delays neither the news nor another coordinator's leases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fencing.kernel import process
from fencing.kernel.effects import run, run_async
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.holding import Grant, Holding
from fencing.locks.settings import Settings
from fencing.locks.timer import LINGER_SECONDS, CallAt, timer

logger = logging.getLogger("fencing")

LEAST_ATTEMPT_SECONDS = 0.1
"""What one request gets at the least, however short some lock's ttl is."""


class _Moment:
    """The holdings that are to be looked at at one moment."""

    __slots__ = ("holdings", "open")

    def __init__(self) -> None:
        self.holdings: set[Holding] = set()
        self.open = True  # what is added while it is will be seen


class _Renewal:
    """What sync and async share: the calendar of the holdings.

    Moments lie on a grid, so one call of the timer serves many leases, and a lock that is released before its first
    moment costs none. Only what is still held near its deadline, or waits for a renewal, has its deadline watched.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend: Any = backend  # with plan_renew, or nothing is ever due
        self._clock = backend.clock
        self._own_timer: CallAt | None = getattr(backend.clock, "call_at", None)
        self._closed = False
        self._attempt_seconds = float("inf")  # a third of the shortest ttl that was ever tracked

    def close(self) -> None:
        """Renew no more. The deadlines of what is held are still watched."""
        self._closed = True

    def track(self, grant: Grant, settings: Settings) -> Holding:
        """Watch a grant from now on, and renew it, until it ends."""
        if settings.attempt_seconds < self._attempt_seconds:
            self._attempt_seconds = max(settings.attempt_seconds, LEAST_ATTEMPT_SECONDS)
        holding = Holding(grant, settings, self._clock())
        self._enter(holding)
        return holding

    def _enter(self, holding: Holding) -> None:
        """Into the calendar, at its next moment."""
        while holding.ended is None and holding.settings.ttl is not None:
            when = holding.moment
            if when <= self._clock():
                self._look([holding], when)
                return
            calendar = self._calendar()
            moment = calendar.get(when)
            if moment is None:
                mine = _Moment()
                moment = calendar.setdefault(when, mine)
                if moment is mine:
                    self._call_at(when, self._now, (calendar, when), partial(bool, mine.holdings))
            holding.due_together = moment.holdings
            moment.holdings.add(holding)
            if moment.open:  # looked at after the line above: who takes the holdings out, closes first
                return

    def _now(self, calendar: dict[float, _Moment], when: float) -> None:
        moment = calendar.pop(when)
        moment.open = False
        self._look(list(moment.holdings), when)

    def _look(self, holdings: list[Holding], when: float) -> None:
        """What is due is handed over for renewal; what is near its deadline is watched."""
        due, watched = [], []
        for holding in holdings:
            if holding.ended is not None:
                continue
            if holding.moment > when:
                self._enter(holding)  # its user has renewed it meanwhile
                continue
            watched.append(holding)
            if holding.due is not None and holding.due <= when:
                holding.due = None  # on its way
                due.append(holding)
        self._watch(watched)
        if due and not self._closed:
            self._submit(due)

    def _watch(self, holdings: list[Holding]) -> None:
        if holdings:
            when = min(holding.deadline for holding in holdings)
            self._call_at(when, self._deadline_passed, (holdings,), partial(_any_alive, holdings))

    def _deadline_passed(self, holdings: list[Holding]) -> None:
        now = self._clock()
        for holding in holdings:
            if now >= holding.deadline:
                holding.lose("expired")
            elif holding.due is None or holding.due >= holding.deadline:
                self._enter(holding)  # the others are in the calendar for a renewal, which comes first

    def _failed(self, holdings: list[Holding]) -> None:
        """Renewing broke in a way nobody foresaw. The leases are tried again until their deadlines."""
        logger.error("renewing %d leases failed; they are tried again", len(holdings), exc_info=True)
        for holding in holdings:
            holding.not_renewed(self._clock())

    def _calendar(self) -> dict[float, _Moment]:
        raise AssertionError("sync and async have their own")

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        raise AssertionError("sync and async have their own")

    def _submit(self, holdings: list[Holding]) -> None:
        raise AssertionError("sync and async have their own")


def _any_alive(holdings: list[Holding]) -> bool:
    return any(holding.ended is None for holding in holdings)


class Renewal(_Renewal):
    """For threads: a daemon thread, which starts when a renewal is due, and ends a second after the last one."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._entries: dict[float, _Moment] = {}
        self._queue: deque[Holding] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._awake = False  # the thread will look at the queue again without being told

    def _calendar(self) -> dict[float, _Moment]:
        return self._entries

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        (self._own_timer or timer().call_at)(when, partial(method, *args), wanted)

    def _submit(self, holdings: list[Holding]) -> None:
        self._queue.extend(holdings)
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
                run(plans.renew_all(self._backend, batch, self._attempt_seconds), self._backend.perform)
            except BaseException:  # noqa: BLE001 - it is logged, and the thread goes on
                self._failed(batch)
            finally:
                for holding in batch:
                    self._enter(holding)

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

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfOneLoop] = weakref.WeakKeyDictionary()

    def _mine(self) -> _OfOneLoop:
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            mine = self._loops[loop] = _OfOneLoop()
        return mine

    def _calendar(self) -> dict[float, _Moment]:
        return self._mine().entries

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        # Weakly: no lease is left of a coordinator that only the loop remembers.
        loop, call = asyncio.get_running_loop(), partial(_call_if_alive, weakref.WeakMethod(method), args)
        if self._own_timer is not None:
            self._own_timer(when, partial(loop.call_soon_threadsafe, call), wanted)
        else:
            loop.call_later(max(0.0, when - self._clock()), call)

    def _submit(self, holdings: list[Holding]) -> None:
        mine = self._mine()
        mine.due.extend(holdings)
        if mine.task is None:
            mine.task = asyncio.get_running_loop().create_task(self._work(mine), name="fencing-renewal")
            mine.task.add_done_callback(partial(self._done, mine))

    async def _work(self, mine: _OfOneLoop) -> None:
        while mine.due:
            mine.batch, mine.due = mine.due, []
            try:
                plan = plans.renew_all(self._backend, mine.batch, self._attempt_seconds)
                await run_async(plan, self._backend.perform)
            except Exception:  # noqa: BLE001 - it is logged, and the task goes on
                self._failed(mine.batch)
            for holding in mine.batch:
                self._enter(holding)
            mine.batch = []

    def _done(self, mine: _OfOneLoop, task: asyncio.Task[None]) -> None:
        """The task has ended; if it was cancelled (somebody cancels all tasks), its leases are due again soon."""
        mine.task = None
        unfinished, mine.batch, mine.due = [*mine.batch, *mine.due], [], []
        for holding in unfinished:
            holding.not_renewed(self._clock())
            self._enter(holding)


def _call_if_alive(method: weakref.WeakMethod[Callable[..., None]], args: tuple[Any, ...]) -> None:
    alive = method()
    if alive is not None:
        alive(*args)


class _OfOneLoop:
    def __init__(self) -> None:
        self.entries: dict[float, _Moment] = {}
        self.due: list[Holding] = []
        self.batch: list[Holding] = []
        self.task: asyncio.Task[Any] | None = None
