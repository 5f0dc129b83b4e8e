"""Renewal over the wire. When leases are renewed, and when they are lost, is tested in tests/locks/test_renewal.py."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import LeaseLost, RedisCoordinator
from fencing.redis.scripts import RENEW
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_requests import asks_for
from tests.support.sides import Side

TTL = 3.0
"""Seconds: a renewal is due after one, and a busy machine does not cost the lease."""

ROOT = Path(__file__).resolve().parents[2]


def wait_until_renewed(*leases: Any) -> None:
    """Wait until each lease has got more time than it has now."""
    before = [lease._holding.deadline for lease in leases]
    wait_until(lambda: all(lease._holding.deadline > old for lease, old in zip(leases, before, strict=True)))


@pytest.mark.thorough
def test_a_lease_is_renewed_and_nothing_is_logged(
    side: Side, any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = any_redis.client()
    with caplog.at_level(logging.DEBUG, "fencing"):
        lease = side.call(side.coordinator(any_redis.url, ttl=TTL).acquire, "r")
        wait_until_renewed(lease)
        assert client.get("r") == lease.fence.token.encode()
        assert side.call(lease.release) is True
    assert not [record for record in caplog.records if record.name == "fencing"]


@pytest.mark.thorough
def test_a_key_that_is_gone_is_a_loss_and_is_not_set_again(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL).acquire, "r")
    lost = lease.lost
    client.delete("r")
    side.wait_until(lost.is_set)
    assert side.expect(LeaseLost, lease.ensure_held).reason == "gone"
    assert client.get("r") is None
    assert side.call(lease.release) is False


@pytest.mark.thorough
def test_a_silent_redis_means_lost_and_does_not_block_other_coordinators(
    side: Side, any_redis: RedisServer, fresh_redis: RedisFactory
) -> None:
    silent = fresh_redis()
    coordinator, other = side.coordinator(silent.url, ttl=0.6), side.coordinator(any_redis.url, ttl=TTL)
    neighbour = side.call(other.acquire, "r")
    leases = [side.call(coordinator.acquire, f"r{number}") for number in range(5)]
    events = [lease.lost for lease in leases]
    silent.freeze()
    wait_until_renewed(neighbour)
    side.wait_until(lambda: all(event.is_set() for event in events))
    assert {side.expect(LeaseLost, lease.ensure_held).reason for lease in leases} == {"expired"}
    assert neighbour.held
    silent.thaw()
    for lease in leases:
        side.call(lease.release)
    assert side.call(neighbour.release) is True


@pytest.mark.thorough
def test_a_lost_reply_to_a_renewal_is_not_a_loss(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    lease = side.call(side.coordinator(through.url(any_redis.url), ttl=2 * TTL).acquire, "r")
    loss = through.drop_reply_when(lambda request: asks_for(RENEW, request), times=3)
    wait_until_renewed(lease)
    assert loss.fired == 3
    assert lease.held
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_short_lease_of_before_leaves_the_requests_of_others_their_time(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=TTL)
    lease = side.call(coordinator.lock("short", ttl=0.3).acquire)
    side.wait_until(lambda: lease._holding.due is not None)  # it is in the calendar
    side.call(lease.release)
    limits: list[float] = []
    perform = coordinator._backend.perform

    def note(call: Any) -> Any:
        if call.script is RENEW:
            limits.append(call.timeout)
        return perform(call)

    coordinator._backend.perform = note
    lease = side.call(coordinator.acquire, "r", timeout=60)
    wait_until_renewed(lease)
    assert min(limits) > TTL / 7, "a third of the shortest ttl of its lane, which is more than half of its own"
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_lease_does_not_keep_the_interpreter_alive(any_redis: RedisServer) -> None:
    code = (
        "import redis, threading, time, warnings; from fencing import FencedLock; warnings.simplefilter('ignore')\n"
        f"lock = FencedLock(redis.Redis.from_url({any_redis.url!r}), 'r', ttl=1.5)\n"
        "lease = lock.acquire()\n"
        "names = {'fencing-timer', 'fencing-renewal'}\n"
        "while not names <= {thread.name for thread in threading.enumerate()}:\n"
        "    time.sleep(0.01)\n"
        "    if not lease.held: lease = lock.acquire()  # a busy machine let it end before it was renewed\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    wait_until(lambda: any_redis.client().get("r") is None)


@pytest.mark.thorough
def test_after_a_fork_each_process_renews_its_own_leases(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        lease = coordinator.acquire("parents")
        wait_until_renewed(lease)  # so the thread that is not copied runs
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()

        def child() -> None:
            mine = coordinator.acquire("childs", timeout=30)
            wait_until_renewed(mine)
            theirs.send((mine.held, mine.release(), lease.held, lease.release()))

        process = context.Process(target=child, daemon=True)
        process.start()
        assert ours.poll(60)
        assert ours.recv() == (True, True, False, False)
        process.join(60)
        wait_until_renewed(lease)
        assert lease.release() is True
