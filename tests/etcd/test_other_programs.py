"""``etcdctl lock`` and these locks exclude each other, and wait in one queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from examples.servers import EtcdServer
from fencing import Holder
from fencing.kernel.fence import new_token
from tests.support.etcd import Etcdctl, EtcdSide

pytestmark = pytest.mark.thorough  # etcdctl takes its time to start

Lock = Callable[[str], "Etcdctl"]


@pytest.fixture
def lock(etcd_server: EtcdServer) -> Iterator[Lock]:
    """Starts ``etcdctl lock``."""
    with ExitStack() as stack:

        def start(resource: str) -> Etcdctl:
            started = Etcdctl(etcd_server.url, resource)
            stack.callback(started.end)
            return started

        yield start


@contextmanager
def waiting(etcd: EtcdSide, coordinator: object, resource: str, done: list[str], says: str) -> Iterator[None]:
    """A thread that waits for the lock, notes that it has it, and gives it back."""

    def wait() -> None:
        lease = etcd.call(coordinator.acquire, resource, timeout=60)  # type: ignore[attr-defined]
        done.append(says)
        etcd.call(lease.release)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_etcdctl_excludes_us(etcd: EtcdSide, lock: Lock) -> None:
    coordinator, resource = etcd.coordinator(), f"both/{new_token()}"
    other = lock(resource)
    assert other.holds.wait(60)
    assert etcd.call(coordinator.try_acquire, resource) is None
    holder: Holder = etcd.call(coordinator.holder, resource)
    assert (holder.owner, holder.number, holder.held_for) == (None, None, None)
    assert holder.remaining is not None
    assert 0 < holder.remaining <= 10
    done: list[str] = []
    with waiting(etcd, coordinator, resource, done, "we"):
        etcd.wait_until(lambda: len(etcd.keys(coordinator, resource)) == 2)
        assert not done
        other.end()
    assert done == ["we"]


def test_we_exclude_etcdctl_and_wait_behind_it(etcd: EtcdSide, lock: Lock) -> None:
    coordinator, resource = etcd.coordinator(), f"both/{new_token()}"
    lease = etcd.call(coordinator.acquire, resource)
    other = lock(resource)
    etcd.wait_until(lambda: len(etcd.keys(coordinator, resource)) == 2)
    done: list[str] = []
    with waiting(etcd, coordinator, resource, done, "we"):
        etcd.wait_until(lambda: len(etcd.keys(coordinator, resource)) == 3)
        assert not other.holds.is_set()
        etcd.call(lease.renew)
        assert etcd.call(lease.release)
        assert other.holds.wait(60)
        assert not done
        other.end()
    assert done == ["we"]


def test_a_forced_release_deletes_the_key_of_etcdctl_and_leaves_its_lease(
    etcd: EtcdSide, lock: Lock, etcd_server: EtcdServer
) -> None:
    coordinator, resource = etcd.coordinator(), f"both/{new_token()}"
    other = lock(resource)
    assert other.holds.wait(60)
    [key] = etcd.keys(coordinator, resource)
    forced = etcd.call(coordinator.force_release, resource)
    assert forced.holder.number is None
    assert etcd.keys(coordinator, resource) == []
    assert int(etcd_server.call("lease/timetolive", {"ID": str(key.lease)})["TTL"]) > 0
    lease = etcd.call(coordinator.acquire, resource)
    assert lease.fence.number > forced.fence.number
    assert etcd.call(lease.release)
