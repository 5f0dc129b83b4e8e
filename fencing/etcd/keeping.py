"""Plans of locks that are held: a renewal, a release. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from fencing.etcd.calls import body_of, compare, delete, of_leases, read, read_oldest, transaction
from fencing.etcd.layout import queue_of, record_of
from fencing.etcd.leases import Kept, Lease, Leases
from fencing.etcd.reading import EtcdReading
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings

RENEWALS = 100
"""Leases in one request. The keys of all are compared in one transaction, which etcd limits to 128 steps by default."""


class EtcdKeeping(EtcdReading):
    """The plans of what is held."""

    max_renewals: int = RENEWALS
    leases: Leases

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | CoordinatorUnavailable | None]]:
        """Keep the leases alive: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        about = grants[0].resource if len(grants) == 1 else f"{len(grants)} leases"
        kept: list[Kept] = [each.kept for each in grants]
        clean = [each.lease for each in kept if each.lease.is_clean]
        for lease in clean:  # until the answer has come: a release meanwhile must not let it serve another lock
            lease.is_clean = False
        own = [compare(each.key, "MOD", each.modified) for each in kept]
        ids = [each.lease.id for each in kept]
        answer, own_all = yield from self.plan_alive(ids, own, about, settings, deadline)
        alive = {int(each["ID"]): "TTL" in each for each in answer.value.messages}
        for lease in clean:
            lease.is_clean = not answer.repeated
        results: list[float | CoordinatorUnavailable | None] = []
        owns = [True] * len(kept) if own_all else (yield from self._plan_owns(kept, about, settings, deadline))
        for each, is_own in zip(kept, owns, strict=True):
            if is_own and alive[each.lease.id]:
                each.lease.alive_at = answer.sent_at
                results.append(believed_until(each.lease, settings, answer.sent_at))
            else:
                results.append(None)
        return results

    def _plan_owns(self, kept: Sequence[Kept], about: str, settings: Settings, deadline: float) -> Plan[list[bool]]:
        """Return of each grant whether its key is still its own. It is asked only where a condition did not hold."""
        reading = body_of(transaction([], [read(each.key) for each in kept], []))
        answer = yield from self.plan_request("kv/txn", reading, about, settings, deadline)
        found = [answer.value.first_key(i) for i in range(len(kept))]
        return [key is not None and key.modified == each.modified for each, key in zip(kept, found, strict=True)]

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        kept: Kept | None = grant.kept if isinstance(grant, Grant) else None
        if kept is None:
            return (yield from self._plan_release_fence(grant, settings, deadline))
        resource, lease = grant.resource, kept.lease
        try:
            kept.release.pop()
            decides = True
        except IndexError:
            decides = False
        try:
            if decides and kept.is_served and not self.leases.has_room(lease):
                lease.is_clean = False  # first: without an answer, it may be revoked when it serves another lock
                return (yield from self.plan_revoked(lease.id, resource, settings, deadline))
            condition = compare(kept.key, "MOD", kept.modified)
            body = body_of(transaction([condition], [delete(kept.key)], []))
            answer = yield from self.plan_request("kv/txn", body, resource, settings, deadline, is_release=True)
            if answer.repeated:
                lease.is_clean = False
            freed: bool = answer.value.succeeded or answer.repeated
            if decides and kept.is_served and not (freed and self.leases.give_back(lease)):
                yield from self.plan_revoke(lease.id, resource, settings, deadline)
            return freed
        except BaseException:
            if decides:
                kept.release.append(None)  # it will be repeated
            raise

    def _plan_release_fence(self, fence: GrantOrFence, settings: Settings, deadline: float) -> Plan[bool]:
        """Free the lock of a token: of a request that was not answered, or of another process."""
        resource, lease = fence.resource, self.leases.of(fence.token)
        if lease is not None:
            freed = yield from self.plan_revoked(lease.id, resource, settings, deadline)
            self.leases.forget(fence.token)
            if freed:
                return True
        while True:
            reading = body_of(transaction([], [read_oldest(queue_of(resource))], []))
            answer = yield from self.plan_request("kv/txn", reading, resource, settings, deadline, is_release=True)
            held = answer.value.first_key(0)
            record = record_of(held)
            if held is None or record is None or record.token != fence.token:
                return False
            steps = transaction([compare(held.name, "MOD", held.modified)], [delete(held.name)], [])
            answer = yield from self.plan_request(
                "kv/txn", body_of(steps), resource, settings, deadline, is_release=True
            )
            if answer.value.succeeded or answer.repeated:
                return True

    def plan_revoked(self, lease: int, resource: str, settings: Settings, deadline: float) -> Plan[bool]:
        """Revoke a lease, with its key. Return False if there certainly was none."""
        body = of_leases([lease])
        answer = yield from self.plan_request("lease/revoke", body, resource, settings, deadline, is_release=True)
        return not answer.value.refused or answer.repeated

    def plan_revoke(self, lease: int, resource: str, settings: Settings, deadline: float) -> Plan[None]:
        """Revoke a lease that no lock needs any more. If that fails, it ends by itself."""
        if lease:
            try:
                yield from self.plan_revoked(lease, resource, settings, deadline)
            except FencingError:
                pass

    def plan_drop(
        self, lease: Lease | None, token: str, resource: str, settings: Settings, deadline: float
    ) -> Plan[None]:
        """Keep a lease that has taken nothing for the next lock, or revoke it."""
        if lease is None:
            return
        if self.leases.has_room(lease):
            self.leases.forget(token)  # first: a release of the token would revoke what serves another lock by then
            if self.leases.give_back(lease):
                return
        yield from self.plan_revoke(lease.id, resource, settings, deadline)
        self.leases.forget(token)


def believed_until(lease: Lease, settings: Settings, sent_at: float) -> float:
    """Return until when a lease is believed to last, if a request that was sent then gave it its full ttl.

    An earlier call of the same token, with a shorter ttl, may have made it.
    """
    assert settings.ttl is not None
    return settings.deadline(sent_at) - max(settings.ttl - lease.ttl, 0.0)
