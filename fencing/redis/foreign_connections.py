"""What takes the place of a socket where a connection's class has none: a user's own, such as that of fakeredis.

redis-py then writes and reads. These classes look like a socket, a transport and a parser of replies, so that nothing
else has to know of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.exceptions import RedisError

from fencing.kernel.effects import background
from fencing.redis.resp import INCOMPLETE, REPLIED


class ReceivedReplies:
    """A parser, for replies that redis-py has parsed."""

    def __init__(self) -> None:
        self._replies: deque[Any] = deque()

    def feed(self, replies: list[Any]) -> None:
        """Take replies."""
        self._replies += replies

    def gets(self) -> Any:
        """Return the next reply, or INCOMPLETE if there is none."""
        return self._replies.popleft() if self._replies else INCOMPLETE


class ForeignSocket:
    """A socket, over a connection for threads. ``recv`` returns replies for :class:`ReceivedReplies`, not bytes."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._seconds: float | None = None

    def settimeout(self, seconds: float) -> None:
        """Set the time limit of waiting for a reply. That of sending it cannot set."""
        self._seconds = seconds

    def sendall(self, data: bytes) -> None:
        """Send commands."""
        self._connection.send_packed_command([data], check_health=False)

    def recv(self, _: int) -> list[Any]:
        """Return one reply.

        Raises:
            TimeoutError: none came in time.
            RedisError, OSError: the connection is broken.
        """
        if not self._connection.can_read(timeout=self._seconds):
            raise TimeoutError("timed out")
        try:
            return [self._connection.read_response(disconnect_on_error=False)]
        except REPLIED as error:
            return [error]


class ForeignTransport:
    """A transport, over a connection for asyncio. Its protocol receives replies for :class:`ReceivedReplies`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Any) -> None:
        self._loop = loop
        self._connection = connection
        self._tasks: set[asyncio.Task[None]] = set()

    def is_closing(self) -> bool:
        """Return False: it is not known."""
        return False

    def write(self, data: bytes) -> None:
        """Send commands soon, in the order of the calls."""
        self._start(self._write(data))

    def set_protocol(self, protocol: Any) -> None:
        """Pass replies to a protocol from now on, until its ``end`` is done."""
        reading = self._start(self._read(protocol))
        protocol.end.add_done_callback(lambda _: reading.cancel())

    def _start(self, work: Any) -> asyncio.Task[None]:
        task = background(self._loop, work, "fencing-redis-foreign")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, data: bytes) -> None:
        if self._connection.is_connected:  # redis-py would open a closed connection again
            try:
                await self._connection.send_packed_command([data], check_health=False)
            except (RedisError, OSError):
                pass  # the connection is broken: the reading notices it, too

    async def _read(self, protocol: Any) -> None:
        while not protocol.end.done():
            try:
                reply = await self._connection.read_response(disconnect_on_error=False)
            except REPLIED as error:
                reply = error
            except (RedisError, OSError) as error:
                protocol.connection_lost(error)
                return
            protocol.data_received([reply])
