"""An ensemble of three, of which one member dies, freezes or loses the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient

from examples.servers import ZooKeeperEnsemble
from fencing import CoordinatorUnavailable, FencingError, LeaseLost
from fencing.kernel.fence import new_token
from tests.support.zookeeper import ZooKeeperSide

pytestmark = pytest.mark.thorough


def name() -> str:
    return f"members/{new_token()}"


def on(side: ZooKeeperSide, *members: Any, **options: Any) -> Any:
    return side.coordinator(client=KazooClient(",".join(each.hosts for each in members)), **options)


def until_granted(side: ZooKeeperSide, coordinator: Any, resource: str) -> Any:
    """Acquire; again while there is no leader, as the error advises."""
    deadline = time.monotonic() + 100
    while True:
        try:
            return side.call(coordinator.acquire, resource, timeout=50)
        except CoordinatorUnavailable:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("fault", ["kill", "freeze", "isolate"])
def test_a_lease_outlasts_the_leader(side: ZooKeeperSide, ensemble: ZooKeeperEnsemble, fault: str) -> None:
    """A lease that is held, a waiter, and a new grant. Numbers grow."""
    leader = ensemble.leader()
    holder, waiter = on(side, *ensemble.members, ttl=30.0), on(side, *ensemble.members, ttl=30.0)
    resource, numbers = name(), []
    lease = side.call(holder.acquire, resource, timeout=20)
    numbers.append(lease.fence.number)
    granted: list[Any] = []
    waiting = threading.Thread(target=lambda: granted.append(side.call(waiter.acquire, resource, timeout=120)))
    waiting.start()
    side.wait_until(lambda: len(side_queue(side, ensemble, leader, resource)) == 2, seconds=30)
    ensemble.isolate(leader) if fault == "isolate" else getattr(leader, fault)()
    other = until_granted(side, holder, name())
    deadline = time.monotonic() + 30
    while True:
        try:
            side.call(lease.renew)
            break
        except CoordinatorUnavailable:
            assert time.monotonic() < deadline
    assert not granted, "the holder still has it"
    assert side.call(lease.release)
    waiting.join(60)
    numbers.append(granted[0].fence.number)
    assert numbers == sorted(numbers)
    for each in (granted[0], other):
        assert side.call(each.release)
    if fault == "kill":
        leader.restart()
    elif fault == "freeze":
        leader.thaw()
    else:
        ensemble.heal()
    for each in (holder, waiter):
        side.call(each.close)


def side_queue(side: ZooKeeperSide, ensemble: ZooKeeperEnsemble, leader: Any, resource: str) -> list[str]:
    side.hosts = next(each for each in ensemble.members if each is not leader).hosts
    return side.queue(resource)


def test_no_quorum_costs_a_call_its_time_and_no_lock(side: ZooKeeperSide, ensemble: ZooKeeperEnsemble) -> None:
    coordinator, resource = on(side, *ensemble.members, ttl=12.0), name()
    lease = side.call(coordinator.acquire, resource, timeout=20)
    stopped = ensemble.members[:2]
    for each in stopped:
        each.freeze()
    began = time.monotonic()
    side.expect(CoordinatorUnavailable, coordinator.acquire, name(), timeout=1)
    assert time.monotonic() - began < 15
    side.expect(FencingError, lease.renew)
    for each in stopped:
        each.thaw()
    again = until_granted(side, coordinator, name())
    assert side.call(again.release)
    side.call(coordinator.close)


def test_a_member_behind_a_partition_grants_nothing(side: ZooKeeperSide, ensemble: ZooKeeperEnsemble) -> None:
    """Its clients lose their leases by their own clocks, before the others are granted the lock."""
    alone = ensemble.leader()
    others = [each for each in ensemble.members if each is not alone]
    cut_off, rest = on(side, alone, ttl=4.0), on(side, *others, ttl=4.0)
    resource = name()
    lease = side.call(cut_off.acquire, resource, timeout=20)
    ensemble.isolate(alone)
    overlaps: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            if newer and lease.held:
                overlaps.append(lease.remaining())

    newer: list[Any] = []
    watching = threading.Thread(target=watch)
    watching.start()
    newer.append(until_granted(side, rest, resource))
    over.set()
    watching.join()
    assert not overlaps
    assert newer[0].fence.number > lease.fence.number
    side.expect(LeaseLost, lease.ensure_held)
    ensemble.heal()
    side.wait_until(lambda: cut_off._backend._client.current().connected, seconds=60)
    assert not side.call(lease.release)
    side.call(newer[0].renew)
    assert side.call(newer[0].release)
    for each in (cut_off, rest):
        side.call(each.close)


def test_a_session_goes_on_at_another_member(side: ZooKeeperSide, ensemble: ZooKeeperEnsemble) -> None:
    """Also if the one that is away is only silent: the client asks the next one before its session is over."""
    follower = ensemble.follower()
    client = KazooClient(",".join(each.hosts for each in [follower, ensemble.leader()]), randomize_hosts=False)
    coordinator = side.coordinator(client=client, ttl=10.0)
    lease = side.call(coordinator.acquire, name(), timeout=20)
    session = coordinator._backend._client.current().client_id
    follower.freeze()
    side.wait_until(
        lambda: (
            coordinator._backend._client.current().connected
            and coordinator._backend._client.current()._connection._socket.getpeername()[1] != follower.port
        ),
        seconds=30,
    )
    side.call(lease.renew)
    assert coordinator._backend._client.current().client_id == session
    lease.ensure_held()
    assert side.call(lease.release)
    follower.thaw()
    side.call(coordinator.close)
