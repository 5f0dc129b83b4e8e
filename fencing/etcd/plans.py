"""The plans of an etcd coordinator: its requests, the meaning of the replies, the queue. No I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple

from fencing.etcd.calls import (
    AUTHENTICATE,
    Call,
    Key,
    Reply,
    Step,
    body_of,
    compare,
    delete,
    encode,
    end_of,
    nested,
    of_leases,
    put,
    read,
    read_newest,
    read_oldest,
    read_range,
    transaction,
)
from fencing.etcd.layout import (
    BASE,
    LOCKS,
    WAITING,
    Record,
    forced_key,
    number_of,
    own_key,
    queue_of,
    record_of,
    resource_of,
)
from fencing.etcd.leases import Kept, Lease, Leases, is_fresh
from fencing.etcd.waiters import Leave, Wait, Waiter
from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.kernel.fence import Fence
from fencing.kernel.retry import Answer, NoReply
from fencing.locks.backend import BACKOFF, Backend, Holder, Taken, next_number
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.listing import Pattern
from fencing.locks.settings import Settings
from fencing.locks.waiting import poll_pause

RENEWALS = 100
"""Leases in one request. The keys of all are read in one transaction, which etcd limits to 128 steps by default."""

READ_AT = 3
"""Each so many-th renewal of a grant also reads its key: a lease outlives a key that was deleted by hand."""

MOST_RACES = 20
"""How often a request is made again because another one has changed the base, or the queue."""

PAGE_KEYS = 200

FORCED_SECONDS = 300
"""How long it is remembered who has forced a lock."""

ALIVE_SHARE = 0.3
"""After which share of its ttl the lease of a waiter is kept alive."""

LAST_SECONDS = 0.002
"""A wait that is shorter than this is over."""


class Base(NamedTuple):
    """The stored base; None: there is none. And the one that a grant needs."""

    stored: int | None
    wanted: int

    @property
    def unchanged(self) -> Step:
        """The condition that the stored one is still this."""
        return compare(BASE, "CREATE", 0) if self.stored is None else compare(BASE, "VALUE", encode(str(self.stored)))

    @property
    def lifted(self) -> list[Step]:
        """The step that stores the one that is needed."""
        return [] if self.stored == self.wanted else [put(BASE, str(self.wanted))]


class EtcdPlans(Backend):
    """The plans of locks in etcd."""

    service = "etcd"
    max_renewals: int = RENEWALS
    ttl_per_lock: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True
    clock_floor: bool = True
    user: tuple[str, str] | None = None
    """Name and password."""

    leases: Leases
    _base: int | None = None
    _credentials = ""

    # Taking

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        place = EtcdPlace(self, resource, token, settings)
        outcome = yield from self._plan_take(place, floor, deadline, queue=False)
        if isinstance(outcome, Taken):
            yield from self._plan_drop(place.lease, token, resource, settings, deadline)
        return outcome

    def is_waited_for(self, resource: str) -> bool:
        """Return True: a request that queues is as cheap as a try."""
        return True

    def plan_queue(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        place: EtcdPlace | None = None,
    ) -> Plan[Grant | Taken]:
        """Do the same as ``plan_acquire`` for a waiter: see ``Queues`` in ``fencing/locks/capabilities.py``."""
        place = place or EtcdPlace(self, resource, token, settings)
        outcome = yield from self._plan_take(place, floor, deadline, queue=True)
        if isinstance(outcome, Grant):
            yield Leave(place.waiter)
            return outcome
        return replace(outcome, place=place)

    def _plan_take(self, place: EtcdPlace, floor: int, deadline: float, *, queue: bool) -> Plan[Grant | Taken]:
        """Take the lock if nobody is before this place; otherwise take a place, if ``queue``."""
        resource, token, settings = place.resource, place.token, place.settings
        prefix = queue_of(resource)
        for _ in range(MOST_RACES):
            lease = yield from self._plan_lease(place, deadline)
            base = yield from self._plan_base(resource, settings, floor, deadline)
            own = own_key(resource, lease.id)
            first = compare(prefix, "CREATE", 0, all_below=True)
            if place.created:  # nobody is before us
                first = compare(prefix, "CREATE", place.created - 1, result="GREATER", all_below=True)
            enlist = transaction([compare(own, "CREATE", 0)], [put(own, WAITING, lease.id)], [])
            reads = [
                read_oldest(prefix),
                read_newest(prefix, 1, place.created - 1) if place.created else read_newest(prefix, 2),
                read(own),
                read(BASE),
            ]
            steps = transaction(
                [first, compare(own, "CREATE", place.created), base.unchanged],
                [put(own, self._record(token, base, settings), lease.id), *base.lifted],
                [*([nested(enlist)] if queue and not place.created else []), *reads],
            )
            answer = yield from self._plan_transaction(resource, steps, settings, deadline, lease, token)
            reply: Reply = answer.value
            if reply.refused:  # the lease is over
                place.lose()
                continue
            if reply.succeeded:
                self._base = base.wanted
                return self._granted(place, lease, own, base.wanted, reply.revision)
            [oldest], newest, owns, stored = _or_none(reply.keys(-4)), reply.keys(-3), reply.keys(-2), reply.keys(-1)
            self._base = int(stored[0].value) if stored else None
            record = record_of(oldest)
            if oldest is not None and record is not None and record.token == token:  # an earlier attempt has run
                return (yield from self._plan_found(place, oldest, record, deadline))
            place.created = owns[0].created if owns and owns[0].lease == lease.id else 0
            if oldest is not None and oldest.name != own:
                owner = None if record is None else record.owner
                ahead = [key for key in newest if key.name != own]
                if not queue or (place.created and ahead):
                    place.saw(ahead[0].name if ahead else "", reply.revision)
                    return Taken(math.inf, owner)
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    def _plan_found(self, place: EtcdPlace, key: Key, record: Record, deadline: float) -> Plan[Grant | Taken]:
        """Return the grant that the token has already, and give it its full ttl again."""
        mine = place.lease
        if mine is not None and mine.id == key.lease:
            return self._granted(place, mine, key.name, record.base, key.modified)
        kept = self._unknown_lease(key, place.settings)
        alive_at = yield from self.plan_keep_alive(kept, place.resource, place.settings, deadline)
        yield from self._plan_drop(mine, place.token, place.resource, place.settings, deadline)
        if alive_at is None:  # it has just ended
            return Taken(BACKOFF.first, None)
        place.lease = kept
        return self._granted(place, kept, key.name, record.base, key.modified)

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        def is_it(key: Key, record: Record | None) -> bool:
            return record is not None and (record.token, number_of(key, record)) == (grant.token, grant.number)

        return (yield from self._plan_replace(grant.resource, token, settings, floor, deadline, is_it, may_take=None))

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        def is_it(key: Key, record: Record | None) -> bool:
            return (
                _digest(key) == holder.digest if record is None else number_of(key, record) == holder.number
            ) and key.value != WAITING

        return (yield from self._plan_replace(resource, token, settings, floor, deadline, is_it, may_take=token))

    def _plan_replace(
        self,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        deadline: float,
        is_it: Any,
        may_take: str | None,
    ) -> Plan[Grant | None]:
        """Put the key of the grant under a new lease: it stays the first of the queue. Revoke the former lease, so that
        the former holder's renewal and its release notice.

        The key of another program is deleted instead: its lease may have other keys.
        """
        place = EtcdPlace(self, resource, token, settings)
        forced = yield from self._plan_forced_lease(resource, settings, deadline) if may_take else _nothing()
        for _ in range(MOST_RACES):
            lease = yield from self._plan_lease(place, deadline)
            base = yield from self._plan_base(resource, settings, floor, deadline)
            reading = transaction([], [read_oldest(queue_of(resource))], [])
            answer = yield from self._plan_transaction(resource, reading, settings, deadline, lease, None)
            [held] = _or_none(answer.value.keys(0))
            record = record_of(held)
            if held is not None and record is not None and record.token == token:  # an earlier attempt has run
                yield from self._plan_revoke(record.former, resource, settings, deadline)
                found = yield from self._plan_found(place, held, record, deadline)
                return found if isinstance(found, Grant) else None
            if held is None or not is_it(held, record):
                yield from self._plan_drop(lease, token, resource, settings, deadline)
                return None
            is_ours = record is not None
            name = held.name if is_ours else own_key(resource, lease.id)
            text = self._record(token, base, settings, held.lease if is_ours else 0)
            success = [put(name, text, lease.id), *base.lifted]
            if not is_ours:
                success.insert(0, delete(held.name))
            if forced and record is not None:
                success.append(put(forced_key(record.token), settings.owner_label, forced))
            conditions = [compare(held.name, "MOD", held.modified), base.unchanged]
            steps = transaction(conditions, success, [read(BASE)])
            answer = yield from self._plan_transaction(resource, steps, settings, deadline, lease, may_take)
            reply: Reply = answer.value
            if reply.refused:
                place.lose()
                forced = yield from self._plan_forced_lease(resource, settings, deadline) if may_take else _nothing()
            elif reply.succeeded:
                self._base = base.wanted
                if is_ours:
                    yield from self._plan_revoke(held.lease, resource, settings, deadline)
                return self._granted(place, lease, name, base.wanted, reply.revision)
            else:
                stored = reply.keys(0)
                self._base = int(stored[0].value) if stored else None
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    # Keeping, and giving back

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Keep the leases alive: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        about = grants[0].resource if len(grants) == 1 else f"{len(grants)} leases"
        kept: list[Kept] = [each.kept for each in grants]
        changed = yield from self._plan_changed(kept, about, settings, deadline)
        clean = [each for each in kept if each.lease.is_clean]
        for each in clean:  # until the answer has come: a release meanwhile must not let it serve another lock
            each.lease.is_clean = False
        served = [each for each in kept if each.is_served]
        keys = {each.key for each in served}
        if not served:
            return [None] * len(kept)
        body = of_leases([each.lease.id for each in served])
        answer = yield from self.plan_request("lease/keepalive", body, about, settings, deadline)
        alive = {int(each["ID"]): "TTL" in each for each in answer.value.messages}
        until = settings.deadline(answer.sent_at)
        for each in clean:
            each.lease.is_clean = not answer.repeated and each.lease.id in alive
        missing = self.unanswered(about, NoReply(ConnectionError("the reply was cut short"), may_have_run=True))
        results: list[float | CoordinatorUnavailable | None] = []
        for each in kept:
            if each.key in changed or each.key not in keys:
                results.append(None)
            elif each.lease.id not in alive:
                results.append(missing)
            else:
                each.lease.alive_at = answer.sent_at
                results.append(until if alive[each.lease.id] else None)
        return results

    def _plan_changed(
        self, kept: Sequence[Kept], about: str, settings: Settings, deadline: float
    ) -> Plan[frozenset[str]]:
        """Return the keys that are no longer those of their grants, of the grants whose turn it is to be read."""
        due = []
        for each in kept:
            each.renewals[0] += 1
            if each.renewals[0] % READ_AT == 0:
                due.append(each)
        if not due:
            return frozenset()
        steps = transaction([], [read(each.key) for each in due], [])
        answer = yield from self.plan_request("kv/txn", body_of(steps), about, settings, deadline)
        gone = set()
        for i, each in enumerate(due):
            found = answer.value.keys(i)
            if not found or found[0].modified != each.modified:
                gone.add(each.key)
        return frozenset(gone)

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        kept: Kept | None = grant.kept if isinstance(grant, Grant) else None
        if kept is None:
            return (yield from self._plan_release_fence(grant, settings, deadline))
        resource, lease = grant.resource, kept.lease
        if kept.is_served and not self.leases.has_room(lease):
            return (yield from self._plan_revoked(lease.id, resource, settings, deadline))
        condition = compare(kept.key, "MOD", kept.modified)
        steps = transaction([condition], [delete(kept.key)], [])
        answer = yield from self.plan_request("kv/txn", body_of(steps), resource, settings, deadline, is_release=True)
        if answer.repeated:
            lease.is_clean = False
        freed: bool = answer.value.succeeded or answer.repeated
        if kept.is_served and not (freed and self.leases.give_back(lease)):
            yield from self._plan_revoke(lease.id, resource, settings, deadline)
        return freed

    def _plan_release_fence(self, fence: GrantOrFence, settings: Settings, deadline: float) -> Plan[bool]:
        """Free the lock of a token: of a request that was not answered, or of another process."""
        resource, lease = fence.resource, self.leases.of(fence.token)
        if lease is not None:
            freed = yield from self._plan_revoked(lease.id, resource, settings, deadline)
            self.leases.forget(fence.token)
            if freed:
                return True
        while True:
            reading = body_of(transaction([], [read_oldest(queue_of(resource))], []))
            answer = yield from self.plan_request("kv/txn", reading, resource, settings, deadline, is_release=True)
            [held] = _or_none(answer.value.keys(0))
            record = record_of(held)
            if held is None or record is None or record.token != fence.token:
                return False
            steps = transaction([compare(held.name, "MOD", held.modified)], [delete(held.name)], [])
            answer = yield from self.plan_request(
                "kv/txn", body_of(steps), resource, settings, deadline, is_release=True
            )
            if answer.value.succeeded or answer.repeated:
                return True

    def _plan_revoked(self, lease: int, resource: str, settings: Settings, deadline: float) -> Plan[bool]:
        """Revoke a lease, with its key. Return False if there certainly was none."""
        body = of_leases([lease])
        answer = yield from self.plan_request("lease/revoke", body, resource, settings, deadline, is_release=True)
        return not answer.value.refused or answer.repeated

    def _plan_revoke(self, lease: int, resource: str, settings: Settings, deadline: float) -> Plan[None]:
        """Revoke a lease that no lock needs any more. If that fails, it ends by itself."""
        if lease:
            try:
                yield from self._plan_revoked(lease, resource, settings, deadline)
            except FencingError:
                pass

    def _plan_drop(
        self, lease: Lease | None, token: str, resource: str, settings: Settings, deadline: float
    ) -> Plan[None]:
        """Keep a lease that has taken nothing for the next lock, or revoke it."""
        if lease is not None and self.leases.give_back(lease):
            self.leases.forget(token)
        elif lease is not None:
            yield from self._plan_revoke(lease.id, resource, settings, deadline)
            self.leases.forget(token)

    # Reading

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        reading = transaction([], [read_oldest(queue_of(resource))], [])
        answer = yield from self.plan_request("kv/txn", body_of(reading), resource, settings, deadline)
        [held] = _or_none(answer.value.keys(0))
        if held is None:
            return None
        return (yield from self._plan_describe(held, settings, deadline))

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return a page of holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        reading = transaction([], [read_range(page or LOCKS, end_of(LOCKS), PAGE_KEYS)], [])
        answer = yield from self.plan_request("kv/txn", body_of(reading), pattern.text, settings, deadline)
        keys: list[Key] = answer.value.keys(0)
        first: dict[str, Key] = {}
        for key in keys:
            resource = resource_of(key.name)
            if resource not in first or key.created < first[resource].created:
                first[resource] = key
        cut = resource_of(keys[-1].name) if len(keys) == PAGE_KEYS else None
        found: list[tuple[str, Holder]] = []
        for resource, key in first.items():
            if pattern.matches(resource):
                if resource == cut:  # its first key may be on the next page
                    holder = yield from self.plan_holder(resource, settings, deadline=deadline)
                else:
                    holder = yield from self._plan_describe(key, settings, deadline)
                if holder is not None:
                    found.append((resource, holder))
        return found, "" if cut is None else end_of(queue_of(cut))

    def _plan_describe(self, key: Key, settings: Settings, deadline: float) -> Plan[Holder | None]:
        """Describe the one that has the first key of a queue; None: it does not hold the lock yet."""
        if key.value == WAITING:
            return None
        resource, record = resource_of(key.name), record_of(key)
        answer = yield from self.plan_request("lease/timetolive", of_leases([key.lease]), resource, settings, deadline)
        left = -1 if answer.value.refused else int(answer.value.message.get("TTL", 0))
        if left < 0:
            return None
        # etcd tells whole seconds, cut.
        remaining = float(min(left + 1, int(answer.value.message["grantedTTL"])))
        if record is None:
            return Holder(None, None, None, remaining, _digest(key))
        held_for = max(0.0, time.time() - record.granted_at)
        return Holder(record.owner, number_of(key, record), held_for, remaining, _digest(key))

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Tell who forced the lock: see ``RemembersForce`` in ``fencing/locks/capabilities.py``."""
        reading = body_of(transaction([], [read(forced_key(fence.token))], []))
        answer = yield from self.plan_request("kv/txn", reading, fence.resource, settings, deadline)
        found = answer.value.keys(0)
        return found[0].value if found else None

    def _plan_forced_lease(self, resource: str, settings: Settings, deadline: float) -> Plan[int]:
        """Return the lease of what is remembered of a forced release."""
        lease = Lease(FORCED_SECONDS)
        body = b'{"ID":"%d","TTL":"%d"}' % (lease.id, lease.ttl)
        yield from self.plan_request("lease/grant", body, resource, settings, deadline)
        return lease.id

    # Requests

    def _plan_base(self, resource: str, settings: Settings, floor: int, deadline: float) -> Plan[Base]:
        """Return a base with which the next number exceeds the floor."""
        if self._base is not None and not floor:
            return Base(self._base, self._base)
        answer = yield from self.plan_request(
            "kv/txn", body_of(transaction([], [read(BASE)], [])), resource, settings, deadline
        )
        found, revision = answer.value.keys(0), answer.value.revision
        stored = int(found[0].value) if found else None
        clock_us = time.time_ns() // 1000
        base = (clock_us if self.clock_floor else 0) if stored is None else stored
        # Only the check, and by the clock alone: all names share the base, so marks must not lift it step by step.
        next_number(resource, last=0, floor=floor, clock_us=clock_us)
        self._base = stored
        return Base(stored, max(base, floor - revision))

    def _plan_lease(self, place: EtcdPlace, deadline: float) -> Plan[Lease]:
        """Return the lease of a place, alive. Make one where there is none."""
        settings, now = place.settings, self.clock()
        while True:
            if place.lease is None:
                assert settings.ttl is not None
                place.lease = self.leases.lend(place.token, math.ceil(settings.ttl), now)
            lease = place.lease
            if lease.alive_at and is_fresh(lease, self.clock()):
                return lease
            if lease.alive_at:
                if (yield from self.plan_keep_alive(lease, place.resource, settings, deadline)) is not None:
                    return lease
                place.lose()
                continue
            body = b'{"ID":"%d","TTL":"%d"}' % (lease.id, lease.ttl)
            answer = yield from self._plan_of_lease(lease, "lease/grant", body, place.resource, settings, deadline)
            if not answer.value.refused or answer.repeated:  # "already exists": an earlier attempt has run
                lease.alive_at = answer.sent_at
                if not answer.value.refused:
                    return lease

    def plan_keep_alive(self, lease: Lease, resource: str, settings: Settings, deadline: float) -> Plan[float | None]:
        """Give a lease its full ttl, and return the moment before; None: it is over."""
        body = of_leases([lease.id])
        answer = yield from self._plan_of_lease(lease, "lease/keepalive", body, resource, settings, deadline)
        messages = answer.value.messages
        if not messages or "TTL" not in messages[0]:
            return None
        lease.alive_at = answer.sent_at
        return lease.alive_at

    def _plan_of_lease(
        self,
        lease: Lease,
        path: str,
        body: bytes,
        resource: str,
        settings: Settings,
        deadline: float,
        may_take: str | None = None,
    ) -> Plan[Answer]:
        """Make a request of a lease, which is clean afterwards only if each attempt was answered."""
        was_clean, lease.is_clean = lease.is_clean, False
        answer = yield from self.plan_request(path, body, resource, settings, deadline, may_take=may_take)
        lease.is_clean = was_clean and not answer.repeated
        return answer

    def _plan_transaction(
        self,
        resource: str,
        steps: Step,
        settings: Settings,
        deadline: float,
        lease: Lease,
        may_take: str | None,
    ) -> Plan[Answer]:
        return self._plan_of_lease(lease, "kv/txn", body_of(steps), resource, settings, deadline, may_take)

    def plan_request(
        self,
        path: str,
        body: bytes,
        about: str,
        settings: Settings,
        deadline: float,
        *,
        may_take: str | None = None,
        is_release: bool = False,
    ) -> Plan[Answer]:
        """Make a request, and repeat it until it is answered. Log in where the credentials are missing or expired."""

        def attempt(timeout: float, last: bool) -> Call:
            return Call(path, body, timeout, is_release, self._credentials)

        if self.user is not None and not self._credentials:
            yield from self._plan_log_in(about, settings, deadline, is_release=is_release)
        repeated = False
        while True:
            used = self._credentials
            answer = yield from self.plan_until_answered(attempt, about, settings, deadline, may_take=may_take)
            repeated = repeated or answer.repeated
            refused = answer.value.refused
            if refused is None or not refused.is_unauthenticated:
                return Answer(answer.value, answer.sent_at, repeated)
            if self.user is None or self.clock() >= deadline:
                raise CoordinatorUnavailable(
                    f"etcd at {self.address} refused the request: {refused.text}; pass user and password",
                    resource=about,
                    address=self.address,
                )
            if self._credentials == used:
                yield from self._plan_log_in(about, settings, deadline, is_release=is_release)

    def _plan_log_in(self, about: str, settings: Settings, deadline: float, *, is_release: bool) -> Plan[None]:
        assert self.user is not None
        name, password = self.user
        body = body_of({"name": name, "password": password})

        def attempt(timeout: float, last: bool) -> Call:
            return Call(AUTHENTICATE, body, timeout, is_release)

        answer = yield from self.plan_until_answered(attempt, about, settings, deadline)
        if answer.value.refused:
            raise CoordinatorUnavailable(
                f"etcd at {self.address} refused the user {name!r}: {answer.value.refused.text}",
                resource=about,
                address=self.address,
            )
        self._credentials = answer.value.message["token"]

    def credentials(self) -> str:
        """Return the token of the user who has logged in; empty: none has."""
        return self._credentials

    # Grants

    def _record(self, token: str, base: Base, settings: Settings, former: int = 0) -> str:
        return Record(token, base.wanted, settings.owner_label, time.time(), former).text

    def _granted(self, place: EtcdPlace, lease: Lease, key: str, base: int, modified: int) -> Grant:
        """Return the grant of a key. Its lease may serve another lock later, unless an attempt was not answered."""
        self.leases.forget(place.token)
        lease.serves = key, modified
        until = place.settings.deadline(lease.alive_at)
        return Grant(place.resource, base + modified, place.token, until, Kept(lease, key, modified, [0]))

    def _unknown_lease(self, key: Key, settings: Settings) -> Lease:
        """Return the lease of a key that an earlier call has made, or another client with the same token."""
        assert settings.ttl is not None
        lease = Lease(math.ceil(settings.ttl))
        lease.id, lease.is_clean = key.lease, False
        return lease


