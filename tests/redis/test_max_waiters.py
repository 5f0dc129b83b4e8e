"""`max_waiters` on Redis: the script that enlists a waiter counts, and a dead one does not count for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import NotAcquired
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.redis.calls import queue_call
from tests.support import wait_until
from tests.support.fixtures import RedisFactory
from tests.support.redis_requests import scripts_run
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, Waiter, process


@pytest.fixture
def holder(side: Side, any_redis: RedisServer) -> Iterator[Any]:
    """The lease of a holder, which a test may release."""
    lease = side.call(side.coordinator(any_redis.url, ttl=30, owner="a holder").acquire, "r")
    yield lease
    side.call(lease.release)


@pytest.fixture
def limited(side: Side, any_redis: RedisServer) -> Callable[[int], Any]:
    """Make a coordinator with this limit."""
    return lambda most: side.coordinator(any_redis.url, ttl=30, max_waiters=most)


def enlisted(side: Side, coordinator: Any, place: Any = None) -> Any:
    """Ask once, as a waiter. Return the reply."""
    token, deadline = new_token() if place is None else place.waiter.token, coordinator._backend.clock() + 60
    plan = coordinator._backend.plan_queue(
        "r", token, coordinator._backend.settings, floor=0, deadline=deadline, place=place
    )
    return side.call(run_async if side.asynchronous else run, plan, coordinator._backend.perform)


async def in_loop(coordinator: Any, resource: str) -> bool:
    return bool(coordinator._backend.is_waited_for(resource))


def leave(side: Side, coordinator: Any, place: Any) -> None:
    plan = place.plan_leave(deadline=coordinator._backend.clock() + 60)
    side.call(run_async if side.asynchronous else run, plan, coordinator._backend.perform)


def test_of_eight_racers_exactly_three_wait(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    refused: list[NotAcquired] = []

    def ask(coordinator: Any) -> bool:
        try:
            return bool(side.call(side.call(coordinator.acquire, "r", timeout=50).release))
        except NotAcquired as error:
            refused.append(error)
            return False

    def release() -> int:
        wait_until(lambda: len(refused) == 5, 40)
        waiting = len(Queue(any_redis))
        side.call(holder.release)
        return waiting

    *got, waiting = side.race([*[partial(ask, limited(3)) for _ in range(8)], release])
    assert (sorted(got), waiting) == ([False] * 5 + [True] * 3, 3)
    for error in refused:
        assert (error.reason, error.waiters, error.owner) == ("full", 3, "a holder")
        assert "'r' is held by a holder, and 3 wait for it, as many as max_waiters allows" in str(error)
        assert 0 < error.waited < 40
    assert not Queue(any_redis).left_behind()


@pytest.mark.thorough
def test_of_eight_racers_in_four_processes_exactly_three_wait(side: Side, any_redis: RedisServer, holder: Any) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(process(any_redis, kind, 2, max_waiters=3)) for kind in ("sync", "async") * 2]
        queue = Queue(any_redis)
        queue.has(3)
        wait_until(lambda: sum(each.reports for each in processes) == 5, 90)
        assert len(queue) == 3
        side.call(holder.release)
        words = sorted(word for each in processes for word in each.words(2))
    assert words == ["granted"] * 3 + ["refused"] * 5


def test_a_refused_caller_sends_two_requests_and_leaves_nothing(side: Side, fresh_redis: RedisFactory) -> None:
    """A try, and one request to enlist. Nothing is released, and no listener has it as a waiter."""
    server = fresh_redis()
    holder = side.call(side.coordinator(server.url, ttl=30).acquire, "r")
    waiting, other = (side.coordinator(server.url, ttl=30, max_waiters=1) for _ in range(2))
    waiter = Waiter(side, waiting)
    Queue(server).has(1)
    before = scripts_run(server)
    assert side.expect(NotAcquired, other.acquire, "r", timeout=None).reason == "full"
    assert scripts_run(server) - before == 2
    assert not side.call(partial(in_loop, other) if side.asynchronous else other._backend.is_waited_for, "r")
    assert side.call(other.try_acquire, "r") is None
    assert side.expect(NotAcquired, other.acquire, "r", timeout=0).reason == "held"
    side.call(holder.release)
    assert waiter.join().error is None


def test_waiters_of_a_listener_that_died_count_no_more(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    """Another one waits all the time, so that the queue does not expire."""
    queue, permitted = Queue(any_redis), limited(4)
    waiter = Waiter(side, permitted)
    queue.has(1)
    queue.client.zadd(KEYS.queue, {b"gone " + b"%d" % number * 22: 1e17 + number for number in range(3)})
    queue.client.hset(KEYS.listeners, "gone", 3)
    reply = enlisted(side, permitted)
    assert reply.waiters is None
    assert (len(queue), queue.client.hexists(KEYS.listeners, "gone")) == (2, False)
    leave(side, permitted, reply.place)
    side.call(holder.release)
    assert waiter.join().error is None


@pytest.mark.thorough
def test_the_waiters_of_a_killed_process_count_no_more(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    queue = Queue(any_redis)
    with process(any_redis, side.name, 3, max_waiters=3) as killed:
        queue.has(3)
        killed.kill()
    wait_until(lambda: not queue.client.client_list(_type="pubsub"), 90)  # the server has noticed
    assert len(queue) == 3
    waiter = Waiter(side, limited(3))
    queue.has(1)
    side.call(holder.release)
    assert waiter.join().error is None


def test_a_user_that_may_not_ask_for_receivers_is_refused_where_dead_ones_wait(
    side: Side, any_redis: RedisServer, holder: Any
) -> None:
    queue, admin = Queue(any_redis), Queue(any_redis).client
    queue.client.zadd(KEYS.queue, {b"gone " + b"0" * 22: 1e17})
    queue.client.hset(KEYS.listeners, "gone", 1)
    admin.execute_command("ACL SETUSER limited on >secret ~* &* +@all -pubsub")
    try:
        client = side.client(any_redis.url.replace("://", "://limited:secret@"))
        error = side.expect(NotAcquired, side.coordinator(client, max_waiters=1).acquire, "r", timeout=30)
        assert (error.reason, error.waiters) == ("full", 1)
    finally:
        admin.execute_command("ACL DELUSER limited")
        queue.client.delete(KEYS.queue, KEYS.listeners)


def test_a_waiter_whose_entry_was_lost_comes_back_also_if_the_queue_is_full(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    queue, coordinator, other = Queue(any_redis), limited(1), limited(1)
    first = enlisted(side, coordinator)
    queue.client.delete(KEYS.queue, KEYS.listeners)
    second = enlisted(side, other)
    again = enlisted(side, coordinator, first.place)
    assert again.place is not None
    assert [entry.split()[1].decode() for entry in queue.entries()] == [
        each.place.waiter.token for each in (again, second)
    ], "in its old place"
    assert enlisted(side, other).waiters == 2
    for each, place in ((coordinator, again.place), (other, second.place)):
        leave(side, each, place)


def test_a_free_lock_is_offered_before_the_waiters_are_counted(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    """The lock was deleted, so nobody was notified. The newcomer hands it to the first of three waiters."""
    queue, coordinator = Queue(any_redis), limited(3)
    places = [enlisted(side, coordinator).place for _ in range(3)]
    tokens = [place.waiter.token for place in places]
    queue.client.delete("r", KEYS.holder)
    assert enlisted(side, limited(2)).waiters == 2, "two still wait"
    assert queue.client.get("r").decode() == tokens[0]
    other = limited(3)
    last = enlisted(side, other)
    assert last.waiters is None
    leave(side, other, last.place)
    for place in reversed(places):
        leave(side, coordinator, place)


def test_a_waiter_that_is_interrupted_as_it_enlists_does_not_count(
    side: Side, any_redis: RedisServer, holder: Any, limited: Callable[[int], Any]
) -> None:
    """Its plan does not know yet that it has a place: the reply was on its way to it."""
    coordinator, entries = limited(2), []
    queue, perform = Queue(any_redis), coordinator._backend.perform

    def interrupt(reply: Any) -> Any:
        if isinstance(reply, list) and reply[:1] == [b"queued"]:
            entries.append(len(queue))
            raise ZeroDivisionError
        return reply

    def perform_and_raise(effect: Any) -> Any:
        return interrupt(perform(effect))

    async def perform_and_raise_async(effect: Any) -> Any:
        return interrupt(await perform(effect))

    coordinator._backend.perform = perform_and_raise_async if side.asynchronous else perform_and_raise
    side.expect(ZeroDivisionError, coordinator.acquire, "r", timeout=50)
    assert (entries, len(queue)) == ([1], 0)


def test_without_a_limit_the_request_is_the_same_as_before() -> None:
    args = (30_000, "owner", 0, 1, "listener")
    assert queue_call("r", "a" * 22, args, "7", 1.0, False).args == ("a" * 22, *args, "7")
    assert queue_call("r", "a" * 22, args, "7", 1.0, False, 3).args == ("a" * 22, *args, "7", 3)


def test_a_lock_that_is_offered_to_a_waiter_is_no_other_librarys(side: Side, any_redis: RedisServer) -> None:
    """Its record is no holder's for a moment. A caller was sent to another library's lock, and to force it free."""
    waiting = side.coordinator(any_redis.url, ttl=30)
    trying = side.coordinator(any_redis.url, ttl=30)
    limited = side.coordinator(any_redis.url, ttl=30, max_waiters=1)
    refused: set[str] = set()

    def ask() -> bool:  # an offer lasts for 250 ms, which a busy machine may take
        lease = side.call(trying.acquire, "r", timeout=30)
        places = [enlisted(side, waiting).place for _ in range(2)]  # the first is offered the lock, the second waits
        assert all(places)
        side.call(lease.release)
        for coordinator, timeout, reason in ((trying, 0, "held"), (limited, 30, "full")):
            try:
                side.call(side.call(coordinator.acquire, "r", timeout=timeout).release)
            except NotAcquired as error:
                if error.kept_by == "waiter" and error.reason == reason:
                    assert "goes to an earlier waiter first" in str(error)
                    refused.add(reason)
        for place in places:
            leave(side, waiting, place)
        return refused == {"held", "full"}

    side.wait_until(ask, seconds=60)
    with any_redis.client() as client:
        assert client.set("f", "another", px=200)
        lock = trying.lock("f")
        assert side.expect(NotAcquired, lock.acquire, timeout=0).kept_by == "foreign"
