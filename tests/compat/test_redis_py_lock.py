"""The locks of ``fencing.compat``: what they have beyond redis-py's, and where the two differ.

That they do what redis-py's do is for redis-py's own tests: see test_redis_py_suite.py.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, LeaseLost
from fencing.kernel.retry import NoReply
from fencing.redis.keys import keys_of
from tests.support.compat_locks import Locks
from tests.support.forks import in_child
from tests.support.sides import Side

KEYS = keys_of("r")


def test_waiters_stand_in_the_queue(locks: Locks, any_redis: RedisServer) -> None:
    client = any_redis.client()
    holder = locks.make(timeout=60, thread_local=False)
    locks.call(holder.acquire)
    waiters = [locks.make(timeout=60, thread_local=False) for _ in range(3)]
    threads = []
    for number, waiter in enumerate(waiters):
        threads.append(threading.Thread(target=locks.call, args=(waiter.acquire,), daemon=True))
        threads[-1].start()
        locks.side.wait_until(lambda: client.zcard(KEYS.queue) == number + 1)  # noqa: B023 - called here
    numbers = []
    for lock, thread in zip([holder, *waiters], [*threads, None], strict=True):
        numbers.append(lock.fence.number)
        locks.call(lock.release)
        if thread is not None:
            thread.join(30)
            assert not thread.is_alive(), "without a message it takes 10 s"
    assert numbers == sorted(numbers)


def test_another_sleep_polls(locks: Locks, any_redis: RedisServer) -> None:
    client = any_redis.client()
    client.set("r", "foreign")
    lock = locks.make(timeout=60, sleep=0.005, thread_local=False)
    thread = threading.Thread(target=locks.call, args=(lock.acquire,), daemon=True)
    tries = client.info("stats")["total_commands_processed"]
    thread.start()
    locks.side.wait_until(lambda: client.info("stats")["total_commands_processed"] > tries + 50)
    assert client.zcard(KEYS.queue) == 0
    client.delete("r")
    thread.join(30)
    assert lock.fence.number > 0
    locks.call(lock.release)


@pytest.mark.thorough
def test_times_to_wait(locks: Locks) -> None:
    locks.call(locks.make(timeout=60).acquire)
    started = time.monotonic()
    assert locks.call(locks.make(blocking=False).acquire) is False
    assert locks.call(locks.make().acquire, blocking_timeout=0) is False
    assert locks.call(locks.make(blocking_timeout=-1).acquire) is False
    assert time.monotonic() - started < 30
    started = time.monotonic()
    assert locks.call(locks.make().acquire, blocking_timeout=0.3) is False
    assert time.monotonic() - started >= 0.3
    with pytest.raises(LockError) as caught:
        locks.block(locks.make(blocking_timeout=0.3), lambda: None)
    assert not isinstance(caught.value, LockNotOwnedError)


def test_a_lost_reply_does_not_lose_the_lock(
    locks: Locks, any_redis: RedisServer, proxy: Callable[[RedisServer], Any]
) -> None:
    through = proxy(any_redis)
    client = locks.connect(through.url(any_redis.url))
    lock = locks.make(client=client, timeout=10)
    loss = through.drop_reply_when(lambda request: b"EVAL" in request)
    assert locks.call(lock.acquire, blocking=False) is True
    assert loss.fired == 1
    loss = through.drop_reply_when(lambda request: b"EVAL" in request and b"PTTL" not in request, times=2)
    locks.call(lock.extend, 10)
    assert loss.fired == 2
    assert any_redis.client().pttl("r") <= 20_000, "it was added once"
    loss = through.drop_reply_when(lambda request: b"EVAL" in request)
    locks.call(lock.release)
    assert loss.fired == 1
    assert any_redis.client().get("r") is None


def test_a_release_without_an_answer_can_be_repeated(
    locks: Locks, any_redis: RedisServer, proxy: Callable[[RedisServer], Any]
) -> None:
    through = proxy(any_redis)
    client = locks.connect(through.url(any_redis.url))
    own, leased = locks.make("own", client=client, timeout=0.6), locks.make(client=client, timeout=0.6)
    locks.call(own.acquire, token="t")
    held = locks.make("held", client=client, timeout=3)
    for lock in (leased, held):
        locks.call(lock.acquire)
    for name in ("r", "own", "held"):
        any_redis.client().persist(name)
    through.refuse()
    for lock in (own, leased):
        token = locks.token(lock)
        assert isinstance(locks.expect(CoordinatorUnavailable, lock.release), redis.ConnectionError)
        assert locks.token(lock) == token
    error = locks.expect(redis.ConnectionError, locks.make("x", client=client, timeout=0.3).acquire)
    assert isinstance(error, CoordinatorUnavailable)
    locks.expect(redis.ConnectionError, held.extend, 1)
    locks.expect(LeaseLost, leased.extend, 1)
    for renew in (partial(own.extend, 1), own.reacquire):
        locks.expect(LockNotOwnedError, renew)
    through.restore()
    for lock in (own, leased, held):
        locks.call(lock.release)
        locks.expect(LockError, lock.release)
    assert any_redis.client().keys("[roh]*") == []


def test_leaving_a_block_masks_no_error(locks: Locks, any_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        any_redis.client().delete("r")
        raise KeyError("of the block")

    with pytest.raises(KeyError):
        locks.block(locks.make(timeout=10), fail)
    own = locks.make("own", timeout=10)

    def fail_under_own_token() -> None:
        own.local.token = b"another"
        raise KeyError("of the block")

    with pytest.raises(KeyError):
        locks.block(own, fail_under_own_token)
    assert "was not released at the end of its block" in caplog.text


def test_a_loss_is_raised_at_the_end_of_a_block_or_logged(
    locks: Locks, any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    lock = locks.make(timeout=10)
    with pytest.raises(LockNotOwnedError) as caught:
        locks.block(lock, lambda: any_redis.client().delete("r"))
    error: Any = caught.value
    assert isinstance(error, LeaseLost)
    assert (error.completed, error.fence.resource, caught.value.lock_name) == (True, "r", "r")
    assert locks.token(lock) is None
    assert "was not released" not in caplog.text
    quiet = locks.make(timeout=10, raise_on_release_error=False)
    locks.block(quiet, lambda: any_redis.client().delete("r"))
    assert "was not released" in caplog.text


def test_an_extension_moves_the_deadline_of_the_lease(locks: Locks, any_redis: RedisServer) -> None:
    client = any_redis.client()
    lock = locks.make(timeout=10)
    locks.call(lock.acquire)
    locks.call(lock.extend, 20)
    assert 29_000 < client.pttl("r") <= 30_000
    assert client.pttl(KEYS.holder) > 29_000
    assert 28 < locks.lease(lock).remaining() < 30
    locks.call(lock.extend, 5, replace_ttl=True)
    assert 4_000 < client.pttl("r") <= 5_000
    assert locks.lease(lock).remaining() < 5
    locks.call(lock.reacquire)
    assert 9_000 < client.pttl("r") <= 10_000
    locks.call(lock.extend, 0)
    for wrong, options in (
        (-100, {}),
        (-(10**9), {}),
        (-1, {"replace_ttl": True}),
        (0, {"replace_ttl": True}),
        (float("nan"), {}),
    ):
        assert not isinstance(locks.expect(ValueError, lock.extend, wrong, **options), LockError)
    locks.expect(TypeError, lock.extend, "1")
    assert client.pttl("r") > 9_000, "a wrong call changed nothing"
    client.set("r", "another")
    error = locks.expect(LockNotOwnedError, lock.extend, 1)
    assert isinstance(error, LeaseLost)
    assert locks.lease(lock).held is False
    locks.expect(LockNotOwnedError, lock.reacquire)
    locks.expect(LockNotOwnedError, lock.release)


class Requests:
    """The requests of a lock's coordinator: what is believed of its lease at each, and which get no answer.

    Args:
        lost: how many replies are lost.
        fails: whether the call then fails at once, as after its time-out.
    """

    def __init__(self, locks: Locks, lock: Any, lost: int = 0, *, fails: bool = False) -> None:
        self.lease, self._coordinator = locks.lease(lock), lock.coordinator
        self.believed: list[float] = []
        self._lost, self._fails = lost, fails
        self._performs = self._coordinator._backend.perform
        self._asynchronous = locks.side.asynchronous

    def __enter__(self) -> Requests:
        self._coordinator._backend.perform = self._perform_async if self._asynchronous else self._perform
        return self

    def __exit__(self, *_: object) -> None:
        del self._coordinator._backend.perform

    def _perform(self, effect: Any) -> Any:
        self.believed.append(self.lease.remaining())
        return self._answered(self._performs(effect))

    async def _perform_async(self, effect: Any) -> Any:
        self.believed.append(self.lease.remaining())
        return self._answered(await self._performs(effect))

    def _answered(self, reply: Any) -> Any:
        if self._lost <= 0:
            return reply
        self._lost -= 1
        if self._fails:
            raise CoordinatorUnavailable("the test has lost it", resource="r", address="nowhere")
        raise NoReply(TimeoutError(), may_have_run=True)


def reacquire_shorter(lock: Any) -> Any:
    lock.timeout = 10
    return lock.reacquire()


SHORTER = {
    "replaced": lambda lock: lock.extend(10, replace_ttl=True),
    "negative": lambda lock: lock.extend(-20),
    "reacquired": reacquire_shorter,
}


@pytest.mark.parametrize("shorten", SHORTER.values(), ids=SHORTER)
def test_a_shorter_ttl_is_believed_before_it_is_asked_for(
    locks: Locks, any_redis: RedisServer, shorten: Callable[[Any], Any]
) -> None:
    lock = locks.make(timeout=30)
    locks.call(lock.acquire)
    with Requests(locks, lock) as requests:
        locks.call(shorten, lock)
    assert requests.believed[-1] < 10
    assert any_redis.client().pttl("r") <= 10_000
    lease = locks.lease(lock)
    assert 0 < lease.remaining() < 10
    locks.call(lease.renew)
    assert lease.remaining() > 20, "its answer came before"
    locks.call(lock.extend, 30)
    assert lease.remaining() > 50
    locks.call(lock.release)


@pytest.mark.parametrize("fails", [False, True], ids=["asked again", "given up"])
def test_a_shorter_ttl_without_an_answer_may_arrive_later(locks: Locks, fails: bool) -> None:
    """So nothing makes the lease believed for longer: it is not known when that is true."""
    lock = locks.make(timeout=30)
    locks.call(lock.acquire)
    lease, replace = locks.lease(lock), {"replace_ttl": True}
    with Requests(locks, lock, 1, fails=fails):
        if fails:
            locks.expect(CoordinatorUnavailable, lock.extend, 10, **replace)
            assert 0 < lease.remaining() < 10
        assert locks.call(lock.extend, 10, **replace) is True
    for longer in (lease.renew, lock.reacquire, partial(lock.extend, 60)):
        locks.call(longer)
        assert 0 < lease.remaining() < 10
    locks.call(lock.release)
    locks.call(lock.acquire)
    assert locks.lease(lock).remaining() > 20
    locks.call(lock.release)


def test_a_request_without_an_answer_may_shorten_a_later_one(locks: Locks) -> None:
    """Also one that did not shorten the lease when it was sent."""
    lock = locks.make(timeout=30)
    locks.call(lock.acquire)
    lease = locks.lease(lock)
    locks.call(lock.extend, 10, replace_ttl=True)
    with Requests(locks, lock, 1, fails=True):
        locks.expect(CoordinatorUnavailable, lock.extend, 10, replace_ttl=True)
    locks.call(lock.extend, 10, replace_ttl=True)
    assert 9 < lease.remaining() < 10, "one of the same ttl is no harm"
    assert locks.call(lock.extend, 60) is True
    assert 0 < lease.remaining() < 10
    locks.call(lock.release)


def test_a_renewal_by_the_lease_shortens_an_extended_lock(locks: Locks, any_redis: RedisServer) -> None:
    lock = locks.make(timeout=10)
    locks.call(lock.acquire)
    locks.call(lock.extend, 60, replace_ttl=True)
    lease = locks.lease(lock)
    assert lease.remaining() > 50
    locks.call(lease.renew)
    assert 0 < lease.remaining() <= 10
    assert any_redis.client().pttl("r") <= 10_000
    locks.call(lock.extend, 60, replace_ttl=True)
    assert lease.remaining() > 50, "its answer came before"
    locks.call(lock.release)


def test_extensions_at_the_same_moment_count_as_the_shortest_one(locks: Locks, any_redis: RedisServer) -> None:
    lock = locks.make(timeout=10, thread_local=False)
    locks.call(lock.acquire)
    longer, shorter = (partial(locks.call, lock.extend, seconds, replace_ttl=True) for seconds in (60, 5))
    for _ in range(5):
        locks.side.race([longer, shorter] * 4)
        assert locks.lease(lock).remaining() <= any_redis.client().pttl("r") / 1000
    locks.call(lock.extend, 5, replace_ttl=True)
    assert 0 < locks.lease(lock).remaining() <= 5
    locks.call(lock.release)


@pytest.mark.thorough
def test_renewal_only_where_it_is_asked_for(locks: Locks, any_redis: RedisServer) -> None:
    client = any_redis.client()
    renewed, left = locks.make("renewed", timeout=0.6, renew=True), locks.make("left", timeout=0.6)
    locks.call(renewed.acquire)
    locks.call(left.acquire)
    locks.side.wait_until(lambda: client.get("left") is None)
    assert locks.call(renewed.owned) is True
    locks.call(renewed.extend, 60)
    assert client.pttl("renewed") <= 600, "the next renewal would set this anyway"
    locks.call(renewed.release)
    locks.expect(LockNotOwnedError, left.release)


def test_a_lock_that_is_dropped_stays_until_its_ttl(locks: Locks, any_redis: RedisServer) -> None:
    """Some programs acquire and never release: at most one run in ten seconds. That is no mistake."""
    lock = locks.make(timeout=10)
    locks.call(lock.acquire)
    locks.run(lambda: drop(lock))  # a warning would fail the test
    assert any_redis.client().pttl("r") > 9_000
    renewed = locks.make("renewed", timeout=10, renew=True)
    locks.call(renewed.acquire)
    with pytest.warns(ResourceWarning, match="never released"):
        locks.run(lambda: drop(renewed))


def drop(lock: Any) -> None:
    lock.local.__dict__.clear()
    gc.collect()


def test_holders_that_share_a_lock_object(locks: Locks, any_redis: RedisServer) -> None:
    """The next one may have the lock before the release of the last one returns."""
    lock = locks.make(timeout=60, thread_local=False)
    client = any_redis.client()

    def work() -> None:
        for _ in range(5):
            assert locks.call(lock.acquire) is True
            value = int(client.get("counter") or 0)
            client.set("counter", value + 1)
            locks.call(lock.release)

    locks.side.race([work] * 6)
    assert client.get("counter") == b"30"
    assert client.get("r") is None


def test_a_release_does_not_lose_the_token_of_the_next_holder(locks: Locks) -> None:
    """Another task, or thread, acquires with the same lock object before the release returns."""
    lock = locks.make(timeout=60, thread_local=False)
    locks.call(lock.acquire)
    lease = lock.lease
    release = lease.release

    def slow_release() -> Any:
        async def slow() -> bool:
            freed: bool = await release()
            await lock.acquire()
            return freed

        return slow() if locks.side.asynchronous else (release(), lock.acquire())[0]

    lease.release = slow_release
    locks.call(lock.release)
    assert lock.fence.number > lease.fence.number
    locks.call(lock.release)


def test_a_thread_sees_only_its_own_lock(any_redis: RedisServer) -> None:
    side = Side(False)
    locks = Locks(side, any_redis.url)
    lock = locks.make(timeout=10)
    lock.acquire()

    def other() -> tuple[Any, bool]:
        return side.expect(LockError, lock.release), lock.owned()

    [(error, owned)] = side.race([other])
    assert not isinstance(error, LockNotOwnedError)
    assert owned is False
    lock.release()
    locks.close()


def test_a_child_does_not_free_the_lock_of_its_parent(locks: Locks, any_redis: RedisServer) -> None:
    lock = locks.make(timeout=10, thread_local=False)
    locks.call(lock.acquire)

    def check() -> None:
        release: Any = asyncio.run(_failure(lock)) if locks.side.asynchronous else locks.expect(LeaseLost, lock.release)
        assert release.reason == "forked"

    in_child(check)
    assert any_redis.client().get("r") is not None
    locks.call(lock.release)


async def _failure(lock: Any) -> LeaseLost:
    with pytest.raises(LeaseLost) as caught:
        await lock.release()
    return caught.value
