"""The automatic renewal of leases, in batches.

A timer (``kernel/timer.py``) does no I/O. It hands leases whose renewal is due to workers, and marks
leases whose deadline has passed as lost. So a silent server does not delay that, or the leases of other coordinators.

Leases with similar ttls share a lane, and each lane has its own workers: see ``fencing/locks/lanes.py``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fencing.kernel import process, quirks
from fencing.kernel.effects import background, run, run_async
from fencing.kernel.loop_thread import LoopThread
from fencing.kernel.timer import LINGER_SECONDS, CallAt, timer
from fencing.kernel.workers import PerLoop
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.capabilities import RenewsSeveralTtls
from fencing.locks.causes import why_expired
from fencing.locks.holding import Grant
from fencing.locks.lanes import MOST_AT_ONCE, LoopLane, ThreadLane, by_lane
from fencing.locks.pulse import Pulse

logger = logging.getLogger("fencing")

YOUNG_SHARE = 1 / 2
"""How long a holding is young, as a share of its attempts' time limit: for at most a sixth of its ttl."""

RESORT_SECONDS = 0.1
"""How long after an interruption the young holdings are sorted again."""


class _Moment:
    """The holdings that must be checked at one moment."""

    __slots__ = ("holdings", "open")

    def __init__(self) -> None:
        self.holdings: set[weakref.ref[Grant]] = set()
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
        self.young: set[Grant] = set()
        self.sorting = _Sorting(math.inf)


