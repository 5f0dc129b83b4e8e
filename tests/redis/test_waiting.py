"""Waiting for a lock: in order, without polling, on one connection. Nothing is left behind in Redis."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, CoordinatorUnavailable, NotAcquired, RedisCoordinator
from fencing.kernel.waking import Wake
from fencing.redis import listener, listener_async
from fencing.redis.calls import decline_call
from fencing.redis.listener import LEAST_LISTENING_SECONDS, Heartbeat
from fencing.redis.scripts import ACQUIRE
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_requests import asks_for, scripts_run, times_run
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, Waiter, process

PROMPT = 8.0
"""Seconds that a grant may take on a busy machine. Without a message it takes 10 s, the longest recheck."""

ACCEPT_SECONDS = 0.25
"""How long an offer lasts: ACCEPT_MS of lua/queue.lua."""


def test_waiters_are_served_in_the_order_they_came(redis_server: RedisServer) -> None:
    """Threads and tasks, mixed."""
    moments = _serve(redis_server)
    if moments != sorted(moments) and max(moments) - min(moments) > ACCEPT_SECONDS:
        moments = _serve(redis_server)  # the machine stood still, so that a waiter missed its offer
    assert moments == sorted(moments)


def _serve(redis_server: RedisServer) -> list[float]:
    """Return when each of six waiters got the lock, in the order in which they came."""
    queue, threads, tasks = Queue(redis_server), Side(False), Side(True)
    coordinators = [threads.coordinator(redis_server.url), tasks.coordinator(redis_server.url)]
    holder = threads.coordinator(redis_server.url).acquire("r")
    waiters = []
    for number, side in enumerate([threads, tasks, tasks, threads, threads, tasks]):
        waiters.append(Waiter(side, coordinators[side.asynchronous]))
        queue.has(1 + number)
    holder.release()
    served = sorted((waiter.join().granted_at, waiter.lease.fence.number) for waiter in waiters)
    numbers = [number for _, number in served]
    assert numbers == sorted(set(numbers))
    assert not queue.left_behind()
    for side in (threads, tasks):
        for coordinator in side.made:
            side.call(coordinator.close)
    return [waiter.granted_at for waiter in waiters]


@pytest.mark.thorough
def test_waiters_of_other_processes_are_served_in_the_same_order(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url)
    holder = side.call(side.coordinator(any_redis.url).acquire, "r")
    with process(any_redis, "sync") as one, process(any_redis, "async") as other:
        queue.has(2)  # in either order
        waiter = Waiter(side, coordinator)
        queue.has(3)
        side.call(holder.release)
        granted_at = waiter.join().granted_at
        assert max(one.next_grant(), other.next_grant()) < granted_at
    assert not queue.left_behind()


@pytest.mark.parametrize("side", ["sync"], indirect=True)  # the script decides
def test_a_newcomer_does_not_overtake_a_waiter(side: Side, redis_server: RedisServer) -> None:
    queue, permitted = Queue(redis_server), threading.Event()
    holder = side.call(side.coordinator(redis_server.url).acquire, "r")
    waiter = Waiter(side, side.coordinator(redis_server.url), hold=permitted)
    queue.has(1)
    queue.client.delete("r")  # free, and no message says so
    assert side.call(side.coordinator(redis_server.url).try_acquire, "r") is None
    permitted.set()
    assert waiter.join().error is None
    assert waiter.lease.fence.number > holder.fence.number
    assert side.call(holder.release) is False


@pytest.mark.thorough
def test_waiters_do_not_ask_while_the_lock_is_held(side: Side, fresh_redis: RedisFactory) -> None:
    """But for one request when they are new no more: see lua/queue.lua."""
    server = fresh_redis()
    queue, coordinator = Queue(server), side.coordinator(server.url, ttl=60)
    holder = side.call(coordinator.acquire, "r")
    before = times_run(server, "evalsha")
    waiters = [Waiter(side, coordinator) for _ in range(8)]
    queue.has(8)

    def is_quiet() -> bool:
        until_now = times_run(server, "evalsha")
        time.sleep(0.5)  # time for requests that must not come
        return bool(times_run(server, "evalsha") == until_now)

    wait_until(is_quiet)
    asked = times_run(server, "evalsha") - before
    print(f"8 waiters of one process: {asked} requests")
    assert asked <= 8 * 3, "each may have asked for the lock, for its place, and once more"
    side.call(holder.release)
    assert [waiter.join().error for waiter in waiters] == [None] * 8


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 8, 32])
def test_a_grant_takes_three_commands_and_waiters_get_equal_shares(
    side: Side, fresh_redis: RedisFactory, count: int
) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url)
    rounds = itertools.count()
    grants = [0] * count
    most = 20 * count

    def work(index: int) -> None:
        while next(rounds) < most:
            lease = side.call(coordinator.acquire, "r")
            grants[index] += 1
            time.sleep(0.001)
            side.call(lease.release)

    holder = side.call(coordinator.acquire, "r")
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    Queue(server).has(count)
    before = times_run(server, "evalsha") - count
    side.call(holder.release)
    for thread in threads:
        thread.join()
    asked = (times_run(server, "evalsha") - before) / sum(grants)
    fairness = sum(grants) ** 2 / (count * sum(each**2 for each in grants))
    print(f"{count} waiters: {asked:.2f} commands a grant, Jain's index {fairness:.3f}")
    assert sum(grants) == most
    assert asked <= 3.5
    assert fairness >= 0.9
    assert not Queue(server).left_behind()


@pytest.mark.thorough
def test_all_waiters_share_one_connection_and_none_of_the_clients(
    side: Side, fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_redis()
    monkeypatch.setattr(Heartbeat, "LINGER_SECONDS", 0.5)
    monkeypatch.setattr(Heartbeat, "TICK_SECONDS", 0.1)
    admin = server.client()
    client = side.client(server.url, max_connections=1, client_name="app")
    coordinator = side.coordinator(client)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(20)]
    Queue(server).has(20)
    listeners = [each for each in admin.client_list(_type="pubsub") if each["name"] == "app"]
    assert len(listeners) == 1
    assert side.call(client.ping) is True
    side.call(holder.release)
    assert [waiter.join().error for waiter in waiters] == [None] * 20
    wait_until(lambda: not admin.client_list(_type="pubsub"))  # it is closed when no caller has waited for a while
    side.call(client.aclose if side.asynchronous else client.close)


@pytest.mark.thorough
def test_short_waits_in_a_row_share_a_connection(
    side: Side, fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays open although no caller waits at the moments when the listener checks."""
    server = fresh_redis()
    monkeypatch.setattr(Heartbeat, "LINGER_SECONDS", 0.6)
    monkeypatch.setattr(Heartbeat, "TICK_SECONDS", 0.1)
    coordinator = side.coordinator(server.url)
    queue = Queue(server)
    before = times_run(server, "subscribe")
    stalls, last = 0, time.monotonic()
    for _ in range(7):
        holder = side.call(coordinator.acquire, "r")
        waiter = Waiter(side, coordinator)
        queue.has(1)
        side.call(holder.release)
        assert waiter.join().error is None
        time.sleep(0.12)
        now = time.monotonic()
        stalls += now - last > 0.4  # a busy machine may have let the connection be closed
        last = now
    assert times_run(server, "subscribe") <= before + 1 + stalls


