"""The session that is the lease of all locks of a coordinator: what ends it, and what a holder learns of it."""

from __future__ import annotations

import gc
import logging
import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from examples.servers import ZooKeeperServer
from examples.servers.proxy import Proxy
from fencing import CoordinatorUnavailable, LeaseLost
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.testing.base import AsyncScriptedGuard, ScriptedGuard
from fencing.zookeeper.calls import EPHEMERAL, SEQUENTIAL, create
from fencing.zookeeper.layout import LOCKS, Record, place_of, queue_of, quoted
from tests.support.zookeeper import ZooKeeperFactory, ZooKeeperSide, end_session, with_faults


def name() -> str:
    return f"sessions/{new_token()}"


def session_of(coordinator: Any) -> Any:
    return coordinator._backend._client.current()


def test_the_session_is_the_coordinators_own(side: ZooKeeperSide) -> None:
    """The client need not be started, and stays as it is."""
    client = KazooClient(side.hosts, timeout=7)
    coordinator = side.coordinator(client=client)
    lease = side.call(coordinator.acquire, name(), timeout=10)
    assert 0.5 * 7 < lease.remaining() <= 7
    assert not client.connected
    assert session_of(coordinator).kept_ms == 7000
    assert side.call(lease.release)


@pytest.mark.parametrize("ttl", [0.1, 61.0])
def test_a_ttl_that_the_servers_do_not_keep_is_refused(side: ZooKeeperSide, ttl: float) -> None:
    coordinator, resource = side.coordinator(ttl=ttl), name()
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, resource, timeout=10)
    kept, word = (0.4, "at least") if ttl < 1 else (60, "at most")
    assert f"keeps a session for {word} {kept:g} s, and the ttl is {ttl:g} s; pass another timeout" in str(error)
    assert not side.queue(resource)


def test_the_end_of_the_session_is_told_at_once(side: ZooKeeperSide) -> None:
    coordinator, resource = side.coordinator(), name()
    lease = side.call(coordinator.acquire, resource, timeout=10)
    before = session_of(coordinator).client_id
    end_session(coordinator)
    side.wait_until(lambda: not lease.held)
    error = side.expect(LeaseLost, lease.ensure_held)
    assert (error.reason, error.cause) == ("gone", "its session in ZooKeeper is over")
    again = side.call(coordinator.acquire, resource, timeout=10)
    assert again.fence.number > lease.fence.number
    assert session_of(coordinator).client_id != before
    assert not side.call(lease.release)
    side.call(again.renew)
    assert side.call(again.release)


def test_a_node_that_is_deleted_by_hand_ends_its_lease_alone(side: ZooKeeperSide) -> None:
    coordinator = side.coordinator()
    gone, kept = (side.call(coordinator.acquire, name(), timeout=10) for _ in range(2))
    resource = gone.fence.resource
    side.client.delete(f"{LOCKS}/{quoted(resource)}/{side.queue(resource)[0]}")
    backend = coordinator._backend
    plan = backend.plan_renew([gone._holding, kept._holding], backend.settings, deadline=backend.clock() + 10)
    renewed = side.plan(coordinator, plan)
    assert renewed[0] is None
    assert renewed[1] is not None
    assert side.expect(LeaseLost, gone.renew).reason == "gone"
    assert side.call(kept.release)


def test_a_request_that_another_client_repeats_takes_the_node_from_the_first_one(side: ZooKeeperSide) -> None:
    """Both have the same token, and the node stays the first of the queue; but it is another one."""
    one, two = side.coordinator()._backend, side.coordinator()._backend
    resource, token = name(), new_token()
    grants = []
    for each in (one, two):
        plan = each.plan_acquire(resource, token, each.settings, floor=0, deadline=each.clock() + 10)
        grants.append(side.call(run_async if side.asynchronous else run, plan, each.perform))
    assert grants[0].number < grants[1].number
    assert len(side.queue(resource)) == 1
    for each, grant, is_alive in ((one, grants[0], False), (two, grants[1], True)):
        plan = each.plan_renew([grant], each.settings, deadline=each.clock() + 10)
        [until] = side.call(run_async if side.asynchronous else run, plan, each.perform)
        assert (until is not None) == is_alive
    plan = two.plan_release(grants[1], two.settings, deadline=two.clock() + 10)
    assert side.call(run_async if side.asynchronous else run, plan, two.perform)


