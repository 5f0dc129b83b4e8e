"""Waiters and holders that are killed, stopped or cut off: what that costs the others. Measured, and bounded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from examples.servers import RedisServer, freeze
from fencing.redis import quirks
from fencing.redis.listener import Heartbeat
from tests.redis.test_fork import in_child
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.sides import Side
from tests.support.waiters import Queue, Waiter, process

WINDOW = 0.25
SLOW = 1.0
"""What a busy machine may add, everywhere: all ttls here are far longer."""

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP on this system"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _clean(any_redis: RedisServer) -> Iterator[None]:
    yield
    wait_until(lambda: not Queue(any_redis).left_behind(), 10)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_first_waiter_is_killed(side: Side, any_redis: RedisServer, colour: str) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, colour, 3) as first:
        queue.has(3)
        waiter = Waiter(side, side.coordinator(any_redis.url, ttl=30))
        queue.has(4)
        first.kill()
        wait_until(lambda: len(queue.client.client_list(_type="pubsub")) == 1)  # the server has noticed
        released_at = time.monotonic()
        side.call(holder.release)
        waiter.join()
    took = waiter.granted_at - released_at
    print(f"three first waiters killed: the next has it after {1000 * took:.1f} ms")
    assert took < WINDOW, "nothing is offered to the dead"


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_first_waiters_process_is_stopped(side: Side, any_redis: RedisServer, colour: str, count: int) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, colour, count) as stopped:
        queue.has(count)
        waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=30)) for _ in range(2)]
        queue.has(count + 2)
        freeze(stopped.popen)
        released_at = time.monotonic()
        side.call(holder.release)
        took = min(waiter.join().granted_at for waiter in waiters) - released_at
        print(f"a process with {count} waiters stopped: the next has it after {1000 * took:.0f} ms")
        assert took < 2 * WINDOW + SLOW, "one offer is lost to it, not one for each of its waiters"
        third = Waiter(side, coordinator)
        assert third.join().error is None
        stopped.goes_on_to_its_end(count)  # they have lost nothing but time


def test_two_stopped_processes_do_not_pass_the_offers_to_each_other(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, "sync", 20) as one, process(any_redis, "async", 20) as other:
        queue.has(40)  # in any order
        waiter = Waiter(side, coordinator)
        queue.has(41)
        for each in (one, other):
            freeze(each.popen)
        released_at = time.monotonic()
        side.call(holder.release)
        took = waiter.join().granted_at - released_at
        print(f"two processes with 20 waiters each stopped: the next has it after {1000 * took:.0f} ms")
        assert took < 4 * WINDOW + SLOW, "one offer is lost to each"
        for each in (one, other):
            each.goes_on_to_its_end(20)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_is_killed_between_the_offer_and_its_acceptance(side: Side, any_redis: RedisServer, colour: str) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, colour) as first:
        queue.has(1)
        waiter = Waiter(side, side.coordinator(any_redis.url, ttl=30))
        queue.has(2)
        freeze(first.popen)
        released_at = time.monotonic()
        side.call(holder.release)
        assert queue.client.get("r") is not None, "it was offered"
        first.kill()
        took = waiter.join().granted_at - released_at
    print(f"killed with an offer: the next has it after {1000 * took:.0f} ms")
    assert took < 2 * WINDOW + SLOW


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_holder_dies_and_is_succeeded_when_its_lease_ends(side: Side, any_redis: RedisServer, how: str) -> None:
    queue = Queue(any_redis)
    with process(any_redis, "sync", hold=60, ttl=2) as holding:
        holding.granted_at()
        waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=30)) for _ in range(3)]
        queue.has(3)
        if how == "killed":
            holding.kill()
        else:
            freeze(holding.popen)
        time.sleep(0.1)  # what it had sent has arrived
        ends_at = time.monotonic() + queue.client.pttl("r") / 1000
        moments = sorted(waiter.join().granted_at for waiter in waiters)
    print(f"holder {how}: succeeded {1000 * (moments[0] - ends_at):.1f} ms after the end of its lease")
    assert -0.01 < moments[0] - ends_at < SLOW
    assert moments[2] - moments[0] < SLOW


def test_a_thread_that_never_releases_is_succeeded_when_its_lease_ends(side: Side, any_redis: RedisServer) -> None:
    """All in one process: whoever waits knows of the grant, though nobody told it."""
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=1, renew=False)
    holder = side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r")
    waiters = [Waiter(side, coordinator, hold=2) for _ in range(2)]
    queue.has(2)
    side.call(holder.release)
    moments = sorted(waiter.join().granted_at for waiter in waiters)
    print(f"succeeded {1000 * (moments[1] - moments[0] - 1):.1f} ms after the end of the lease")
    assert 0.98 <= moments[1] - moments[0] < 1 + SLOW
    for waiter in waiters:
        waiter.lease.lost.is_set()


def test_the_listening_connection_is_killed_again_and_again(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(5)]
    queue.has(5)
    for _ in range(3):
        [listener] = queue.client.client_list(_type="pubsub")
        queue.client.client_kill_filter(_id=listener["id"])
        wait_until(lambda: len(queue.client.client_list(_type="pubsub")) == 1 and len(queue) == 5)
    queue.client.client_kill_filter(_id=queue.client.client_list(_type="pubsub")[0]["id"])
    released_at = time.monotonic()
    side.call(holder.release)
    took = max(waiter.join().granted_at for waiter in waiters) - released_at
    print(f"connection killed just before the release: all five had it after {1000 * took:.0f} ms")
    assert took < SLOW


def test_redis_is_flushed(side: Side, any_redis: RedisServer) -> None:
    queue = Queue(any_redis)
    holder = side.call(side.coordinator(any_redis.url, ttl=1).acquire, "r")
    waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=1)) for _ in range(4)]
    queue.has(4)
    queue.client.flushall()
    for waiter in waiters:
        assert waiter.join().error is None
    assert side.call(holder.release) is False


def test_redis_is_restarted_without_its_data(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=5)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(10)]
    waiters += [Waiter(side, side.coordinator(server.url, ttl=5)) for _ in range(2)]
    Queue(server).has(12)
    server.restart(keep_data=False)
    restarted_at = time.monotonic()
    took = max(waiter.join().granted_at for waiter in waiters) - restarted_at
    assert not [waiter.error for waiter in waiters if waiter.error]
    print(f"restarted: twelve waiters were served within {1000 * took:.0f} ms")
    assert side.call(holder.release) is False


def test_a_dead_tcp_connection_is_noticed(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end of the connection is told that it is broken: the server counts it as listening."""
    monkeypatch.setattr(Heartbeat, "PING_SECONDS", 0.3)
    monkeypatch.setattr(Heartbeat, "TICK_SECONDS", 0.1)
    through, queue = proxy(any_redis), Queue(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), ttl=30)
    holder = side.call(side.coordinator(any_redis.url, ttl=60).acquire, "r")
    waiter = Waiter(side, coordinator, timeout=None)
    queue.has(1)
    through.silence()

    async def listening() -> bool:  # on the loop, where there is one
        return bool(coordinator.listening())

    side.wait_until(lambda: not side.call(listening))
    side.call(holder.release)
    through.cut()
    through.restore()
    assert waiter.join().error is None


