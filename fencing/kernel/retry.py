"""Trying again: how long to pause, and an effect that is repeated until a deadline."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from fencing.kernel.effects import Plan, Shielded, Sleep

_MOST_DOUBLINGS = 32


class Backoff(NamedTuple):
    """Pauses that double, with jitter, so that those who disturbed each other do not meet again.

    Args:
        first: seconds, the first pause at the most.
        longest: seconds, every pause at the most.
        least: the share of that which a pause lasts at the least, 0 … 1; the rest is chance.
    """

    first: float
    longest: float
    least: float = 0.5

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures, 1 or more."""
        limit = min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
        return random.uniform(self.least, 1) * limit


class NoReply(Exception):
    """The failure of an effect that is worth another attempt: no connection, no reply, or a server not ready.

    Attributes:
        cause: what the client library raised.
        may_have_run: False if the request was certainly not sent, or was refused.
    """

    def __init__(self, cause: Exception, *, may_have_run: bool) -> None:
        self.cause = cause
        self.may_have_run = may_have_run
        super().__init__(str(cause) or type(cause).__name__)


class Answer(NamedTuple):
    """What a repeated effect gave in the end."""

    value: Any
    sent_at: float  # when the attempt began that gave it
    repeated: bool  # an earlier attempt may have run


def retry(
    attempt: Callable[[float, bool], Any],
    *,
    clock: Callable[[], float],
    attempt_seconds: float,
    deadline: float,
    backoff: Backoff,
    give_up: Callable[[NoReply], Exception],
    undo: Callable[[], Plan[None]] | None = None,
) -> Plan[Answer]:
    """Have an effect done; where no reply comes, again, until the deadline. The first repetition comes at once, for
    mostly a connection was closed while it was idle.

    Args:
        attempt: makes the effect, of the seconds that it may take, and whether it is the last attempt.
        clock: seconds.
        attempt_seconds: what one attempt may take at the most.
        deadline: the moment of ``clock`` after which no attempt begins.
        backoff: of the pauses.
        give_up: makes the error to raise when the last attempt had no reply either, of the failure that had the most
            time.
        undo: a bounded plan that takes back what the effect may have done. It runs, shielded, if this ends without an
            answer although an attempt may have run.
    """
    failures, pause, repeated, under_way = 0, 0.0, False, False
    longest, telling = 0.0, None
    try:
        while True:
            sent_at = clock()
            timeout = max(min(attempt_seconds, deadline - sent_at), 0.001)
            under_way = True
            try:
                return Answer((yield attempt(timeout, sent_at + timeout + pause >= deadline)), sent_at, repeated)
            except NoReply as failure:
                under_way, repeated = False, repeated or failure.may_have_run
                if telling is None or timeout >= longest:  # one that had next to no time says next to nothing
                    longest, telling = timeout, failure
                if clock() + pause >= deadline:
                    raise give_up(telling) from telling.cause
            yield Sleep(pause)
            failures += 1
            pause = backoff.pause(failures)
    except GeneratorExit:
        raise
    except BaseException:
        if undo is not None and (under_way or repeated):
            yield Shielded(undo())
        raise