def test_a_token_of_a_session_that_is_over_gets_a_new_number(side: ZooKeeperSide) -> None:
    """Its grant is still known here, and the first creation in the new session gets no reply."""
    coordinator, resource, token = side.coordinator(), name(), new_token()
    backend = coordinator._backend

    def acquire() -> Any:
        plan = backend.plan_acquire(resource, token, backend.settings, floor=0, deadline=backend.clock() + 10)
        return side.plan(coordinator, plan)

    ended = acquire()
    end_session(coordinator)
    side.wait_until(lambda: not side.queue(resource))
    with_faults(coordinator).lose("reply", 0, 1)
    late = acquire()
    assert late.number > ended.number
    assert len(side.queue(resource)) == 1
    assert side.plan(coordinator, backend.plan_release(late, backend.settings, deadline=backend.clock() + 10))
    assert not side.queue(resource)


def test_a_place_is_a_node_of_its_own_session(side: ZooKeeperSide) -> None:
    """Another session has one of the same token, before it: a former one of this client, which lives on for a while."""
    holder, waiter, resource, token = side.coordinator(), side.coordinator()._backend, name(), new_token()
    held = side.call(holder.acquire, resource, timeout=10)
    side.client.create(place_of(resource, token), Record(None, "former").data, ephemeral=True, sequence=True)
    granted = None
    for is_free in (False, True):
        if is_free:
            assert side.call(held.release)
        plan = waiter.plan_queue(resource, token, waiter.settings, floor=0, deadline=waiter.clock() + 10)
        granted = side.call(run_async if side.asynchronous else run, plan, waiter.perform)
        [own] = [node for node in side.queue(resource) if node.startswith(token)]
        _, stat = side.client.get(f"{queue_of(resource)}/{own}")
        assert stat.ephemeralOwner == waiter._client.current().id
    plan = waiter.plan_release(granted, waiter.settings, deadline=waiter.clock() + 10)
    assert side.call(run_async if side.asynchronous else run, plan, waiter.perform)
    assert not side.queue(resource)


