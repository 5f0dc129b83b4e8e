"""The numbers of locks in ZooKeeper: the position of a write, on a base that all share."""

from __future__ import annotations

import shutil
import time
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists
from kazoo.protocol.states import ZnodeStat

from examples.servers import ZooKeeperServer
from fencing import CoordinatorUnavailable, LeaseLost, ZooKeeperCoordinator
from fencing.kernel.fence import Mark, new_token
from fencing.testing.base import AsyncScriptedGuard, ScriptedGuard
from fencing.zookeeper.calls import Ask
from fencing.zookeeper.layout import BASES
from fencing.zookeeper.plans import took_at_once
from tests.support.zookeeper import ZooKeeperFactory, ZooKeeperSide, with_faults


def name() -> str:
    return f"numbers/{new_token()}"


def bases(hosts: str) -> list[str]:
    client = KazooClient(hosts)
    client.start(30)
    try:
        return sorted(client.get_children(BASES))
    finally:
        client.stop()
        client.close()


def test_a_creation_takes_the_lock_only_in_an_empty_queue() -> None:
    """Else the one before may have minted again since, and its last number be higher."""
    created, parent = ZnodeStat(*range(40, 51)), ZnodeStat(*range(30, 40), 40)
    assert took_at_once(created, parent, parent)
    assert not took_at_once(created, parent, None)
    assert not took_at_once(created, parent._replace(pzxid=41), parent)


@pytest.mark.thorough
def test_the_first_base_is_the_clock_and_there_is_one(side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory) -> None:
    server = fresh_zookeeper()
    coordinators = [side.coordinator(client=KazooClient(server.hosts)) for _ in range(4)]
    before = time.time_ns() // 1000
    leases = side.race([partial(side.call, each.acquire, name(), timeout=20) for each in coordinators])
    assert len(bases(server.hosts)) == 1
    assert all(before < lease.fence.number < time.time_ns() // 1000 + 1000 for lease in leases)
    for lease in leases:
        assert side.call(lease.release)
    for each in coordinators:
        side.call(each.close)


@pytest.mark.thorough
def test_without_a_clock_numbers_begin_at_the_log(side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory) -> None:
    server = fresh_zookeeper()
    coordinator = side.coordinator(client=KazooClient(server.hosts), clock_floor=False)
    lease = side.call(coordinator.acquire, name(), timeout=20)
    assert 1 <= lease.fence.number < 100
    assert bases(server.hosts) == ["0"]
    assert side.call(coordinator.holder, lease.fence.resource).number == lease.fence.number
    assert side.call(lease.release)
    side.call(coordinator.close)


def test_a_mark_lifts_the_base_for_all(side: ZooKeeperSide) -> None:
    """Another coordinator that knows the former base is not behind."""
    resource, other = name(), side.coordinator()
    side.call(side.call(other.acquire, resource, timeout=10).release)
    number = time.time_ns() // 1000 + 60_000_000
    marks = {resource: Mark(number, new_token())}
    guard = AsyncScriptedGuard(marks) if side.asynchronous else ScriptedGuard(marks)
    coordinator = side.coordinator(guards=[guard])
    lease = side.call(coordinator.acquire, resource, timeout=10)
    assert lease.fence.number > number
    assert side.call(lease.release)
    again = side.call(other.acquire, resource, timeout=10)
    assert again.fence.number > lease.fence.number
    assert side.call(again.release)
    assert len(bases(side.hosts)) == 1


@pytest.mark.thorough
def test_a_snapshot_that_is_restored_sets_numbers_back_and_the_guard_repairs_them(
    side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory
) -> None:
    server: ZooKeeperServer = fresh_zookeeper()
    guard = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()
    coordinator = side.coordinator(client=KazooClient(server.hosts), guards=[guard], ttl=1.0)
    resource = name()
    first = side.call(coordinator.acquire, resource, timeout=20)
    assert side.call(first.release)
    server.stop()
    assert server.data is not None
    saved = server.data.with_name("saved")
    shutil.copytree(server.data, saved)
    server.restart()
    for _ in range(30):
        last = side.call(coordinator.acquire, resource, timeout=30)
        assert side.call(last.release)
    held = side.call(coordinator.acquire, resource, timeout=30)
    server.stop()
    shutil.rmtree(server.data)
    shutil.copytree(saved, server.data)
    server.restart()
    side.wait_until(lambda: not held.held)
    side.expect(LeaseLost, held.renew)
    fresh = side.coordinator(client=KazooClient(server.hosts), guards=[guard])
    again = side.call(fresh.acquire, resource, timeout=30)
    assert again.fence.number > held.fence.number
    assert side.call(again.release)
    for each in (coordinator, fresh):
        side.call(each.close)


@pytest.mark.thorough
def test_a_base_that_is_no_number_is_said_so(side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory) -> None:
    server = fresh_zookeeper()
    client = KazooClient(server.hosts)
    client.start(30)
    client.ensure_path(f"{BASES}/v2")
    coordinator = side.coordinator(client=KazooClient(server.hosts))
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, name(), timeout=10)
    assert "has 'v2', which is no number of this version" in str(error)
    client.delete(f"{BASES}/v2")
    assert side.call(side.call(coordinator.acquire, name(), timeout=10).release)
    client.stop()
    client.close()
    side.call(coordinator.close)


def test_two_may_be_the_first_at_once(side: ZooKeeperSide) -> None:
    """Another client creates what all locks share, while this one looks for what is missing."""
    root = f"/{new_token()}"
    side.client.create(root)
    first = side.coordinator(client=KazooClient(side.hosts + root))
    second = ZooKeeperCoordinator(KazooClient(side.hosts + root))

    def create_meanwhile(ask: Ask) -> None:
        if any(isinstance(request, Exists) for request in ask.requests):
            faults.lost = lambda _: None
            second.acquire(name(), timeout=30).release()

    faults = with_faults(first)
    faults.lost = create_meanwhile
    with second:
        assert side.call(side.call(first.acquire, name(), timeout=30).release)
