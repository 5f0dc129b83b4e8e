"""The plans of an etcd coordinator: its requests, the meaning of the replies, the queue. No I/O."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal
from weakref import WeakValueDictionary

from fencing.etcd.calls import (
    Key,
    Reply,
    body_of,
    compare,
    delete,
    nested,
    put,
    read,
    read_newest,
    read_oldest,
    transaction,
)
from fencing.etcd.keeping import EtcdKeeping, believed_until
from fencing.etcd.layout import BASE, WAITING, Record, forced_key, number_of, own_key, queue_of, record_of
from fencing.etcd.leases import Kept, Lease, is_fresh
from fencing.etcd.place import EtcdPlace
from fencing.etcd.reading import digest_of
from fencing.etcd.requests import base_in, lifted, unchanged
from fencing.etcd.waiters import Leave
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, FencingError, KeptBy
from fencing.kernel.fence import Fence
from fencing.locks.backend import BACKOFF, Holder, Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.numbers import LogBase
from fencing.locks.settings import Settings

MOST_RACES = 20
"""How often a request is made again because another one has changed the base, or the queue."""

FORCED_SECONDS = 300
"""How long it is remembered who has forced a lock."""


class EtcdPlans(EtcdKeeping):
    """The plans of locks in etcd."""

    ttl_per_lock: ClassVar[Literal[True]] = True
    one_of_many_wins: ClassVar[Literal[True]] = True

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        place = EtcdPlace(self, resource, token, settings)
        try:
            outcome = yield from self._plan_take(place, floor, deadline, queue=False)
        except FencingError:
            self._failed(place)
            raise
        if isinstance(outcome, Taken):
            yield from self.plan_drop(place.lease, token, resource, settings, deadline)
        return outcome

    def is_waited_for(self, resource: str) -> bool:
        """Return whether this process has waiters. A request that queues takes 0.1 ms more of the server than a try."""
        return resource in self._places

    @cached_property
    def _places(self) -> WeakValueDictionary[str, EtcdPlace]:
        return WeakValueDictionary()

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
        is_new = place is None
        place = place or EtcdPlace(self, resource, token, settings)
        try:
            outcome = yield from self._plan_take(place, floor, deadline, queue=True)
        except FencingError:
            if is_new:  # nobody else knows it
                self._failed(place)
            raise
        if isinstance(outcome, Grant):
            yield Leave(place.waiter)
            return outcome
        self._places[resource] = place
        return replace(outcome, place=place)

    def _failed(self, place: EtcdPlace) -> None:
        """Give up a place. If a request has no answer, it was noted that it may have run."""
        if place.created:
            self.give_back_later(Fence(place.resource, 1, place.token), place.settings)
        elif place.lease is None or place.lease.is_clean or not place.lease.alive_at:
            self.leases.forget(place.token)

    def _plan_take(self, place: EtcdPlace, floor: int, deadline: float, *, queue: bool) -> Plan[Grant | Taken]:
        """Take the lock if nobody is before this place; otherwise take a place, if ``queue``."""
        resource, token, settings = place.resource, place.token, place.settings
        prefix = queue_of(resource)
        for _ in range(MOST_RACES):
            lease = yield from self._plan_lease(place, deadline)
            numbers = yield from self.plan_base(resource, settings, floor, deadline)
            own = own_key(resource, lease.id)
            reads = [read_oldest(prefix), read(BASE)]
            if place.created:
                # Nobody is before us. Our last write is the one that queued us: a repeated request must not write the
                # grant anew.
                first = compare(prefix, "CREATE", place.created - 1, result="GREATER", all_below=True)
                conditions = [first, compare(own, "MOD", place.created)]
                reads = [read_newest(prefix, 1, place.created - 1), read(own), *reads]
            else:
                conditions = [compare(prefix, "CREATE", 0, all_below=True)]
                if queue:
                    enlist = transaction([compare(own, "CREATE", 0)], [put(own, WAITING, lease.id)], [])
                    reads = [nested(enlist), read_newest(prefix, 2), read(own), *reads]
            if place.is_woken:  # it mostly succeeds, and etcd takes longer for what it has to parse
                place.is_woken, reads = False, []
            steps = transaction(
                [*conditions, unchanged(numbers)],
                [put(own, self._record(token, numbers, settings), lease.id), *lifted(numbers)],
                reads,
            )
            answer = yield from self.plan_of_lease(lease, "kv/txn", body_of(steps), resource, settings, deadline, token)
            reply: Reply = answer.value
            if reply.refused:  # the lease is over
                place.lose()
                continue
            if reply.succeeded:
                self.base = numbers.base
                return self._granted(place, lease, own, numbers.base, reply.revision)
            if not reads:
                continue
            newest, mine = (reply.keys(-4), reply.first_key(-3)) if len(reads) > 2 else ([], None)
            place.created = mine.created if mine is not None and mine.lease == lease.id else 0
            self.base, oldest = base_in(reply.first_key(-1)), reply.first_key(-2)
            record = record_of(oldest)
            if oldest is not None and record is not None and record.token == token:  # an earlier attempt has run
                return (yield from self._plan_found(place, oldest, record, deadline))
            if oldest is not None and oldest.name != own:
                owner, kept_by = _who_keeps_it(oldest, record)
                # A repeated request finds keys that came behind its own. Each of two would wait for the other for ever.
                ahead = [key for key in newest if key.created < place.created]
                if not queue or (place.created and ahead):
                    place.saw(ahead[0].name if ahead else "", reply.revision)
                    return Taken(math.inf, owner, kept_by=kept_by)
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    def _plan_found(self, place: EtcdPlace, key: Key, record: Record, deadline: float) -> Plan[Grant | Taken]:
        """Return the grant that the token has already, and give it its full ttl again."""
        mine = place.lease
        if mine is not None and mine.id == key.lease:
            return self._granted(place, mine, key.name, record.base, key.modified)
        kept = self._unknown_lease(key, place.settings)
        alive_at = yield from self.plan_keep_alive(kept, place.resource, place.settings, deadline)
        yield from self.plan_drop(mine, place.token, place.resource, place.settings, deadline)
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
                digest_of(key) == holder.digest if record is None else number_of(key, record) == holder.number
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
            numbers = yield from self.plan_base(resource, settings, floor, deadline)
            reading = transaction([], [read_oldest(queue_of(resource))], [])
            answer = yield from self.plan_transaction(resource, reading, settings, deadline, lease, None)
            held = answer.value.first_key(0)
            record = record_of(held)
            if held is not None and record is not None and record.token == token:  # an earlier attempt has run
                yield from self.plan_revoke(record.former, resource, settings, deadline)
                found = yield from self._plan_found(place, held, record, deadline)
                return found if isinstance(found, Grant) else None
            if held is None or not is_it(held, record):
                yield from self.plan_drop(lease, token, resource, settings, deadline)
                return None
            is_ours = record is not None
            name = held.name if is_ours else own_key(resource, lease.id)
            text = self._record(token, numbers, settings, held.lease if is_ours else 0)
            success = [put(name, text, lease.id), *lifted(numbers)]
            if not is_ours:
                success.insert(0, delete(held.name))
            if forced and record is not None:
                success.append(put(forced_key(record.token), settings.owner_label, forced))
            conditions = [compare(held.name, "MOD", held.modified), unchanged(numbers)]
            steps = transaction(conditions, success, [read(BASE)])
            answer = yield from self.plan_transaction(resource, steps, settings, deadline, lease, may_take)
            reply: Reply = answer.value
            if reply.refused:
                place.lose()
                forced = yield from self._plan_forced_lease(resource, settings, deadline) if may_take else _nothing()
            elif reply.succeeded:
                self.base = numbers.base
                if is_ours:
                    yield from self.plan_revoke(held.lease, resource, settings, deadline)
                return self._granted(place, lease, name, numbers.base, reply.revision)
            else:
                self.base = base_in(reply.first_key(0))
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    # Requests of leases

    def _plan_lease(self, place: EtcdPlace, deadline: float) -> Plan[Lease]:
        """Return the lease of a place, alive. Make one where there is none."""
        settings, now = place.settings, self.clock()
        while True:
            if place.lease is None:
                assert settings.ttl is not None
                place.lease = self.leases.lend(place.token, math.ceil(settings.ttl), now)
            lease = place.lease
            if lease.alive_at and is_fresh(lease, self.clock(), renews=settings.renew):
                return lease
            if lease.alive_at:
                if (yield from self.plan_keep_alive(lease, place.resource, settings, deadline)) is not None:
                    return lease
                place.lose()
                continue
            body = b'{"ID":"%d","TTL":"%d"}' % (lease.id, lease.ttl)
            answer = yield from self.plan_of_lease(lease, "lease/grant", body, place.resource, settings, deadline)
            if answer.repeated or answer.value.refused:
                place.lose()  # a late attempt would make it again after its end: then a late acquire would find it
            else:
                lease.alive_at = lease.made_at = answer.sent_at
                return lease

    def _plan_forced_lease(self, resource: str, settings: Settings, deadline: float) -> Plan[int]:
        """Return the lease of what is remembered of a forced release."""
        lease = Lease(FORCED_SECONDS)
        body = b'{"ID":"%d","TTL":"%d"}' % (lease.id, lease.ttl)
        yield from self.plan_request("lease/grant", body, resource, settings, deadline)
        return lease.id

    # Grants

    def _record(self, token: str, numbers: LogBase, settings: Settings, former: int = 0) -> str:
        return Record(token, numbers.base, settings.owner_label, time.time_ns() // 1000, former).text

    def _granted(self, place: EtcdPlace, lease: Lease, key: str, base: int, modified: int) -> Grant:
        """Return the grant of a key. Its lease may serve another lock later, unless an attempt was not answered."""
        self.leases.forget(place.token)
        lease.serves = key, modified
        until = believed_until(lease, place.settings, lease.alive_at)
        return Grant(place.resource, base + modified, place.token, until, Kept(lease, key, modified, [None]))

    def _unknown_lease(self, key: Key, settings: Settings) -> Lease:
        """Return the lease of a key that an earlier call has made, or another client with the same token."""
        assert settings.ttl is not None
        lease = Lease(math.ceil(settings.ttl))
        lease.id, lease.is_clean = key.lease, False
        return lease


def _who_keeps_it(first: Key, record: Record | None) -> tuple[str | None, KeptBy | None]:
    """Return the owner of the first key of a queue, and whether that is an earlier waiter, or another program."""
    if record is not None:
        return record.owner, None
    return None, "waiter" if first.value == WAITING else "foreign"


def _nothing() -> Plan[int]:
    """Return no lease."""
    return 0
    yield
