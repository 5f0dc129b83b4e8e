"""Waiters at ZooKeeper: in order, woken one by one, without what they leave behind; kazoo's own locks among them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient

from fencing import NotAcquired
from fencing.kernel.fence import new_token
from fencing.zookeeper.layout import LOCKS, quoted
from tests.support.refusals import refused_as_held
from tests.support.zookeeper import ZooKeeperFactory, ZooKeeperSide, end_session, with_faults


def name() -> str:
    return f"waiting/{new_token()}"


class Waiting:
    """A thread that waits for a lock, and keeps it until it is told to release."""

    def __init__(self, side: ZooKeeperSide, coordinator: Any, resource: str) -> None:
        self.lease: Any = None
        self.over = threading.Event()
        self._side, self._coordinator, self._resource = side, coordinator, resource
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.lease = self._side.call(self._coordinator.acquire, self._resource, timeout=60)
        self.over.wait(60)
        self._side.call(self.lease.release)

    def release(self) -> None:
        self.over.set()
        self._thread.join(60)


def watches_of(coordinator: Any) -> dict[str, int]:
    session = coordinator._backend._client.current()
    return {path: len(watches) for path, watches in session._child_watchers.items() if watches}


def test_holder_tells_how_many_wait(side: ZooKeeperSide) -> None:
    """From the reply that names the holder's node. Nodes of other programs count, too."""
    coordinator, resource = side.coordinator(), name()
    backend = coordinator._backend

    async def list_async() -> list[Any]:
        return [holder async for _, holder in coordinator.holders(resource)]

    def waiting() -> list[Any]:
        listed = side.call(list_async) if side.asynchronous else [each for _, each in coordinator.holders(resource)]
        return [each.waiting for each in (side.call(coordinator.holder, resource), *listed)]

    lease = side.call(coordinator.acquire, resource, timeout=10)
    seen, places = [waiting()], []
    for _ in range(2):
        plan = backend.plan_queue(resource, new_token(), backend.settings, floor=0, deadline=backend.clock() + 30)
        places.append(side.plan(coordinator, plan).place)
    other = side.client.create(f"{LOCKS}/{quoted(resource)}/x__lock__", ephemeral=True, sequence=True)
    seen.append(waiting())
    side.client.delete(other)
    for place in places:
        seen.append(waiting())
        side.plan(coordinator, place.plan_leave(deadline=backend.clock() + 30))
    seen.append(waiting())
    assert seen == [[each] * 2 for each in (0, 3, 2, 1, 0)]
    faults = with_faults(coordinator)
    side.call(coordinator.holder, resource)
    assert faults.kinds == [["Sync", "GetChildren2"], ["GetData"]], "no request of its own"
    assert side.call(lease.release)


def test_waiters_get_the_lock_in_order_and_each_watches_one_node(side: ZooKeeperSide) -> None:
    resource, holder = name(), side.coordinator()
    held = side.call(holder.acquire, resource, timeout=10)
    coordinators, waiters = [side.coordinator() for _ in range(3)], []
    for each in coordinators:
        waiters.append(Waiting(side, each, resource))
        side.wait_until(lambda: len(side.queue(resource)) == len(waiters) + 1)
        side.wait_until(lambda each=each: len(watches_of(each)) == 1)  # type: ignore[misc]
    queue = side.queue(resource)
    path = f"{LOCKS}/{quoted(resource)}"
    assert [list(watches_of(each)) for each in coordinators] == [[f"{path}/{node}"] for node in queue[:-1]]
    numbers = [held.fence.number]
    side.call(held.release)
    for waiter, others in ((waiters[i], waiters[i + 1 :]) for i in range(3)):
        side.wait_until(lambda waiter=waiter: waiter.lease is not None)  # type: ignore[misc]
        assert all(other.lease is None for other in others)
        numbers.append(waiter.lease.fence.number)
        waiter.release()
    assert numbers == sorted(numbers)
    assert not side.queue(resource)
    assert not any(watches_of(each) for each in coordinators)


def test_one_that_gives_up_leaves_nothing_behind(side: ZooKeeperSide) -> None:
    resource, holder, coordinator = name(), side.coordinator(), side.coordinator()
    held = side.call(holder.acquire, resource, timeout=10)
    for timeout in (0, 0.3, 0.3):
        refused_as_held(lambda timeout=timeout: side.call(coordinator.acquire, resource, timeout=timeout))  # type: ignore[misc]
    side.wait_until(lambda: len(side.queue(resource)) == 1)
    assert not watches_of(coordinator)
    assert side.call(held.release)


