"""The listener for threads: a connection to PostgreSQL whose notifications wake a process' waiters.

The connection is the coordinator's own, beside those of its requests. A thread opens it when the first waiter comes,
and closes it a few seconds after the last one has gone. Until it is open, and wherever it cannot be, waiters poll.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fencing.kernel import process
from fencing.kernel.timer import timer
from fencing.kernel.waking import Wake, safe_lock
from fencing.kernel.workers import DaemonThread
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.sql.notifications import Undelivered, keep_alive, new_probe, wait_received
from fencing.sql.own_engine import OwnConnection, OwnEngine
from fencing.sql.table import Request
from fencing.sql.waiters import START_SECONDS, Waiter, Waiters

TICK_SECONDS = 1.0
"""How often the thread checks whether it must continue."""


class Listener:
    """The listener for threads. A forked child has its own.

    Args:
        engine: the coordinator's.
        send: performs a request on another connection.
    """

    def __init__(self, engine: OwnEngine, send: Callable[[Request], Any]) -> None:
        self._engine, self._send = engine, send
        self._closed = False
        self._inherited: list[Any] = []  # of the parent process: to collect it might end its session
        self._reset()
        process.after_fork(self._reset_in_child)

    def _reset(self) -> None:
        self._lock = safe_lock()
        self._waiters = Waiters(process.now)
        self._is_running = False  # there is a thread
        self._connection: OwnConnection | None = None

    def _reset_in_child(self) -> None:
        self._inherited.append(self._connection)
        self._reset()

    def is_waited_for(self, resource: str) -> bool:
        """Return whether a waiter for the resource asks as one at once. A hint."""
        return not self._engine.locks.notifies or resource in self._waiters

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, block until it must ask again, or remove it."""
        if isinstance(effect, Wait):
            with self._lock:
                self._waiters.schedule(effect.waiter, effect.recheck)
            waiter: Waiter = effect.waiter
            until = process.now() + effect.seconds
            while (left := waiter.seconds_left(process.now(), until)) > 0:
                waiter.waking.wait(left)
            waiter.is_notified = False
            return None
        with self._lock:
            if isinstance(effect, Leave):
                self._waiters.remove(effect.waiter, effect.free_at)
                return None
            if self._waiters.is_listening:
                waiter = effect.waiter or Waiter(effect.resource, effect.token, Wake())
                self._waiters.add(waiter)
                return waiter
            if self._engine.locks.notifies and self._waiters.may_start() and not self._is_running and not self._closed:
                self._start()
            return None

    def close(self) -> None:
        """Stop listening. Waiters ask again, and get the error that the coordinator is closed."""
        with self._lock:
            self._closed = True
            connection = self._connection
            self._waiters.ended(failed=False)
        if connection is not None:
            connection.break_off()

    def _start(self) -> None:
        self._is_running = True
        try:
            DaemonThread(self._run, "fencing-sql-listener", self._waiters).start()
        except BaseException:
            self._is_running = False
            raise

    def _run(self, waiters: Waiters) -> None:
        failed, delivers = True, True
        try:
            self._connection = connection = self._engine.open(START_SECONDS)
            timer().call_at(process.now() + START_SECONDS, connection.break_off, lambda: not waiters.is_listening)
            try:
                self._listen(connection, waiters)
                failed = False
            finally:
                self._connection = None
                connection.close()
        except Undelivered:
            delivers = False
        except Exception:  # noqa: BLE001 - whatever it is, waiters poll until a later attempt
            pass
        finally:
            with self._lock:
                self._is_running = False
                waiters.ended(failed=failed and not self._closed, delivers=delivers)

    def _listen(self, connection: OwnConnection, waiters: Waiters) -> None:
        connection.perform(Request("listen", {}, START_SECONDS))
        driver = connection.driver_connection
        keep_alive(driver)
        probe, deadline = new_probe(), time.monotonic() + START_SECONDS / 2
        self._send(Request("notify", {"resource": probe}, START_SECONDS / 2))
        while probe not in wait_received(driver, max(deadline - time.monotonic(), 0.0)):
            if time.monotonic() >= deadline:
                raise Undelivered
        with self._lock:
            waiters.started()
        while self._must_listen(waiters):
            for text in wait_received(driver, TICK_SECONDS):
                with self._lock:
                    waiters.on_notification(text)

    def _must_listen(self, waiters: Waiters) -> bool:
        with self._lock:
            if self._closed or not waiters.is_wanted():
                waiters.is_listening = False  # in one step with the check: no waiter enlists after it
                return False
            return True
