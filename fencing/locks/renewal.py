"""The automatic renewal of leases. One worker per coordinator sends the requests, in batches.

A timer (``kernel/timer.py``, or the event loop) does no I/O. It hands leases whose renewal is due to the worker, and
marks leases whose deadline has passed as lost. So a silent server does not delay that, or the leases of other
coordinators.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fencing.kernel import process
from fencing.kernel.effects import background, call_surely, run, run_async
from fencing.kernel.timer import LINGER_SECONDS, CallAt, timer
from fencing.kernel.workers import PerLoop, Worker
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.causes import why_expired
from fencing.locks.holding import Holding

logger = logging.getLogger("fencing")

YOUNG_SHARE = 1 / 2
"""How long a holding is young, as a share of its attempts' time limit: for at most a sixth of its ttl."""

LEAST_ATTEMPT_SECONDS = 0.1
"""The minimum time limit of one request, however short a lock's ttl is."""


class _Moment:
    """The holdings that must be checked at one moment."""

    __slots__ = ("holdings", "open")

    def __init__(self) -> None:
        self.holdings: set[weakref.ref[Holding]] = set()
        self.open = True  # holdings that are added while this is True will be checked


class _Sorting:
    """A call of the timer that enters the young holdings into the calendar."""

    __slots__ = ("open", "when")

    def __init__(self, when: float) -> None:
        self.when = when
        self.open = True  # holdings that are added while this is True will be entered


class _Calendar:
    """The moments of the holdings, and the young holdings, which have none yet."""

    def __init__(self) -> None:
        self.moments: dict[float, _Moment] = {}
        self.young: set[Holding] = set()
        self.sorting = _Sorting(math.inf)


class _Renewal:
    """The part that sync and async share: the calendar of the holdings.

    Moments lie on a grid, so one call of the timer serves many leases. A lock that is released while it is young never
    gets a moment. A deadline is only watched if the holding is near it, or waits for a renewal.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend: Any = backend  # has plan_renew, or else no renewal is ever due
        self._clock = backend.clock
        self._own_timer: CallAt | None = getattr(backend.clock, "call_at", None)
        self._closed = False
        self._alive: set[weakref.ref[Holding]] = set()
        self._attempt_seconds = math.inf  # a third of the shortest ttl that was ever tracked

    def close(self) -> None:
        """Stop renewal. The deadlines of holdings are still watched."""
        self._closed = True

    def track(self, holding: Holding) -> None:
        """Watch a holding, and renew it, until it ends."""
        calendar = self._calendar()
        holding.young = young = calendar.young
        young.add(holding)
        now = holding.granted_at
        when = now + holding.settings.attempt_seconds * YOUNG_SHARE
        sorting = calendar.sorting
        # Read after the line above: _sort closes it before it looks. If its moment is past, its call may be lost: an
        # exception of a signal handler can hit the event loop itself.
        if not now < sorting.when <= when or not sorting.open:
            self._sort_at(when, calendar)

    def _sort_at(self, when: float, calendar: _Calendar) -> None:
        sorting = _Sorting(when)
        self._call_at(when, self._sort, (calendar, sorting), partial(bool, calendar.young))
        calendar.sorting = sorting

    def _sort(self, calendar: _Calendar, sorting: _Sorting) -> None:
        """Enter the young holdings into the calendar."""
        sorting.open = False
        try:
            for holding in list(calendar.young):
                seconds = holding.settings.attempt_seconds
                if seconds < self._attempt_seconds:
                    self._attempt_seconds = max(seconds, LEAST_ATTEMPT_SECONDS)
                self._schedule(holding)
                calendar.young.discard(holding)
        except BaseException:
            self._sort_at(self._clock() + LEAST_ATTEMPT_SECONDS, calendar)  # the others are still young
            raise

    def held(self) -> list[Holding]:
        """Return the holdings that have not ended."""
        young = [holding for calendar in self._calendars() for holding in list(calendar.young)]
        return [holding for holding in {*young, *_existing(self._alive)} if not holding.has_ended]

    def _schedule(self, holding: Holding) -> None:
        """Enter a holding into the calendar at its next moment."""
        holding.join_calendar(self._alive)
        while not holding.has_ended and holding.settings.ttl is not None:
            when = holding.moment
            if when <= self._clock():
                self._inspect([holding], when)
                return
            moments = self._calendar().moments
            moment = moments.get(when)
            if moment is None:
                created = _Moment()
                holding.join_moment(created.holdings)  # before the call: it is dropped if it finds the moment empty
                # Before the next line: a moment in the calendar always has its call, even if this is interrupted.
                self._call_at(when, self._on_moment, (moments, when, created), partial(bool, created.holdings))
                moment = moments.setdefault(when, created)
            holding.join_moment(moment.holdings)
            if moment.open:  # read after the line above: _on_moment closes the moment before it takes the holdings
                return
            if moments.get(when) is moment:  # its call came before it was in the calendar
                moments.pop(when, None)

    def _on_moment(self, moments: dict[float, _Moment], when: float, moment: _Moment) -> None:
        moment.open = False
        if moments.get(when) is moment:
            moments.pop(when, None)
        self._inspect(_existing(moment.holdings), when)

    def _inspect(self, holdings: list[Holding], when: float) -> None:
        """Hand holdings that are due over for renewal, and watch the deadlines of all."""
        due: list[Holding] = []
        watched = []
        try:
            for holding in holdings:
                if holding.ended is not None:
                    continue
                if holding.moment > when:
                    self._schedule(holding)  # its user renewed it meanwhile
                    continue
                watched.append(holding)
                if holding.due is not None and holding.due <= when:
                    due.append(holding)
                    holding.ask(self._clock())
            self._watch(watched)
            if due and not self._closed:
                self._submit(due)
        except BaseException:
            for holding in due:  # an interruption, or no thread could be started
                self._ask_again(holding)
                self._schedule(holding)
            raise

    def _watch(self, holdings: list[Holding]) -> None:
        if holdings:
            when = min(holding.deadline for holding in holdings)
            references = [weakref.ref(holding) for holding in holdings]
            self._call_at(when, self._deadline_passed, (references,), partial(_any_alive, references))

    def _deadline_passed(self, references: list[weakref.ref[Holding]]) -> None:
        now = self._clock()
        for holding in _existing(references):
            if now >= holding.deadline:
                holding.lose("expired", why_expired(self._backend, holding, now))
            elif holding.due is None or holding.due >= holding.deadline:
                self._schedule(holding)  # the other holdings are in the calendar for an earlier renewal

    def _report_failure(self, holdings: list[Holding]) -> None:
        """Log an unexpected failure of a renewal. The leases are retried until their deadlines."""
        if not self._closed:  # that closes the connections under a renewal, and has released the leases
            logger.error("renewing %d leases failed; they are retried", len(holdings), exc_info=True)
        for holding in holdings:
            self._ask_again(holding)

    def _ask_again(self, holding: Holding) -> None:
        holding.not_renewed(self._clock())
        holding.unanswered_since = None  # it was not for lack of an answer

    def _calendar(self) -> _Calendar:
        raise AssertionError("sync and async have their own")

    def _calendars(self) -> Iterable[_Calendar]:
        raise AssertionError("sync and async have their own")

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        raise AssertionError("sync and async have their own")

    def _submit(self, holdings: list[Holding]) -> None:
        raise AssertionError("sync and async have their own")


def _existing(references: Iterable[weakref.ref[Holding]]) -> list[Holding]:
    return [holding for holding in (reference() for reference in list(references)) if holding is not None]


def _any_alive(references: list[weakref.ref[Holding]]) -> bool:
    return any(holding.ended is None for holding in _existing(references))


class Renewal(_Renewal):
    """The renewal for threads: a thread that starts when a renewal is due, and ends a second after the last."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._worker = Worker("fencing-renewal")
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._alive = set()
        self._one_calendar = _Calendar()
        self._queue: deque[Holding] = deque()

    def _calendar(self) -> _Calendar:
        return self._one_calendar

    def _calendars(self) -> Iterable[_Calendar]:
        return [self._one_calendar]

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        # Weak: a coordinator that only the timer references has no leases, and may be collected.
        call = partial(_call_if_alive, weakref.WeakMethod(method), args)
        (self._own_timer or timer().call_at)(when, call, wanted)

    def _submit(self, holdings: list[Holding]) -> None:
        self._queue.extend(holdings)
        self._worker.wake(self._work)

    def _work(self) -> float | None:
        """Renew all holdings that are due. If there was none for a while, the thread ends."""
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        if not batch:
            return None
        try:
            run(plans.renew_all(self._backend, batch, self._attempt_seconds), self._backend.perform)
        except BaseException:  # noqa: BLE001 - it is logged, and the thread continues
            self._report_failure(batch)
        finally:
            for holding in batch:
                self._schedule(holding)
        return LINGER_SECONDS


