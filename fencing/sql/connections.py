"""The connections of a SQL coordinator for threads."""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from fencing.kernel import process
from fencing.kernel.interruptions import interruption_in
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.timer import timer
from fencing.kernel.waking import LOST_WAKE_SECONDS, Turns, Wake
from fencing.sql.failures import FAILURES, explain, leaves_good_connection, unwrap
from fencing.sql.own_engine import GRACE_SECONDS, MAX_CONNECTIONS, OwnConnection, OwnEngine
from fencing.sql.table import Request


class _Slot:
    """The place of a connection, which is opened when it is needed. A timer ends requests that take too long."""

    __slots__ = ("__weakref__", "_armed_until", "_break_off", "_until", "connection", "opened_at")

    def __init__(self) -> None:
        self.connection: OwnConnection | None = None
        self.opened_at = 0.0
        self._until: float | None = None  # None: no request is under way
        self._break_off: Callable[[], None] | None = None  # a connection that is being opened
        self._armed_until = float("inf")

    def watch(self, until: float) -> None:
        """Break the connection off at this moment, unless :meth:`unwatch` comes first."""
        self._until = until
        if until < self._armed_until or self._armed_until < process.now():
            self._arm(until)

    def opening(self, break_off: Callable[[], None]) -> None:
        """Watch a connection whose first requests are under way: such as those of SQLAlchemy for the version."""
        self._break_off = break_off
        if self._until is not None and self._until <= process.now():  # the time went by while it connected
            break_off()

    def unwatch(self) -> None:
        self._until = self._break_off = None

    def _arm(self, until: float) -> None:
        self._armed_until = until
        timer().call_at(until, self._check, lambda: self._until is not None)

    def _check(self) -> None:
        until, self._armed_until = self._until, float("inf")
        if until is None:
            return
        if until > process.now():
            self._arm(until)
        elif self.connection is not None:
            self.connection.break_off()
        elif (break_off := self._break_off) is not None:
            break_off()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.close()  # of a coordinator that nobody closed


class Connections:
    """The connections of a coordinator for threads. A forked child opens its own."""

    def __init__(self, engine: OwnEngine) -> None:
        self._engine = engine
        self.closed = False
        self._inherited: list[Any] = []  # of the parent process: to collect them might end its sessions
        self._reset()
        process.after_fork(self._reset_in_child)

    def _reset_in_child(self) -> None:
        self._inherited.append([slot for made in self._made if (slot := made()) is not None])
        self._reset()

    def _reset(self) -> None:
        self._free: deque[_Slot] = deque()  # used as a stack
        # Weak: a slot that an interruption took from its request is collected, and another one may take its place.
        self._made: list[weakref.ref[_Slot]] = []
        self._lock = threading.RLock()
        self._turns = Turns()
        self._broken_at = 0.0  # a connection that was opened before this moment is opened again

    def perform(self, request: Request) -> Any:
        """Perform a request, and return its reply.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the database refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if self.closed and request.operation != "release":  # a block may end after the closing
            raise RuntimeError("this coordinator was closed; make a new one")
        until = process.now() + request.timeout
        slot = self._take(request.timeout)
        try:
            return self._perform(slot, request, until)
        finally:
            if self.closed:
                slot.close()
            self._free.append(slot)
            self._turns.wake_first()

    def _perform(self, slot: _Slot, request: Request, until: float) -> Any:
        sent = False
        try:
            slot.watch(until + GRACE_SECONDS)
            if slot.connection is None or slot.opened_at < self._broken_at:
                slot.close()
                opened_at = time.monotonic()
                slot.connection = self._engine.open(max(until - process.now(), LEAST_SECONDS), slot.opening)
                slot.opened_at = opened_at
            sent = True
            return slot.connection.perform(request)
        except BaseException as raised:  # noqa: BLE001 - it is raised again below
            error = unwrap(raised)
            is_good, interruption = leaves_good_connection(error), interruption_in(error)
            if not is_good:
                # The frames of an interrupted statement hold its cursor, and with it the lock of a file of SQLite.
                traceback.clear_frames(error.__traceback__)
                slot.close()  # the answer may still come
            if interruption is not None:
                raise interruption from interruption.__cause__
            if not isinstance(error, FAILURES):
                raise error from error.__cause__  # in the place of one of SQLAlchemy's
            if not is_good:
                self._broken_at = time.monotonic()
            raise explain(error, sent=sent, address=self._engine.address) from error
        finally:
            slot.unwatch()

    def _take(self, seconds: float) -> _Slot:
        try:
            return self._free.pop()
        except IndexError:
            pass
        turn, deadline = Wake(), time.monotonic() + seconds
        try:
            in_time = self._turns.take(turn, seconds)
            while in_time:
                slot = self._free_or_new()
                if slot is not None:
                    return slot
                turn.wait(min(max(deadline - time.monotonic(), 0.0), LOST_WAKE_SECONDS))
                in_time = time.monotonic() < deadline
        finally:
            self._turns.queue.pop(turn, None)
            self._turns.wake_first()
        busy = TimeoutError(f"all {MAX_CONNECTIONS} connections of the coordinator were busy for {seconds:.3g} s")
        raise NoReply(busy, may_have_run=False)

    def _free_or_new(self) -> _Slot | None:
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._lock:
            self._made = [made for made in self._made if made() is not None]
            if len(self._made) >= MAX_CONNECTIONS:
                return None
            slot = _Slot()
            self._made.append(weakref.ref(slot))
            return slot

    def close(self) -> None:
        """Close all connections. Later requests raise RuntimeError, except releases."""
        self.closed = True
        while self._free:
            self._free.pop().close()
