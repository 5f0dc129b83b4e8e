"""What a Redis coordinator asks its server, what the replies mean, and when it asks again. No I/O."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, MarkImplausible
from fencing.kernel.fence import Fence
from fencing.kernel.retry import Backoff, NoReply, retry
from fencing.locks.backend import Grant, Holder, Settings, Taken
from fencing.locks.holding import Holding
from fencing.redis.calls import Call, acquire_start, release_call
from fencing.redis.keys import Keys, keys_of
from fencing.redis.resp import bulk, bulks, script_call
from fencing.redis.scripts import ACQUIRE, FORCE_RELEASE, HOLDER, REMINT, RENEW, Script
from fencing.redis.waiters import Enlist, Leave, Wait, Waiter

__all__ = ["RedisPlans"]

_BACKOFF = Backoff(first=0.01, longest=0.25)


class _Reply(NamedTuple):
    values: Any  # what the effect gave
    sent_at: float  # when that was asked for
    repeated: bool  # an earlier attempt may have run

    @property
    def kind(self) -> str:
        kind: str = self.values[0].decode()
        return kind

    def text(self, index: int) -> str:
        value = self.values[index]
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def number(self, index: int) -> int:
        return int(self.values[index])


@dataclass(frozen=True, slots=True)
class _Ready:
    """What the renewals of a grant say each time: its keys and its token, packed; and what they are to hear."""

    keys: Keys
    token: bytes
    number: str  # another one: a fence that was made up around a token

    @classmethod
    def of(cls, fence: Fence) -> _Ready:
        return cls(keys_of(fence.resource), bulk(fence.token), str(fence.number))


@dataclass(frozen=True, slots=True)
class _Place:
    """In the queue: the ticket, and after how many seconds somebody is to look."""

    plans: RedisPlans
    settings: Settings
    waiter: Waiter
    ticket: str
    look: float

    def plan_wait(self, seconds: float) -> Plan[None]:
        yield Wait(self.waiter, seconds, self.look)

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        yield Leave(self.waiter)
        waiter = self.waiter
        call = release_call(waiter.resource, waiter.token, waiter.listener)
        yield from self.plans._ask(call, waiter.resource, self.settings, deadline)


class RedisPlans:
    """The plans of one Redis (or one behind Sentinel): ``CoordinatorPlans``."""

    clock: Callable[[], float] = staticmethod(process.now)
    address: str = ""
    max_renewals: int = 100
    """Leases a call: two keys each, so that one call occupies the server for well under half a millisecond."""

    def keep(self, grant: Grant, settings: Settings) -> Holding:
        return Holding(grant, settings, self.clock())

    def listening(self) -> bool:
        """Whether there is a hub already, so that who may have to wait can say so at once."""
        return False

    def plan_acquire(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        wait: bool = False,
        place: _Place | None = None,
    ) -> Plan[Grant | Taken]:
        waiter, ticket = (place.waiter, place.ticket) if place is not None else (None, "")
        try:
            if place is not None or (wait and self.listening()):
                waiter = yield from self._enlist(resource, token, waiter, settings, deadline)
            reply = yield from self._try(resource, token, settings, floor, deadline, waiter, ticket)
            if reply.kind == "taken" and wait:
                waiter = yield from self._enlist(resource, token, waiter, settings, deadline)
                reply = yield from self._try(resource, token, settings, floor, deadline, waiter, ticket)
        except GeneratorExit:
            raise
        except BaseException:
            if waiter is not None:
                yield Leave(waiter)
            raise
        kind = reply.kind
        if kind == "taken":
            remaining = reply.number(1) / 1000 if reply.number(1) >= 0 else math.inf
            return Taken(remaining, reply.text(2) or None)
        if kind == "queued":
            assert waiter is not None
            place = _Place(self, settings, waiter, reply.text(1), reply.number(2) / 1000)
            return Taken(math.inf, reply.text(3) or None, place)
        grant = self._grant(reply, resource, token, settings)
        if waiter is not None:
            yield Leave(waiter, grant.deadline)
        return grant

    def plan_remint(
        self, fence: Fence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        args = self._minting(token, settings, floor, fence.token)
        reply = yield from self._mint(REMINT, args, fence.resource, settings, deadline)
        if reply.kind == "gone":
            return None
        return self._grant(reply, fence.resource, token, settings)

    def plan_force(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Grant]:
        args = self._minting(token, settings, floor)
        reply = yield from self._mint(FORCE_RELEASE, args, resource, settings, deadline)
        return self._grant(reply, resource, token, settings)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        for grant in grants:
            if grant.ready is None:
                grant.ready = _Ready.of(grant.fence)
        each: list[_Ready] = [grant.ready for grant in grants]
        keys = tuple(key for its in each for key in (its.keys.lock, its.keys.holder))
        ttl = _milliseconds(settings)
        args = (ttl, *(grant.fence.token for grant in grants))
        packed = script_call(RENEW.by_sha, len(keys), len(args))
        packed += b"".join([its.keys.packed for its in each]) + bulk(ttl) + b"".join([its.token for its in each])
        about = grants[0].fence.resource if len(grants) == 1 else f"{len(grants)} leases"
        reply = yield from self._ask(Call(RENEW, keys, args, packed=packed), about, settings, deadline)
        believed_until = settings.deadline(reply.sent_at)
        return [
            believed_until if said == its.number or said == "-" else None
            for its, said in zip(each, reply.text(1).split(" "), strict=True)
        ]

    def plan_release(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[bool]:
        reply = yield from self._ask(release_call(fence.resource, fence.token), fence.resource, settings, deadline)
        return reply.kind == "released" or reply.repeated  # repeated: the first attempt may have been what freed it

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        keys = keys_of(resource)
        reply = yield from self._ask(Call(HOLDER, (keys.lock, keys.holder), ()), resource, settings, deadline)
        if reply.kind == "free":
            return None
        ours = reply.text(3) != ""
        return Holder(
            owner=reply.text(4) if ours else None,
            number=reply.number(3) if ours else None,
            held_for=reply.number(2) / 1000 if ours else None,
            remaining=reply.number(1) / 1000 if reply.number(1) >= 0 else None,
        )

    def _try(
        self,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        deadline: float,
        waiter: Waiter | None,
        ticket: str,
    ) -> Plan[_Reply]:
        hub = "" if waiter is None else waiter.listener
        keys, packed = acquire_start(resource)
        args = self._minting(token, settings, floor, hub, ticket)
        packed += bulk(token) + _packed(args[1:])
        call = Call(ACQUIRE, keys, args, may_take=(resource, token, hub), packed=packed)
        return self._ask(call, resource, settings, deadline)

    def _minting(self, token: str, settings: Settings, floor: int, *more: str) -> tuple[str | int, ...]:
        """The arguments of the scripts that mint a number."""
        owner = settings.owner or _label(os.getpid())
        return (token, _milliseconds(settings), floor, int(settings.clock_floor), owner, *more)

    def _mint(
        self, script: Script, args: tuple[str | int, ...], resource: str, settings: Settings, deadline: float
    ) -> Plan[_Reply]:
        its = keys_of(resource)
        call = Call(script, (its.lock, its.holder, its.counter), args, may_take=(resource, str(args[0]), ""))
        return self._ask(call, resource, settings, deadline)

    def _grant(self, reply: _Reply, resource: str, token: str, settings: Settings) -> Grant:
        if reply.kind == "implausible":
            raise MarkImplausible(resource=resource, number=reply.number(1), ceiling=reply.number(2))
        return Grant(Fence(resource, reply.number(1), token), settings.deadline(reply.sent_at))

    def _ask(self, call: Call, about: str, settings: Settings, deadline: float) -> Plan[_Reply]:
        """Run a script. Every one is idempotent for its token, so that it can be repeated."""
        script, keys, args, _, takes, _, packed = call

        def attempt(timeout: float, last: bool) -> Call:
            return Call(script, keys, args, timeout, takes, last, packed)

        return self._insist(attempt, about, settings, deadline)

    def _enlist(
        self, resource: str, token: str, waiter: Waiter | None, settings: Settings, deadline: float
    ) -> Plan[Waiter]:
        def enlist(timeout: float, last: bool) -> Enlist:
            return Enlist(resource, token, timeout, waiter)

        reply = yield from self._insist(enlist, resource, settings, deadline)
        enlisted: Waiter = reply.values
        return enlisted

    def _insist(
        self, attempt: Callable[[float, bool], Any], about: str, settings: Settings, deadline: float
    ) -> Plan[_Reply]:
        """Have an effect done; where no reply comes, again, until ``deadline``."""
        try:
            answer = yield from retry(
                attempt,
                clock=self.clock,
                attempt_seconds=settings.attempt_seconds,
                deadline=deadline,
                backoff=_BACKOFF,
            )
        except NoReply as failure:
            raise CoordinatorUnavailable(
                f"no answer from Redis at {self.address} for {about!r}: {str(failure).rstrip('.')}; "
                f"is it running, and is this its address?",
                resource=about,
                address=self.address,
            ) from failure.cause
        return _Reply(*answer)


@lru_cache(maxsize=64)  # of settings in use; tickets come and go
def _packed(args: tuple[str | int, ...]) -> bytes:
    return bulks(args)


@lru_cache(maxsize=1)
def _label(pid: int) -> str:
    """Who holds a lock, where its settings do not say."""
    return f"{socket.gethostname()}:{pid}"


def _milliseconds(settings: Settings) -> int | str:
    return "" if settings.ttl is None else math.ceil(settings.ttl * 1000)