def test_foreign_holders_release_without_telling_anybody(side: Side, redis_server: RedisServer) -> None:
    queue = Queue(redis_server)
    foreign = queue.client.lock("r", timeout=20)
    assert foreign.acquire(blocking=False)
    waiter = Waiter(side, side.coordinator(redis_server.url))
    queue.has(1)
    released_at = time.monotonic()
    foreign.release()
    took = waiter.join().granted_at - released_at
    print(f"a foreign holder's release was noticed after {1000 * took:.0f} ms")
    assert took < 1 + SLOW


def test_a_fork_while_others_wait(any_redis: RedisServer) -> None:
    """The child has a hub of its own, and its copy of the parent's connection does not keep the parent's alive."""
    side, queue = Side(False), Queue(any_redis)
    coordinator = side.coordinator(any_redis.url, ttl=2)
    holder = coordinator.acquire("r")
    waiter = Waiter(side, coordinator)
    queue.has(1)
    assert coordinator._listener._line is not None
    sock = quirks.socket_of(coordinator._listener._line.connection)
    assert sock is not None
    parents = sock.fileno()

    def check() -> None:
        try:
            os.fstat(parents)
        except OSError:
            pass
        else:
            raise AssertionError("the child has the parent's connection open")
        child = Waiter(side, coordinator)
        queue.has(2)
        assert len({entry.split()[0] for entry in queue.entries()}) == 2
        queue.client.delete("r")
        assert child.join().error is None

    in_child(check)
    assert waiter.join().error is None
    assert holder.release() is False
    coordinator.close()
