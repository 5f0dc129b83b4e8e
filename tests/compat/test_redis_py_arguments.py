"""The arguments of ``fencing.compat``'s locks: those that redis-py takes, too, and those that are refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import Fence
from fencing.compat import AsyncRedisPyLock, RedisPyLock
from fencing.compat.redis_py_base import LockLost, LockUnavailable
from fencing.redis.keys import keys_of
from tests.support.compat_locks import Locks
from tests.support.sides import Side

KEYS = keys_of("r")


def test_without_a_timeout_there_is_no_ttl(locks: Locks, any_redis: RedisServer) -> None:
    for timeout in (None, 0):
        lock = locks.make(timeout=timeout, renew=True)
        assert locks.block(lock, lambda: any_redis.client().pttl("r")) == -1
    lock.timeout = 30  # redis-py reads it at each acquire
    assert 29_000 < locks.block(lock, lambda: any_redis.client().pttl("r")) <= 30_000


@pytest.mark.parametrize("timeout", [0.001, -1, float("nan"), float("inf"), True, "10"])
def test_a_wrong_timeout_is_refused(locks: Locks, timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout must be"):
        locks.make(timeout=timeout)


@pytest.mark.parametrize("name", [b"\xff", "", "fencing:1", "n" * 513])
def test_a_name_that_is_no_resource_is_refused(locks: Locks, name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        locks.make(name)


def test_the_key_is_that_of_redis_py_for_every_name(locks: Locks, any_redis: RedisServer) -> None:
    for name in ("naïve", b"bytes", memoryview(b"view"), 42):
        lock = locks.make(name)
        assert locks.call(lock.acquire)
        assert locks.call(lock.owned)
        locks.call(lock.release)
    latin = locks.connect(any_redis.url, encoding="latin-1", decode_responses=True)
    with pytest.raises(ValueError, match="UTF-8"):
        locks.make("naïve", client=latin)
    lock = locks.make("ascii", client=latin)
    assert locks.call(lock.acquire)
    assert locks.call(lock.owned)
    locks.call(lock.release)


def test_what_is_no_client_is_refused(side: Side, any_redis: RedisServer) -> None:
    kind: Any = AsyncRedisPyLock if side.asynchronous else RedisPyLock
    for wrong in (any_redis.url, None, Side(not side.asynchronous).client(any_redis.url)):
        with pytest.raises(TypeError):
            kind(wrong, "r")
    with pytest.raises(TypeError, match=f"^{kind.__name__} takes a client"):
        kind(any_redis.url, "r")
    with pytest.raises(TypeError, match="guards"):
        kind(side.client(any_redis.url), "r", guards=object())
    with pytest.raises(TypeError, match="renew"):
        kind(side.client(any_redis.url), "r", renew=1)


def test_errors_can_be_pickled_and_locks_cannot(locks: Locks) -> None:
    lost = LockLost(fence=Fence("r", 1, "t" * 22), reason="gone")
    away = LockUnavailable("no answer", resource="r", address="here:1")
    for error in (lost, away):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), copied.__dict__) == (type(error), str(error), error.__dict__)
    assert "lease" in str(lost)
    assert issubclass(LockLost, ValueError)  # as all of redis-py's LockErrors
    for thread_local in (True, False):  # redis-py's cannot be pickled either: they refer to the client
        with pytest.raises(TypeError):
            pickle.dumps(locks.make(thread_local=thread_local))