class EtcdPlace:
    """A place in the queue: see ``Place`` in ``fencing/locks/backend.py``.

    Attributes:
        lease: of its key; None: it has none.
        created: the revision that created its key; 0: it has none.
        ahead: the key whose end lets it ask again.
    """

    def __init__(self, plans: EtcdPlans, resource: str, token: str, settings: Settings) -> None:
        self._plans = plans
        self.resource, self.token, self.settings = resource, token, settings
        self.lease: Lease | None = None
        self.created = 0
        self.ahead, self._revision, self._polls = "", 0, 0
        self.waiter = Waiter()

    def lose(self) -> None:
        """Note that its lease is over, and with it its key."""
        self.lease, self.created = None, 0

    def saw(self, ahead: str, revision: int) -> None:
        """Note who is next before it, at a revision."""
        self.ahead, self._revision = ahead, revision

    def plan_wait(self, seconds: float) -> Plan[None]:
        """Watch the key of whoever is next before this one, and keep the own lease alive."""
        plans, settings, clock = self._plans, self.settings, self._plans.clock
        until = clock() + seconds
        try:
            while self.lease is not None and (left := until - clock()) > LAST_SECONDS:
                pause = self.lease.alive_at + ALIVE_SHARE * self.lease.ttl - clock()
                if pause <= 0:
                    deadline = clock() + settings.attempt_seconds
                    alive = yield from plans.plan_keep_alive(self.lease, self.resource, settings, deadline)
                    if alive is None:
                        return  # the place is lost: ask again for another
                    continue
                credentials = plans.credentials()
                woken = yield Wait(self.waiter, self.ahead, self._revision + 1, min(left, pause), credentials)
                if woken is None:
                    self._polls += 1
                    yield poll_pause(self._polls, math.inf, left)
                if woken is not False:
                    return
        except (NoReply, CoordinatorUnavailable):
            self._polls += 1
            yield Sleep(max(0.0, min(BACKOFF.pause(self._polls), until - clock())))

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        """Revoke the lease: this ends the place, and a grant too."""
        yield Leave(self.waiter)
        fence = Fence(self.resource, 1, self.token)
        yield from self._plans.plan_release(fence, self.settings, deadline=deadline)


def _or_none(keys: list[Key]) -> list[Key | None]:
    """Return one key, or None."""
    return [keys[0] if keys else None]


def _nothing() -> Plan[int]:
    """Return no lease."""
    return 0
    yield


def _digest(key: Key) -> str:
    """Return what stands for the grant of a key, of which there may be no number."""
    return sha256(f"{key.name}:{key.created}:{key.modified}".encode()).hexdigest()[:32]
