"""The thread in which aiosqlite executes the statements of a connection.

A cancelled task comes out while its statement goes on in this thread. A statement that still waits for the file would
take the write lock later. Then nobody but the event loop could end it, and the loop may be busy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from fencing.sql.dialects import SQLite

_STEP_SECONDS = 0.01
"""How long a statement may go on by itself, and then the time between two interruptions."""


class StatementThread:
    """The thread of one connection; none, for a connection of another driver.

    It is noted before a statement is sent: a cancelled statement loses its connection. The attributes of aiosqlite are
    undocumented (seen in 0.20 to 0.22, where SQLAlchemy uses two of them).
    """

    _thread: threading.Thread | None = None

    def note(self, connection: Connection) -> None:
        """Note the thread of this connection, if it has one."""
        if SQLite.is_aiosqlite(connection):
            driver: Any = connection.connection.driver_connection
            self._thread = driver if isinstance(driver, threading.Thread) else driver._thread
            self._requests, self._database = driver._tx, driver._connection

    async def end_statement(self, seconds: float) -> None:
        """Wait until the thread is idle or has ended, and interrupt its statements meanwhile.

        SQLite does not interrupt the wait for a locked file. But a statement that was interrupted in this wait fails
        after it, and its transaction is rolled back.

        Args:
            seconds: the longest wait. A statement may be in a function of Python, which nothing interrupts.
        """
        if self._thread is None:
            return
        idle = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((idle, _do_nothing))
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.wait([idle], timeout=_STEP_SECONDS)
            if idle.done():
                break
            with suppress(Exception):  # it is closed
                self._database.interrupt()


def _do_nothing() -> None:
    pass
