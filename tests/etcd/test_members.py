"""Several endpoints, of which one fails; three members, of which one dies, freezes or loses the others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from examples.servers import EtcdCluster, EtcdServer
from examples.servers.proxy import Proxy
from fencing import CoordinatorUnavailable, FencingError
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide, with_faults


def name() -> str:
    return f"members/{new_token()}"


@pytest.fixture
def two(etcd_server: EtcdServer) -> Iterator[tuple[Proxy, list[str]]]:
    """Two addresses of the server. The first one leads through a proxy."""
    with Proxy(etcd_server.host, etcd_server.port) as proxy:
        yield proxy, [proxy.url(etcd_server.url), etcd_server.url]


@pytest.mark.parametrize("fault", ["refuse", pytest.param("silence", marks=pytest.mark.thorough), "drip"])
def test_another_member_serves_where_one_does_not(etcd: EtcdSide, two: tuple[Proxy, list[str]], fault: str) -> None:
    proxy, urls = two
    coordinator = etcd.coordinator(urls=urls, ttl=6)  # a third of it is for both members, on a busy machine as well
    lease = etcd.call(coordinator.acquire, name())
    if fault == "drip":
        proxy.drip(replies=0.05)
    else:
        getattr(proxy, fault)()
    etcd.call(lease.renew)
    assert coordinator._backend._connections._endpoints.current.url == urls[1]
    assert etcd.call(lease.release)


@pytest.mark.thorough
def test_a_silent_member_leaves_time_for_the_next_one(etcd: EtcdSide, two: tuple[Proxy, list[str]]) -> None:
    """It had all the time of a call that was shorter than a third of the ttl, and the call failed."""
    proxy, urls = two
    coordinator = etcd.coordinator(urls=urls, ttl=20)
    proxy.silence()
    lease = etcd.call(coordinator.acquire, name(), timeout=4)
    assert etcd.call(lease.release)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["refuse", "silence", "drip"])
def test_a_request_ends_at_its_time_however_the_server_fails(
    etcd: EtcdSide, etcd_server: EtcdServer, fault: str
) -> None:
    """Also where the body drips: each part of it comes in time, and the whole does not."""
    with Proxy(etcd_server.host, etcd_server.port) as proxy:
        coordinator = etcd.coordinator(urls=[proxy.url(etcd_server.url)], ttl=3)
        lease = etcd.call(coordinator.acquire, name())
        if fault == "drip":
            proxy.drip(replies=0.2)
        else:
            getattr(proxy, fault)()
        began = time.monotonic()
        with pytest.raises(CoordinatorUnavailable):
            etcd.call(coordinator.try_acquire, name())
        assert time.monotonic() - began < 12  # one attempt or two, of a second or five: see patient_tries
        proxy.restore()
        etcd.call(lease.release)


def test_a_waiter_whose_member_is_away_waits_at_another(etcd: EtcdSide, two: tuple[Proxy, list[str]]) -> None:
    proxy, urls = two
    resource, holder = name(), etcd.coordinator()
    held = etcd.call(holder.acquire, resource)
    coordinator = etcd.coordinator(urls=urls, ttl=1)
    faults = with_faults(coordinator)
    got = threading.Event()

    def wait() -> None:
        lease = etcd.call(coordinator.acquire, resource, timeout=60)
        got.set()
        etcd.call(lease.release)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    etcd.wait_until(lambda: len(etcd.keys(holder, resource)) == 2)
    proxy.silence()
    etcd.wait_until(lambda: any(began.url == urls[1] for began, _ in faults.waits))
    assert all(left in (None, began) for began, left in faults.waits)
    assert etcd.call(held.release)
    assert got.wait(60)
    thread.join(60)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_no_lock_is_granted_twice_while_the_leader_is_away(
    etcd_cluster: EtcdCluster, asynchronous: bool, fault: str
) -> None:
    """Workers take one lock in turn. Numbers grow, and no two believe in it at the same time."""
    side = EtcdSide(asynchronous, etcd_cluster.urls)
    resource, numbers, stop = name(), [], threading.Event()
    inside: list[object] = []
    overlaps: list[object] = []

    def work(coordinator: Any) -> None:
        while not stop.is_set():
            try:
                lease = side.call(coordinator.acquire, resource, timeout=30)
                if lease.remaining() > 1:
                    overlaps.extend(inside)
                    inside.append(lease)
                    numbers.append(lease.fence.number)
                    inside.remove(lease)
                side.call(lease.release)
            except FencingError:
                pass

    coordinators = [side.coordinator(ttl=5) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in coordinators]
    for each in threads:
        each.start()
    side.wait_until(lambda: len(numbers) > 20, seconds=60)
    leader = etcd_cluster.leader()
    getattr(leader, fault)()
    seen = len(numbers)
    side.wait_until(lambda: len(numbers) > seen + 30, seconds=60)
    if fault == "kill":
        leader.restart()
    else:
        leader.thaw()
    seen = len(numbers)
    side.wait_until(lambda: len(numbers) > seen + 30, seconds=60)
    stop.set()
    for each in threads:
        each.join(60)
    assert numbers == sorted(set(numbers))
    assert not overlaps
    side.close()


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_lease_outlives_the_leader_it_was_granted_by(etcd_cluster: EtcdCluster, asynchronous: bool) -> None:
    side = EtcdSide(asynchronous, etcd_cluster.urls)
    resource, coordinator = name(), side.coordinator(ttl=10)
    lease = side.call(coordinator.acquire, resource)
    etcd_cluster.leader().kill()
    until = time.monotonic() + 12
    side.wait_until(lambda: time.monotonic() > until, seconds=60)
    assert lease.remaining() > 0
    assert side.call(side.coordinator().try_acquire, resource) is None
    assert side.call(lease.release)
    side.close()


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_renewal_by_a_leader_that_was_frozen_does_not_count(etcd_cluster: EtcdCluster, asynchronous: bool) -> None:
    """It answers what it finds in its sockets before it learns that another one leads. There the lease ends earlier.

    Here it learns of nothing, because the others do not reach it.
    """
    side, frozen = EtcdSide(asynchronous, etcd_cluster.urls), etcd_cluster.leader()
    others = [each for each in etcd_cluster.servers if each is not frozen]
    coordinator = side.coordinator(urls=[frozen.url, *(each.url for each in others)], ttl=10, renew=False)
    lease = side.call(coordinator.acquire, name())
    lease_id = coordinator._backend.held()[0].kept.lease.id
    former = frozen.call("maintenance/status", {})["leader"]
    etcd_cluster.isolate(frozen)
    frozen.freeze()
    side.wait_until(lambda: others[0].call("maintenance/status", {}).get("leader") not in (None, "0", former))
    until = time.monotonic() + 3  # by so much, the renewal is later than the election
    side.wait_until(lambda: time.monotonic() > until)
    renewal = threading.Thread(target=lambda: side.call(lease.renew), daemon=True)
    renewal.start()
    thawed_at = time.monotonic() + 0.5
    side.wait_until(lambda: time.monotonic() > thawed_at)
    frozen.thaw()
    renewal.join(60)
    left = int(others[0].call("lease/timetolive", {"ID": str(lease_id)})["TTL"]) + 1  # it tells whole seconds, cut
    assert lease.remaining() <= left
    side.call(lease.release)
    side.close()


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_without_a_majority_nothing_is_granted_nor_read(etcd_cluster: EtcdCluster, asynchronous: bool) -> None:
    """Reads are linearizable: a member that has lost the others does not tell what it knows."""
    side = EtcdSide(asynchronous, etcd_cluster.urls)
    resource, coordinator = name(), side.coordinator(ttl=3)
    lease = side.call(coordinator.acquire, resource)
    alone = etcd_cluster.leader()
    for each in etcd_cluster.servers:
        if each is not alone:
            each.freeze()
    lonely = side.coordinator(urls=[alone.url], ttl=3)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lonely.holder, resource)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lonely.try_acquire, name())
    for each in etcd_cluster.servers:
        if each is not alone:
            each.thaw()
    granted = side.call(side.coordinator().acquire, name(), timeout=60)
    side.call(granted.release)
    side.call(lease.release)
    side.close()


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_old_leader_behind_a_partition_tells_nothing_and_grants_nothing(
    etcd_cluster: EtcdCluster, asynchronous: bool
) -> None:
    """It believes that it leads, for a while. What it knows is old: the others grant the lock to somebody else."""
    side = EtcdSide(asynchronous, etcd_cluster.urls)
    resource, old = name(), etcd_cluster.leader()
    others = [each for each in etcd_cluster.servers if each is not old]
    lonely = side.coordinator(urls=[old.url], ttl=2)
    anywhere = side.coordinator(urls=[old.url, *(each.url for each in others)], ttl=6)
    lost = side.call(lonely.acquire, resource)
    kept = side.call(anywhere.acquire, name())
    etcd_cluster.isolate(old)
    with pytest.raises(CoordinatorUnavailable):  # at once: it takes itself for the leader still
        side.call(lonely.holder, resource)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lonely.try_acquire, name())
    there = side.coordinator(urls=[each.url for each in others], ttl=10)
    lease = side.call(there.acquire, resource, timeout=60)
    assert lost.remaining() == 0
    assert lease.fence.number > lost.fence.number
    with pytest.raises(CoordinatorUnavailable):
        side.call(lonely.holder, resource)
    until = time.monotonic() + 7
    side.wait_until(lambda: time.monotonic() > until, seconds=60)
    assert kept.remaining() > 0  # it was renewed at another member
    etcd_cluster.heal()
    side.wait_until(lambda: numbers_at(side, lonely, resource) == lease.fence.number, seconds=60)
    for each in (lease, kept):
        assert side.call(each.release)
    side.call(lost.release)
    side.close()


def numbers_at(side: EtcdSide, coordinator: Any, resource: str) -> int | None:
    """Return the holder's number, as a member tells it; None: it does not answer yet."""
    try:
        holder = side.call(coordinator.holder, resource)
    except CoordinatorUnavailable:
        return None
    return holder.number if holder else None


@pytest.mark.thorough
def test_a_server_that_is_no_etcd_is_named(etcd: EtcdSide) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def answer() -> None:
            for _ in range(100):
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with closing(client):
                    client.recv(1000)
                    client.sendall(b"-ERR unknown command\r\n")

        threading.Thread(target=answer, daemon=True).start()
        coordinator = etcd.coordinator(urls=[f"http://127.0.0.1:{server.getsockname()[1]}"], ttl=1)
        with pytest.raises(CoordinatorUnavailable, match="no reply of HTTP"):
            etcd.call(coordinator.try_acquire, name())


@pytest.mark.thorough
def test_a_wrong_scheme_is_named(etcd: EtcdSide, etcd_server: EtcdServer) -> None:
    coordinator = etcd.coordinator(urls=[etcd_server.url.replace("http:", "https:")])
    with pytest.raises(CoordinatorUnavailable, match="TLS with etcd at https://"):
        etcd.call(coordinator.try_acquire, name())
