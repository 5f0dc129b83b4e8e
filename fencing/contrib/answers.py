"""The answer to a request that did not get its lock, for any framework."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fencing.kernel.errors import CoordinatorUnavailable, NotAcquired
from storage_guards.http.header import GATE_KEY
from storage_guards.http.problems import Problem, problem, problem_of

logger = logging.getLogger("fencing")

_FAILURES = ("superseded", "unreplicated")
"""The reasons of a NotAcquired for which something is wrong, and no other holder is known."""


class Answers:
    """Which answers are given.

    Args:
        busy: the status for a lock that another holder has, 400 to 599.
        retry_after: seconds, for the header ``Retry-After``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    def __init__(self, busy: int, retry_after: int) -> None:
        for name, value in (("busy", busy), ("retry_after", retry_after)):
            if type(value) is not int:
                raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
        if not 400 <= busy <= 599:
            raise ValueError(f"busy must be the status of an error, such as 409 or 503, not {busy}")
        if retry_after < 0:
            raise ValueError(f"retry_after must be seconds from now, not {retry_after}")
        self._busy = busy
        self._headers = {"Retry_After": str(retry_after)}

    def answer(self, error: Exception, scope_or_environ: Mapping[str, Any]) -> Problem | None:
        """Return the answer for an error; None: it says that something must be changed or read first, so raise it.

        Behind a gate of the middleware there is none: the handler has begun, and its effect may have happened.
        """
        if GATE_KEY in scope_or_environ:
            return None
        if isinstance(error, NotAcquired):
            if error.held_by_this in ("thread", "task"):  # the handler itself: no retry helps
                return None
            logger.info("a request was told to try later: %s", error)
            if error.reason in _FAILURES:
                return self._unavailable()
            return problem(
                self._busy, "urn:fencing:busy", "Busy", "what this needs is in use at the moment; retry", self._headers
            )
        if isinstance(error, CoordinatorUnavailable):
            if error.refused:
                return None
            logger.warning("a request was told to try later: %s", error)
            return self._unavailable()
        answer = problem_of(error, scope_or_environ)
        if answer is not None and answer.status == 503:
            logger.warning("a request was told to try later: %s", error)
        return answer

    def _unavailable(self) -> Problem:
        text = "the lock service did not answer as it should; retry"
        return problem(503, "urn:fencing:unavailable", "Lock service unavailable", text, self._headers)
