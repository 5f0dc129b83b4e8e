"""A bound for what a guard waits for at the server. Most drivers have none, and a server that has stopped keeps none.

A COMMIT has none at any server. PostgreSQL for example waits without end for a synchronous standby that is gone, and
``statement_timeout`` does not count there
(https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA). A connection that waits too long
is shut, so its statement fails. Its session may still wait at the server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from sqlalchemy import Connection

from fencing.kernel import process
from fencing.kernel.timer import timer
from fencing.kernel.waking import safe_lock
from fencing.sql.dialects import Dialect, SQLite
from fencing.sql.sessions import SESSIONS
from storage_guards.bounds import LEAST_CONNECT_SECONDS
from storage_guards.sql.shield import GRACE


class Waits(dict[object, tuple[float, Callable[[], object]]]):
    """The waits of threads that are under way: when each must have ended, and what shuts its connection.

    :meth:`begin` adds one. Whoever takes it out again has ended it: its thread, or the timer, which calls once for all
    of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self.clear()
        self._shutting = safe_lock()
        self.checks_at = math.inf

    def begin(self, wait: object, seconds: float, shut: Callable[[], object]) -> None:
        """Add a wait that must end in so many seconds."""
        now = process.now()
        until = now + seconds
        self[wait] = until, shut
        if not now < self.checks_at <= until:
            self.check_at(until)

    def check_at(self, when: float) -> None:
        """Check at this moment, and then as long as waits are under way."""
        with suppress(RuntimeError):  # the interpreter is ending
            timer().call_at(when, self._check, lambda: bool(self))
            self.checks_at = when  # last: what interrupts this leaves the next wait to ask again

    def _check(self) -> None:
        self.checks_at = math.inf  # first: what is added from here on asks for another check, or is seen below
        now = process.now()
        for wait, (until, shut) in list(self.items()):
            if until <= now:
                with self._shutting, suppress(Exception):
                    if self.pop(wait, None) is not None:
                        shut()
        ends = [until for until, _ in list(self.values())]
        if ends:
            self.check_at(min(ends))

    def wait_until_shut(self) -> None:
        """Wait until whatever the timer has taken out is shut: after that, it shuts no connection of this thread."""
        with self._shutting:
            return


waits = Waits()
"""Those of this process."""


def shut(connection: Connection, dialect: Dialect) -> None:
    """Shut the socket of a sync connection from another thread. Nothing happens to one that was given back already: an
    interruption may have kept its wait from being taken out."""
    if not connection.closed and not connection.invalidated:
        SESSIONS[type(dialect)].break_off(connection.connection.driver_connection)


def note_shut(connection: Connection, seconds: float, error: BaseException | None) -> None:
    """Do not use a connection again that was shut. The answer may have come at the last moment.

    Args:
        connection: which has waited.
        seconds: how long.
        error: which ended the wait.
    """
    if error is not None:
        error.add_note(f"There was no answer for {seconds:.3g} s, so the guard closed the connection.")
    if not connection.invalidated:
        connection.invalidate(error)


def try_out(dialect: Dialect, seconds: float, driver_connection: object, is_alive: Callable[[], bool]) -> bool:
    """Return whether a sync connection of a pool is alive, within a bound. One that does not answer in time is not.

    Args:
        dialect: of its database.
        seconds: how long that may take; but at least one second.
        driver_connection: the driver's own connection.
        is_alive: asks the server.
    """
    wait = object()
    waits.begin(
        wait, max(seconds, LEAST_CONNECT_SECONDS), partial(SESSIONS[type(dialect)].break_off, driver_connection)
    )
    try:
        found = is_alive()
    finally:
        was_shut = waits.pop(wait, None) is None
        if was_shut:
            waits.wait_until_shut()
    return found and not was_shut


class Bounded:
    """A context in which a connection asks its server, with a bound for all of that together.

    Args:
        connection: which asks.
        dialect: of its database.
        seconds: how long that may take. The database's own refusal gets a little more time to come first.
    """

    def __init__(self, connection: Connection, dialect: Dialect, seconds: float) -> None:
        self._connection, self._dialect = connection, dialect
        self._seconds = dialect.refuses_within(seconds) + GRACE
        self._handle: asyncio.TimerHandle | None = None
        self._was_hung_up = False

    def __enter__(self) -> None:
        if isinstance(self._dialect, SQLite):  # which has nothing to be shut
            return
        if self._connection.dialect.is_async:
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._hang_up)
        else:
            waits.begin(self, self._seconds, partial(shut, self._connection, self._dialect))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
        elif not isinstance(self._dialect, SQLite) and waits.pop(self, None) is None:
            waits.wait_until_shut()
            self._was_hung_up = True
        if self._was_hung_up:
            note_shut(self._connection, self._seconds, error)

    def _hang_up(self) -> None:
        self._was_hung_up = True
        self._dialect.hang_up(self._connection)


class GivenBack:
    """A context that gives a sync connection back to its pool, whose ROLLBACK then has a bound.

    Args:
        connection: to give back. It is the value of the context.
        dialect: of its database.
        seconds: how long that may take, with the same addition as for :class:`Bounded`.
    """

    def __init__(self, connection: Connection, dialect: Dialect, seconds: float) -> None:
        self._connection, self._dialect, self._seconds = connection, dialect, seconds

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        seconds = self._dialect.refuses_within(self._seconds) + GRACE
        waits.begin(self, seconds, partial(shut, self._connection, self._dialect))
        _this_thread().gives_back = self
        try:
            self._connection.close()
        finally:
            _this_thread().gives_back = None
            waits.pop(self, None)


class _ThisThread:
    gives_back: GivenBack | None = None


_this_thread = process.OfThisThread(_ThisThread)


def before_checkin(_: object, record: Any) -> None:
    """End the wait of a connection that is given back, before its pool can lend it again. A hook of SQLAlchemy's."""
    given_back = _this_thread().gives_back
    if given_back is not None and waits.pop(given_back, None) is None:
        waits.wait_until_shut()
        record.invalidate()
