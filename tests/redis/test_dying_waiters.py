"""Waiters and holders that are killed, stopped or cut off. The others wait a bounded time for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from examples.servers import RedisServer, freeze
from fencing.redis import quirks
from fencing.redis.listener import Heartbeat
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.forks import in_child
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, Waiter, process

WINDOW = 0.25
"""Seconds that an offer lasts."""

PROMPT = 8.0
"""Seconds that a grant may take on a busy machine. Without what is tested it takes 10 s, the longest recheck."""

OFFERED_SECONDS = 2.5
"""How long Redis remembers a listener that did not answer an offer. All other keys are gone at once."""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP on this system")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(any_redis: RedisServer) -> Iterator[None]:
    yield
    wait_until(lambda: Queue(any_redis).vanishes(OFFERED_SECONDS))


def test_a_listener_without_a_connection_loses_its_entries_with_its_count(side: Side, any_redis: RedisServer) -> None:
    """It is drawn for a recheck. Were only its count removed, nobody would skip its entries, and it was never drawn."""
    queue, permitted = Queue(any_redis), threading.Event()
    holder = side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r")
    waiter = Waiter(side, side.coordinator(any_redis.url, ttl=30), hold=permitted)
    queue.has(1)
    queue.client.zadd(KEYS.queue, {b"gone " + b"%d" % number * 22: 1e17 + number for number in range(3)})
    queue.client.hset(KEYS.listeners, "gone", 3)
    side.call(holder.release)
    assert (queue.entries(), queue.client.hgetall(KEYS.listeners)) == ([], {})
    permitted.set()
    assert waiter.join().error is None


@pytest.mark.thorough
def test_a_killed_process_is_offered_nothing(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    queue, coordinator = Queue(server), side.coordinator(server.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(server, side.name, 3) as first:
        queue.has(3)
        waiter = Waiter(side, side.coordinator(server.url, ttl=30))
        queue.has(4)
        first.kill()
        wait_until(lambda: len(queue.client.client_list(_type="pubsub")) == 1)  # the server has noticed
        released_at = time.monotonic()
        side.call(holder.release)
        waiter.join()
    took = waiter.granted_at - released_at
    print(f"three first waiters killed: the next has it after {1000 * took:.1f} ms")
    assert queue.client.hgetall(KEYS.listeners) == {}, "nothing is left of the dead listener"
    assert took < PROMPT


@pytest.mark.thorough
@pytest.mark.parametrize("count", [50, 1])
def test_a_stopped_process_costs_one_offer(side: Side, any_redis: RedisServer, count: int) -> None:
    """One offer for each of its waiters would take 50 times as long."""
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, side.name, count) as stopped:
        queue.has(count)
        waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=30)) for _ in range(2)]
        queue.has(count + 2)
        freeze(stopped.popen)
        released_at = time.monotonic()
        side.call(holder.release)
        took = min(waiter.join().granted_at for waiter in waiters) - released_at
        print(f"a process with {count} waiters stopped: the next has it after {1000 * took:.0f} ms")
        assert took < PROMPT < 50 * WINDOW
        third = Waiter(side, coordinator)
        assert third.join().error is None
        stopped.thaw_and_finish(count)  # its waiters have lost nothing but time


@pytest.mark.thorough
def test_two_stopped_processes_do_not_pass_the_offers_to_each_other(any_redis: RedisServer) -> None:
    """One offer for each of their 40 waiters would take 10 s."""
    side, queue = Side(False), Queue(any_redis)
    coordinator = side.coordinator(any_redis.url, ttl=30)
    holder = coordinator.acquire("r")
    with process(any_redis, "sync", 20) as one, process(any_redis, "async", 20) as other:
        queue.has(40)  # in any order
        waiter = Waiter(side, coordinator)
        queue.has(41)
        for each in (one, other):
            freeze(each.popen)
        released_at = time.monotonic()
        holder.release()
        took = waiter.join().granted_at - released_at
        print(f"two processes with 20 waiters each stopped: the next has it after {1000 * took:.0f} ms")
        assert took < PROMPT, "one offer is lost to each"
        for each in (one, other):
            each.thaw_and_finish(20)
    coordinator.close()


@pytest.mark.thorough
def test_a_process_that_is_killed_after_an_offer_costs_that_offer(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=30)
    holder = side.call(coordinator.acquire, "r")
    with process(any_redis, side.name) as first:
        queue.has(1)
        [entry] = queue.entries()
        waiter = Waiter(side, side.coordinator(any_redis.url, ttl=30))
        queue.has(2)
        freeze(first.popen)
        released_at = time.monotonic()
        side.call(holder.release)
        assert queue.client.get(KEYS.holder) == b"offer " + entry.split()[0], "the process has an offer"
        first.kill()
        took = waiter.join().granted_at - released_at
    print(f"killed with an offer: the next has it after {1000 * took:.0f} ms")
    assert took < PROMPT


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "how"), [("sync", "killed"), ("async", "stopped")], indirect=["side"])
def test_a_dead_holder_is_succeeded_when_its_lease_ends(side: Side, any_redis: RedisServer, how: str) -> None:
    queue = Queue(any_redis)
    with process(any_redis, "sync", hold=60, ttl=2) as holding:
        holding.next_grant()
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
    assert -0.01 < moments[0] - ends_at < PROMPT
    assert moments[2] - moments[0] < PROMPT


@pytest.mark.thorough
def test_a_thread_that_does_not_release_is_succeeded_when_its_lease_ends(side: Side, any_redis: RedisServer) -> None:
    """All in one process: no message tells the second waiter of the first one's grant."""
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=1, renew=False)
    holder = side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r")
    never = threading.Event()
    waiters = [Waiter(side, coordinator, hold=never) for _ in range(2)]
    queue.has(2)
    side.call(holder.release)
    wait_until(lambda: all(waiter.granted_at for waiter in waiters))
    never.set()
    first, second = sorted((waiter.join() for waiter in waiters), key=lambda waiter: waiter.granted_at)
    late = second.granted_at - first.lease._holding.deadline
    print(f"succeeded {1000 * late:.1f} ms after the end of the lease")
    assert 0 <= late < PROMPT
    assert first.lease.lost.is_set()


