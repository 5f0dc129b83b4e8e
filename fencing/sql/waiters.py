"""The waiters of one listener: which notification wakes which waiter, and which waiter asks again when. No I/O.

A listener is one process, or one event loop, with one connection that receives notifications. A notification of a
resource wakes the first waiter of the listener. No notification comes when a holder dies, so the first waiter also asks
again when the lease ends, and each one from time to time.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fencing.kernel.retry import Backoff
from fencing.locks import waiting

LONGEST_WAIT_SECONDS = 5.0
"""A waiter asks again after this long at the latest: its connection for notifications may be dead without a sign."""

ANNOUNCED_SECONDS = 2 * LONGEST_WAIT_SECONDS
"""How long a release notifies after a waiter has asked. It must exceed LONGEST_WAIT_SECONDS."""

SLACK_SECONDS = 0.005
"""How long after the believed end of a lease its first waiter asks again."""

LINGER_SECONDS = 3.0
"""How long the connection stays open without waiters, so that waits in a row do not open one each."""

START_SECONDS = 2.0
"""How long opening the connection may take, and the notification that it sends to itself. Waiters poll meanwhile."""

RECONNECTING = Backoff(first=0.1, longest=5.0)
UNDELIVERED_SECONDS = 60.0
"""How long waiters poll if notifications do not arrive, as behind a pooler of transactions, until it is tried again."""


class Waiter(waiting.Waiter):
    """A waiter for a lock.

    Attributes:
        recheck_at: the moment at which it asks again.
        is_notified: a notification came, and it has not asked since.
        is_asking: a request is under way, and may take the lock.
    """

    __slots__ = ("is_asking", "is_notified", "recheck_at")

    def __init__(self, resource: str, token: str, waking: waiting.Waking) -> None:
        super().__init__(resource, token, waking)
        self.recheck_at = 0.0
        self.is_notified = self.is_asking = False

    def notify(self) -> None:
        """Wake the waiter: it must ask again at once, or once more if a request is already under way."""
        self.is_notified = True
        self.wake()

    def seconds_left(self, now: float, until: float) -> float:
        """Return how long it must still wait; 0 or less: it must ask again. It is woken when that has changed."""
        return 0.0 if self.is_notified else min(until, self.recheck_at) - now


class Waiters(waiting.WaiterList[Waiter]):
    """The waiters of one listener, and when it listens. Not thread-safe: the listener must hold its lock.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.is_listening = False
        self._wanted_at = self._not_before = 0.0
        self._failures = 0

    def is_wanted(self) -> bool:
        """Return whether there is a waiter, or was one a moment ago."""
        if self:
            self._wanted_at = self._clock()
        return self._clock() - self._wanted_at < LINGER_SECONDS

    def may_start(self) -> bool:
        """Note that a waiter wants notifications, and return whether the connection may be opened now."""
        self._wanted_at = self._clock()
        return self._clock() >= self._not_before

    def started(self) -> None:
        """Note that notifications arrive."""
        self.is_listening, self._failures = True, 0

    def ended(self, *, failed: bool, delivers: bool = True) -> None:
        """Note that no more notifications arrive, and let all waiters ask again: some may have been lost.

        Args:
            failed: not closed on purpose. It is opened again after a pause.
            delivers: False: the connection was good, but the notification to itself did not arrive.
        """
        self.is_listening = False
        if failed:
            self._failures += 1
            pause = RECONNECTING.pause(self._failures) if delivers else UNDELIVERED_SECONDS
            self._not_before = self._clock() + pause
        for waiter in self._all():
            waiter.notify()

    def schedule(self, waiter: Waiter, recheck: float) -> None:
        """Set the moment at which a waiter that must wait asks again.

        Args:
            waiter: a waiter that was added.
            recheck: seconds until the lease is believed to end.
        """
        longest = LONGEST_WAIT_SECONDS * random.uniform(0.5, 1)
        is_first = self.first(waiter.resource) is waiter
        waiter.recheck_at = self._clock() + (min(recheck + SLACK_SECONDS, longest) if is_first else longest)

    def remove(self, waiter: Waiter, free_at: float | None) -> None:
        """Remove a waiter that no longer waits. The next one takes its place.

        Args:
            waiter: a waiter; it may have been removed before.
            free_at: when the lease that the waiter was granted is believed to end; None: it was granted none.
        """
        was_first = self.first(waiter.resource) is waiter
        self._take_out(waiter)
        first = self.first(waiter.resource)
        if first is None:
            self._waiters.pop(waiter.resource, None)  # those that were collected
        elif free_at is not None:
            first.recheck_at = min(first.recheck_at, free_at + SLACK_SECONDS)
            first.wake()
        elif was_first:  # it may have given up just when it was notified
            first.notify()

    def on_notification(self, resource: str) -> None:
        """Wake the first waiter of a resource whose lock was released."""
        first = self.first(resource)
        if first is not None:
            first.notify()