class AsyncRenewal(_Renewal):
    """The renewal for asyncio: a task per event loop, which lives while renewals are due."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._of_loops: PerLoop[_LoopCalendar] = PerLoop(lambda _: _LoopCalendar())

    def _calendar(self) -> _LoopCalendar:
        return self._of_loops[asyncio.get_running_loop()]

    def _calendars(self) -> Iterable[_Calendar]:
        return list(self._of_loops.values())

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        # Weak: a coordinator that only the loop's timers reference has no leases, and may be collected.
        loop, call = asyncio.get_running_loop(), partial(_call_if_alive, weakref.WeakMethod(method), args)
        if self._own_timer is not None:
            self._own_timer(when, partial(loop.call_soon_threadsafe, call), wanted)
        else:
            loop.call_later(max(0.0, when - self._clock()), call_surely, loop, call)

    def _submit(self, holdings: list[Holding]) -> None:
        state = self._calendar()
        state.due.extend(holdings)
        if state.task is None or state.task.done():  # done: _done comes later; if a signal interrupts its call, never
            state.due, state.batch = [*state.batch, *state.due], []
            state.task = background(asyncio.get_running_loop(), self._work(state), "fencing-renewal")
            state.task.add_done_callback(partial(self._done, state))

    async def _work(self, state: _LoopCalendar) -> None:
        while state.due:
            state.batch, state.due = state.due, []
            try:
                plan = plans.renew_all(self._backend, state.batch, self._attempt_seconds)
                await run_async(plan, self._backend.perform)
            except Exception:  # noqa: BLE001 - it is logged, and the task continues
                self._report_failure(state.batch)
            for holding in state.batch:
                self._schedule(holding)
            state.batch = []

    def _done(self, state: _LoopCalendar, task: asyncio.Task[None]) -> None:
        """Clean up after the task. If it was cancelled, its leases are due again soon."""
        if state.task is not task:
            return
        state.task = None
        unfinished, state.batch, state.due = [*state.batch, *state.due], [], []
        for holding in unfinished:
            holding.not_renewed(self._clock())
            self._schedule(holding)


def _call_if_alive(method: weakref.WeakMethod[Callable[..., None]], args: tuple[Any, ...]) -> None:
    alive = method()
    if alive is not None:
        alive(*args)


class _LoopCalendar(_Calendar):
    def __init__(self) -> None:
        super().__init__()
        self.due: list[Holding] = []
        self.batch: list[Holding] = []
        self.task: asyncio.Task[Any] | None = None
