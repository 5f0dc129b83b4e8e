"""Whether the event loop of a lease still answers. A lease whose loop hangs must end, although others renew it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from fencing.kernel import process
from fencing.kernel.effects import call_surely
from fencing.kernel.timer import timer
from fencing.locks.callbacks import call_in_thread

logger = logging.getLogger("fencing")

WARNING_SECONDS = 1.0
"""How long a loop may leave a question unanswered before that is logged."""


class Pulse:
    """The questions to an event loop whether it runs. It answers as soon as no task of it computes.

    Args:
        loop: the event loop of users. The questions come from other threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked_at: float | None = None
        self._is_known = False  # the log tells of this silence, so it tells of its end, too
        self._is_reported = False  # and it says that leases are no longer renewed

    def unanswered_seconds(self) -> float | None:
        """Return for how many seconds the loop has owed an answer; None: it is closed. If it owes none, ask.

        The seconds are real ones, also where a test moves the clock of the leases.
        """
        now, asked_at = process.now(), self._asked_at
        if asked_at is None:
            self._asked_at = asked_at = now
            try:
                self._loop.call_soon_threadsafe(call_surely, self._loop, self._answer)
            except RuntimeError:
                return None
            try:
                timer().call_at(now + WARNING_SECONDS, partial(self._warn, now), partial(self._owes, now))
            except RuntimeError:
                pass  # no thread could be started: nothing is logged
        return None if self._loop.is_closed() else now - asked_at

    def report(self, resource: str, limit: float) -> None:
        """Log that a lease is no longer renewed: once in each silence, for all leases of the loop."""
        if not self._is_reported:
            self._is_known = self._is_reported = True
            text = (
                "the event loop has not answered for %g s, the stall_limit of %r: that lease is no longer renewed, and "
                "so it will be with others of this loop"
            )
            call_in_thread(partial(logger.error, text, limit), resource)  # a slow handler must not delay the timer

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        if self._is_known and asked_at is not None:
            self._is_known = self._is_reported = False
            logger.warning("the event loop answers again, after %.1f s", process.now() - asked_at)

    def _owes(self, asked_at: float) -> bool:
        return self._asked_at == asked_at and not self._loop.is_closed()

    def _warn(self, asked_at: float) -> None:
        if self._owes(asked_at):
            self._is_known = True
            text = (
                "the event loop has not answered for %.1f s, because a task computes or blocks in it; its leases are "
                "renewed for their stall_limit at most. Do such work in a thread: asyncio.to_thread"
            )
            call_in_thread(partial(logger.warning, text), WARNING_SECONDS)
