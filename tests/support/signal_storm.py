"""A process that interrupts the package's operations with real signals, as often as it can, and then uses them.

`python -m tests.support.signal_storm NAMES SECONDS REDIS_URL` does so for some seconds each, and prints how often it
interrupted them. It ends with a traceback of all threads if an operation hangs.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial

import redis
from obstore.store import MemoryStore

from fencing import FencedLock, MemoryCoordinator, RedisCoordinator
from fencing.kernel import process
from fencing.kernel.fence import Fence
from fencing.kernel.lending import Pool
from fencing.kernel.timer import timer
from fencing.locks.callbacks import call_in_thread
from fencing.locks.clients import coordinator_of
from fencing.locks.waiting import Enlist
from storage_guards import MemoryGuard, ObjectStoreGuard

HANGS_AFTER = 90.0

Operation = Callable[[], object]


class Failure(Exception):
    """An exception of a signal handler that is caught by `except Exception`."""


class Exit(BaseException):
    """One that is not."""


def interrupt(operation: Operation, seconds: float) -> int:
    """Repeat the operation, and interrupt it at random moments. Return how often it was interrupted."""

    def handle(signum: int, frame: object) -> None:
        raise (Failure if random.random() < 0.5 else Exit)

    signal.signal(signal.SIGALRM, handle)
    end, hits = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 4e-4))
            given_up_at = time.monotonic() + 0.02  # an exception in a destructor is not raised
            while time.monotonic() < given_up_at:
                operation()
        except (Failure, Exit):
            hits += 1
    return hits


def _nothing(*_: object) -> bool:
    return False


def _memory_hold(coordinator: MemoryCoordinator) -> None:
    with coordinator.hold("r", timeout=5):
        pass


def _lost_events() -> Operation:
    coordinator = MemoryCoordinator(ttl=30)
    lease = coordinator.acquire("r")
    threads: list[threading.Thread] = []

    def operation() -> None:
        lease.lost.wait(0.00001)
        if not threads:
            lease.lost.set()
            lease.lost.clear()

    return operation


def _on_lost() -> Operation:
    coordinator = MemoryCoordinator(ttl=30)
    lease = coordinator.acquire("r")
    lease._holding.lose("gone")
    return partial(lease.on_lost, _nothing)


def _renewals() -> Operation:
    coordinator = MemoryCoordinator(ttl=30)
    lease = coordinator.acquire("r")
    return partial(coordinator._renewal._submit, [lease._holding])


def _guard() -> Operation:
    guard = MemoryGuard(timeout=2)
    fence = Fence("r", 1, "t" * 22)
    guard.claim(fence)
    return partial(guard.write, fence, "key", 1)


def _object_guard() -> Operation:
    guard = ObjectStoreGuard(MemoryStore(), timeout=2)
    fence = Fence("r", 1, "t" * 22)
    guard.claim(fence)
    return partial(guard.mark, "r")


def _probe() -> Operation:
    guard = ObjectStoreGuard(MemoryStore(), timeout=10)

    def operation() -> None:
        guard._report = None
        guard.verify()

    return operation


def _redis_hold(url: str) -> Operation:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=60)

    def operation() -> None:
        with coordinator.hold("r", timeout=10):
            pass

    return operation


def _redis_more_than_its_connections(url: str) -> Operation:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=60)

    def work() -> None:
        while True:
            try:
                coordinator.holder("r")
            except Exception:  # noqa: BLE001 - the test looks at the main thread
                return

    for _ in range(20):
        threading.Thread(target=work, daemon=True).start()
    return partial(coordinator.holder, "r")


class _Lent:
    used = float("inf")

    def close(self) -> None:
        pass


def _pool() -> Operation:
    """Two objects for five threads, which mostly wait for one."""
    pool = Pool(_Lent, 2)

    def operation() -> None:
        lent = pool.take(5)
        try:
            _nothing()
        finally:
            pool.give_back(lent)

    def work() -> None:
        while True:
            operation()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    return operation


def _enlist(url: str) -> Operation:
    coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=60)

    def operation() -> None:
        listener = coordinator._backend._listener
        listener.perform(Enlist("r", "t" * 22, 5.0))
        connection, listener._connection = listener._connection, None
        if connection is not None:
            connection.close()

    return operation


def _clients(url: str) -> Operation:
    def operation() -> None:
        FencedLock(redis.Redis.from_url(url), "r")

    coordinator_of(redis.Redis.from_url(url), asynchronous=False)
    return operation


OPERATIONS: dict[str, Callable[..., Operation]] = {
    "timer": lambda: lambda: timer().call_at(process.now() + 0.001, _nothing, _nothing),
    "renewal": _renewals,
    "callbacks": _on_lost,
    "lost": _lost_events,
    "hold": lambda: partial(_memory_hold, MemoryCoordinator(ttl=60)),
    "guard": _guard,
    "object guard": _object_guard,
    "probe": _probe,
    "redis": _redis_hold,
    "pool": _pool,
    "connections": _redis_more_than_its_connections,
    "listener": _enlist,
    "clients": _clients,
}
"""Makes each operation. Those with an argument get the URL of a Redis."""


def _works(operation: Operation) -> None:
    """Use what the operation uses, in this thread and in another one."""
    operation()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            operation()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def main(names: str, seconds: str, url: str) -> None:
    faulthandler.dump_traceback_later(HANGS_AFTER + len(OPERATIONS) * float(seconds), exit=True)
    warnings.simplefilter("ignore")
    sys.unraisablehook = _nothing  # an exception in a destructor
    hits = 0
    for name in names.split(",") if names else OPERATIONS:
        print(name, file=sys.stderr, flush=True)
        make = OPERATIONS[name]
        operation = make(url) if make.__code__.co_argcount else make()
        operation()
        hits += interrupt(operation, float(seconds))
        _works(operation)
    called, ticked = threading.Event(), threading.Event()
    call_in_thread(lambda _: called.set(), None)
    assert called.wait(60), "callbacks are no longer called"
    timer().call_at(process.now(), ticked.set, lambda: True)
    assert ticked.wait(60), "the timer no longer runs"
    print(hits, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads that the operations left may be at anything