def test_each_event_loop_has_a_connection_of_its_own(any_redis: RedisServer) -> None:
    coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url))
    queue = Queue(any_redis)

    async def job() -> None:
        holder = await coordinator.acquire("r")
        waiting = asyncio.create_task(coordinator.acquire("r", timeout=30))
        await asyncio.get_running_loop().run_in_executor(None, queue.has, 1)
        await holder.release()
        await (await waiting).release()

    for _ in range(3):
        asyncio.run(job())
    assert not queue.left_behind()


@pytest.mark.thorough
def test_a_waiter_whose_time_is_up_leaves_the_queue_at_once(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, owner="me")
    holder = side.call(coordinator.acquire, "r")
    started = time.monotonic()
    error = side.expect(NotAcquired, coordinator.acquire, "r", timeout=1.5)
    assert (error.reason, error.owner) == ("held", "me")
    assert error.waited >= 1.5
    assert time.monotonic() - started < 1.5 + PROMPT
    assert len(queue) == 0
    side.call(holder.release)
    assert not queue.left_behind()


@pytest.mark.thorough
def test_giving_up_at_the_moment_of_the_grant_leaves_no_lock_behind(side: Side, any_redis: RedisServer) -> None:
    """Time-outs and releases come at the same moments, many times."""
    queue = Queue(any_redis)
    coordinators = [side.coordinator(any_redis.url, ttl=60) for _ in range(3)]
    granted, gave_up = [], []

    def work(index: int) -> None:
        for number in range(40):
            timeout = 30 if number == 39 else 0.001 * (1 + (number + index) % 5)
            try:
                lease = side.call(coordinators[index].acquire, "r", timeout=timeout)
            except (NotAcquired, CoordinatorUnavailable):
                gave_up.append(number)  # the time was up, before the lock came, or before any reply did
                continue
            granted.append(number)
            time.sleep(0.002)  # as long as the others wait
            side.call(lease.release)

    side.race([lambda index=index: work(index) for index in (0, 0, 1, 1, 2, 2)])  # type: ignore[misc]
    assert len(granted) >= 6
    assert gave_up
    wait_until(lambda: queue.vanishes(2.5))  # a listener that let an offer lapse is remembered for so long


