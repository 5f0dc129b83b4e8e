"""Slots: the names of a few resources, and the plan that takes whichever of them is free."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from fencing.kernel.effects import Plan
from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import MAX_RESOURCE_BYTES, Fence, check_resource, new_token
from fencing.locks import plans
from fencing.locks.backend import Backend, Taken, Undecided, wrong_reply
from fencing.locks.capabilities import AcquiresAny
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings

T = TypeVar("T")

MOST_SLOTS = 64
"""How many slots a name has, at most. Where the service has no request for all, a try asks for each."""

_SLOT = re.compile(r"\{[^{}]+\}#([0-9]|[1-5][0-9]|6[0-3])")
_LONGEST_SUFFIX = f"#{MOST_SLOTS - 1}"


def slot_of(resource: str) -> int:
    """Return which slot a resource is.

    Raises:
        AttributeError: it is none, but an ordinary lock.
    """
    found = _SLOT.fullmatch(resource, max(resource.rfind("{"), 0))
    if found is None:
        raise AttributeError(f"{resource!r} is no slot: only resources such as '{{gpu}}#2' of slots('gpu', 4) are")
    return int(found[1])


def check_slots(name: object, count: object, prefix: str) -> tuple[str, tuple[str, ...]]:
    """Return what the slots of a name are called together, and the resource of each.

    Args:
        name: with the coordinator's prefix or without.
        count: how many slots there are.
        prefix: the coordinator's; it stays outside of the braces, so that it is the prefix of each resource.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    if type(count) is not int:
        raise TypeError(f"the number of slots must be an int, not {type(count).__name__}")
    if not 1 <= count <= MOST_SLOTS:
        raise ValueError(f"the number of slots must be between 1 and {MOST_SLOTS}, not {count}")
    text = check_resource(name)
    text = check_resource(text.removeprefix(prefix)) if prefix else text
    if "{" in text or "}" in text:
        raise ValueError(
            f"the name of slots must not contain braces, which stand around it in the resource of each slot; "
            f"rename {text!r:.80}"
        )
    if "{}" in prefix:
        raise ValueError(f"a prefix with '{{}}' spreads slots over the nodes of a Redis Cluster; change {prefix!r:.80}")
    base = f"{prefix}{{{text}}}"
    most = MAX_RESOURCE_BYTES - len(f"{prefix}{{}}{_LONGEST_SUFFIX}".encode())
    if len(text.encode()) > most:
        raise ValueError(
            f"the name of slots must have at most {most} bytes of UTF-8, so that each slot's resource, such as "
            f"'{{gpu}}{_LONGEST_SUFFIX}', has at most {MAX_RESOURCE_BYTES}; hash longer names"
        )
    return base, tuple(f"{base}#{slot}" for slot in range(count))


