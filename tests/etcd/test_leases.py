"""Which lease a lock has, when it serves another lock, and who notices that a lock is gone."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing import CoordinatorUnavailable, LeaseLost
from fencing.etcd.calls import Reply, body_of, delete, encode, of_leases, transaction
from fencing.etcd.connection import Connection
from fencing.etcd.connection_async import AsyncConnection
from fencing.etcd.leases import MOST_SPARE, OLD_AFTER
from fencing.etcd.requests import MOST_TERMS
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide, with_faults


def name() -> str:
    return f"leases/{new_token()}"


def counted(opens: Any, opened: list[object]) -> Any:
    """Return a method that notes each connection that is opened."""

    def open_counted(connection: Any, *args: Any) -> Any:
        opened.append(connection)
        return opens(connection, *args)

    return open_counted


def block(etcd: EtcdSide, coordinator: Any) -> None:
    lease = etcd.call(coordinator.acquire, name())
    assert etcd.call(lease.release)


def request(etcd: EtcdSide, coordinator: Any, path: str, body: bytes) -> None:
    backend = coordinator._backend

    def plan() -> Any:
        yield from backend.plan_request(path, body, "a test", backend.settings, backend.clock() + 30)

    etcd.plan(coordinator, plan())


def test_a_block_takes_two_requests_where_a_lease_can_be_used_again(etcd: EtcdSide) -> None:
    coordinator = etcd.coordinator()
    faults = with_faults(coordinator)
    block(etcd, coordinator)
    assert faults.paths == ["lease/grant", "kv/txn", "kv/txn", "kv/txn"]  # the second one reads the base
    faults.calls.clear()
    block(etcd, coordinator)
    assert faults.paths == ["kv/txn", "kv/txn"]


def test_the_same_with_asyncio(etcd_server: EtcdServer) -> None:
    side = EtcdSide(True, [etcd_server.url])
    coordinator = side.coordinator()
    block(side, coordinator)
    faults = with_faults(coordinator)
    block(side, coordinator)
    assert faults.paths == ["kv/txn", "kv/txn"]
    side.close()


def test_requests_in_turn_share_one_connection(etcd: EtcdSide, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    for kind in (Connection, AsyncConnection):
        monkeypatch.setattr(kind, "open", counted(kind.open, opened))
    coordinator = etcd.coordinator()
    for _ in range(5):
        block(etcd, coordinator)
    assert len(opened) == 1


def test_a_refusal_keeps_its_lease(etcd: EtcdSide) -> None:
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    held = etcd.call(other.acquire, resource)
    block(etcd, coordinator)
    faults = with_faults(coordinator)
    assert etcd.call(coordinator.try_acquire, resource) is None
    block(etcd, coordinator)
    assert faults.paths == ["kv/txn"] * 3
    assert etcd.call(held.release)


def test_a_lease_with_an_unanswered_request_serves_no_other_lock(etcd: EtcdSide) -> None:
    """The late acquire of a lock would take it with a lease that serves another one, and nobody would give it back."""
    coordinator, resource = etcd.coordinator(), name()
    block(etcd, coordinator)
    faults = with_faults(coordinator)
    faults.lose("request", 0, 1)  # of the acquire: the second attempt takes the lock
    lease = etcd.call(coordinator.acquire, resource)
    assert etcd.call(lease.release)
    assert faults.paths == ["kv/txn", "kv/txn", "lease/revoke"]
    other = etcd.call(coordinator.acquire, name())
    etcd.arrive(coordinator, faults.late[0])
    assert etcd.keys(coordinator, resource) == []
    etcd.call(other.renew)
    assert etcd.call(other.release)


def test_a_lease_whose_making_was_not_answered_is_not_used(etcd: EtcdSide) -> None:
    """A late attempt makes it again after its end: a late acquire would find it. Found by the exploration."""
    coordinator, resource = etcd.coordinator(), name()
    block(etcd, coordinator)
    coordinator._backend.leases._reset()
    faults = with_faults(coordinator)
    faults.lose("request", 0, 1)
    lease = etcd.call(coordinator.acquire, resource)
    [key] = etcd.keys(coordinator, resource)
    assert str(key.lease).encode() not in faults.late[0].body
    assert etcd.call(lease.release)


@pytest.mark.thorough
def test_no_more_than_a_few_leases_are_kept(etcd: EtcdSide) -> None:
    coordinator = etcd.coordinator()
    leases = [etcd.call(coordinator.acquire, name()) for _ in range(MOST_SPARE + 2)]
    faults = with_faults(coordinator)
    for each in leases:
        assert etcd.call(each.release)
    assert faults.paths == ["kv/txn"] * MOST_SPARE + ["lease/revoke"] * 2


def test_a_renewal_of_a_released_grant_does_not_keep_the_next_lock(etcd: EtcdSide) -> None:
    coordinator, resource = etcd.coordinator(), name()
    lease = etcd.call(coordinator.acquire, resource)
    [grant] = coordinator._backend.held()
    assert etcd.call(lease.release)
    held = etcd.call(coordinator.acquire, resource)
    backend = coordinator._backend
    plan = backend.plan_renew([grant], backend.settings, deadline=backend.clock() + 30)
    assert etcd.plan(coordinator, plan) == [None]
    plan = backend.plan_release(grant, backend.settings, deadline=backend.clock() + 30)
    assert etcd.plan(coordinator, plan) is False
    etcd.call(held.renew)
    assert etcd.call(held.release)


def test_a_key_that_was_deleted_by_hand_is_noticed_by_the_next_renewal(etcd: EtcdSide) -> None:
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    lease = etcd.call(coordinator.acquire, resource)
    etcd.call(lease.renew)
    [key] = etcd.keys(other, resource)
    request(etcd, other, "kv/txn", body_of(transaction([], [delete(key.name)], [])))
    with pytest.raises(LeaseLost):
        etcd.call(lease.renew)


def test_a_renewal_counts_only_if_its_leader_still_leads_behind_it(etcd: EtcdSide) -> None:
    """The first answer is one of a former leader, which was frozen."""
    coordinator = etcd.coordinator(renew=False)
    lease = etcd.call(coordinator.acquire, name())
    faults = with_faults(coordinator)
    faults.answers["lease/keepalive"] = [replace_terms]
    etcd.call(lease.renew)
    assert faults.paths == ["lease/keepalive", "kv/txn"] * 2
    faults.answers["lease/keepalive"] = [replace_terms] * MOST_TERMS
    with pytest.raises(CoordinatorUnavailable, match="has changed its leader"):
        etcd.call(lease.renew)
    etcd.call(lease.renew)
    assert etcd.call(lease.release)


def test_the_read_behind_a_renewal_is_linearizable(etcd: EtcdSide) -> None:
    """A transaction that reads nothing is answered by one member alone."""
    coordinator = etcd.coordinator(renew=False)
    backend = coordinator._backend
    lease = etcd.call(coordinator.acquire, name())
    [grant] = backend.held()
    faults = with_faults(coordinator)
    plan = backend.plan_keep_alive(grant.kept.lease, name(), backend.settings, backend.clock() + 30)
    etcd.plan(coordinator, plan)
    assert faults.paths == ["lease/keepalive", "kv/txn"]
    assert b'"request_range"' in faults.calls[-1].body
    assert etcd.call(lease.release)


def replace_terms(reply: Reply) -> Reply:
    return Reply([each | {"header": each["header"] | {"raft_term": "former"}} for each in reply.messages])


def test_a_lease_that_was_revoked_by_hand_is_noticed_by_the_next_renewal(etcd: EtcdSide) -> None:
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    lease = etcd.call(coordinator.acquire, resource)
    [key] = etcd.keys(other, resource)
    request(etcd, other, "lease/revoke", of_leases([key.lease]))
    with pytest.raises(LeaseLost):
        etcd.call(lease.renew)
    assert not etcd.call(lease.release)


def test_whoever_replaces_a_grant_stays_first_in_the_queue(etcd: EtcdSide) -> None:
    """The key stays, with another lease: a waiter who came meanwhile does not get the lock."""
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    lease = etcd.call(coordinator.acquire, resource)
    [before] = etcd.keys(other, resource)
    fence = etcd.call(lease.detach)
    adopted = etcd.call(other.adopt, fence)
    [after] = etcd.keys(other, resource)
    assert (after.name, after.created) == (before.name, before.created)
    assert after.lease != before.lease
    assert adopted.fence.number > fence.number
    assert etcd.call(coordinator.holder, resource).number == adopted.fence.number
    with pytest.raises(LeaseLost):
        etcd.call(coordinator.adopt, fence)
    assert etcd.call(adopted.release)


def test_a_bare_fence_frees_the_lock_from_another_process(etcd: EtcdSide) -> None:
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    fence = etcd.call(etcd.call(coordinator.acquire, resource).detach)
    backend = other._backend
    plan = backend.plan_release(fence, backend.settings, deadline=backend.clock() + 30)
    assert etcd.plan(other, plan) is True
    plan = backend.plan_release(fence, backend.settings, deadline=backend.clock() + 30)
    assert etcd.plan(other, plan) is False
    assert etcd.keys(other, resource) == []


def test_a_lease_whose_renewal_is_under_way_serves_no_other_lock(etcd: EtcdSide) -> None:
    coordinator, resource = etcd.coordinator(), name()
    lease = etcd.call(coordinator.acquire, resource)
    [grant], backend = coordinator._backend.held(), coordinator._backend
    renewal = backend.plan_renew([grant], backend.settings, deadline=backend.clock() + 30)
    next(renewal)  # it is sent, and its answer has not come
    faults = with_faults(coordinator)
    assert etcd.call(lease.release)
    assert faults.paths == ["lease/revoke"]
    renewal.close()


def test_a_second_release_does_not_revoke_a_lease_that_serves_another_lock(etcd: EtcdSide) -> None:
    """Also where no more leases are kept, so that a release revokes."""
    coordinator = etcd.coordinator()
    leases = [etcd.call(coordinator.acquire, name()) for _ in range(MOST_SPARE + 1)]
    grants, backend = {each.resource: each for each in coordinator._backend.held()}, coordinator._backend
    for each in leases[:-1]:
        assert etcd.call(each.release)
    held = etcd.call(coordinator.acquire, name())  # with the lease that was released last
    assert etcd.call(leases[-1].release)
    ended = grants[leases[-2].fence.resource]
    [grant] = backend.held()
    assert grant.kept.lease is ended.kept.lease
    plan = backend.plan_release(ended, backend.settings, deadline=backend.clock() + 30)
    assert etcd.plan(coordinator, plan) is False
    etcd.call(held.renew)
    assert etcd.call(held.release)


def test_a_lease_that_a_lost_reply_has_made_serves_no_lock(etcd: EtcdSide) -> None:
    """Nobody knows when it was made. Its ttl was counted from the second attempt, which came as "already exists"."""
    coordinator = etcd.coordinator()
    faults = with_faults(coordinator)
    faults.lose("reply", 0, 1)
    lease = etcd.call(coordinator.acquire, name())
    assert faults.paths[:4] == ["lease/grant", "lease/grant", "lease/grant", "kv/txn"]
    assert etcd.call(lease.release)


def test_a_repeated_request_is_believed_no_longer_than_its_lease(etcd: EtcdSide) -> None:
    """The first one had made the lease, with its own ttl: the second one believed in 30 seconds."""
    first, second, resource = etcd.coordinator(ttl=4), etcd.coordinator(ttl=30), name()
    fence = etcd.call(etcd.call(first.acquire, resource).detach)
    token = new_token()
    for coordinator in (first, second):
        backend = coordinator._backend
        plan = backend.plan_remint(fence, token, backend.settings, floor=0, deadline=backend.clock() + 30)
        grant = etcd.plan(coordinator, plan)
        assert 0 < grant.deadline - backend.clock() <= 4
    [renewed] = etcd.plan(second, backend.plan_renew([grant], backend.settings, deadline=backend.clock() + 30))
    assert 0 < renewed - backend.clock() <= 4
    assert etcd.plan(second, backend.plan_release(grant, backend.settings, deadline=backend.clock() + 30))


def test_of_two_releases_one_decides_what_becomes_of_the_lease(etcd: EtcdSide) -> None:
    """The other one had found its key gone, and revoked a lease that served another lock by then."""
    coordinator, resource, token = etcd.coordinator(), name(), new_token()
    backend = coordinator._backend
    settings, deadline = backend.settings, backend.clock() + 30
    grant = etcd.plan(coordinator, backend.plan_acquire(resource, token, settings, floor=0, deadline=deadline))
    faults = with_faults(coordinator)
    first = backend.plan_release(grant, settings, deadline=deadline)
    effect = next(first)  # it decides; its request is under way
    assert etcd.plan(coordinator, backend.plan_release(grant, settings, deadline=deadline))
    assert faults.paths == ["kv/txn"]
    first.close()  # it was interrupted, and is repeated
    assert effect.path == "kv/txn"
    assert not etcd.plan(coordinator, backend.plan_release(grant, settings, deadline=deadline))
    assert faults.paths == ["kv/txn", "kv/txn", "lease/revoke"]


def test_a_lease_whose_revocation_got_no_answer_serves_no_other_lock(etcd: EtcdSide) -> None:
    """There was no room for it, and then there was: it was kept, and the revocation could still arrive."""
    coordinator, resource = etcd.coordinator(), name()
    backend = coordinator._backend
    settings, deadline = backend.settings, backend.clock() + 30
    grant = etcd.plan(coordinator, backend.plan_acquire(resource, new_token(), settings, floor=0, deadline=deadline))
    spare = backend.leases._spare.setdefault(grant.kept.lease.ttl, deque())
    spare.extend([grant.kept.lease] * MOST_SPARE)
    first = backend.plan_release(grant, settings, deadline=deadline)
    assert next(first).path == "lease/revoke"
    first.close()  # it was interrupted, and is repeated
    spare.clear()
    assert etcd.plan(coordinator, backend.plan_release(grant, settings, deadline=deadline))
    assert not spare


def test_an_old_lease_serves_no_other_lock(etcd: EtcdSide) -> None:
    """A key that a restored snapshot has brought back would stay as long as its lease is used."""
    coordinator, resource = etcd.coordinator(), name()
    block(etcd, coordinator)
    [[spare]] = coordinator._backend.leases._spare.values()
    spare.made_at -= OLD_AFTER * spare.ttl
    faults = with_faults(coordinator)
    lease = etcd.call(coordinator.acquire, resource)
    assert faults.paths == ["lease/grant", "kv/txn"]
    assert etcd.call(lease.release)


@pytest.mark.parametrize("waits", [False, True])
def test_an_acquire_that_fails_leaves_no_key_and_no_note(etcd: EtcdSide, waits: bool) -> None:
    """It had queued, and then it found a base that is damaged."""
    coordinator, other, resource = etcd.coordinator(), etcd.coordinator(), name()
    held = etcd.call(other.acquire, resource)
    block(etcd, coordinator)
    faults = with_faults(coordinator)
    faults.answers["kv/txn"] = [damage_base]
    with pytest.raises(CoordinatorUnavailable, match="holds no number"):
        etcd.call(coordinator.acquire, resource, timeout=30 if waits else 0)
    etcd.wait_until(lambda: len(etcd.keys(other, resource)) == 1)
    etcd.wait_until(lambda: not coordinator._backend.leases._asked)
    assert etcd.call(held.release)


def damage_base(reply: Reply) -> Reply:
    """Change the value of the key that a request for a lock reads last."""
    *others, base = reply.message["responses"]
    [found] = base["response_range"]["kvs"]
    damaged = {"response_range": {"kvs": [found | {"value": encode("damaged")}]}}
    return Reply([reply.message | {"responses": [*others, damaged]}])
