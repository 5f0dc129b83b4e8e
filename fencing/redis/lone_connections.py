"""Connections of one event loop that each serve one caller at a time, for commands that block their connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import NoReply

MAX_CONNECTIONS = 16
"""Per event loop. Others wait for one."""


class LoneConnections:
    """The connections, opened when they are needed; ``make`` makes one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._free: deque[Any] = deque()
        self._made: list[Any] = []
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)

    @asynccontextmanager
    async def borrowed(self, seconds: float) -> AsyncIterator[Any]:
        """Lend a connection for a block.

        Raises:
            NoReply: none was free in time.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError as error:
            raise_interruption(error)
            raise NoReply(
                TimeoutError(f"all {MAX_CONNECTIONS} connections were busy for {seconds:.3g} s"), may_have_run=False
            ) from error
        try:
            connection = self._free.pop() if self._free else self._new()
            try:
                yield connection
            except BaseException:
                self._free.appendleft(connection)  # replies may be under way: the others are taken first
                raise
            self._free.append(connection)
        finally:
            self._places.release()

    def _new(self) -> Any:
        connection = self._make()
        self._made.append(connection)
        return connection

    def stop(self) -> None:
        """Start closing all connections."""
        for connection in self._made:
            connection.stop()

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._made:
            await connection.close()