def check_slot_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if ``reentrant`` is among the options."""
    if "reentrant" in options:
        raise TypeError("slots are not re-entrant: a block inside a block takes one more slot; remove reentrant")


def check_slot_settings(settings: Settings) -> Settings:
    """Return the settings if slots can have them; raise TypeError otherwise."""
    if settings.max_waiters is not None:
        raise TypeError(
            f"slots have no max_waiters: those who wait for any of them stand in no queue, and are not counted; leave "
            f"max_waiters={settings.max_waiters} out, or pass max_waiters=None to slots() where the coordinator has it"
        )
    return settings


class AnySlot:
    """What ``plans.acquire`` is given as a backend: a request for the lock is one for any slot. One for each call.

    One caller never keeps two slots. Where the service has a request for all, that looks for the caller's token first.
    Elsewhere each try of a slot has a token of its own. A slot whose try has no answer is asked for again with the same
    token, or given back, before any other one is tried.
    """

    plan_queue = None  # waiters poll: a place in the queue of one slot says nothing of the others

    def __init__(self, backend: Backend, resource: str, resources: Sequence[str]) -> None:
        self._backend = backend
        self._resource = resource
        self._resources = resources
        self._token = ""  # by which the caller knows the last request
        self._asked: list[Fence] = []  # what that may have taken
        self._first: int | None = None  # the slot that is tried first; None: any
        self._granted: int | None = None  # the slot that was granted last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def locks_behind(self, resource: str) -> tuple[Backend, Sequence[str]]:
        """Return the slots, and the backend that has them."""
        return self._backend, self._resources

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken | Undecided]:
        """Try each slot once, from a random one on; all in one request where the service has one.

        Args:
            resource: of all slots together.
            token: of a request for all; elsewhere it stands for the tries where the caller gives them back.
            settings: the slots'.
            floor: a number to exceed, from the mark of the slot that was granted last; the others have marks of their
                own.
            deadline: as for one slot; no other one is tried after it.
        """
        count, least = len(self._resources), None
        start = random.randrange(count) if self._first is None else self._first
        self._token, self._first = token, None
        if isinstance(self._backend, AcquiresAny) and not floor:
            return (yield from self._plan_any(self._backend, token, settings, start, deadline))
        for slot in (*range(start, count), *range(start)):
            if least is not None and self._backend.clock() >= deadline:
                break
            reply = yield from self._plan_try(slot, settings, floor if slot == self._granted else 0, deadline)
            if not isinstance(reply, Taken):
                self._first = slot  # if it is asked for again: a request without a decision may still have taken it
                if isinstance(reply, Grant):
                    self._granted = slot
                return reply
            if least is None or reply.remaining < least.remaining:
                least = reply
        assert least is not None
        return least

    def _plan_any(
        self, backend: AcquiresAny, token: str, settings: Settings, start: int, deadline: float
    ) -> Plan[Grant | Taken | Undecided]:
        self._asked = [Fence(each, 1, token) for each in self._resources]
        reply = yield from backend.plan_acquire_any(self._resources, token, settings, first=start, deadline=deadline)
        if isinstance(reply, Grant):
            self._asked, self._granted = [reply.fence], self._resources.index(reply.resource)
            self._first = self._granted
        return self._checked(reply, "plan_acquire_any")

    def _plan_try(self, slot: int, settings: Settings, floor: int, deadline: float) -> Plan[Grant | Taken | Undecided]:
        resource, token = self._resources[slot], new_token()
        self._asked = [Fence(resource, 1, token)]
        reply = yield from self._backend.plan_acquire(resource, token, settings, floor=floor, deadline=deadline)
        return self._checked(reply, "plan_acquire")

    def _checked(self, reply: T, method: str) -> T:
        if not isinstance(reply, (Grant, Taken, Undecided)):
            raise wrong_reply(self._backend, method, reply, "a Grant, Taken or Undecided")
        return reply

    def plan_give_back(self, grant: GrantOrFence, settings: Settings) -> Plan[None]:
        """Release a grant that will not be used, or what the last request may have taken: all within a second."""
        named, ends_at = self._named(grant), self._backend.give_back_deadline(settings)
        for each in named:
            if each is named[0] or self._backend.clock() < ends_at:
                yield from self._backend.plan_give_back(each, settings)
            else:
                self._backend.give_back_later(each, settings)

    def give_back_later(self, grant: GrantOrFence, settings: Settings) -> None:
        """Do the same in the background."""
        for each in self._named(grant):
            self._backend.give_back_later(each, settings)

    def _named(self, grant: GrantOrFence) -> Sequence[GrantOrFence]:
        """Return what a grant is at the service. A bare fence of all slots is of a request without an answer."""
        if isinstance(grant, Grant) or grant.resource != self._resource:
            return [grant]
        if grant.token == self._token or not self._asked:  # none: it was interrupted before its first request
            return self._asked
        return [Fence(self._asked[0].resource, 1, grant.token)]  # of a remint of the slot that was granted


def acquire_slot(
    backend: Backend,
    resource: str,
    resources: Sequence[str],
    settings: Settings,
    timeout: float,
    lease: Callable[[Grant], T],
) -> Plan[T]:
    """Wait for a slot, take it, and claim its fence at every guard, as ``plans.acquire`` does for a lock.

    Args:
        resource: of all slots together, for errors.
        resources: of each slot.
        timeout: seconds, claims included; 0 tries each slot once, infinity waits for ever.
        lease: makes the lease, which is the result.
    """
    any_slot = cast(Backend, AnySlot(backend, resource, resources))
    try:
        return (yield from plans.acquire(any_slot, resource, settings, timeout, lease))
    except NotAcquired as error:
        if error.reason == "superseded":  # it names the slot whose mark is in the way
            raise
        raise NotAcquired(
            resource=resource,
            reason=error.reason,
            waited=error.waited,
            owner=error.owner,
            replicas=error.replicas,
            kept_by=error.kept_by,
            slots=len(resources) if error.reason == "held" else None,
        ) from error.__cause__
