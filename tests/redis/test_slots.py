"""Slots on Redis: one request for all of them, and what is left of one that was lost, late or interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from examples.servers import RedisCluster, RedisServer
from fencing import CoordinatorUnavailable, FencingError, NotAcquired, RedisCoordinator
from fencing.kernel.retry import NoReply
from fencing.locks.settings import Settings
from fencing.redis.calls import any_call, release_keys
from fencing.redis.keys import keys_of, slot_of
from fencing.redis.plans import RedisPlans
from fencing.redis.scripts import ACQUIRE_ANY, RELEASE_SEVERAL
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_requests import asks_for, scripts_run
from tests.support.sides import Side


def held(server: RedisServer, count: int) -> list[int]:
    """Return the slots of "gpu" that have a holder."""
    client = server.client()
    return [slot for slot in range(count) if client.exists(f"{{gpu}}#{slot}")]


def test_a_try_is_one_request_whatever_is_held(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=60)
    leases = [side.call(coordinator.slots("gpu", 64).acquire, timeout=10)]
    before = scripts_run(server)
    leases += [side.call(coordinator.slots("gpu", 64).acquire, timeout=10) for _ in range(63)]
    assert side.call(coordinator.slots("gpu", 64).try_acquire) is None
    assert scripts_run(server) == before + 64
    assert sorted(lease.slot for lease in leases) == list(range(64))
    numbers = [lease.fence.number for lease in leases]
    assert numbers == sorted(set(numbers)), "the slots share a counter"
    side.call(coordinator.close)
    assert held(server, 64) == []


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_repeated_request_gets_the_slot_that_the_first_one_took(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, lost: str
) -> None:
    through = proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), clock_floor=False)
    lose = through.drop_reply_when if lost == "reply" else through.drop_request_when
    loss = lose(lambda request: asks_for(ACQUIRE_ANY, request), times=2)
    lease = side.call(coordinator.slots("gpu", 4).acquire, timeout=10)
    assert loss.fired == 2
    assert held(any_redis, 4) == [lease.slot]
    assert lease.fence.number == 1, "the repetition took the same number, not another one"
    assert side.call(lease.release) is True
    assert held(any_redis, 4) == []


@pytest.mark.thorough
def test_a_request_that_arrives_late_takes_no_second_slot(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory
) -> None:
    """The first attempt hangs. The second one, on another connection, is granted. Then the first one arrives."""
    server = fresh_redis()
    slow, quick = proxy(server), proxy(server)
    client = side.client(slow.url(server.url), socket_timeout=0.3)
    coordinator = side.coordinator(client, ttl=30, renew=False)
    side.call(side.call(coordinator.acquire, "warm").release)  # a connection is open
    slow.silence()
    coordinator._backend._connections.factory.options["port"] = quick.port  # the next connection goes the other way
    lease = side.call(coordinator.slots("gpu", 4).acquire, timeout=20)
    before = scripts_run(server)
    slow.restore()
    side.wait_until(lambda: slow.connections == 0)  # what was held back has arrived
    side.wait_until(lambda: scripts_run(server) > before)
    assert held(server, 4) == [lease.slot]
    assert server.client().get(lease.fence.resource) == lease.fence.token.encode()
    assert side.call(lease.release) is True


def test_a_request_that_is_interrupted_leaves_no_slot_taken(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    """A release of whichever slot it is granted is sent behind it."""
    through = proxy(any_redis)

    class Signal(Exception):
        pass

    def handle(*_: object) -> None:
        raise Signal

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with RedisCoordinator(Side(False).client(through.url(any_redis.url)), ttl=60) as coordinator:
            coordinator.slots("warm", 3).acquire().release()
            through.hold_reply_when(lambda request: asks_for(ACQUIRE_ANY, request))

            def interrupt() -> None:
                wait_until(lambda: held(any_redis, 3))
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                through.restore()

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(Signal):
                coordinator.slots("gpu", 3).acquire()
            thread.join()
            wait_until(lambda: not held(any_redis, 3))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_sent_behind_an_interrupted_request_releases_each_slot() -> None:
    resources = tuple(f"{{gpu}}#{slot}" for slot in range(3))
    call = any_call(resources, "t" * 22, (60_000, "me", 0, 1, 0))
    release = call.compensation
    assert release is not None
    assert (release.script, release.args) == (RELEASE_SEVERAL, ("t" * 22,) * 3)
    assert release.keys == tuple(key for each in resources for key in release_keys(each))


def test_a_request_that_is_never_answered_is_given_back_in_each_slot() -> None:
    """Nobody knows which of them it took, so one in the background is not enough."""
    plans, later = RedisPlans(), []
    plans.clock = lambda: 1000.0
    plans.give_back_later = lambda grant, settings: later.append((grant.resource, grant.token))
    resources, token = [f"{{gpu}}#{slot}" for slot in range(3)], "t" * 22
    plan = plans.plan_acquire_any(resources, token, Settings(), first=0, deadline=1000.0)
    call = plan.send(None)
    assert call.may_take
    with pytest.raises(CoordinatorUnavailable, match=r"for '\{gpu\}#0'"):
        plan.throw(NoReply(ConnectionError("cut"), may_have_run=True))
    assert later == [(each, token) for each in resources]


def test_a_task_that_is_cancelled_leaves_no_slot_taken(any_redis: RedisServer, proxy: ProxyFactory) -> None:
    side, through = Side(True), proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), ttl=60)
    side.call(side.call(coordinator.slots("warm", 3).acquire).release)
    through.hold_reply_when(lambda request: asks_for(ACQUIRE_ANY, request))

    async def story() -> None:
        task = asyncio.ensure_future(coordinator.slots("gpu", 3).acquire())
        while not await asyncio.to_thread(held, any_redis, 3):
            pass
        task.cancel()
        through.restore()
        with pytest.raises(asyncio.CancelledError):
            await task

    side.call(story)
    side.wait_until(lambda: not held(any_redis, 3))


@pytest.mark.thorough
def test_a_server_that_is_frozen_during_the_whole_call(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=60)
    side.call(side.call(coordinator.acquire, "warm").release)
    before = scripts_run(server)
    server.freeze()
    with pytest.raises(FencingError):
        side.call(coordinator.slots("gpu", 3).acquire, timeout=0.2)
    server.thaw()
    side.wait_until(lambda: scripts_run(server) > before)  # it ran after all
    side.wait_until(lambda: not held(server, 3))
    lease = side.call(coordinator.slots("gpu", 1).acquire, timeout=30)
    side.call(lease.release)


def test_other_data_under_the_name_of_a_slot_keeps_only_that(side: Side, any_redis: RedisServer) -> None:
    any_redis.client().rpush("{gpu}#0", "a list of another program")
    any_redis.client().set("{gpu}#1", "a lock of another program", px=60_000)
    coordinator = side.coordinator(any_redis.url)
    for _ in range(4):
        lease = side.call(coordinator.slots("gpu", 3).acquire, timeout=10)
        assert lease.slot == 2
        assert side.call(coordinator.slots("gpu", 3).try_acquire) is None
        assert side.call(lease.release) is True
    error = side.expect(NotAcquired, coordinator.slots("gpu", 2).acquire, timeout=0)
    assert "one by a holder that is not known" in str(error)


def test_who_waits_for_one_slot_comes_first_and_the_dead_do_not(side: Side, any_redis: RedisServer) -> None:
    """Its queue has an entry. A listener that is gone is removed, as a try of that slot's lock removes it."""
    keys = keys_of("{gpu}#0")
    client = any_redis.client()
    client.zadd(keys.queue, {"gone " + "x" * 22: 1})
    client.hset(keys.listeners, "gone", 1)
    coordinator = side.coordinator(any_redis.url)
    other = side.call(coordinator.slots("gpu", 2).acquire, timeout=10)
    assert other.slot == 1, "the slot without waiters is given first"
    lease = side.call(coordinator.slots("gpu", 2).acquire, timeout=10)
    assert lease.slot == 0
    assert client.exists(keys.queue) == 0
    side.call(other.release)
    side.call(lease.release)


@pytest.mark.thorough
def test_a_prefix_changes_nothing_of_where_they_are(side: Side, redis_cluster: RedisCluster) -> None:
    for prefix in (None, "billing:", "{app}:", "a{b:", "x}:"):
        slots = side.coordinator(side.cluster_client(redis_cluster), prefix=prefix).slots("gpu", 3)
        assert len({slot_of(each.encode()) for each in slots.resources}) == 1
        leases = [side.call(slots.acquire, timeout=10) for _ in range(3)]
        assert sorted(lease.slot for lease in leases) == [0, 1, 2]
        assert side.call(slots.try_acquire) is None
        for lease in leases:
            assert side.call(lease.release) is True


def test_replicas_confirm_a_slot_or_it_is_given_back(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, replicas=1)
    error = side.expect(NotAcquired, coordinator.slots("gpu", 2).acquire, timeout=5)
    assert (error.reason, error.resource, error.slots) == ("unreplicated", "{gpu}", None)
    assert held(any_redis, 2) == []
