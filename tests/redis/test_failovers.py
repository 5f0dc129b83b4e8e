"""Real failovers under load: no guarded update is lost, numbers grow, and nobody waits beyond a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer, SentinelServers
from fencing import CoordinatorUnavailable, StaleFence
from fencing.redis.keys import keys_of
from fencing.redis.listener import Heartbeat
from tests.support import wait_until
from tests.support.failover_load import FailoverLoad
from tests.support.fixtures import ProxyFactory, RedisFactory, missing
from tests.support.redis_requests import times_run
from tests.support.sentinels import master_for, started
from tests.support.sides import Account, Side
from tests.support.waiters import Queue, Waiter

BOUND = 9.0
"""Seconds, beside those in which there is no primary. A lost lock needs two, and the machine may be busy. A waiter that
misses its message needs ten."""

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = pytest.mark.parametrize("account", ["sqlite"], indirect=True)


def kill(servers: SentinelServers, primary: RedisServer) -> Callable[[], None]:
    primary.kill()
    return primary.restart


def freeze(servers: SentinelServers, primary: RedisServer) -> Callable[[], None]:
    """The primary is cut off from all others. It comes back, and takes itself for the primary."""
    primary.freeze()
    return primary.thaw


def ask_sentinel(servers: SentinelServers, primary: RedisServer) -> Callable[[], None]:
    servers.fail_over()
    return lambda: None


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [kill, freeze, ask_sentinel])
def test_no_update_is_lost(side: Side, own_sentinels: SentinelServers, account: Account, fault: Any) -> None:
    check_failover(side, own_sentinels, account, fault)


def check_failover(side: Side, servers: SentinelServers, account: Account, fault: Any) -> None:
    """Let a fault make another server the primary, under load, and let the old one come back."""
    load = FailoverLoad(side, lambda: master_for(side, servers.addresses), account)
    load.continues()
    before = servers.primary
    began = time.monotonic()
    come_back = fault(servers, before)
    servers.successor(before)
    without_primary = time.monotonic() - began
    load.continues()
    come_back()
    load.continues()
    servers.settle()  # the old primary is a replica now
    load.continues()
    load.check()
    took = f"{load.longest:.1f} s, {without_primary:.1f} s of it without a primary"
    print(f"the longest acquire took {took}; {len(load.written)} written, {load.refused} refused")
    assert load.longest < without_primary + BOUND


@pytest.mark.deep
@pytest.mark.parametrize("version", ["7", "6.2", "valkey-9"])
@pytest.mark.parametrize("fault", [kill, freeze])
def test_no_update_is_lost_on_older_servers(side: Side, account: Account, fault: Any, version: str) -> None:
    with ExitStack() as stack:
        check_failover(side, started(stack, version=version), account, fault)


@pytest.mark.thorough
def test_clients_that_connect_while_a_primary_steps_down(
    side: Side, own_sentinels: SentinelServers, account: Account
) -> None:
    """Sentinels may still name it. One client waited there for its whole time."""
    took: list[float] = []

    def use(place: int) -> None:
        time.sleep(place * 0.1)  # all through the failover
        coordinator = side.coordinator(master_for(side, own_sentinels.addresses), ttl=30, guards=[account.guard])
        began = time.monotonic()
        lease = side.call(coordinator.acquire, f"r{place}", timeout=60)
        took.append(time.monotonic() - began)
        side.call(lease.release)

    own_sentinels.fail_over()
    side.race([partial(use, place) for place in range(15)])
    assert len(took) == 15
    assert max(took) < BOUND


@pytest.mark.thorough
def test_numbers_of_a_primary_that_has_not_seen_the_last_ones(
    side: Side, own_sentinels: SentinelServers, account: Account
) -> None:
    """Its clock is a floor for them, and the time without a primary is longer than the clocks differ."""
    assert _number_after_lost_ones(side, own_sentinels, account) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("behind", [3600, 0.5])
def test_numbers_of_a_primary_whose_clock_is_behind(side: Side, account: Account, behind: float) -> None:
    if FAKETIME is None:
        missing("faketime", "found no libfaketime (Debian and Ubuntu: apt-get install faketime)")
    clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"-{behind}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with ExitStack() as stack:
        servers = started(stack, environments=[None, clock, clock])
        assert _number_after_lost_ones(side, servers, account) == (1 if behind > 60 else 0)


def _number_after_lost_ones(side: Side, servers: SentinelServers, account: Account) -> int:
    """Lose grants in a failover, and return how often the next holder had to be minted anew."""
    coordinator = side.coordinator(master_for(side, servers.addresses), ttl=2, guards=[account.guard])
    side.call(side.call(coordinator.acquire, "r", timeout=10).release)
    before = servers.primary
    servers.cut_replication()
    for _ in range(5):
        lease = side.call(coordinator.acquire, "r", timeout=10)
        account.write(lease, account.balance + 1)
        side.call(lease.release)
    before.kill()
    primary = servers.fail_over()
    until_now = times_run(primary, "incr", "incrby")
    after = side.call(coordinator.acquire, "r", timeout=30)
    assert after.fence.number > lease.fence.number
    account.write(after, account.balance + 1)
    assert account.balance == 6
    counter: Any = primary.client().get(keys_of("r").counter)
    assert int(counter) == after.fence.number
    side.call(after.release)
    return times_run(primary, "incr", "incrby") - until_now - 1


@pytest.mark.thorough
def test_an_operator_promotes_a_replica_by_hand(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory, account: Account
) -> None:
    """Without Sentinel: the address of the service moves, and nobody closes the old connections."""
    old = fresh_redis(extra_args=["--repl-diskless-sync-delay", "0"])
    new = fresh_redis(extra_args=["--replicaof", old.host, str(old.port)])
    replica: Any = new.client()
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
    service = proxy(old)
    url = service.url(old.url)
    load = FailoverLoad(side, lambda: side.client(url), account, threads=2)
    load.continues()
    replica.execute_command("REPLICAOF NO ONE")
    service.retarget(new)
    old.client().replicaof(new.host, new.port)
    load.continues(20)
    load.check()
    print(f"the longest acquire took {load.longest:.1f} s; {len(load.written)} written, {load.refused} refused")
    assert load.longest < BOUND


@pytest.mark.thorough
def test_waiters_follow_a_replica_that_was_promoted_by_hand(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory, account: Account
) -> None:
    """Their connection to the old primary stays open, and brings no message any more."""
    old = fresh_redis(extra_args=["--repl-diskless-sync-delay", "0"])
    new = fresh_redis(extra_args=["--replicaof", old.host, str(old.port)])
    replica: Any = new.client()
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
    service = proxy(old)
    coordinator = side.coordinator(service.url(old.url), ttl=30)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    Queue(old).has(3)
    Queue(new).has(3)
    replica.execute_command("REPLICAOF NO ONE")
    service.retarget(new)
    old.client().replicaof(new.host, new.port)
    began = time.monotonic()
    assert side.call(holder.release) is True
    took = max(waiter.join().granted_at for waiter in waiters) - began
    assert [waiter.error for waiter in waiters] == [None] * 3
    print(f"the waiters had it within {took:.1f} s")
    assert took < BOUND


def answers(side: Side, coordinator: Any) -> bool:
    """Ask once, and return whether there was an answer. On a slow machine a call may end before it has a connection."""
    try:
        side.call(coordinator.holder, "another")
    except CoordinatorUnavailable:
        return False
    return True


@pytest.mark.thorough
def test_waiters_leave_a_frozen_primary_as_soon_as_a_call_has_found_another(
    side: Side, own_sentinels: SentinelServers, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that stays would notice only after two pings, or never if the old primary comes back meanwhile."""
    monkeypatch.setattr(Heartbeat, "PING_SECONDS", 60.0)
    coordinator = side.coordinator(master_for(side, own_sentinels.addresses), ttl=12)  # its lease outlives the failover
    before = own_sentinels.primary
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, coordinator)
    Queue(before).has(1)
    before.client().wait(2, 5000)
    before.freeze()
    primary: Any = own_sentinels.fail_over().client()
    began = time.monotonic()
    wait_until(lambda: answers(side, coordinator))
    wait_until(lambda: primary.pubsub_channels("fencing:1:wake:*"))
    side.call(holder.release)
    assert waiter.join().error is None
    assert waiter.granted_at - began < 60


@pytest.mark.thorough
def test_a_failover_that_loses_one_of_two_slots(side: Side, own_sentinels: SentinelServers, account: Account) -> None:
    """Three hold two slots then. The guard refuses who has lost one, and nobody else."""
    coordinator = side.coordinator(master_for(side, own_sentinels.addresses), ttl=30, guards=[account.guard])
    slots, before = coordinator.slots("gpu", 2), own_sentinels.primary
    kept = side.call(slots.acquire, timeout=30)
    before.client().wait(2, 5000)
    own_sentinels.cut_replication()
    lost = side.call(slots.acquire, timeout=30)
    before.kill()
    own_sentinels.fail_over()
    newer = side.call(slots.acquire, timeout=60)
    assert (newer.slot, newer.fence.number > lost.fence.number) == (lost.slot, True)
    assert kept.held, "the premise: three leases"
    assert lost.held
    assert side.call(slots.try_acquire) is None
    account.write(kept, 1)
    account.write(newer, 2)
    side.expect(StaleFence, account.write, lost, 3)
    account.write(kept, 4)
    assert account.balance == 4
    assert [side.call(lease.release) for lease in (kept, lost, newer)] == [True, False, True]
