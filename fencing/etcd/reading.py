"""Plans that only read: who holds a lock, who holds which locks, who has forced whom out. No I/O."""

from __future__ import annotations

import time
from collections import Counter
from hashlib import sha256

from fencing.etcd.calls import Key, body_of, end_of, of_leases, read, read_oldest, read_range, transaction
from fencing.etcd.layout import LOCKS, WAITING, forced_key, number_of, queue_of, record_of, resource_of
from fencing.etcd.requests import EtcdRequests
from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from fencing.kernel.patterns import Pattern
from fencing.locks.backend import Holder
from fencing.locks.settings import Settings

PAGE_KEYS = 200


class EtcdReading(EtcdRequests):
    """The plans that only read."""

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        reading = transaction([], [read_oldest(queue_of(resource))], [])
        answer = yield from self.plan_request("kv/txn", body_of(reading), resource, settings, deadline)
        held = answer.value.first_key(0)
        if held is None:
            return None
        return (yield from self.plan_describe(held, answer.value.count(0) - 1, settings, deadline))

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return a page of holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        reading = transaction([], [read_range(page or LOCKS, end_of(LOCKS), PAGE_KEYS)], [])
        answer = yield from self.plan_request("kv/txn", body_of(reading), pattern.text, settings, deadline)
        keys: list[Key] = answer.value.keys(0)
        first: dict[str, Key] = {}
        queued: Counter[str] = Counter()
        for key in keys:
            resource = resource_of(key.name)
            queued[resource] += 1
            if resource not in first or key.created < first[resource].created:
                first[resource] = key
        is_cut = len(keys) == PAGE_KEYS
        cut = resource_of(keys[-1].name) if is_cut else ""
        found: list[tuple[str, Holder]] = []
        for resource, key in first.items():
            if resource and pattern.matches(resource):
                if resource == cut:  # its first key may be on the next page
                    holder = yield from self.plan_holder(resource, settings, deadline=deadline)
                else:
                    holder = yield from self.plan_describe(key, queued[resource] - 1, settings, deadline)
                if holder is not None:
                    found.append((resource, holder))
        next_page = end_of(queue_of(cut)) if cut else f"{keys[-1].name}\0" if is_cut else ""
        return found, next_page

    def plan_describe(self, key: Key, waiting: int, settings: Settings, deadline: float) -> Plan[Holder | None]:
        """Describe the one that has the first key of a queue; None: it does not hold the lock yet.

        Args:
            key: the first one.
            waiting: how many there are behind it. Each is a waiter's, also of another program.
            settings: the lock's.
            deadline: as of every plan.
        """
        if key.value == WAITING:
            return None
        resource, record = resource_of(key.name), record_of(key)
        remaining: float | None = None
        if key.lease:  # a key that was written by hand has none
            asked = of_leases([key.lease])
            answer = yield from self.plan_request("lease/timetolive", asked, resource, settings, deadline)
            left = -1 if answer.value.refused else int(answer.value.message.get("TTL", 0))
            if left < 0:
                return None
            # etcd tells whole seconds, cut.
            remaining = float(min(left + 1, int(answer.value.message["grantedTTL"])))
        if record is None:
            return Holder(None, None, None, remaining, digest_of(key), waiting=waiting)
        held_for = max(0.0, time.time() - record.granted_us / 1_000_000)
        number, is_released = number_of(key, record), record.released_us > 0
        return Holder(record.owner, number, held_for, remaining, digest_of(key), is_released, waiting=waiting)

    def plan_forced_by(self, fence: Fence, settings: Settings, *, deadline: float) -> Plan[str | None]:
        """Tell who forced the lock: see ``RemembersForce`` in ``fencing/locks/capabilities.py``."""
        reading = body_of(transaction([], [read(forced_key(fence.token))], []))
        answer = yield from self.plan_request("kv/txn", reading, fence.resource, settings, deadline)
        found = answer.value.first_key(0)
        return None if found is None else found.value


def digest_of(key: Key) -> str:
    """Return what stands for the grant of a key, of which there may be no number."""
    return sha256(f"{key.name}:{key.created}:{key.modified}".encode()).hexdigest()[:32]
