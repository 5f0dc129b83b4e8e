"""What the hubs of both colours share: their times, when a connection counts as dead, what its errors mean.

A hub is one connection on which a process, or an event loop, is told when its waiters' turn has come. It is the
coordinator's own, opened when somebody begins to wait, and closed a while after nobody does; the client's pool is left
alone. See ``fencing.redis.waiters`` for what the messages mean, and ``lua/queue.lua`` for who sends them.
"""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis.blueprint import REFUSED

__all__ = [
    "DECLINE_SECONDS",
    "LINGER_SECONDS",
    "PING_SECONDS",
    "TICK_SECONDS",
    "Silence",
    "message",
    "not_listening",
]

LINGER_SECONDS = 3.0
"""How long the connection stays when nobody waits, so that locks waited for in a row do not open one each."""

PING_SECONDS = 3.0
"""After so much silence the server is asked for a sign of life; after twice as much the connection counts as dead."""

TICK_SECONDS = 1.0

DECLINE_SECONDS = 1.0
"""What declining an offer may take. If it fails, the offer ends by itself, soon after."""


class Silence:
    """How long nothing has been heard on a connection, and for how long nobody has waited."""

    def __init__(self) -> None:
        self._heard = self._used = time.monotonic()
        self._asked = False

    def broken(self) -> None:
        self._heard, self._asked = time.monotonic(), False

    def used(self) -> None:
        """Somebody waits."""
        self._used = time.monotonic()

    def goes_on(self, anybody_waits: bool) -> bool:
        """Whether to listen on. RedisError: the connection counts as dead."""
        now = time.monotonic()
        if anybody_waits:
            self.used()
        if now - self._heard > 2 * PING_SECONDS:
            raise RedisError(f"nothing was heard for {now - self._heard:.1f} s")
        return now - self._used < LINGER_SECONDS

    def to_ask(self) -> bool:
        """Whether it is time to ask for a sign of life, now."""
        asked, self._asked = self._asked, time.monotonic() - self._heard > PING_SECONDS
        return self._asked and not asked


def not_listening(error: RedisError | OSError, address: str) -> NoReply | CoordinatorUnavailable:
    """Why the connection was not made: worth another attempt, or not."""
    if isinstance(error, NoPermissionError):
        return CoordinatorUnavailable(
            f"Redis at {address} does not let this user wait for locks: {error}; add the ACL rules "
            f"+subscribe +publish +ping &fencing:1:wake:*",
            address=address,
        )
    if isinstance(error, REFUSED):
        return CoordinatorUnavailable(
            f"Redis at {address} refused the credentials: {error}; correct the client's username and password",
            address=address,
        )
    return NoReply(error, may_have_run=False)


def message(reply: Any) -> bytes | None:
    """The text, if it is one that was published. An error of Redis' is raised."""
    if isinstance(reply, RedisError):
        raise reply
    return reply[2] if isinstance(reply, list) and reply[0] == b"message" else None
