"""``hold(at_least=...)`` on Redis: waiters in the queue, a lost reply, a coordinator that is closed in the block."""

from __future__ import annotations

import time
from typing import Any

import pytest

from examples.servers import RedisCluster, RedisServer
from fencing.redis.scripts import RELEASE_LATER
from tests.support.fixtures import ProxyFactory
from tests.support.redis_requests import asks_for
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, Waiter

PROMPT = 8.0
"""Seconds that a grant may take on a busy machine. Without a message it takes 10 s, the longest recheck."""


def enter(side: Side, block: Any) -> Any:
    return side.call(block.__aenter__ if side.asynchronous else block.__enter__)


def leave(side: Side, block: Any) -> None:
    side.call(block.__aexit__ if side.asynchronous else block.__exit__, None, None, None)


def released_before_its_waiters(side: Side, server: RedisServer | RedisCluster, *made: Any) -> None:
    """A block ends while others wait, who believe in a ttl of a minute: they get the lock when it frees itself."""
    holder, *others = made
    block, queue = holder.hold("r", at_least=1.0), Queue(server)
    began, lease = time.monotonic(), enter(side, block)
    waiters = []
    for count, other in enumerate(others, 1):
        waiters.append(Waiter(side, other))
        queue.has(count)
    leave(side, block)
    left_at = time.monotonic()
    moments = [waiter.join().granted_at for waiter in waiters]
    assert min(moments) - began > 0.9, "not before its end"
    assert max(moments) - left_at < PROMPT
    numbers = [lease.fence.number, *(waiter.lease.fence.number for waiter in waiters)]
    assert numbers == sorted(set(numbers)), "in the order of the queue"
    assert not queue.left_behind()


@pytest.mark.thorough
def test_waiters_get_the_lock_when_it_frees_itself(side: Side, any_redis: RedisServer) -> None:
    released_before_its_waiters(side, any_redis, *(side.coordinator(any_redis.url, ttl=60) for _ in range(3)))


@pytest.mark.thorough
def test_waiters_of_a_cluster_get_the_lock_when_it_frees_itself(side: Side, redis_cluster: RedisCluster) -> None:
    made = [side.coordinator(side.cluster_client(redis_cluster), ttl=60) for _ in range(3)]
    released_before_its_waiters(side, redis_cluster, *made)


def test_waiters_are_told_when_to_ask_again(any_redis: RedisServer) -> None:
    """Each listener once, and at the longest recheck at the latest: the queue may be lost meanwhile."""
    client: Any = any_redis.client()
    for left, after in (("252", b"254"), ("60000", b"10000")):
        client.flushall()
        client.set("r", "t" * 22)
        client.zadd(KEYS.queue, {"here " + "a" * 22: 1, "here " + "b" * 22: 2, "there " + "c" * 22: 3})
        listener = client.pubsub()
        listener.subscribe("fencing:1:wake:here", "fencing:1:wake:there")
        keys = [KEYS.lock, KEYS.holder, KEYS.queue]
        for _ in range(2):
            assert listener.get_message(timeout=60)["type"] == "subscribe"
        assert client.eval(RELEASE_LATER.text, 3, *keys, "t" * 22, "n" * 22, left) == 1
        assert client.eval(RELEASE_LATER.text, 3, *keys, "t" * 22, "m" * 22, left) == 0
        assert client.get("r") == b"n" * 22
        for channel in ("here", "there"):
            client.publish(f"fencing:1:wake:{channel}", "the last one")
        messages: list[Any] = []
        while messages.count(b"the last one") < 2:
            messages.append((listener.get_message(timeout=60) or {})["data"])
        assert messages[:-2] == [b"recheck %b r" % after] * 2
        listener.close()


def test_the_same_release_again_says_that_it_stays_taken(any_redis: RedisServer) -> None:
    """And it puts nothing off: the moment was that of the first one."""
    client: Any = any_redis.client()
    client.set("r", "t" * 22)
    keys = [KEYS.lock, KEYS.holder, KEYS.queue]
    assert client.eval(RELEASE_LATER.text, 3, *keys, "t" * 22, "n" * 22, 60_000) == 1
    assert client.eval(RELEASE_LATER.text, 3, *keys, "t" * 22, "n" * 22, 600_000) == 1
    assert client.pttl("r") <= 60_000


def test_a_repeated_release_is_not_a_loss(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url))
    block = coordinator.hold("r", at_least=600)
    enter(side, block)
    loss = through.drop_reply_when(lambda request: asks_for(RELEASE_LATER, request))
    leave(side, block)
    assert loss.fired == 1
    holder = side.call(coordinator.holder, "r")
    assert holder.released
    assert 10 < holder.remaining < 601


def test_a_closing_that_could_not_release_leaves_it_to_the_block(
    side: Side, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = side.coordinator(any_redis.url)
    block = coordinator.hold("r", at_least=600)
    enter(side, block)
    monkeypatch.setattr(coordinator._backend, "held", list)  # as if there was no time for it
    side.call(coordinator.close)
    leave(side, block)
    assert side.call(side.coordinator(any_redis.url).holder, "r").released


def test_a_lock_whose_record_is_lost_stays_taken_too(side: Side, any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    coordinator = side.coordinator(any_redis.url)
    block = coordinator.hold("r", at_least=600)
    lease = enter(side, block)
    client.delete(KEYS.holder)
    leave(side, block)
    assert 10_000 < client.pttl("r") < 601_000
    assert client.get("r") != lease.fence.token.encode()
    assert not client.exists(KEYS.holder)
