"""The fences of ``fencing.compat``'s locks, and tokens of the caller's own, which have none."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

from examples.servers import RedisServer
from fencing import Fence, GuardUnavailable, StaleFence, UnclaimedFence
from fencing.compat import RedisPyLock
from fencing.redis.keys import keys_of
from tests.support import wait_until
from tests.support.compat_locks import Locks

KEYS = keys_of("r")


def test_it_is_a_lock_of_redis_py_under_the_same_key(locks: Locks, any_redis: RedisServer) -> None:
    lock = locks.make(timeout=10)
    theirs = redis.asyncio.lock.Lock if locks.side.asynchronous else redis.lock.Lock
    assert isinstance(lock, theirs)
    assert locks.call(lock.acquire) is True
    fence = locks.fence(lock)
    assert any_redis.client().get("r") == fence.token.encode() == locks.token(lock)
    assert locks.lease(lock).fence == fence == Fence.parse(str(fence))
    assert locks.call(locks.client.lock("r").acquire, blocking=False) is False
    assert locks.call(lock.release) is None
    assert (locks.token(lock), locks.has_lease(lock)) == (None, False)
    locks.call(lock.acquire)
    assert locks.fence(lock).number > fence.number
    locks.call(lock.release)


def test_a_grant_is_claimed_and_shuts_the_earlier_holder_out(locks: Locks, any_redis: RedisServer) -> None:
    guard = locks.guard()
    late, newer = locks.make(timeout=10, guards=[guard]), locks.make(timeout=10, guards=[guard])
    locks.call(late.acquire)
    stale = locks.lease(late)
    locks.call(guard.write, stale, "balance", 1)
    any_redis.client().delete("r")  # it expires
    locks.call(newer.acquire)
    assert locks.call(guard.mark, "r").is_of(locks.fence(newer))
    locks.expect(StaleFence, guard.write, stale, "balance", 2)
    locks.call(guard.write, locks.lease(newer), "balance", 3)
    assert guard.data["balance"] == 3
    locks.expect(LockNotOwnedError, late.release)
    locks.call(newer.release)
    unguarded = locks.make(timeout=10)
    locks.call(unguarded.acquire)
    locks.expect(UnclaimedFence, guard.write, locks.lease(unguarded), "balance", 4)
    locks.call(unguarded.release)


def test_its_token_moves_along_with_a_reclaimed_lease(locks: Locks, any_redis: RedisServer) -> None:
    guard = locks.guard()
    lock = locks.make(timeout=10, guards=[guard])
    locks.call(lock.acquire)
    before = locks.fence(lock)
    fresh = locks.call(locks.lease(lock).reclaim)
    assert locks.call(lock.owned) is True
    assert locks.lease(lock) is fresh
    assert locks.token(lock) == fresh.fence.token.encode() == any_redis.client().get("r")
    assert locks.fence(lock) == fresh.fence != before
    assert locks.call(lock.extend, 5) is True
    locks.expect(StaleFence, guard.write, before, "balance", 1)
    locks.call(guard.write, locks.lease(lock), "balance", 2)
    locks.call(lock.release)
    assert any_redis.client().get("r") is None


def test_polling_claims_too(locks: Locks) -> None:
    guard = locks.guard()
    locks.call(guard.claim, Fence("r", 2**51, "n" * 22))  # so that the first claim is refused
    lock = locks.make(timeout=10, guards=[guard], sleep=0.01)
    assert locks.call(lock.acquire) is True
    assert locks.fence(lock).number > 2**51
    assert locks.call(guard.mark, "r").is_of(locks.fence(lock))
    assert locks.token(lock) == locks.fence(lock).token.encode()
    locks.call(lock.release)


def test_a_guard_without_an_answer_gives_the_lock_back(locks: Locks, any_redis: RedisServer) -> None:
    class Silent:
        def claim(self, *holders: Any, timeout: float | None = None) -> None:
            raise GuardUnavailable("no answer")

        def mark(self, resource: str) -> None: ...

    class AsyncSilent:
        async def claim(self, *holders: Any, timeout: float | None = None) -> None:
            raise GuardUnavailable("no answer")

        async def mark(self, resource: str) -> None: ...

    lock = locks.make(timeout=10, guards=[AsyncSilent() if locks.side.asynchronous else Silent()])
    locks.expect(GuardUnavailable, lock.acquire)
    assert any_redis.client().get("r") is None
    assert locks.token(lock) is None


def test_a_lock_that_is_not_held_has_no_fence(locks: Locks) -> None:
    lock = locks.make()
    with pytest.raises(LockError) as caught:
        locks.fence(lock)
    assert isinstance(caught.value, ValueError)
    assert caught.value.lock_name == "r"
    assert locks.has_lease(lock) is False


def test_a_token_of_the_callers_own_is_never_shared(locks: Locks, any_redis: RedisServer) -> None:
    """The same token again is refused, however long it is: a job that is delivered twice often brings the same."""
    job = "0b0c3d6e-8f0a-4b43-9d83-6a0f5a0c8a5e"
    one, other = locks.make(timeout=10), locks.make(timeout=10)
    assert locks.call(one.acquire, token=job) is True
    assert locks.call(other.acquire, blocking=False, token=job) is False
    assert any_redis.client().get("r") == job.encode() == locks.token(one)
    assert locks.has_lease(one) is False
    with pytest.raises(ValueError):
        locks.fence(one)
    locks.call(one.extend, 5)
    assert any_redis.client().pttl("r") > 14_000
    locks.call(one.reacquire)
    assert any_redis.client().pttl("r") <= 10_000
    locks.call(one.release)
    assert any_redis.client().get("r") is None
    locks.expect(LockError, one.release)
    assert locks.call(one.acquire) is True
    assert locks.fence(one).number > 0
    locks.call(one.release)
    assert locks.call(one.acquire, token=job) is True
    assert locks.has_lease(one) is False, "not the lease of the acquire before"
    any_redis.client().delete("r")
    locks.expect(LockNotOwnedError, one.release)


@pytest.mark.parametrize("beyond", ["guards", "renew"])
def test_a_token_of_the_callers_own_excludes_guards_and_renewal(locks: Locks, beyond: str) -> None:
    lock = locks.make(timeout=10, **{beyond: [locks.guard()] if beyond == "guards" else True})
    error = locks.expect(ValueError, lock.acquire, token="job 42")
    assert "leave out" in str(error)
    assert locks.call(lock.locked) is False
    error = locks.expect(ValueError, locks.make().acquire, token=b"\xff")
    assert "UTF-8" in str(error)


def test_a_token_that_was_handed_over_releases_and_wakes_the_next(locks: Locks, any_redis: RedisServer) -> None:
    """Programs hand a lock over by setting ``local.token``. Without an offer the waiter would ask after 10 s."""
    first, second, waiter = locks.make(timeout=60), locks.make(timeout=60), locks.make(timeout=60)
    locks.call(first.acquire)
    token = locks.token(first)
    thread = threading.Thread(target=locks.call, args=(waiter.acquire,), daemon=True)
    thread.start()
    client = any_redis.client()
    locks.side.wait_until(lambda: client.zcard(KEYS.queue) == 1)
    locks.run(lambda: setattr(second.local, "token", token))
    locks.call(second.release)
    thread.join(30)
    assert not thread.is_alive()
    assert client.get("r") not in (None, token)


@pytest.mark.thorough
def test_a_loss_names_its_cause(any_redis: RedisServer) -> None:
    lock: Any = any_redis.client().lock("r", timeout=1, lock_class=RedisPyLock)
    lock.acquire()
    wait_until(lambda: lock.lease.remaining() == 0 and not any_redis.client().exists("r"))
    with pytest.raises(LockNotOwnedError, match=r"renewal was off \(renew=False\)"):
        lock.release()
