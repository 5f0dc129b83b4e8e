"""Retries: back-off pauses, and an effect that is repeated until a deadline."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import FencingError

_MOST_DOUBLINGS = 32

LEAST_SECONDS = 0.001
"""The smallest time limit. Databases count in milliseconds, and read 0 as "no limit"."""


class Backoff(NamedTuple):
    """Exponential back-off with jitter, so that callers that collided do not collide again.

    Args:
        first: the maximum of the first pause, in seconds.
        longest: the maximum of every pause, in seconds.
        least: the smallest share of its maximum that a pause lasts, 0 … 1; the rest is random.
    """

    first: float
    longest: float
    least: float = 0.5

    def pause(self, failures: int) -> float:
        """Return the seconds to pause after this many failures, 1 or more."""
        limit = min(self.longest, self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
        return random.uniform(self.least, 1) * limit


class NoReply(Exception):
    """A failure after which another attempt may succeed: no connection, no reply, or a server that is not ready.

    Attributes:
        cause: the client library's exception.
        may_have_run: False if the request was certainly not sent, or was refused.
        was_refused: whether another attempt soon would mostly fail, too. Of several servers, some may have run what
            the others refused.
        was_undone: whether a release was sent behind the request. Nobody knows when the two arrive, so the request is
            not repeated: the release could free what the repetition was granted.
        is_answer: whether the server has answered, and cannot serve the request at this moment.
    """

    def __init__(
        self,
        cause: Exception,
        *,
        may_have_run: bool,
        was_refused: bool | None = None,
        was_undone: bool = False,
        is_answer: bool = False,
    ) -> None:
        self.cause = cause
        self.may_have_run = may_have_run
        self.was_refused = not may_have_run if was_refused is None else was_refused
        self.was_undone = was_undone
        self.is_answer = is_answer
        super().__init__(str(cause) or type(cause).__name__)


class Answer(NamedTuple):
    """The result of an effect that :func:`retry` repeated."""

    value: Any
    sent_at: float  # the moment at which the successful attempt began
    repeated: bool  # an earlier attempt may have run


def retry(
    attempt: Callable[[float, bool], Any],
    *,
    clock: Callable[[], float],
    attempt_seconds: float,
    deadline: float,
    backoff: Backoff,
    give_up: Callable[[NoReply, bool], Exception],
    most_refusals: float = math.inf,
    unanswered: Callable[[], object] | None = None,
    failure: NoReply | None = None,
) -> Plan[Answer]:
    """Perform an effect, and repeat it after each ``NoReply`` until the deadline, unless it was undone.

    The first repetition comes at once: in most cases, an idle connection had been closed.

    Args:
        attempt: makes the effect. Its arguments are the time limit in seconds, and whether this is the last attempt.
        clock: returns seconds.
        attempt_seconds: the time limit of one attempt.
        deadline: the moment of ``clock`` after which no attempt begins.
        backoff: the pauses.
        give_up: makes the error to raise after the last attempt, from the failure of the attempt that had the most
            time, and whether any attempt may have run.
        most_refusals: how many attempts that were refused are repeated.
        unanswered: called when there is no answer although an attempt may have run.
        failure: of the first attempt, if it was made already.
    """
    failures, refusals, pause, repeated = 0, 0, 0.0, False
    longest, most_telling = 0.0, None
    try:
        while True:
            sent_at = clock()
            timeout = max(min(attempt_seconds, deadline - sent_at), LEAST_SECONDS)
            last = sent_at + timeout + pause >= deadline
            try:
                if failure is not None:
                    timeout = attempt_seconds
                    raise failure
                return Answer((yield attempt(timeout, last)), sent_at, repeated)
            except NoReply as failed:
                failure = None
                repeated = repeated or failed.may_have_run
                refusals += failed.was_refused
                if most_telling is None or timeout >= longest:  # an attempt with very little time says very little
                    longest, most_telling = timeout, failed
                if failed.was_undone or clock() + pause >= deadline or refusals > most_refusals:
                    raise give_up(most_telling, repeated) from most_telling.cause
            yield Sleep(pause)
            failures += 1
            pause = backoff.pause(failures)
    except FencingError:
        if repeated and unanswered is not None:
            unanswered()
        raise