def test_a_hand_off_takes_one_round_trip(side: ZooKeeperSide) -> None:
    resource, holder, coordinator = name(), side.coordinator(), side.coordinator()
    side.call(side.call(coordinator.acquire, name(), timeout=10).release)
    held = side.call(holder.acquire, resource, timeout=10)
    faults = with_faults(coordinator)
    waiter = Waiting(side, coordinator, resource)
    side.wait_until(lambda: watches_of(coordinator))
    before = len(faults.asked)
    side.call(held.release)
    side.wait_until(lambda: waiter.lease is not None)
    assert faults.kinds[before:] == [["GetChildren2", "Transaction"]]
    waiter.release()


def test_a_grant_wakes_nobody(side: ZooKeeperSide) -> None:
    """Whoever is next writes to its node, which the one behind it watches."""
    resource, holder = name(), side.coordinator()
    first, second = side.coordinator(), side.coordinator()
    held = side.call(holder.acquire, resource, timeout=10)
    waiters = []
    for each in (first, second):
        waiters.append(Waiting(side, each, resource))
        side.wait_until(lambda each=each: len(watches_of(each)) == 1)  # type: ignore[misc]
    faults = with_faults(second)
    side.call(held.release)
    side.wait_until(lambda: waiters[0].lease is not None)
    side.call(waiters[0].lease.renew)  # a round trip later
    assert side.call(second.holder, resource).number == waiters[0].lease.fence.number
    assert faults.kinds == [["Sync", "GetChildren2"], ["GetData"]]
    for waiter in waiters:
        waiter.release()


def test_a_free_lock_takes_one_round_trip_and_its_release_another(side: ZooKeeperSide) -> None:
    coordinator, resource = side.coordinator(), name()
    side.call(side.call(coordinator.acquire, resource, timeout=10).release)
    faults = with_faults(coordinator)
    lease = side.call(coordinator.acquire, resource, timeout=10)
    assert side.call(lease.release)
    assert faults.kinds == [["Create2", "GetChildren2", "Exists"], ["Delete"]]


@pytest.mark.thorough
def test_an_empty_queue_is_deleted_and_made_again(side: ZooKeeperSide, fresh_zookeeper: ZooKeeperFactory) -> None:
    """By the server, at any moment: also between the requests of those who take the lock."""
    server = fresh_zookeeper(java=["-Dznode.container.checkIntervalMs=20"])
    coordinators = [side.coordinator(client=KazooClient(server.hosts)) for _ in range(2)]
    resource, numbers = name(), []
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for each in coordinators:
            lease = side.call(each.acquire, resource, timeout=30)
            numbers.append(lease.fence.number)
            assert side.call(lease.release)
    assert numbers == sorted(set(numbers))
    watcher = KazooClient(server.hosts)
    watcher.start(30)
    side.wait_until(lambda: watcher.exists(f"{LOCKS}/{quoted(resource)}") is None)
    assert side.call(side.call(coordinators[0].acquire, resource, timeout=30).release)
    watcher.stop()
    watcher.close()
    for each in coordinators:
        side.call(each.close)


def test_a_waiter_whose_session_ends_queues_again(side: ZooKeeperSide) -> None:
    resource, holder, coordinator = name(), side.coordinator(), side.coordinator()
    held = side.call(holder.acquire, resource, timeout=10)
    waiter = Waiting(side, coordinator, resource)
    side.wait_until(lambda: watches_of(coordinator))
    before = side.queue(resource)[1]
    end_session(coordinator)
    side.wait_until(lambda: len(side.queue(resource)) == 2 and side.queue(resource)[1] != before)
    side.call(held.release)
    side.wait_until(lambda: waiter.lease is not None)
    waiter.release()


def test_kazoos_own_lock_is_in_the_same_queue(side: ZooKeeperSide) -> None:
    """It is excluded, waits, and is waited for; ``holder`` shows it without a number."""
    resource, coordinator, other = name(), side.coordinator(), side.coordinator()
    theirs = side.client.Lock(f"{LOCKS}/{quoted(resource)}", "another program")
    held = side.call(coordinator.acquire, resource, timeout=10)
    assert not theirs.acquire(blocking=False)
    taken = threading.Event()

    def take() -> None:
        assert theirs.acquire(timeout=60)
        taken.set()

    taking = threading.Thread(target=take)
    taking.start()
    side.wait_until(lambda: len(side.queue(resource)) == 2)
    side.call(held.release)
    taking.join(60)
    assert taken.is_set()
    holder = side.call(other.holder, resource)
    assert (holder.owner, holder.number, holder.expires) == (None, None, True)
    error = side.expect(NotAcquired, other.acquire, resource, timeout=0)
    assert error.kept_by == "foreign"
    waiter = Waiting(side, other, resource)
    side.wait_until(lambda: watches_of(other))
    theirs.release()
    side.wait_until(lambda: waiter.lease is not None)
    waiter.release()
    assert not side.queue(resource)