def test_cancelled_waiters_leave_the_queue_at_once(any_redis: RedisServer) -> None:
    queue = Queue(any_redis)

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=60) as coordinator:
            holder = await coordinator.acquire("r")
            tasks = []
            for number in range(10):
                tasks.append(asyncio.create_task(coordinator.acquire("r")))
                await asyncio.get_running_loop().run_in_executor(None, queue.has, number + 1)
            for task in tasks[:9]:
                task.cancel()
            await asyncio.wait(tasks[:9])
            assert len(queue) == 1
            await holder.release()
            await (await asyncio.wait_for(tasks[9], 10)).release()

    asyncio.run(main())
    assert not queue.left_behind()


def test_an_interrupted_thread_leaves_the_queue(any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(any_redis)
    with RedisCoordinator(any_redis.client(), ttl=60) as coordinator:
        holder = coordinator.acquire("r")

        class Interrupted(Wake):
            def wait(self, seconds: float) -> None:
                raise KeyboardInterrupt

        monkeypatch.setattr(listener, "Wake", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            coordinator.acquire("r")
        assert len(queue) == 0
        holder.release()
    assert not queue.left_behind()


def test_an_offer_without_a_waiter_is_declined(
    side: Side, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter has gone, and its entry is still in the queue, because its withdrawal was lost."""
    declined: list[str] = []

    def noted(resource: str, token: str, *args: Any, **options: Any) -> Any:
        declined.append(token)
        return decline_call(resource, token, *args, **options)

    monkeypatch.setattr(listener_async if side.asynchronous else listener, "decline_call", noted)
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=60)
    holder = side.call(coordinator.acquire, "r")
    waiting = Waiter(side, coordinator)
    queue.has(1)
    [entry] = queue.entries()
    queue.client.zadd(KEYS.queue, {entry.split()[0] + b" " + b"g" * 22: 1.0})
    released_at = time.monotonic()
    side.call(holder.release)
    assert waiting.join().error is None
    print(f"declined, and granted to the next, within {1000 * (waiting.granted_at - released_at):.1f} ms")
    assert declined == ["g" * 22]


def test_a_late_message_of_an_offer_frees_no_lock(side: Side, fresh_redis: RedisFactory) -> None:
    """The waiter has rechecked, and so accepted the offer by itself, before the message arrives."""
    server = fresh_redis()
    queue, permitted = Queue(server), threading.Event()
    holder = side.call(side.coordinator(server.url).acquire, "r")
    waiter = Waiter(side, side.coordinator(server.url, ttl=60), hold=permitted)
    queue.has(1)
    [entry] = queue.entries()
    listener_name, token = entry.decode().split()
    side.call(holder.release)
    wait_until(lambda: waiter.lease is not None)
    asked = scripts_run(server)
    assert queue.client.publish(f"fencing:1:wake:{listener_name}", f"grant {token} r") == 1
    wait_until(lambda: scripts_run(server) > asked)  # it was declined
    assert queue.client.get("r") == token.encode()
    permitted.set()
    waiter.join()
    assert not queue.left_behind()


@pytest.mark.parametrize("held", [False, True], ids=["free", "held by another"])
def test_when_the_queue_is_lost_all_waiters_come_back_with_the_first(
    side: Side, any_redis: RedisServer, held: bool
) -> None:
    queue = Queue(any_redis)
    holder = side.call(side.coordinator(any_redis.url).acquire, "r")
    waiters = [Waiter(side, coordinator) for coordinator in [side.coordinator(any_redis.url, ttl=60)] * 4]
    queue.has(4)
    listener_name = queue.entries()[0].split()[0].decode()
    queue.client.delete(KEYS.lock, KEYS.holder, KEYS.queue, KEYS.listeners)  # as a FLUSHALL
    if held:
        queue.client.set("r", "another", px=200)
    lost_at = time.monotonic()
    queue.client.publish(
        f"fencing:1:wake:{listener_name}", "recheck 0 r"
    )  # the first waiter asks; the others hear of it
    assert [waiter.join().error for waiter in waiters] == [None] * 4
    assert max(waiter.granted_at for waiter in waiters) - lost_at < PROMPT
    assert side.call(holder.release) is False
    assert not queue.left_behind()


def test_a_forced_release_hands_the_lock_on(side: Side, any_redis: RedisServer) -> None:
    queue, coordinator = Queue(any_redis), side.coordinator(any_redis.url, ttl=60)
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, side.coordinator(any_redis.url, ttl=60))
    queue.has(1)
    forced_at = time.monotonic()
    forced = side.call(coordinator.lock("r").force_release)
    assert waiter.join().granted_at - forced_at < PROMPT
    assert waiter.lease.fence.number > forced.fence.number > holder.fence.number
    assert side.call(holder.release) is False
    assert [key.rpartition(b":")[0][-7:] for key in queue.left_behind()] == [b":forced"]


def test_the_queue_vanishes_by_itself(side: Side, any_redis: RedisServer) -> None:
    coordinator, queue = side.coordinator(any_redis.url), Queue(any_redis)
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, coordinator)
    queue.has(1)
    assert 0 < queue.client.pttl(KEYS.queue) <= 30_000
    side.call(holder.release)
    waiter.join()
    assert not queue.left_behind()


def test_claims_come_after_the_grant_is_confirmed(side: Side, any_redis: RedisServer) -> None:
    seen = []
    client = any_redis.client()

    class Watching:
        def claim(self, *holders: Any, timeout: float | None = None) -> None:
            record = client.get(KEYS.holder)
            seen.append((client.get("r"), record.split()[1] if record else None, client.pttl("r") > 1000))

        def mark(self, resource: str) -> None: ...
        def landed(self, outcome: Any, timeout: float | None = None) -> None: ...

    class AsyncWatching(Watching):
        async def claim(self, *holders: Any, timeout: float | None = None) -> None:  # type: ignore[override]
            super().claim(*holders, timeout=timeout)

        async def mark(self, resource: str) -> None: ...  # type: ignore[override]
        async def landed(self, outcome: Any, timeout: float | None = None) -> None: ...  # type: ignore[override]

    guard = AsyncWatching() if side.asynchronous else Watching()
    holder = side.call(side.coordinator(any_redis.url).acquire, "r")
    waiter = Waiter(side, side.coordinator(any_redis.url, guards=[guard]))
    Queue(any_redis).has(1)
    side.call(holder.release)
    waiter.join()
    token = waiter.lease.fence.token.encode()
    assert seen == [(token, token, True)]


def test_a_lost_reply_while_queueing_keeps_the_place(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through, queue = proxy(any_redis), Queue(any_redis)
    coordinator = side.coordinator(through.url(any_redis.url))
    holder = side.call(side.coordinator(any_redis.url).acquire, "r")
    first = Waiter(side, coordinator)
    queue.has(1)
    loss = through.drop_reply_when(lambda request: asks_for(ACQUIRE, request))  # the connection breaks with it
    waiter = Waiter(side, coordinator)
    queue.has(2)
    wait_until(lambda: loss.fired == 1)
    side.call(holder.release)
    assert first.join().granted_at <= waiter.join().granted_at
    assert not queue.left_behind()


@pytest.mark.thorough
def test_waiting_without_the_right_to_listen_says_which_right_is_missing(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis(version="7")
    admin: Any = server.client()
    admin.acl_setuser("worker", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"], channels=[])
    admin.execute_command("ACL", "SETUSER", "worker", "resetchannels")
    coordinator = side.coordinator(f"redis://worker:secret@{server.host}:{server.port}", ttl=3)
    lease = side.call(coordinator.acquire, "r", timeout=5)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=5)
    assert "&fencing:1:wake:*" in str(error)
    assert side.call(coordinator.try_acquire, "r") is None
    waiter = Waiter(side, side.coordinator(server.url))
    Queue(server).has(1)
    assert side.call(lease.release) is True, "although it may not send the message"
    assert waiter.join().error is None, "it asks again when the lease would have ended"
    admin.execute_command("ACL", "SETUSER", "worker", "&fencing:1:wake:*")
    lease = side.call(coordinator.acquire, "r", timeout=5)
    waiter = Waiter(side, coordinator)
    Queue(server).has(1)
    side.call(lease.release)
    assert waiter.join().error is None


def test_closing_a_coordinator_ends_the_waiting_of_its_callers(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    queue, coordinator = Queue(server), side.coordinator(server.url)
    holder = side.call(side.coordinator(server.url).acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    queue.has(3)
    side.call(coordinator.close)
    for waiter in waiters:
        assert isinstance(waiter.join().error, RuntimeError)
    wait_until(lambda: not queue.client.client_list(_type="pubsub"))
    following = Waiter(side, side.coordinator(server.url))
    released_at = time.monotonic()
    side.call(holder.release)
    assert following.join().granted_at - released_at < PROMPT
    assert queue.client.hgetall(KEYS.listeners) == {}, "nothing was offered to those that have left"


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_clients_own_settings_do_not_matter(side: Side, any_redis: RedisServer, protocol: int) -> None:
    client = side.client(any_redis.url, protocol=protocol, db=3, decode_responses=True, health_check_interval=1)
    coordinator = side.coordinator(client)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    other_database: Any = any_redis.client(db=3)
    wait_until(lambda: other_database.zcard(KEYS.queue) == 3)
    released_at = time.monotonic()
    side.call(holder.release)
    assert max(waiter.join().granted_at for waiter in waiters) - released_at < PROMPT
    side.call(client.aclose if side.asynchronous else client.close)


def test_many_resources_on_one_connection(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    names = [f"r {number}" for number in range(10)]
    leases = [side.call(coordinator.acquire, name) for name in names]
    got: list[str] = []

    def work(name: str) -> None:
        lease = side.call(coordinator.acquire, name)
        got.append(lease.fence.resource)
        side.call(lease.release)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(b":waiting:" in key for key in any_redis.client().scan_iter()) == len(names))
    for lease in leases:
        side.call(lease.release)
    for thread in threads:
        thread.join(20)
    assert sorted(got) == sorted(names)


def test_a_listening_connection_that_ends_at_once_is_not_opened_again_and_again(
    side: Side, redis_server: RedisServer, fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end is noticed at once, also where it comes with the reply to SUBSCRIBE. No PING finds it out."""
    server = fresh_redis(version=redis_server.series)
    monkeypatch.setattr(Heartbeat, "PING_SECONDS", 600.0)
    client = server.client()
    held = side.call(side.coordinator(server.url).acquire, "r")
    waiter = Waiter(side, side.coordinator(server.url))
    wait_until(client.pubsub_channels)
    before, began = times_run(server, "subscribe"), time.monotonic()
    opened = 0
    while time.monotonic() - began < 2.5 or not opened:
        client.client_kill_filter(_type="pubsub")
        opened = times_run(server, "subscribe") - before
        time.sleep(0.01)
        assert time.monotonic() - began < 60
    assert opened <= 2 + (time.monotonic() - began) / LEAST_LISTENING_SECONDS
    assert side.call(held.release) is True
    assert waiter.join().error is None


def test_waiters_listen_again_once_the_calls_have_left_a_server(
    redis_server: RedisServer, fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_redis(version=redis_server.series)
    monkeypatch.setattr(listener, "LEAST_LISTENING_SECONDS", 0.0)
    side, client = Side(False), server.client()
    held = side.coordinator(server.url, ttl=60).acquire("r")
    coordinator = side.coordinator(server.url, ttl=60)
    waiter = Waiter(side, coordinator)
    wait_until(client.pubsub_channels)
    before = times_run(server, "subscribe")
    client.client_kill_filter(_type="normal")
    coordinator.lock("other").holder()
    coordinator._backend._listener._waiters.wake_all()  # as each does from time to time
    wait_until(lambda: times_run(server, "subscribe") == before + 1)
    assert held.release() is True
    assert waiter.join().error is None
    for each in side.made:
        each.close()


@pytest.mark.thorough
def test_waiters_follow_an_address_that_moves_to_a_promoted_replica(
    side: Side, fresh_redis: RedisFactory, proxy: ProxyFactory
) -> None:
    """The old one still answers, also on the connection that waits for messages there. It is cut off from the new one,
    of which it would hear them otherwise: a replica passes them on.
    """
    old, new = fresh_redis(), fresh_redis()
    new.client().replicaof(old.host, old.port)
    wait_until(lambda: old.client().wait(1, 100) == 1)
    address = proxy(old)
    coordinator = side.coordinator(address.url(old.url), ttl=4)
    with closing(RedisCoordinator(old.client(), ttl=60)) as others:
        others.acquire("r").detach()
    got: list[bool] = []

    def wait() -> None:
        lease = side.call(coordinator.acquire, "r", timeout=60)
        got.append(side.call(lease.release))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(old.client().pubsub_channels)
    new.client().replicaof("NO", "ONE")
    old.client().replicaof("127.0.0.1", 1)
    address.retarget(new)
    with closing(RedisCoordinator(new.client(), ttl=60)) as others, ThreadPoolExecutor(3) as executor:
        others.force_release("r")

        def take_turns() -> None:
            while waiter.is_alive():
                with others.hold("r", timeout=60):
                    time.sleep(0.5)

        turns = [executor.submit(take_turns) for _ in range(3)]
        waiter.join(40)
        in_time = list(got)
        if not in_time:
            side.call(coordinator.close)
        for turn in turns:
            turn.result(60)
    assert in_time == [True]
