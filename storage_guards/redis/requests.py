"""Requests of a Redis guard to its server: those that may be repeated, and the write, which may not. Plans."""

from __future__ import annotations

import time
from typing import Any

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, GuardUnavailable, OutcomeUnknown
from fencing.kernel.retry import LEAST_SECONDS, Backoff, NoReply, retry
from fencing.redis.calls import Call
from storage_guards.redis.replies import error_of
from storage_guards.sending import Sending

_BACKOFF = Backoff(0.02, 0.5)


class Requests:
    """The requests of one guard.

    Args:
        address: of the server, for messages.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def plan_repeated(self, call: Call, resource: str, deadline: float) -> Plan[Any]:
        """Perform a call that may be repeated. An attempt has half of the time, so that a lost reply is one of two."""
        seconds = max(deadline - time.monotonic(), LEAST_SECONDS)

        def give_up(failed: NoReply, may_have_run: bool) -> GuardUnavailable:
            done = "a claim may have happened" if may_have_run else "nothing was claimed"
            return self._unavailable(failed, resource, done)

        try:
            answer = yield from retry(
                lambda timeout, _: call._replace(timeout=timeout),
                clock=time.monotonic,
                attempt_seconds=max(seconds / 2, LEAST_SECONDS),
                deadline=deadline,
                backoff=_BACKOFF,
                give_up=give_up,
            )
        except CoordinatorUnavailable as refused:
            raise error_of(refused, resource) from refused
        return answer.value

    def plan_once(
        self, call: Call, resource: str, deadline: float, unknown: OutcomeUnknown, sending: Sending
    ) -> Plan[Any]:
        """Perform a call that writes. It is not repeated once it may have run."""
        failures = 0
        while True:
            sending.unknown = unknown
            try:
                return (yield call._replace(timeout=max(deadline - time.monotonic(), LEAST_SECONDS)))
            except NoReply as failed:
                if failed.may_have_run:
                    raise unknown from failed.cause
                sending.unknown = None
                if time.monotonic() >= deadline:
                    raise self._unavailable(failed, resource, "nothing was written") from failed.cause
            except CoordinatorUnavailable as refused:
                sending.unknown = None
                raise error_of(refused, resource) from refused
            failures += 1
            yield Sleep(min(_BACKOFF.pause(failures), max(deadline - time.monotonic(), 0)))

    def _unavailable(self, failed: NoReply, resource: str, done: str) -> GuardUnavailable:
        return GuardUnavailable(
            f"Redis at {self.address} gave no answer in time ({failed}); {done}; retry", resource=resource
        )