def test_a_session_that_moves_to_another_connection_keeps_its_locks(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"))
        lease = side.call(coordinator.acquire, name(), timeout=10)
        before = session_of(coordinator).client_id
        proxy.cut()
        side.call(lease.renew)
        assert session_of(coordinator).client_id == before
        lease.ensure_held()
        assert side.call(lease.release)
        side.call(coordinator.close)


@pytest.mark.thorough
def test_a_client_that_reaches_nobody_counts_by_its_own_clock(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    """kazoo says that a session is lost only when a server has said so."""
    other, resource = side.coordinator(), name()
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"), ttl=2.0)
        lease = side.call(coordinator.acquire, resource, timeout=10)
        proxy.refuse()
        began = time.monotonic()
        side.wait_until(lambda: not lease.held)
        assert time.monotonic() - began <= 2.5
        assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
        newer = side.call(other.acquire, resource, timeout=30)
        assert newer.fence.number > lease.fence.number
        proxy.restore()
        assert not side.call(lease.release)
        side.call(newer.renew)
        assert side.call(newer.release)
        side.call(coordinator.close)


@pytest.mark.thorough
def test_a_frozen_server_costs_the_call_its_time_and_no_lock(
    side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory
) -> None:
    server = fresh_zookeeper()
    coordinator, resource = side.coordinator(client=KazooClient(server.hosts), ttl=20.0), name()
    lease = side.call(coordinator.acquire, resource, timeout=10)
    server.freeze()
    began = time.monotonic()
    side.expect(CoordinatorUnavailable, coordinator.acquire, name(), timeout=1)
    assert time.monotonic() - began < 12
    server.thaw()
    side.wait_until(lambda: session_of(coordinator).connected, seconds=30)
    side.call(lease.renew)
    assert side.call(lease.release)
    side.call(coordinator.close)


@pytest.mark.thorough
@pytest.mark.parametrize("keep_data", [True, False])
def test_a_server_that_restarts_keeps_the_locks_or_ends_them(
    side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory, keep_data: bool
) -> None:
    """Restarted empty, it knows no session. Numbers go on above the clock."""
    server = fresh_zookeeper()
    ttl = 30.0 if keep_data else 2.0
    coordinator, resource = side.coordinator(client=KazooClient(server.hosts), ttl=ttl), name()
    lease = side.call(coordinator.acquire, resource, timeout=10)
    server.kill()
    server.restart(keep_data=keep_data)
    side.wait_until(lambda: session_of(coordinator).connected, seconds=60)
    if keep_data:
        side.call(lease.renew)
        assert side.call(lease.release)
    else:
        side.expect(LeaseLost, lease.renew)
    again = side.call(coordinator.acquire, resource, timeout=30)
    assert again.fence.number > lease.fence.number
    assert side.call(again.release)
    side.call(coordinator.close)


def test_a_reply_that_is_read_in_another_session_is_not_believed(side: ZooKeeperSide) -> None:
    """The thread that reads it stood still, and kazoo has a new session by then. The node was of the former one."""
    coordinator, resource = side.coordinator(), name()
    side.call(side.call(coordinator.acquire, resource, timeout=10).release)
    client = coordinator._backend._client
    stood_still: list[Any] = []
    reply_of = client.reply_of

    def stand_still(*args: Any) -> Any:
        if not stood_still:
            before = session_of(coordinator).client_id
            stood_still.append(before)
            end_session(coordinator)
            side.wait_until(lambda: session_of(coordinator).client_id not in (None, before))
        return reply_of(*args)

    client.reply_of = stand_still
    lease = side.call(coordinator.acquire, resource, timeout=20)
    assert stood_still
    lease.ensure_held()
    assert len(side.queue(resource)) == 1, "the lock that it believes in"
    assert side.call(lease.release)


@pytest.mark.thorough
def test_a_release_without_an_answer_frees_the_lock_when_it_is_connected_again(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    """No ttl does: the session goes on."""
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"), ttl=6.0)
        resource = name()
        lease = side.call(coordinator.acquire, resource, timeout=10)
        faults = with_faults(coordinator)
        faults.lose("request", 0, 1000)
        side.expect(CoordinatorUnavailable, lease.release)
        assert len(side.queue(resource)) == 1
        proxy.cut()
        side.wait_until(lambda: not side.queue(resource))
        faults.lost = lambda _: None
        side.call(coordinator.close)


def test_a_place_that_is_dropped_leaves_no_node(side: ZooKeeperSide) -> None:
    """Its event loop has ended before it could leave the queue."""
    holder, waiter, resource = side.coordinator(), side.coordinator()._backend, name()
    held = side.call(holder.acquire, resource, timeout=10)
    plan = waiter.plan_queue(resource, new_token(), waiter.settings, floor=0, deadline=waiter.clock() + 10)
    taken = side.call(run_async if side.asynchronous else run, plan, waiter.perform)
    assert len(side.queue(resource)) == 2
    del taken, plan
    gc.collect()
    side.wait_until(lambda: len(side.queue(resource)) == 1)
    assert side.call(held.release)


@pytest.mark.thorough
def test_a_request_that_comes_after_its_time_leaves_no_node(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    """Whoever has asked for it is gone, and its session goes on, at the same connection."""
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"), ttl=6.0)
        resource = name()
        side.call(side.call(coordinator.acquire, resource, timeout=10).release)
        coordinator._backend.give_back_later = lambda *_: None  # its event loop has ended
        session = session_of(coordinator).client_id
        stalled = proxy.hold_request_when(lambda request: b"sessions%2F" in request)
        side.expect(CoordinatorUnavailable, coordinator.acquire, resource, timeout=0.3)
        assert stalled.fired
        proxy.restore()
        side.wait_until(lambda: side.queue(resource), seconds=5)
        side.wait_until(lambda: not side.queue(resource), seconds=30)
        assert session_of(coordinator).client_id == session
        side.call(coordinator.close)


@pytest.mark.thorough
def test_a_reclaim_without_an_answer_outlasts_a_reconnection(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    """The lock is kept, as the error says, until it is called again."""
    guard = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"), ttl=10.0, guards=[guard])
        resource = name()
        lease = side.call(coordinator.acquire, resource, timeout=10)
        faults = with_faults(coordinator)
        faults.lost = lambda ask: "reply" if type(ask.requests[0]).__name__ == "Transaction" else None
        side.expect(CoordinatorUnavailable, lease.reclaim, timeout=0.5)
        faults.lost = lambda _: None
        [reclaimed] = side.queue(resource)
        assert lease.fence.token not in reclaimed
        proxy.cut()
        side.wait_until(lambda: session_of(coordinator).connected)
        coordinator._backend.sweep_in(0.0)
        again = side.call(lease.reclaim, timeout=10)
        assert side.queue(resource) == [reclaimed]
        assert side.call(again.release)
        assert not coordinator._backend.held_nodes
        side.call(coordinator.close)


@pytest.mark.thorough
def test_nodes_that_nobody_uses_are_looked_for_from_time_to_time(side: ZooKeeperSide) -> None:
    """Whatever has left one, and however long the connection lasts."""
    coordinator = side.coordinator(ttl=0.4)
    lease = side.call(coordinator.acquire, name(), timeout=10)
    resource, token = name(), new_token()
    side.call(side.call(coordinator.acquire, resource, timeout=10).release)
    path, session = place_of(resource, token), session_of(coordinator)
    made = session.send(create(path, Record(None, "nobody").data, coordinator._backend.acl, EPHEMERAL | SEQUENTIAL))
    assert made.get(timeout=10)
    side.wait_until(lambda: not side.queue(resource), seconds=30)
    side.call(lease.release)


def test_what_another_has_taken_over_is_forgotten(side: ZooKeeperSide) -> None:
    one, two = side.coordinator(), side.coordinator()
    leases = [side.call(one.acquire, name(), timeout=10) for _ in range(3)]
    adopted = [side.call(two.adopt, side.call(lease.detach)) for lease in leases[:2]]
    assert len(one._backend.held_nodes) == 3
    one._backend.sweep_in(0.0)
    side.wait_until(lambda: len(one._backend.held_nodes) == 1)
    for lease in (*adopted, leases[2]):
        side.call(lease.renew)
        assert side.call(lease.release)


def test_a_wait_ends_with_the_closing(side: ZooKeeperSide) -> None:
    coordinator, holder, resource = side.coordinator(), side.coordinator(), name()
    held = side.call(holder.acquire, resource, timeout=10)
    errors: list[RuntimeError] = []

    def wait() -> None:
        errors.append(side.expect(RuntimeError, coordinator.acquire, resource))  # without a time-out

    waiting = threading.Thread(target=wait)
    waiting.start()
    side.wait_until(lambda: session_of(coordinator)._child_watchers)
    side.call(coordinator.close)
    waiting.join(20)
    assert "this coordinator was closed" in str(errors[0])
    assert side.call(held.release)


def test_the_closing_warns_of_what_nobody_adopted(side: ZooKeeperSide, caplog: pytest.LogCaptureFixture) -> None:
    one, two = side.coordinator(), side.coordinator()
    names = [name() for _ in range(3)]
    leases = [side.call(one.acquire, each, timeout=10) for each in names]
    fences = [side.call(lease.detach) for lease in leases[:2]]
    adopted = side.call(two.adopt, fences[0])
    with caplog.at_level(logging.WARNING, logger="fencing"):
        side.call(one.close)
    [said] = [record.getMessage() for record in caplog.records if record.name == "fencing"]
    assert said.endswith(
        f"frees locks that were detached, and that nobody has adopted, because its session ends with it: {names[1]!r}"
    )
    side.call(adopted.renew)
    assert side.call(adopted.release)
    assert [side.queue(each) for each in names] == [[], [], []]


def test_a_node_that_comes_back_is_deleted_when_the_session_is_connected_again(
    side: ZooKeeperSide, zookeeper_server: ZooKeeperServer
) -> None:
    """A restored snapshot may have it, and the session, too. Nobody else can end it. What is used stays."""
    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        coordinator = side.coordinator(client=KazooClient(f"{proxy.host}:{proxy.port}"), ttl=30.0)
        kept = side.call(coordinator.acquire, name(), timeout=10)
        fence = side.call(side.call(coordinator.acquire, name(), timeout=10).detach)
        granted: list[Any] = []
        waiter = threading.Thread(
            target=lambda: granted.append(side.call(coordinator.acquire, kept.fence.resource, timeout=60))
        )
        waiter.start()
        side.wait_until(lambda: coordinator._backend.is_waited_for(kept.fence.resource))
        queue = side.queue(kept.fence.resource)
        assert len(queue) == 2
        back, session = name(), session_of(coordinator)
        for request in (
            create(queue_of(back), b"", OPEN_ACL_UNSAFE),
            create(place_of(back, new_token()), Record(1, "A").data, OPEN_ACL_UNSAFE, EPHEMERAL | SEQUENTIAL),
        ):
            session.send(request).get(timeout=10)
        proxy.cut()
        side.wait_until(lambda: not side.queue(back), seconds=20)
        assert side.queue(kept.fence.resource) == queue
        side.call(kept.renew)
        assert side.call(kept.release)
        waiter.join(30)
        assert side.call(granted[0].release)
        assert side.call(side.call(coordinator.adopt, fence).release)
        side.call(coordinator.close)