class _Renewal:
    """The part that sync and async share: the calendar of the holdings.

    Leases share moments: see ``fencing/locks/grid.py``. So one call of the timer serves many. A lock that is released
    while it is young never gets a moment. A deadline is only watched if the holding is near it, or waits for a renewal.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend: Any = backend  # has plan_renew, or else no renewal is ever due
        self._clock = backend.clock
        self._mixes_ttls = isinstance(backend, RenewsSeveralTtls)
        self._own_timer: CallAt | None = getattr(backend.clock, "call_at", None)
        self._closed = False
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._alive: set[weakref.ref[Grant]] = set()
        self._calendar = _Calendar()

    def close(self) -> None:
        """Stop renewal. The deadlines of holdings are still watched."""
        self._closed = True

    def track(self, holding: Grant) -> None:
        """Watch a holding, and renew it, until it ends."""
        calendar = self._calendar
        holding.young = young = calendar.young
        young.add(holding)
        now = holding.granted_at
        when = now + holding.settings.attempt_seconds * YOUNG_SHARE
        sorting = calendar.sorting
        # Read after the line above: _sort closes it before it looks. If its moment is past, its call may be lost: an
        # exception of a signal handler can hit the event loop itself.
        if not now < sorting.when <= when or not sorting.open:
            try:
                self._sort_at(when, calendar)
            except RuntimeError as error:
                if not quirks.is_ending(error):
                    raise
                holding.hindrance = _describe_missing_thread(error)  # an atexit function may have it for its ttl

    def _sort_at(self, when: float, calendar: _Calendar) -> None:
        sorting = _Sorting(when)
        self._call_at(when, self._sort, (calendar, sorting), partial(bool, calendar.young))
        calendar.sorting = sorting

    def _sort(self, calendar: _Calendar, sorting: _Sorting) -> None:
        """Enter the young holdings into the calendar."""
        sorting.open = False
        try:
            for holding in list(calendar.young):
                self._schedule(holding)
                calendar.young.discard(holding)
        except BaseException:
            self._sort_at(self._clock() + RESORT_SECONDS, calendar)  # the others are still young
            raise

    def held(self) -> list[Grant]:
        """Return the holdings that have not ended."""
        known = {*list(self._calendar.young), *_existing(self._alive)}
        return [holding for holding in known if not holding.has_ended]

    def _schedule(self, holding: Grant) -> None:
        """Enter a holding into the calendar at its next moment."""
        holding.join_calendar(self._alive)
        while not holding.has_ended and holding.settings.ttl is not None:
            when = holding.moment
            if when <= self._clock():
                self._inspect([holding], when)
                return
            moments = self._calendar.moments
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

    def _inspect(self, holdings: list[Grant], when: float) -> None:
        """Hand holdings that are due over for renewal, and watch the deadlines of all."""
        due: list[Grant] = []
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
        except BaseException as error:
            for holding in due:  # an interruption, or no thread could be started
                if isinstance(error, RuntimeError):
                    holding.hindrance = _describe_missing_thread(error)
                self._ask_again(holding)
                self._schedule(holding)
            if not (isinstance(error, RuntimeError) and quirks.is_ending(error)):
                raise

    def _watch(self, holdings: list[Grant]) -> None:
        if holdings:
            when = min(holding.deadline for holding in holdings)
            references = [weakref.ref(holding) for holding in holdings]
            self._call_at(when, self._deadline_passed, (references,), partial(_any_alive, references))

    def _deadline_passed(self, references: list[weakref.ref[Grant]]) -> None:
        now = self._clock()
        for holding in _existing(references):
            if now >= holding.deadline:
                holding.lose("expired", why_expired(self._backend, holding, now))
            elif holding.due is None or holding.due >= holding.deadline:
                self._schedule(holding)  # the other holdings are in the calendar for an earlier renewal

    def _report_failure(self, holdings: list[Grant]) -> None:
        """Log an unexpected failure of a renewal. The leases are retried until their deadlines."""
        if not self._closed:  # that closes the connections under a renewal, and has released the leases
            logger.error("renewing %d leases failed; they are retried", len(holdings), exc_info=True)
        for holding in holdings:
            self._ask_again(holding)

    def _ask_again(self, holding: Grant) -> None:
        holding.not_renewed(self._clock())
        holding.unanswered_since = None  # it was not for lack of an answer

    def _call_at(
        self, when: float, method: Callable[..., None], args: tuple[Any, ...], wanted: Callable[[], bool]
    ) -> None:
        # Weak: a coordinator that only the timer references has no leases, and may be collected.
        call = partial(_call_if_alive, weakref.WeakMethod(method), args)
        (self._own_timer or timer().call_at)(when, call, wanted)

    def _submit(self, holdings: list[Grant]) -> None:
        raise AssertionError("sync and async have their own")


def _existing(references: Iterable[weakref.ref[Grant]]) -> list[Grant]:
    return [holding for holding in (reference() for reference in list(references)) if holding is not None]


def _any_alive(references: list[weakref.ref[Grant]]) -> bool:
    return any(holding.ended is None for holding in _existing(references))


def _describe_stall(pulse: Pulse, so_far: float, limit: float) -> str:
    seconds = max(pulse.unanswered_seconds() or 0.0, so_far)
    return f"the event loop had not answered for {seconds:.1f} s, and stall_limit is {limit:g} s"


def _describe_missing_thread(error: RuntimeError) -> Callable[[], str]:
    return partial(str, f"no thread could be started to renew it: {error}")


class Renewal(_Renewal):
    """The renewal for threads. Each lane has a thread that starts when a renewal is due, and ends a second after the
    last one. It has a few others while its requests overlap."""

    def _reset(self) -> None:
        super()._reset()
        self._lanes: dict[float, ThreadLane] = {}

    def _submit(self, holdings: list[Grant]) -> None:
        for lane_ttl, those in by_lane(holdings):
            lane = self._lanes.get(lane_ttl)
            if lane is None:
                lane = self._lanes.setdefault(lane_ttl, ThreadLane(lane_ttl, mixes_ttls=self._mixes_ttls))
            with lane.lock:
                for holding in those:
                    lane.add(holding)
                is_busy = lane.running > 0
            if not is_busy or not self._wake_others(lane):
                lane.worker.wake(partial(self._work, lane))

    def _wake_others(self, lane: ThreadLane) -> bool:
        """Have another thread of the lane renew. Return False if none can be started: those that run go on."""
        try:
            lane.others.wake(partial(self._work, lane))
        except RuntimeError:
            return False
        return True

    def _work(self, lane: ThreadLane) -> float | None:
        """Renew one batch. If there was none for a while, the thread ends."""
        batch: list[Grant] = []
        with lane.lock:
            lane.take(batch, self._backend.max_renewals)
            if not batch:
                return None
            lane.running += 1
            is_more = bool(lane)
        try:
            if is_more:
                self._wake_others(lane)
            run(plans.renew_together(self._backend, batch, lane.attempt_seconds), self._backend.perform)
        except BaseException:  # noqa: BLE001 - it is logged, and the thread continues
            self._report_failure(batch)
        finally:
            with lane.lock:
                lane.running -= 1
            for holding in batch:
                try:
                    self._schedule(holding)
                except RuntimeError:  # no thread could be started; a later one finds what is in the calendar
                    logger.exception("the next renewal of %r was not scheduled", holding.fence.resource)
        return 0.0 if lane else LINGER_SECONDS


class AsyncRenewal(_Renewal):
    """The renewal for asyncio: a few tasks per lane, on an event loop of its own in a thread.

    So a lease survives a block that computes. It is renewed only while its own loop answers: see
    ``fencing/locks/pulse.py``.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._pulses: PerLoop[Pulse] = PerLoop(Pulse)
        self._thread = LoopThread("fencing-renewal", self._is_needed)

    def _reset(self) -> None:
        super()._reset()
        self._lanes: dict[float, LoopLane] = {}

    def track(self, holding: Grant) -> None:
        holding.loop = asyncio.get_running_loop()
        super().track(holding)

    def close(self) -> None:
        super().close()
        self._thread.recheck()

    async def wait_until_over(self) -> None:
        """Wait until its connections are closed, for a bounded time."""
        await self._thread.wait_until_over()

    def _is_needed(self) -> bool:
        return bool(self._alive) and not self._closed

    def _submit(self, holdings: list[Grant]) -> None:
        due = [holding for holding in holdings if self._may_renew(holding)]
        if due:
            self._thread.call(partial(self._add, due), partial(self._give_up, due))

    def _give_up(self, holdings: list[Grant]) -> None:
        self._report_failure(holdings)
        for holding in holdings:
            holding.hindrance = partial(str, f"no event loop could be made to renew it: {sys.exc_info()[1]}")
            self._schedule(holding)

    def _may_renew(self, holding: Grant) -> bool:
        """Return whether a holding's own loop has answered in time. Otherwise its renewal is tried again soon."""
        pulse, limit = self._pulses[holding.loop], holding.settings.stall_seconds
        unanswered = pulse.unanswered_seconds()
        if unanswered is None:
            holding.lose("expired", "its event loop was closed")
            return False
        if unanswered <= limit:
            return True
        pulse.report(holding.fence.resource, limit)
        holding.hindrance = partial(_describe_stall, pulse, unanswered, limit)
        self._ask_again(holding)
        self._schedule(holding)
        return False

    def _add(self, holdings: list[Grant]) -> None:
        for lane_ttl, those in by_lane(holdings):
            lane = self._lanes.get(lane_ttl)
            if lane is None:
                lane = self._lanes[lane_ttl] = LoopLane(lane_ttl, mixes_ttls=self._mixes_ttls)
            for task in [each for each in lane.running if each.done() or each.get_loop().is_closed()]:
                self._done(lane, task)  # its loop was ended before that was called
            for holding in those:
                lane.add(holding)
            self._start(lane)

    def _start(self, lane: LoopLane) -> None:
        """Start a task that renews what is due, unless there are enough."""
        if lane and len(lane.running) < MOST_AT_ONCE:
            batch: list[Grant] = []
            task = background(asyncio.get_running_loop(), self._work(lane, batch), "fencing-renewal")
            lane.running[task] = batch
            task.add_done_callback(partial(self._done, lane))

    async def _work(self, lane: LoopLane, batch: list[Grant]) -> None:
        """Renew what is due, batch by batch. ``batch`` always has the holdings that this task is to renew."""
        while lane:
            lane.take(batch, self._backend.max_renewals)
            self._start(lane)
            if not batch:
                return
            try:
                await run_async(plans.renew_together(self._backend, batch, lane.attempt_seconds), self._backend.perform)
            except Exception:  # noqa: BLE001 - it is logged, and the task continues
                self._report_failure(batch)
            for holding in batch:
                self._schedule(holding)
            batch.clear()

    def _done(self, lane: LoopLane, task: asyncio.Task[None]) -> None:
        """Clean up after a task. If it was cancelled, its leases are due again soon, and after the last one all are."""
        batch = lane.running.pop(task, [])
        while batch or (lane and not lane.running):
            if not batch:
                lane.take(batch, self._backend.max_renewals)
            for holding in batch:
                holding.not_renewed(self._clock())
                self._schedule(holding)
            batch.clear()


def _call_if_alive(method: weakref.WeakMethod[Callable[..., None]], args: tuple[Any, ...]) -> None:
    alive = method()
    if alive is not None:
        alive(*args)
