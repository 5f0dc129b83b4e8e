"""Renewal over the wire. When leases are renewed, and when they are lost, is tested in tests/locks/test_renewal.py."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, LeaseLost, RedisCoordinator
from fencing.redis.calls import record_start
from fencing.redis.keys import keys_of
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


def test_what_others_did_to_one_lock_does_not_fail_the_renewal_of_the_rest(any_redis: RedisServer) -> None:
    """Each lock has a ttl of its own in the same call."""
    client, token = any_redis.client(), "t" * 22
    names = ["ours", "list", "taken", "record lost", "record a hash", "record foreign", "again", "offered", "ours too"]
    keys, args = [key for name in names for key in keys_of(name)[:2]], list[str | int]()
    for position, name in enumerate(names):
        client.set(name, token, px=60_000)
        client.set(keys_of(name).holder, f"7 {token} 1 me", px=60_000)
        args += [70_000 + 1000 * position, token, record_start(7, token)]
    records = {name: keys_of(name).holder for name in names}
    client.delete("list", "taken", records["record lost"], records["record a hash"])
    client.rpush("list", "x")
    client.set("taken", "another", px=60_000)
    client.hset(records["record a hash"], "x", "y")
    client.set(records["record foreign"], "anything", px=60_000)
    client.set(records["again"], f"8 {token} 1 me", px=60_000)
    client.set(records["offered"], "offer me", px=60_000)
    assert client.eval(RENEW.text, len(keys), *keys, *args) == b"rggrrroor"
    left = dict(zip(names, [client.pttl(name) for name in names], strict=True))
    assert left["list"] == -1
    assert all(0 < left[name] <= 60_000 for name in ("taken", "again", "offered"))
    renewed = ["ours", "record lost", "record a hash", "record foreign", "ours too"]
    assert all(60_000 < left[name] <= 70_000 + 1000 * names.index(name) for name in renewed)
    assert left["ours"] < left["record lost"] < left["ours too"], "each its own"
    assert client.pttl(records["ours too"]) > 60_000
    client.delete(*keys)


def all_held(leases: list[Any]) -> bool:
    return all(lease.held for lease in leases)


def counted(client: Any) -> tuple[int, int]:
    """Return how many scripts Redis has run, and how many renewals: each sets the ttl of two keys."""
    stats = client.info("commandstats")
    scripts, expires = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "pexpire"))
    return scripts, expires // 2


@pytest.mark.thorough
def test_a_hundred_leases_make_few_requests(side: Side, fresh_redis: RedisFactory) -> None:
    """At most twenty in a ttl, however spread the grants are: two a second where the ttl is ten seconds."""
    server = fresh_redis()
    client, coordinator, ttl = server.client(), side.coordinator(server.url, ttl=2.5), 2.5
    leases = []
    for number in range(100):
        leases.append(side.call(coordinator.acquire, f"r{number}"))
        time.sleep(ttl / 100)  # so that they are not due together by chance
    wait_until_renewed(*leases)
    before, began = counted(client), time.monotonic()
    wait_until(lambda: counted(client)[1] - before[1] >= 100 * 4, 60)
    requests, took = counted(client)[0] - before[0], time.monotonic() - began
    assert requests <= 20 * took / ttl + 1, "a busy machine renews later, so in fewer requests"
    for lease in leases:
        side.call(lease.release)


@pytest.mark.thorough
def test_leases_of_many_ttls_share_requests_and_none_is_lost(side: Side, fresh_redis: RedisFactory) -> None:
    """With a request for each ttl, 150 leases of 30 ms are too many for one connection."""
    server = fresh_redis()
    client, coordinator = server.client(), side.coordinator(server.url)
    side.call(side.call(coordinator.acquire, "connected").release)

    def renewed_a_request(shortest: float) -> float | None:
        """Return how many were renewed in a request, until each was renewed ten times; None: one was lost."""
        leases: list[Any] = []
        try:
            for i in range(150):
                leases.append(side.call(coordinator.lock(f"{shortest}:{i}", ttl=shortest + i / 100_000).acquire))
            before = counted(client)
            side.wait_until(lambda: not all_held(leases) or counted(client)[1] - before[1] >= 150 * 10, seconds=60)
            scripts, renewals = counted(client)
            return None if not all_held(leases) else (renewals - before[1]) / (scripts - before[0])
        except CoordinatorUnavailable:  # an attempt has a third of the ttl
            return None
        finally:
            for lease in leases:
                with suppress(CoordinatorUnavailable):
                    side.call(lease.release)

    for shortest in (0.03, 0.06, 0.12, 0.5, 2.0):  # a busy machine stalls for longer than the first ones
        found = renewed_a_request(shortest)
        if found is not None:
            break
    assert found is not None, "leases were lost, whatever their ttl"
    assert found >= 5, "many share a request"
    print(f"ttls from {shortest} s: {found:.0f} leases a request")


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
