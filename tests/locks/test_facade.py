"""What coordinators and locks show of themselves, and their methods with the options of one call."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import redis
import redis.asyncio

import fencing
from fencing import AsyncRedisCoordinator, Coordinator, RedisCoordinator, hold_all
from fencing.compat import RedisPyLock
from fencing.memory.table import LockTable
from fencing.testing import ManualClock
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.memory_side import MemorySide


def test_options_of_one_call(side: MemorySide) -> None:
    coordinator = side.coordinator(owner="the coordinator")
    guard: Any = (AsyncMemoryGuard if side.asynchronous else MemoryGuard)()
    options: dict[str, Any] = {"ttl": 60, "owner": "this call", "guards": [guard], "renew": False}
    for number, lease in enumerate(
        [
            side.call(coordinator.acquire, "r", timeout=1, **options),
            side.call(coordinator.try_acquire, "s", **options),
        ]
    ):
        holder = side.holder("rs"[number])
        assert holder.owner == "this call"
        assert 55 < holder.remaining <= 60
        assert side.call(guard.mark, "rs"[number]).number == lease.fence.number
        side.call(lease.release)
    hold = coordinator.hold("t", timeout=1, **options)
    side.call(hold.__aenter__ if side.asynchronous else hold.__enter__)
    assert side.holder("t").owner == "this call"
    side.call(hold.__aexit__ if side.asynchronous else hold.__exit__, None, None, None)
    plain = side.call(coordinator.acquire, "r")
    assert side.holder("r").owner == "the coordinator"
    side.call(plain.release)
    for call in (coordinator.acquire, coordinator.try_acquire, coordinator.hold, coordinator.lock):
        with pytest.raises(TypeError, match="did you mean 'ttl'"):
            side.call(call, "r", tll=60)


def test_what_cannot_be_pickled_or_copied_says_what_to_do(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lock = coordinator.lock("r")
    lease = side.call(lock.acquire)
    for value, says in (
        (coordinator, "make one in each process"),
        (lock, "send the name, and make the lock there"),
        (lease, "send str(lease.detach()), and adopt it there"),
    ):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError) as caught:
                attempt(value)
            assert says in str(caught.value)
    assert lease.held
    side.call(lease.release)


@pytest.mark.parametrize("kind", [RedisCoordinator, AsyncRedisCoordinator])
def test_a_coordinator_on_redis_shows_where_it_is_and_no_secrets(kind: Any) -> None:
    package: Any = redis if kind is RedisCoordinator else redis.asyncio
    guard = MemoryGuard() if kind is RedisCoordinator else AsyncMemoryGuard()
    client = package.Redis.from_url("redis://worker:secret@127.0.0.1:1234/5")
    shown = repr(kind(client, ttl=2.5, renew=False, guards=[guard]))
    assert shown == (f"<{kind.__name__} at 127.0.0.1:1234, database 5, ttl 2.5 s, renew=False, guards [{guard!r}]>")
    assert "secret" not in shown
    assert repr(kind(client)) == f"<{kind.__name__} at 127.0.0.1:1234, database 5, ttl 10 s>"


def test_a_lease_outlives_its_coordinator_and_is_renewed(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=9)
    seen = weakref.ref(coordinator), weakref.ref(coordinator._backend)
    lease = side.call(coordinator.acquire, "r")
    del coordinator
    gc.collect()
    assert [each() is None for each in seen] == [True, False]
    side.clock.advance(4)
    side.wait_until(lambda: lease.remaining() > 8)
    assert side.call(lease.release) is True


def test_dir_shows_the_public_names_of_the_package() -> None:
    assert {name for name in dir(fencing) if not name.startswith("_")} >= {"Coordinator", "FencedLock"}
    assert "__version__" in dir(fencing)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert fencing.__version__ == version("fencing")


def test_the_base_shows_itself_too(side: MemorySide) -> None:
    assert repr(side.coordinator()) == f"<{side.kind.__name__} at memory, ttl 10 s>"
    assert isinstance(Coordinator.__doc__, str)


def test_reprs_name_what_they_are(side: MemorySide) -> None:
    one, two = side.coordinator().lock("one"), side.coordinator().lock("two")
    with pytest.warns(RuntimeWarning, match="never entered"):
        assert repr(one.hold()) == f"<{'AsyncHold' if side.asynchronous else 'Hold'} of 'one'>"
    with pytest.warns(RuntimeWarning, match="never entered"):
        assert repr(hold_all([one, two])).endswith("HoldAll of 'one', 'two'>")
    assert repr(LockTable()) == "<LockTable of 0 locks>"
    assert repr(ManualClock(5)) == "<ManualClock at 5 s>"
    assert repr(redis.Redis().lock("one", lock_class=RedisPyLock)) == "<RedisPyLock of 'one'>"
