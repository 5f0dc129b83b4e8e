"""A wait for a lock whose holder may wait for the waiter: it is logged after a second, and never refused."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, LockTable, MemoryCoordinator, NotAcquired
from fencing.kernel import process
from fencing.kernel.timer import timer
from fencing.locks import long_waits, plans
from tests.support import wait_until
from tests.support.memory_side import MemorySide


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are long at once, so that no test takes a second."""
    monkeypatch.setattr(long_waits, "WARNING_SECONDS", 0.02)
    monkeypatch.setattr(long_waits, "STEP_SECONDS", 0.02)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Wait for the one warning, and return it."""

    def logged() -> str:
        wait_until(lambda: caplog.records)
        [record] = caplog.records
        assert (record.name, record.levelno) == ("fencing", logging.WARNING)
        return record.getMessage()

    return logged


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def hold(lock: Any) -> int:
    with lock.hold() as lease:
        return int(lease.fence.number)


def test_a_child_that_waits_for_the_block_of_its_parent(logged: Callable[[], str]) -> None:
    lock = MemoryCoordinator().lock("r")
    with lock.hold() as lease:
        child = in_thread(partial(contextvars.copy_context().run, hold, lock))
        text = logged()
    assert child.result(60) > lease.fence.number
    assert "s for the lock on 'r', inside a block that holds it, which thread 'MainThread' began; if that" in text


def test_a_child_task_that_waits_for_the_block_of_its_parent(logged: Callable[[], str]) -> None:
    lock = AsyncMemoryCoordinator().lock("r")

    async def child() -> int:
        async with lock.hold() as lease:
            return lease.fence.number

    async def parent() -> str:
        async with lock.hold() as lease:
            task = asyncio.create_task(child(), name="the child")
            text = await asyncio.to_thread(logged)
        assert await task > lease.fence.number
        return text

    async def main() -> str:
        return await asyncio.create_task(parent(), name="the parent")

    text = asyncio.run(main())
    assert text.startswith("task 'the child' has waited 0.")
    assert "inside a block that holds it, which task 'the parent' began" in text


def test_a_thread_that_its_holder_waits_for(logged: Callable[[], str]) -> None:
    """A thread inherits no context, so what its holder does is looked at."""
    lock = MemoryCoordinator().lock("r")
    leases: list[Any] = []

    def parent() -> None:
        with lock.hold() as lease:
            leases.append(lease)
            child = threading.Thread(target=hold, args=[lock], name="the child")
            child.start()
            child.join()

    holder = threading.Thread(target=parent, name="the parent")
    holder.start()
    text = logged()
    leases[0].release()
    holder.join(60)
    assert text.startswith("thread 'the child' has waited 0.")
    assert "which is held by a block of thread 'the parent'; that one stands in threading's " in text
    assert f" at {__file__}:" in text


def test_a_child_that_waits_for_all_slots_of_its_parent(logged: Callable[[], str]) -> None:
    slots = MemoryCoordinator().slots("gpu", 2)
    with slots.hold(), slots.hold():
        child = in_thread(partial(contextvars.copy_context().run, hold, slots))
        text = logged()
    assert child.result(60) > 0
    assert "s for the 2 slots of '{gpu}', inside blocks that hold all of them, which thread 'MainThread' began" in text


def test_a_thread_that_the_holder_of_all_slots_waits_for(logged: Callable[[], str]) -> None:
    slots = MemoryCoordinator().slots("gpu", 2)
    leases: list[Any] = []

    def parent() -> None:
        with slots.hold() as lease, slots.hold():
            leases.append(lease)
            child = threading.Thread(target=hold, args=[slots], name="the child")
            child.start()
            child.join()

    holder = threading.Thread(target=parent, name="the parent")
    holder.start()
    text = logged()
    leases[0].release()
    holder.join(60)
    assert "s for the 2 slots of '{gpu}', all held by blocks of thread 'the parent'; that one stands in thr" in text


def test_a_wait_for_slots_of_which_another_may_become_free_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[None] = []
    report = long_waits.LongWait.report
    monkeypatch.setattr(long_waits.LongWait, "report", lambda self: looked.append(report(self)))
    slots = MemoryCoordinator().slots("gpu", 2)
    other = in_thread(slots.acquire).result(60)
    with slots.hold():
        child = in_thread(partial(contextvars.copy_context().run, hold, slots))
        wait_until(lambda: looked)
        other.release()
        assert child.result(60) > 0
    assert not caplog.records


def test_a_sync_lock_that_stops_an_event_loop(logged: Callable[[], str]) -> None:
    lock = MemoryCoordinator().lock("r")

    async def wait() -> int:
        return hold(lock)

    with lock.hold() as lease:
        waiter = in_thread(lambda: asyncio.run(wait()))
        text = logged()
    assert waiter.result(60) > lease.fence.number
    assert "and stops the event loop of its thread: use an asyncio coordinator, or asyncio.to_thread" in text
    assert text.endswith("; the holder is in this process: a block that thread 'MainThread' began")


@pytest.mark.parametrize("here", [True, False])
def test_other_waits_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, here: bool
) -> None:
    table = LockTable()
    lock = MemoryCoordinator(table).lock("r")
    holder = lock if here else MemoryCoordinator(table).lock("r")
    looked: list[None] = []
    report = long_waits.LongWait.report
    monkeypatch.setattr(long_waits.LongWait, "report", lambda self: looked.append(report(self)))
    is_held: list[None] = []

    def wait() -> int:
        while not is_held:
            time.sleep(0.001)
        return hold(lock)

    waiters = [in_thread(wait) for _ in range(3)]  # before: this thread waits for each of them to start
    with holder.hold():
        is_held.append(None)
        while len(looked) < 3:
            time.sleep(0.001)  # the thread of the holder computes: it waits for no other
    assert len({waiter.result(60) for waiter in waiters}) == 3
    assert not caplog.records


def test_a_short_wait_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "begin_wait", lambda *_: pytest.fail("it is watched"))
    lock = MemoryCoordinator().lock("r")
    with lock.hold(), pytest.raises(NotAcquired):
        in_thread(lambda: lock.acquire(timeout=0.001)).result(60)


def test_the_error_says_that_this_process_has_it(side: MemorySide) -> None:
    coordinator = side.kind(side.table, owner="me")  # on the real clock
    lease = side.call(coordinator.acquire, "r")
    error = side.expect(NotAcquired, coordinator.acquire, "r", timeout=0.001)
    assert error.held_by_this == "process"
    assert "'r' is held by this very process, whose label is me; it was not acquired within" in str(error)
    other = side.expect(NotAcquired, side.kind(side.table).acquire, "r", timeout=0.001)
    assert other.held_by_this is None
    side.call(lease.release)


def test_a_slow_log_delays_no_renewal() -> None:
    """The timer drives the renewals of all leases. A handler of the log may block, or take a lock itself."""

    class Slow(logging.Handler):
        begun, may_end = threading.Event(), threading.Event()

        def emit(self, record: logging.LogRecord) -> None:
            self.begun.set()
            self.may_end.wait(60)

    handler, ticked = Slow(), threading.Event()
    logger = logging.getLogger("fencing")
    logger.addHandler(handler)
    lock = MemoryCoordinator().lock("r")
    try:
        with lock.hold():
            child = in_thread(partial(contextvars.copy_context().run, hold, lock))
            assert handler.begun.wait(60)
            timer().call_at(process.now(), ticked.set, lambda: True)
            assert ticked.wait(30)
    finally:
        handler.may_end.set()
        logger.removeHandler(handler)
    assert child.result(60)
