"""A fork while other threads are busy in every lock of the package: the child can use all of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from fencing import Fence, FencedLock, MemoryCoordinator, RedisCoordinator
from fencing.kernel import process
from fencing.kernel.timer import timer
from fencing.locks import callbacks, clients
from fencing.locks.callbacks import call_in_thread
from storage_guards import MemoryGuard
from tests.support.forks import in_child, run_with_unnoticed_forks

THREADS = 3
FORKS = 4


def _nothing(*_: object) -> bool:
    return False


class Everything:
    """Operations that take every lock of the package."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis = RedisCoordinator(redis.Redis.from_url(url), ttl=60)
        self.memory = MemoryCoordinator(ttl=60)
        self.guard = MemoryGuard(timeout=5)
        self.fence = Fence("r", 1, "t" * 22)
        self.guard.claim(self.fence)
        self.operations: list[Callable[[], Any]] = [
            partial(self._hold, self.redis, "redis"),
            partial(self._hold, self.memory, "memory"),
            partial(self.guard.write, self.fence, "key", 1),
            lambda: FencedLock(redis.Redis.from_url(url), "r"),
            lambda: timer().call_at(process.now() + 0.001, _nothing, _nothing),
            partial(call_in_thread, _nothing, None),
            self._renew,
        ]

    def _hold(self, coordinator: Any, name: str) -> None:
        with coordinator.hold(name, timeout=10) as lease:
            lease.lost.wait(0)

    def _renew(self) -> None:
        lease = self.memory.acquire(f"{threading.get_ident()}")
        self.memory._renewal._submit([lease._holding])
        lease.release()

    def use(self) -> None:
        for operation in self.operations:
            operation()


@pytest.mark.thorough
def test_a_fork_while_threads_are_busy(any_redis: RedisServer) -> None:
    everything = Everything(any_redis.url)
    ended = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set():
                everything.use()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()

    def check() -> None:
        any_redis.client().delete("redis")  # the lock of a thread of the parent
        everything.memory.table._held.clear()
        everything.use()

    try:
        for _ in range(FORKS):
            in_child(check)
            assert os.getpid() == process.pid()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    everything.use()
    assert not [error for error in errors if "LeaseLost" not in repr(error)]


def locks_of(everything: Everything, lease: Any) -> list[Any]:
    """Return every lock of the package that a thread can hold while another one forks."""
    owners = [
        clients._shared,
        timer(),
        timer()._worker,
        callbacks._worker,
        everything.memory.table,
        lease,
        *(coordinator._give_back._worker for coordinator in (everything.redis, everything.memory)),
        *(part for lane in everything.memory._renewal._lanes.values() for part in (lane, lane.worker, lane.others)),
        everything.redis._backend._connections._pool,
        everything.redis._backend._listener,
    ]
    found = [value for owner in owners for value in vars(owner).values() if isinstance(value, LOCKS)]
    assert len(found) >= len(owners), "each of them has one"
    return found


LOCKS = (type(threading.Lock()), type(threading.RLock()))


def test_a_fork_while_a_thread_holds_every_lock(any_redis: RedisServer) -> None:
    everything = Everything(any_redis.url)
    everything.use()
    lease = everything.redis.acquire("leased")
    locks = locks_of(everything, lease)
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            assert lock.acquire(timeout=10)
        with everything.guard.begin(everything.fence):
            held.set()
            ended.wait(60)
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()

    def check() -> None:
        everything.use()
        assert lease.release() is False

    try:
        assert held.wait(20)
        in_child(check)
    finally:
        ended.set()
        thread.join()
    assert lease.release() is True


def test_two_children_of_which_python_was_not_told_are_two_holders(any_redis: RedisServer) -> None:
    """As two workers of uWSGI. Tokens are made in advance: with the same one, the second request for the lock would be
    a repetition of the first, and both would have the same fence."""
    said = run_with_unnoticed_forks(
        """
import redis
from fencing import NotAcquired, RedisCoordinator

coordinator = RedisCoordinator(redis.Redis.from_url(sys.argv[1]), ttl=60)
coordinator.acquire("warm").release()

def acquire():
    try:
        coordinator.acquire("r", timeout=0)
        print("acquired")
    except NotAcquired:
        print("refused")

in_child(acquire)
in_child(acquire)
""",
        any_redis.url,
    )
    assert said.split() == ["acquired", "refused"]
