"""Until when a session is believed to last. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

APART = 1 / 4
"""For how much of the session's time-out a request must have been sent before the one that proves it.

A follower touches the sessions of its clients itself. It tells the leader with the next heartbeat, half a tick later,
and the leader ends a session by what it was told. A time-out is at least two ticks:
https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html#ch_zkSessions"""

STEP = 1 / 64
"""How far apart the moments that are kept lie, as a share of the time-out."""


class Touches:
    """The moments at which a connection has sent something, and its handshake.

    A reply from the leader proves that the session lives, but not that the leader has heard of the request: it may have
    come through a follower. What was sent a quarter of the time-out before has reached the leader on the same way. The
    handshake goes to the leader itself.

    Args:
        clock: in seconds.
        seconds: the time-out of the session.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._handshake = float("-inf")
        self._sent: deque[float] = deque()

    def connected(self, sent_at: float) -> None:
        """Note a handshake, which was sent at this moment, and answered."""
        self._sent, self._handshake = deque(), sent_at

    def sent(self) -> None:
        """Note that something is sent now."""
        now, sent = self._clock(), self._sent
        if sent and now - sent[-1] < STEP * self._seconds:
            return
        sent.append(now)
        while sent[0] < now - self._seconds:
            sent.popleft()

    def proved_by(self, sent_at: float) -> float:
        """Return a moment at which the session certainly had its full time-out, once a request was answered."""
        latest = sent_at - APART * self._seconds
        return max([self._handshake, *(each for each in tuple(self._sent) if each <= latest)])
