"""The connections of a SQL coordinator for threads."""

from __future__ import annotations

import time
import traceback
from functools import partial
from typing import Any

from fencing.kernel import process
from fencing.kernel.errors import CLOSED
from fencing.kernel.interruptions import interruption_in
from fencing.kernel.lending import Pool
from fencing.kernel.opening import Opener, Opening
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.timer import timer
from fencing.sql.dialects import MySQL
from fencing.sql.failures import FAILURES, explain, leaves_good_connection, unwrap
from fencing.sql.own_engine import GRACE_SECONDS, MAX_CONNECTIONS, OwnConnection, OwnEngine
from fencing.sql.table import LAST, URGENT, Request

OPENING_SECONDS = 3.0
"""How long the opening of a connection may take if its request has less time. A later request has the connection."""


class _Slot:
    """The place of a connection, which is opened when it is needed. A timer ends requests that take too long."""

    __slots__ = ("__weakref__", "_armed_until", "_until", "connection", "opened_at", "used")

    def __init__(self) -> None:
        self.connection: OwnConnection | None = None
        self.opened_at = self.used = 0.0
        self._until: float | None = None  # None: no request is under way
        self._armed_until = float("inf")

    def watch(self, until: float) -> None:
        """Break the connection off at this moment, unless :meth:`unwatch` comes first."""
        self._until = until
        if until < self._armed_until or self._armed_until < process.now():
            self._arm(until)

    def unwatch(self) -> None:
        self._until = None
        self.used = time.monotonic()

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
        self._pool = Pool(
            _Slot,
            MAX_CONNECTIONS,
            keeps_inherited=True,
            has_reserve=True,
            may_change_threads=not isinstance(engine.dialect, MySQL),  # whose driver has sockets of Python
        )
        self._opener = Opener(engine.address, partial(_open, engine), OwnConnection.close, partial(_adopt, self._pool))
        self._broken_at = 0.0  # a connection that was opened before this moment is opened again

    def perform(self, request: Request) -> Any:
        """Perform a request, and return its reply.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the database refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        pool = self._pool
        if pool.closed and request.operation not in LAST:
            raise RuntimeError(CLOSED)
        until = process.now() + request.timeout
        if request.operation in URGENT:
            pool, slot = pool.take_urgently(request.timeout)
        else:
            slot = pool.take(request.timeout)
        try:
            return self._perform(slot, request, until)
        finally:
            pool.give_back(slot)

    def _perform(self, slot: _Slot, request: Request, until: float) -> Any:
        sent = False
        try:
            if slot.connection is None or slot.opened_at < self._broken_at:
                slot.close()
                slot.opened_at = time.monotonic()
                seconds = max(until - process.now(), LEAST_SECONDS)
                if self._engine.locks.is_embedded:
                    slot.connection = self._engine.open(seconds)
                else:
                    slot.connection = self._opener.open(seconds, max(seconds, OPENING_SECONDS))
            slot.watch(until + GRACE_SECONDS)
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

    def close(self) -> None:
        """Close all connections. Later requests raise RuntimeError, except releases."""
        self._pool.close()


def _open(engine: OwnEngine, opening: Opening[OwnConnection]) -> OwnConnection:
    return engine.open(opening.left, opening.breaks_off_by)


def _adopt(pool: Pool[_Slot], opened: OwnConnection) -> bool:
    """Give a connection that came too late for its request to a free place of the pool."""
    slot = pool.take_free(lambda each: each.connection is None)
    if slot is None:
        return False
    slot.connection, slot.opened_at = opened, time.monotonic()
    pool.give_back(slot)
    return True
