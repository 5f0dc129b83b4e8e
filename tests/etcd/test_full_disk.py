"""A disk that is full: etcd itself ends. A call says so in time, and work goes on when there is room again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from examples.servers import EtcdServer, ServerError
from fencing import CoordinatorUnavailable
from fencing.etcd.calls import encode
from tests.support.etcd import EtcdSide
from tests.support.small_disk import SmallDisk, small_disk

DISK_MEGABYTES = 160
"""etcd reserves 64 MB for its log, and the same for the next part of it."""

TTL = 2.0

MOST_SECONDS = 12
"""Of a try that is in vain: one attempt or two, of a second or five. See patient_tries."""


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(DISK_MEGABYTES) as made:
        yield made


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_full_disk_costs_the_locks_and_no_more(
    fresh_etcd: Callable[..., EtcdServer], disk: SmallDisk, asynchronous: bool
) -> None:
    server = fresh_etcd(data=disk.folder)
    side = EtcdSide(asynchronous, [server.url])
    coordinator = side.coordinator(ttl=TTL)
    lease = side.call(coordinator.acquire, "held")
    disk.fill()
    with suppress(OSError):
        for _ in range(1000):
            server.call("kv/put", {"key": encode("filler"), "value": encode("x" * 100_000)})
    side.wait_until(lambda: server.has_ended, seconds=60)
    assert "no space left on device" in server.log
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match="no answer from etcd at"):
        side.call(coordinator.try_acquire, "other")
    assert time.monotonic() - began < MOST_SECONDS
    assert lease.remaining() <= TTL
    side.wait_until(lambda: lease.remaining() == 0, seconds=60)
    with suppress(ServerError):
        server.restart()
    side.wait_until(lambda: server.has_ended, seconds=60)  # without room it does not stay
    disk.make_room()
    server.restart()
    after = side.call(side.coordinator().acquire, "held", timeout=50)  # all that was acknowledged is there, for a ttl
    assert after.fence.number > lease.fence.number
    assert not side.call(lease.release)
    assert side.call(after.release)
    side.close()