@pytest.mark.thorough
def test_waiters_survive_the_loss_of_their_connection(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    queue, coordinator = Queue(server), side.coordinator(server.url, ttl=30)
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
    assert took < PROMPT


@pytest.mark.thorough
def test_waiters_survive_a_flush(side: Side, any_redis: RedisServer) -> None:
    queue = Queue(any_redis)
    holder = side.call(side.coordinator(any_redis.url, ttl=1).acquire, "r")
    waiters = [Waiter(side, side.coordinator(any_redis.url, ttl=1)) for _ in range(4)]
    queue.has(4)
    queue.client.flushall()
    assert [waiter.join().error for waiter in waiters] == [None] * 4
    assert side.call(holder.release) is False


@pytest.mark.thorough
def test_waiters_survive_a_restart_without_data(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=5)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(10)]
    waiters += [Waiter(side, side.coordinator(server.url, ttl=5)) for _ in range(2)]
    Queue(server).has(12)
    server.restart(keep_data=False)
    restarted_at = time.monotonic()
    took = max(waiter.join().granted_at for waiter in waiters) - restarted_at
    print(f"restarted: twelve waiters were served within {1000 * took:.0f} ms")
    assert [waiter.error for waiter in waiters] == [None] * 12
    assert side.call(holder.release) is False


@pytest.mark.thorough
def test_a_dead_tcp_connection_is_noticed(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither end of the connection learns that it is broken, and the server counts it as listening."""
    monkeypatch.setattr(Heartbeat, "PING_SECONDS", 0.3)
    monkeypatch.setattr(Heartbeat, "TICK_SECONDS", 0.1)
    through, queue = proxy(any_redis), Queue(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url), ttl=30)
    holder = side.call(side.coordinator(any_redis.url, ttl=60).acquire, "r")
    waiter = Waiter(side, coordinator, timeout=None)
    queue.has(1)
    through.silence()

    if side.asynchronous:
        [listener] = coordinator._backend._listener._loops.values()
        side.wait_until(lambda: listener.connection is None)
    else:
        side.wait_until(lambda: coordinator._backend._listener._connection is None)
    side.call(holder.release)
    through.cut()
    through.restore()
    assert waiter.join().error is None


@pytest.mark.thorough
def test_a_release_by_a_foreign_holder_is_noticed_without_a_message(side: Side, any_redis: RedisServer) -> None:
    queue = Queue(any_redis)
    foreign = queue.client.lock("r", timeout=60)
    assert foreign.acquire(blocking=False)
    waiter = Waiter(side, side.coordinator(any_redis.url))
    queue.has(1)
    released_at = time.monotonic()
    foreign.release()
    took = waiter.join().granted_at - released_at
    print(f"a foreign holder's release was noticed after {1000 * took:.0f} ms")
    assert took < PROMPT


@pytest.mark.thorough
def test_a_forked_child_waits_on_a_connection_of_its_own(any_redis: RedisServer) -> None:
    """Its copy of the parent's connection is closed, and does not keep the parent's alive."""
    side, queue = Side(False), Queue(any_redis)
    coordinator = side.coordinator(any_redis.url, ttl=1)
    holder = coordinator.acquire("r")
    waiter = Waiter(side, coordinator)
    queue.has(1)
    assert coordinator._backend._listener._connection is not None
    sock = quirks.socket_of(coordinator._backend._listener._connection.raw)
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
