"""The plans of a Redis coordinator: its requests, the meaning of the replies, and the retries. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple

from fencing.kernel.effects import GiveWay, Plan, Shielded
from fencing.kernel.errors import CoordinatorUnavailable, KeptBy, MarkImplausible
from fencing.kernel.fence import Fence, new_token
from fencing.kernel.patterns import Pattern
from fencing.kernel.retry import LEAST_SECONDS, Answer, NoReply
from fencing.locks.backend import Backend, Holder, Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.locks.waiting import Enlist, Leave, WaiterPlace
from fencing.redis.calls import (
    Arguments,
    Call,
    NodeCall,
    Replicated,
    acquire_call,
    any_call,
    call_without_token,
    form_of,
    queue_call,
    record_start,
    release_call,
    release_keys,
    release_later_call,
    scan_call,
    size_of,
)
from fencing.redis.cluster.plans import by_slot, plan_calls, plan_release_all
from fencing.redis.keys import Keys, holder_pattern, keys_of, resources_of, slot_of
from fencing.redis.resp import bulk, bulks
from fencing.redis.scripts import FORCE_RELEASE, FORCED_BY, HOLDER, HOLDERS, RELEASE_SEVERAL, REMINT, RENEW, Script
from fencing.redis.waiters import Waiter

KEYS_PER_PAGE = 500
"""How many keys the server looks at in one page of a listing. It takes well under half a millisecond."""

RENEWED = ord("r")
"""The character for a lock that was renewed: see lua/renew.lua."""

NOT_HELD, OFFERED = b"go"
"""The characters for a lock that its token does not hold, and one that was offered: see lua/release_several.lua."""

GONE, HANDED_OVER = 0, 3
"""Replies of lua/release.lua: the token does not hold the lock; the lock was offered to the next waiter."""


class Packed(NamedTuple):
    """The data of a grant that each renewal sends, packed."""

    keys: Keys
    args: bytes  # the token, and the beginning of the record

    @classmethod
    def of(cls, grant: Grant) -> Packed:
        return cls(keys_of(grant.resource), bulks((grant.token, record_start(grant.number, grant.token))))


class RedisPlans(Backend):
    """The plans of one Redis, alone or behind Sentinel."""

    service = "Redis"
    max_renewals: int = 100
    """Leases per call, with two keys each. One call blocks the server for well under half a millisecond."""

    ttl_per_lock: ClassVar[Literal[True]] = True
    holds_without_ttl: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True
    counts_waiters: ClassVar[Literal[True]] = True

    spans_slots: bool = False
    """Whether the keys of one request must be in one slot, because this is a Redis Cluster."""

    clock_floor: bool = True
    """Whether the server's clock is a floor for numbers."""

    replicas: int = 0
    """How many replicas must have a grant before it counts."""

    _listener: Any
    """What wakes the waiters. A coordinator sets it."""

    @staticmethod
    def shared_by_clients(client: Any) -> Any:
        """Return the client's pool, which has all settings of its connections; of a Redis Cluster, the client."""
        return getattr(client, "connection_pool", client)

    def plan_acquire_any(
        self, resources: Sequence[str], token: str, settings: Settings, *, first: int, deadline: float
    ) -> Plan[Grant | Taken]:
        """Take the first slot that is free: see ``AcquiresAny`` in ``fencing/locks/capabilities.py``."""
        args = self._mint_arguments(settings, 0, first)
        call = any_call(tuple(resources), token, args)
        answer = yield from self._plan_call(
            call, resources[0], settings, deadline, replicas=self.replicas, resources=resources
        )
        reply = answer.value
        if type(reply) is bytes:
            number, _, slot = reply.partition(b" ")
            return _grant(number, resources[int(slot)], token, settings, answer.sent_at)
        if _kind(reply) != b"taken":
            return _grant(reply, resources[0], token, settings, answer.sent_at)
        left, waited_for = _number(reply, 1), _number(reply, 3)
        if waited_for >= 0:  # its queue may be one of the dead alone: a request for this slot removes them
            return (yield from self.plan_acquire(resources[waited_for], token, settings, floor=0, deadline=deadline))
        return Taken(left / 1000 if left >= 0 else math.inf, _text(reply, 2) or None)

    def is_waited_for(self, resource: str) -> bool:
        """Return whether there are waiters here: see ``Queues`` in ``fencing/locks/capabilities.py``."""
        return bool(self._listener.is_waited_for(resource))

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        sent_at = self.clock()
        args: Arguments = (settings.milliseconds, settings.owner_label)
        if floor or not self.clock_floor or settings.ttl is None:
            args += (floor, int(self.clock_floor))
        left = deadline - sent_at
        seconds = _first_seconds(settings, left)
        call = acquire_call(resource, token, args, seconds, seconds >= left)
        try:
            reply = yield Replicated(call, self.replicas) if self.replicas else call
        except NoReply as failure:
            answer = yield from self._plan_call(call, resource, settings, deadline, failure, replicas=self.replicas)
            sent_at, reply = answer.sent_at, answer.value
        if type(reply) is bytes and reply.isdigit():  # the common case of what _outcome() does
            return Grant(resource, int(reply), token, sent_at + settings.believed_seconds)
        return _outcome(reply, resource, token, settings, sent_at)

    def plan_queue(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        place: WaiterPlace | None = None,
    ) -> Plan[Grant | Taken]:
        """Do what ``plan_acquire`` does for a waiter: see ``Queues`` in ``fencing/locks/capabilities.py``."""
        waiter, ticket = (place.waiter, place.ticket) if place is not None else (None, "")
        is_asking = False
        try:
            seconds = _first_seconds(settings, deadline - self.clock())
            try:
                waiter = yield Enlist(resource, token, seconds, waiter)
            except NoReply as failure:
                waiter = yield from self._plan_enlist(resource, token, waiter, settings, deadline, failure)
            sent_at = self.clock()
            args = (settings.milliseconds, settings.owner_label, floor, int(self.clock_floor), waiter.listener)
            left = deadline - sent_at
            seconds = _first_seconds(settings, left)
            call = queue_call(resource, token, args, ticket, seconds, seconds >= left, settings.max_waiters)
            is_asking = True
            try:
                reply = yield Replicated(call, self.replicas) if self.replicas else call
            except NoReply as failure:
                answer = yield from self._plan_call(call, resource, settings, deadline, failure, replicas=self.replicas)
                sent_at, reply = answer.sent_at, answer.value
        except GeneratorExit:
            raise
        except BaseException:
            if waiter is not None:
                yield Leave(waiter)
                if is_asking and place is None and settings.max_waiters is not None:  # or else the entry does no harm
                    unanswered = WaiterPlace(self, settings.for_one_try(), waiter, ticket, 0.0)
                    yield Shielded(self._plan_leave_unanswered(unanswered))
            raise
        if _kind(reply) == b"queued":
            place = WaiterPlace(self, settings, waiter, _text(reply, 1), _number(reply, 2) / 1000)
            return _taken(reply, math.inf, _text(reply, 3), place)
        if _kind(reply) == b"full":
            yield Leave(waiter)
            return _taken(reply, math.inf, _text(reply, 2), waiters=_number(reply, 1))
        outcome = _outcome(reply, resource, token, settings, sent_at)
        if isinstance(outcome, Grant):
            yield Leave(waiter, outcome.deadline)
        return outcome

    def _plan_leave_unanswered(self, place: WaiterPlace) -> Plan[None]:
        """Leave the queue after a request without an answer, which may have enlisted the waiter."""
        with suppress(CoordinatorUnavailable):
            yield from self.plan_leave_place(place, deadline=self.give_back_deadline(place.settings))

    def plan_leave_place(self, place: WaiterPlace, *, deadline: float) -> Plan[None]:
        """Withdraw a waiter's request from the queue, and give the lock back if it is being offered."""
        waiter: Waiter = place.waiter
        call = release_call(waiter.resource, waiter.token, waiter.listener)
        yield from self._plan_call(call, waiter.resource, place.settings, deadline)

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        args = self._mint_arguments(settings, floor, grant.token, grant.number)
        answer = yield from self._plan_mint(
            REMINT, token, args, grant.resource, settings, deadline, replicas=self.replicas, may_take=False
        )
        if _kind(answer.value) == b"gone":
            return None
        return _grant(answer.value, grant.resource, token, settings, answer.sent_at)

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        args = self._mint_arguments(settings, floor, holder.digest)
        keys = (keys_of(resource).forced,)
        answer = yield from self._plan_mint(FORCE_RELEASE, token, args, resource, settings, deadline, keys)
        if _kind(answer.value) == b"gone":
            return None
        return _grant(answer.value, resource, token, settings, answer.sent_at)

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Give each grant's lock its full ttl again: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        return (yield from self.plan_renew_each(grants, [settings] * len(grants), deadline=deadline))

    def plan_renew_each(
        self, grants: Sequence[Grant], settings: Sequence[Settings], *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Give each grant's lock the ttl of its own settings: see ``RenewsSeveralTtls``."""
        for grant in grants:
            if grant.kept is None:
                grant.kept = Packed.of(grant)
        about = grants[0].resource if len(grants) == 1 else f"{len(grants)} leases"
        patience = min(settings, key=attrgetter("attempt_seconds"))
        if self.spans_slots:
            return (yield from self._plan_renew_slots(grants, settings, about, patience, deadline))
        answer = yield from self._plan_call(_renew_call(grants, settings), about, patience, deadline)
        return _renewed(answer, settings, about)

    def _plan_renew_slots(
        self, grants: Sequence[Grant], settings: Sequence[Settings], about: str, patience: Settings, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        groups = by_slot([grant.kept.keys.slot for grant in grants])
        calls = [_renew_call([grants[i] for i in group], [settings[i] for i in group]) for group in groups]
        is_brief = deadline - self.clock() <= patience.attempt_seconds  # the leases are due again soon
        answers = yield from plan_calls(self, calls, about, patience, deadline, is_brief=is_brief)
        results: list[float | CoordinatorUnavailable | None] = [None] * len(grants)
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, Answer):
                renewed: Sequence[Any] = _renewed(answer, [settings[i] for i in group], about)
            else:
                renewed = [answer] * len(group)
            for i, result in zip(group, renewed, strict=True):
                results[i] = result
        return results

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        call = release_call(grant.resource, grant.token, "", _first_seconds(settings, deadline - self.clock()))
        try:
            reply = yield call
            freed: bool = reply != GONE
        except NoReply as failure:
            answer = yield from self._plan_call(call, grant.resource, settings, deadline, failure)
            reply = answer.value
            freed = reply != GONE or answer.repeated  # repeated: the first attempt may have freed it
        if reply == HANDED_OVER:
            yield GiveWay()  # or else this thread asks for the next lock before the listener hears of the offer
        return freed

    def plan_release_later(
        self, grant: GrantOrFence, settings: Settings, *, free_at: float, deadline: float
    ) -> Plan[bool]:
        """Release a lock that stays taken until then: see ``ReleasesLater`` in ``fencing/locks/capabilities.py``."""
        token = new_token()

        def attempt(timeout: float, last_attempt: bool) -> Call:
            milliseconds = max(math.ceil((free_at - self.clock()) * 1000), 1) + 1  # Redis cuts its time to whole ones
            return release_later_call(grant.resource, grant.token, token, milliseconds, timeout)

        answer = yield from self.plan_until_answered(attempt, grant.resource, settings, deadline)
        return answer.value != GONE or answer.repeated  # repeated: the first attempt may have released it

    def plan_release_all(
        self, grants: Sequence[GrantOrFence], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[bool | None]]:
        """Free locks in one request: see ``ReleasesSeveral`` in ``fencing/locks/capabilities.py``."""
        if self.spans_slots:
            freed: list[bool | None] = [None] * len(grants)
            for i, answer in (yield from plan_release_all(self, grants, settings, deadline)):
                freed[i] = answer.value[0] != NOT_HELD or answer.repeated
            return freed
        keys = tuple(key for grant in grants for key in release_keys(grant.resource))
        call = call_without_token(RELEASE_SEVERAL, keys, tuple(grant.token for grant in grants))
        answer = yield from self._plan_call(call, f"{len(grants)} locks", settings, deadline)
        results: bytes = answer.value
        if len(results) != len(grants):
            raise _odd(results, f"{len(grants)} locks")
        if OFFERED in results:
            yield GiveWay()
        return [result != NOT_HELD or answer.repeated for result in results]

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        keys = keys_of(resource)
        call = call_without_token(HOLDER, (keys.lock, keys.holder, keys.queue), ())
        answer = yield from self._plan_call(call, resource, settings, deadline)
        reply = answer.value
        if _kind(reply) == b"free":
            return None
        ours = _text(reply, 3) != ""
        return Holder(
            owner=_text(reply, 4) if ours else None,
            number=_number(reply, 3) if ours else None,
            held_for=_number(reply, 2) / 1000 if ours else None,
            remaining=_number(reply, 1) / 1000 if _number(reply, 1) >= 0 else None,
            digest=_text(reply, 5),
            released=_text(reply, 6) != "",
            waiting=_known(reply, 7),
        )

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Tell who has forced a fence out: see ``RemembersForce`` in ``fencing/locks/capabilities.py``."""
        call = call_without_token(FORCED_BY, (keys_of(fence.resource).forced,), (fence.token,))
        answer = yield from self._plan_call(call, fence.resource, settings, deadline)
        return answer.value.decode("utf-8", "replace") or None

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return a page of holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        cursor, _, slot = (page or "0 0").partition(" ")
        scan = scan_call(cursor, holder_pattern(pattern.text), KEYS_PER_PAGE)
        end = ""
        if self.spans_slots:  # a page is a cursor of one node, and the first slot that the node has
            answer = yield from self.plan_until_answered(
                lambda timeout, _: NodeCall(scan._replace(timeout=timeout), int(slot)), pattern.text, settings, deadline
            )
            reply, next_slot = answer.value
            end = "" if next_slot is None else f"0 {next_slot}"
        else:
            reply = (yield from self._plan_call(scan, pattern.text, settings, deadline)).value
        records = resources_of(reply[1])
        names = sorted(filter(pattern.matches, records))
        found = yield from self._plan_describe(self._by_call(names), records, pattern.text, settings, deadline)
        following = _text(reply, 0)
        return found, end if following == "0" else f"{following} {slot}".rstrip()

    def _by_call(self, resources: Sequence[str]) -> list[list[str]]:
        """Return the resources in groups whose keys one call may have."""
        slots = [slot_of(name.encode()) if self.spans_slots else 0 for name in resources]
        return [[resources[i] for i in group] for group in by_slot(slots)]

    def _plan_describe(
        self, groups: list[list[str]], records: Mapping[str, str], about: str, settings: Settings, deadline: float
    ) -> Plan[list[tuple[str, Holder]]]:
        """Return the holders of locks, a call for each group. Those that the user may not read are left out."""
        calls = [
            call_without_token(
                HOLDERS, tuple(key for name in group for key in (name, records[name], keys_of(name).queue)), ()
            )
            for group in groups
        ]
        answers: list[Answer | CoordinatorUnavailable] = []
        if self.spans_slots and calls:
            answers = yield from plan_calls(self, calls, about, settings, deadline)
        else:
            for call in calls:
                try:
                    answers.append((yield from self._plan_call(call, about, settings, deadline)))
                except CoordinatorUnavailable as refused:
                    answers.append(refused)
        found = []
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, Answer):
                found += _holders(answer.value, group)
            elif not _is_key_forbidden(answer):
                raise answer
            elif len(group) > 1:  # perhaps others of them may be read
                alone = [[name] for name in group]
                found += yield from self._plan_describe(alone, records, about, settings, deadline)
        return found

    def _mint_arguments(self, settings: Settings, floor: int, *more: str | int) -> Arguments:
        """Return the arguments of REMINT and FORCE_RELEASE after the token."""
        return (settings.milliseconds, settings.owner_label, floor, int(self.clock_floor), *more)

    def _plan_mint(
        self,
        script: Script,
        token: str,
        args: Arguments,
        resource: str,
        settings: Settings,
        deadline: float,
        more_keys: tuple[str, ...] = (),
        replicas: int = 0,
        may_take: bool = True,
    ) -> Plan[Answer]:
        """Run a script that mints; ``may_take``: whether the lock is given back if there is no answer."""
        names = keys_of(resource)
        keys = (names.lock, names.holder, names.counter, *more_keys)
        call = Call(form_of(script, keys, args, "" if may_take else None, token_size=size_of(token)), token)
        return self._plan_call(call, resource, settings, deadline, replicas=replicas)

    def _plan_call(
        self,
        call: Call,
        about: str,
        settings: Settings,
        deadline: float,
        failure: NoReply | None = None,
        replicas: int = 0,
        resources: Sequence[str] = (),
    ) -> Plan[Answer]:
        """Run a script until there is an answer. Every script is idempotent for its token, so it can be repeated.

        Args:
            failure: of the first attempt, if it was made already.
            replicas: how many replicas must have what it wrote.
            resources: of the locks of which the call may take one; none: it may take that of ``about``.
        """

        def attempt(timeout: float, last_attempt: bool) -> Call | Replicated:
            made = call._replace(timeout=timeout, last_attempt=last_attempt)
            return Replicated(made, replicas) if replicas else made

        token = call.token if call.may_take else None
        return self.plan_until_answered(
            attempt, about, settings, deadline, may_take=token, failure=failure, resources=resources
        )

    def _plan_enlist(
        self,
        resource: str,
        token: str,
        waiter: Waiter | None,
        settings: Settings,
        deadline: float,
        failure: NoReply,
    ) -> Plan[Waiter]:
        def enlist(timeout: float, last_attempt: bool) -> Enlist:
            return Enlist(resource, token, timeout, waiter)

        answer = yield from self.plan_until_answered(enlist, resource, settings, deadline, failure=failure)
        enlisted: Waiter = answer.value
        return enlisted


def _first_seconds(settings: Settings, left: float) -> float:
    """Return the time limit of the first attempt, ``left`` seconds before the deadline."""
    seconds = settings.attempt_seconds
    return seconds if seconds < left else max(left, LEAST_SECONDS)


def _taken(
    reply: Any, remaining: float, owner: str, place: WaiterPlace | None = None, waiters: int | None = None
) -> Taken:
    """Return a refusal. A lock of ours has an owner, unless it is an offer; anything else under its name has none."""
    kept_by: KeptBy | None = None if owner else "waiter" if reply[-1] == b"offered" else "foreign"
    return Taken(remaining, owner or None, place, waiters=waiters, kept_by=kept_by)


def _outcome(reply: Any, resource: str, token: str, settings: Settings, sent_at: float) -> Grant | Taken:
    if _kind(reply) == b"taken":
        left = _number(reply, 1)
        return _taken(reply, left / 1000 if left >= 0 else math.inf, _text(reply, 2))
    return _grant(reply, resource, token, settings, sent_at)


def _grant(reply: Any, resource: str, token: str, settings: Settings, sent_at: float) -> Grant:
    if type(reply) is not bytes and _kind(reply) == b"implausible":
        raise MarkImplausible(resource=resource, number=_number(reply, 1), ceiling=_number(reply, 2))
    try:
        return Grant(resource, int(reply), token, sent_at + settings.believed_seconds)
    except ValueError:
        raise _odd(reply, resource) from None


def _renew_call(grants: Sequence[Grant], settings: Sequence[Settings]) -> Call:
    """Return the call that renews grants whose data is packed already."""
    parts: list[Packed] = [grant.kept for grant in grants]
    ttls = [each.milliseconds for each in settings]
    keys = tuple(key for part in parts for key in (part.keys.lock, part.keys.holder))
    args = tuple(
        value
        for grant, ttl in zip(grants, ttls, strict=True)
        for value in (ttl, grant.token, record_start(grant.number, grant.token))
    )
    packed_ttls = {ttl: bulk(ttl) for ttl in set(ttls)}
    packed = [part.keys.packed for part in parts]
    for part, ttl in zip(parts, ttls, strict=True):
        packed += packed_ttls[ttl], part.args
    return call_without_token(RENEW, keys, args, b"".join(packed))


def _renewed(answer: Answer, settings: Sequence[Settings], about: str) -> list[float | None]:
    """Return the deadlines that the answer to a renewal names."""
    renewed: bytes = answer.value
    if len(renewed) != len(settings):
        raise _odd(renewed, about)
    return [
        each.deadline(answer.sent_at) if result == RENEWED else None
        for each, result in zip(settings, renewed, strict=True)
    ]


def _is_key_forbidden(error: CoordinatorUnavailable) -> bool:
    """Return whether the client's user has no permission for a key: as Redis 7 and as Redis 6.2 say it."""
    text = str(error.__cause__)
    return "No permissions to access a key" in text or "no permissions to access one of the keys" in text


def _holders(reply: Any, resources: Sequence[str]) -> list[tuple[str, Holder]]:
    """Return what the reply of lua/holders.lua tells of these resources."""
    found = []
    for i in range(0, len(reply), 8):
        remaining = _number(reply, i + 1) / 1000 if _number(reply, i + 1) >= 0 else None
        held_for, number, owner = _number(reply, i + 2) / 1000, _number(reply, i + 3), _text(reply, i + 4)
        digest, released, waiting = _text(reply, i + 5), _text(reply, i + 6) != "", _known(reply, i + 7)
        holder = Holder(owner, number, held_for, remaining, digest, released, waiting=waiting)
        found.append((resources[_number(reply, i) - 1], holder))
    return found


def _odd(reply: object, about: str) -> CoordinatorUnavailable:
    return CoordinatorUnavailable(
        f"the answer for {about!r} is not of our scripts: {reply!r:.100}; check that the address is that of Redis",
        resource=about,
    )


def _kind(reply: Any) -> bytes:
    """Return the first word of a reply; empty: the reply is a number."""
    kind: bytes = reply[0] if isinstance(reply, list) else b""
    return kind


def _text(reply: Any, index: int) -> str:
    value = reply[index]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(reply: Any, index: int) -> int:
    return int(reply[index])


def _known(reply: Any, index: int) -> int | None:
    """Return a number that is -1 where it is not known."""
    number = _number(reply, index)
    return number if number >= 0 else None
