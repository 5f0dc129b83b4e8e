"""A cluster whose members change: a learner, and a member that is replaced under living holders and waiters."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from examples.servers import EtcdCluster
from fencing import CoordinatorUnavailable
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide

pytestmark = pytest.mark.thorough

MOST_SECONDS = 12
"""Of a try that is in vain: one attempt or two, of a second or five. See patient_tries."""


def name() -> str:
    return f"changing/{new_token()}"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def in_vain(side: EtcdSide, call: Any, text: str) -> None:
    """Ask a member that serves nobody: the error says why, in time."""
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match=text):
        side.call(call, name())
    assert time.monotonic() - began < MOST_SECONDS


class Waiter:
    """A thread that waits for a lock, and gives it back."""

    def __init__(self, side: EtcdSide, coordinator: Any, resource: str) -> None:
        self._side, self._coordinator, self._resource = side, coordinator, resource
        self.numbers: list[int] = []
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        lease = self._side.call(self._coordinator.acquire, self._resource, timeout=50)
        self.numbers.append(lease.fence.number)
        self._side.call(lease.release)

    def join(self) -> int:
        """Return the number that it got."""
        self._thread.join(60)
        [number] = self.numbers
        return number


def test_a_learner_serves_nobody_until_it_has_a_vote(etcd_cluster: EtcdCluster) -> None:
    """The other members are asked. Where only the learner is named, an error says so in time."""
    learner = etcd_cluster.add(learner=True)
    sides = [EtcdSide(asynchronous, [learner.url, *etcd_cluster.urls[:-1]]) for asynchronous in (False, True)]
    for side in sides:
        resource, coordinator = name(), side.coordinator(ttl=3)
        lease = side.call(coordinator.acquire, resource)
        assert coordinator._backend._connections._endpoints.current.url != learner.url
        waiting = side.coordinator(ttl=3)
        waiting._backend._connections._endpoints._index = 0  # its waits begin at the learner, too
        waiter = Waiter(side, waiting, resource)
        side.wait_until(lambda: len(side.keys(coordinator, resource)) == 2, seconds=60)  # noqa: B023
        side.call(lease.renew)
        assert side.call(lease.release)
        assert waiter.join() > lease.fence.number
        alone = side.coordinator(urls=[learner.url])
        for call in (alone.try_acquire, alone.holder):
            in_vain(side, call, "learner")
    etcd_cluster.promote(learner)
    for side in sides:
        alone = side.coordinator(urls=[learner.url])
        lease = side.call(alone.acquire, name(), timeout=50)
        assert side.call(lease.release)
        side.close()


def test_a_member_is_replaced_under_a_holder_and_a_waiter(etcd_cluster: EtcdCluster, asynchronous: bool) -> None:
    """The one that they use is removed, and another one is started at its address. Then one of the old ones dies."""
    first, second, _ = etcd_cluster.servers
    side, resource = EtcdSide(asynchronous, etcd_cluster.urls), name()
    coordinator, waiting = side.coordinator(ttl=4), side.coordinator(ttl=4)
    lease, other = side.call(coordinator.acquire, resource), side.call(coordinator.acquire, name())
    waiter = Waiter(side, waiting, resource)
    side.wait_until(lambda: len(side.keys(coordinator, resource)) == 2, seconds=60)
    place = side.keys(coordinator, resource)[0]
    etcd_cluster.remove(first)
    in_vain(side, side.coordinator(urls=[first.url]).try_acquire, "etcd at")
    side.wait_until(lambda: first.has_ended, seconds=60)  # it has learned that it was removed
    in_vain(side, side.coordinator(urls=[first.url]).try_acquire, "etcd at")
    replacement = etcd_cluster.add(port=first.port)
    second.kill()  # so the new one is needed for a majority
    until = time.monotonic() + 6
    side.wait_until(lambda: time.monotonic() > until, seconds=60)
    assert lease.remaining() > 0
    assert side.keys(side.coordinator(), resource)[0] == place  # it was kept alive for more than its ttl
    new = side.coordinator(urls=[replacement.url])
    assert side.call(new.holder, resource).number == lease.fence.number
    later = side.call(new.acquire, name(), timeout=50)
    assert later.fence.number > other.fence.number
    assert side.call(lease.release)
    assert waiter.join() > later.fence.number
    for each in (later, other):
        assert side.call(each.release)
    side.close()


def test_a_member_that_does_not_know_that_it_was_removed_tells_nothing_and_grants_nothing(
    etcd_cluster: EtcdCluster, asynchronous: bool
) -> None:
    side, resource = EtcdSide(asynchronous, etcd_cluster.urls), name()
    gone = etcd_cluster.leader()
    lonely = side.coordinator(urls=[gone.url], ttl=2)
    lost = side.call(lonely.acquire, resource)
    etcd_cluster.isolate(gone)
    etcd_cluster.remove(gone)
    in_vain(side, lonely.holder, "etcd at")
    lease = side.call(side.coordinator().acquire, resource, timeout=50)
    assert lost.remaining() == 0
    assert lease.fence.number > lost.fence.number
    assert not gone.has_ended
    in_vain(side, lonely.try_acquire, "etcd at")
    etcd_cluster.heal()
    side.wait_until(lambda: gone.has_ended, seconds=60)
    assert side.call(lease.release)
    side.close()
