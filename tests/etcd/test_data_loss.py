"""A server that is full, compacted, restored from a snapshot, restarted empty, frozen: what a user sees."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing import CoordinatorUnavailable, LeaseLost, StaleFence
from fencing.etcd.calls import encode
from fencing.kernel.fence import new_token
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.etcd import EtcdSide, with_faults
from tests.support.fixtures import missing

Start = Callable[..., EtcdServer]


def name() -> str:
    return f"loss/{new_token()}"


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def etcdctl(server: EtcdServer, *arguments: str) -> str:
    binary = shutil.which("etcdctl")
    if binary is None:
        missing("etcdctl", "found no etcdctl on PATH")
    environment = {**os.environ, "ETCDCTL_API": "3"}
    done = subprocess.run(
        [binary, "--endpoints", server.url, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.thorough
def test_a_full_server_says_so_and_still_frees_locks(fresh_etcd: Start, asynchronous: bool) -> None:
    server = fresh_etcd(["--quota-backend-bytes", str(1024 * 1024)])
    side = EtcdSide(asynchronous, [server.url])
    coordinator = side.coordinator()
    held = side.call(coordinator.acquire, "held")
    with suppress(OSError):  # at the quota
        for _ in range(100):
            server.call("kv/put", {"key": encode("filler"), "value": encode("x" * 100_000)})
    with pytest.raises(CoordinatorUnavailable, match="space exceeded"):
        side.call(coordinator.try_acquire, name())
    side.call(held.renew)
    assert side.call(held.release)
    assert side.call(coordinator.holder, "held") is None
    side.close()


@pytest.mark.thorough
def test_a_waiter_goes_on_where_its_revision_was_compacted(
    etcd: EtcdSide, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource, holder, coordinator = name(), etcd.coordinator(), etcd.coordinator()
    held = etcd.call(holder.acquire, resource)
    backend = coordinator._backend
    settings, token = backend.settings, new_token()
    deadline = backend.clock() + 60
    taken = etcd.plan(coordinator, backend.plan_queue(resource, token, settings, floor=0, deadline=deadline))
    for _ in range(3):
        put = etcd_server.call("kv/put", {"key": encode("filler"), "value": encode("x")})
    etcd_server.call("kv/compaction", {"revision": put["header"]["revision"]})
    began = time.monotonic()
    etcd.plan(coordinator, taken.place.plan_wait(30))  # it ends, for the stream does
    assert time.monotonic() - began < 20
    assert etcd.call(held.release)
    grant = etcd.plan(
        coordinator, backend.plan_queue(resource, token, settings, floor=0, deadline=deadline, place=taken.place)
    )
    assert etcd.plan(coordinator, backend.plan_release(grant, settings, deadline=deadline))


@pytest.mark.thorough
def test_a_restored_snapshot_costs_one_refused_claim_and_no_update(
    fresh_etcd: Start, asynchronous: bool, tmp_path: Path
) -> None:
    """Numbers fall. A living holder is refused by the guard when a newer one has claimed, and so is the first claim."""
    server = fresh_etcd()
    side = EtcdSide(asynchronous, [server.url])
    guard: Any = AsyncMemoryGuard() if asynchronous else MemoryGuard()
    coordinator = side.coordinator(guards=[guard])
    before = side.call(coordinator.acquire, "data")
    assert side.call(before.release)
    etcdctl(server, "snapshot", "save", str(tmp_path / "snapshot"))
    for _ in range(50):
        lease = side.call(coordinator.acquire, "data")
        assert side.call(lease.release)
    living = side.call(coordinator.acquire, "data")
    server.kill()
    data = server.data
    assert data is not None
    shutil.rmtree(data)
    peer = f"http://127.0.0.1:{server.port + 10_000}"
    etcdctl(
        server,
        *("snapshot", "restore", str(tmp_path / "snapshot"), "--data-dir", str(data), "--name", f"m{server.port}"),
        *("--initial-cluster", f"m{server.port}={peer}", "--initial-advertise-peer-urls", peer),
    )
    server.restart()
    other = side.coordinator(guards=[guard])
    lease = side.call(other.acquire, "data", timeout=30)
    assert lease.fence.number > living.fence.number  # by a remint: etcd itself would have minted a lower one
    with pytest.raises(StaleFence):
        side.call(guard.claim, living.fence)
    with pytest.raises(LeaseLost):  # though its lease is in the snapshot, where it served an earlier lock
        side.call(living.renew)
    again = side.call(coordinator.acquire, "other data", timeout=30)
    assert again.fence.number > living.fence.number
    for each in (lease, again):
        assert side.call(each.release)
    side.close()


@pytest.mark.thorough
def test_a_server_that_was_restarted_empty_mints_higher_numbers(fresh_etcd: Start, asynchronous: bool) -> None:
    server = fresh_etcd()
    side = EtcdSide(asynchronous, [server.url])
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "data")
    server.restart(keep_data=False)
    with pytest.raises(LeaseLost):
        side.call(lease.renew)
    after = side.call(coordinator.acquire, "data", timeout=30)
    assert after.fence.number > lease.fence.number
    assert side.call(after.release)
    side.close()


@pytest.mark.thorough
def test_a_lock_outlives_a_crash_of_the_server(fresh_etcd: Start, asynchronous: bool) -> None:
    server = fresh_etcd()
    side = EtcdSide(asynchronous, [server.url])
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "data")
    server.kill()
    server.restart()
    side.call(lease.renew)
    assert side.call(side.coordinator().try_acquire, "data") is None
    assert side.call(lease.release)
    side.close()


@pytest.mark.thorough
def test_a_lease_that_a_frozen_server_does_not_renew_ends_in_time(fresh_etcd: Start, asynchronous: bool) -> None:
    server = fresh_etcd()
    side = EtcdSide(asynchronous, [server.url])
    coordinator = side.coordinator(ttl=2)
    lease = side.call(coordinator.acquire, "data")
    server.freeze()
    ends = time.monotonic() + 2
    side.wait_until(lambda: time.monotonic() > ends)
    assert lease.remaining() == 0
    server.thaw()
    side.call(lease.release)  # etcd may have it still: it looks for leases that are over every half second
    again = side.call(coordinator.acquire, "data", timeout=60)
    assert again.fence.number > lease.fence.number
    assert side.call(again.release)
    side.close()


def test_a_forked_child_uses_no_connection_and_no_lease_of_its_parent(etcd_server: EtcdServer) -> None:
    side = EtcdSide(False, [etcd_server.url])
    coordinator, resource = side.coordinator(), name()
    for each in [coordinator.acquire(name()) for _ in range(3)]:
        assert each.release()  # their leases are spare now, and the connection is free
    held = coordinator.acquire(resource)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faults = with_faults(coordinator)
            assert coordinator.try_acquire(resource) is None
            assert faults.paths[0] == "lease/grant"
            lease = coordinator.acquire(name())
            lease.renew()
            assert lease.release()
            code = 0
        finally:
            os._exit(code)
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(os.waitpid(child, 0)[1]), daemon=True)
    thread.start()
    for _ in range(20):  # at the same time, over the connection that was there before
        lease = coordinator.acquire(name())
        assert lease.release()
    thread.join(60)
    if thread.is_alive():
        os.kill(child, signal.SIGKILL)
    assert done == [0]
    held.renew()
    assert held.release()
    side.close()
