"""Renewal on several nodes."""

from __future__ import annotations

from fencing.kernel.effects import run
from fencing.locks.settings import Settings
from fencing.redis.keys import keys_of
from tests.support.redlock import RedlockNodes
from tests.support.sides import Side


def test_what_others_did_to_one_lock_does_not_fail_the_renewal_of_the_rest(redlock_nodes: RedlockNodes) -> None:
    """Each lock has a ttl of its own in the same call."""
    coordinator, names = redlock_nodes.coordinator(Side(False)), ["renewal:a", "renewal:b", "renewal:c", "renewal:d"]
    leases = [coordinator.lock(name, ttl=20, renew=False).acquire(timeout=60) for name in names]
    for server in redlock_nodes.servers:
        client, record = server.client(), keys_of(names[1]).holder
        client.delete(names[0], record)
        client.rpush(names[0], "a list")
        client.hset(record, "x", "y")
    backend, ttls = coordinator._backend, [Settings(ttl=seconds) for seconds in (30, 30, 40, 50)]
    plan = backend.plan_renew_each([lease._holding for lease in leases], ttls, deadline=backend.clock() + 10)
    gone, *renewed = run(plan, backend.perform)
    assert gone is None
    assert renewed == sorted(set(renewed)), "each its own"
    for name, least in zip(names[1:], (20, 30, 40), strict=True):
        holder = coordinator.lock(name).holder()
        assert holder is not None
        assert holder.remaining is not None
        assert least < holder.remaining <= least + 10
        assert holder.waiting is None, "waiters stand in no queue"
    for server in redlock_nodes.servers:
        server.client().delete(names[0])
    assert [lease.release() for lease in leases] == [False, True, True, True]
