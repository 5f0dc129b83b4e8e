"""How a lease's lock gets a ttl, and what is believed meanwhile."""

from __future__ import annotations

from typing import TypeVar

from fencing.kernel.effects import Plan
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings

T = TypeVar("T")


def set_ttl(backend: Backend, holding: Grant, settings: Settings) -> Plan[None]:
    """Give the lock of a lease the ttl of these settings, from now on. Raise LeaseLost if the lock is gone.

    A shorter one than before is believed before the request is sent. An attempt without an answer may arrive later.
    """
    request = holding.expect_ttl(settings.believed_seconds, backend.clock())
    try:
        deadline, requests = yield from _counted(plans.renew(backend, holding, settings))
        if requests == 1:
            request.answered_at = backend.clock()
    finally:
        request.is_over = True
    holding.renewed(deadline, backend.clock(), request)


def _counted(plan: Plan[T]) -> Plan[tuple[T, int]]:
    """Do what a plan does. Return its value, and the number of its effects."""
    count, reply = 0, None
    error: BaseException | None = None
    while True:
        try:
            effect = plan.send(reply) if error is None else plan.throw(error)
        except StopIteration as ended:
            return ended.value, count
        count, reply, error = count + 1, None, None
        try:
            reply = yield effect
        except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
            error = raised
