"""Functions that a user registers with `on_lost`."""

from __future__ import annotations

import threading

import pytest

from fencing import LeaseLost, MemoryCoordinator
from fencing.locks import callbacks as callbacks_module
from fencing.testing import ManualClock
from tests.support import wait_until
from tests.support.memory_side import MemorySide


def callback_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fencing-on-lost"]


def test_on_lost_is_called_with_the_loss(side: MemorySide) -> None:
    lease = side.call(side.coordinator(ttl=10).acquire, "r")
    calls: list[tuple[LeaseLost, str]] = []
    lease.on_lost(lambda error: calls.append((error, threading.current_thread().name)))
    side.take_away()
    side.clock.advance(4)
    side.wait_until(lambda: calls)
    [(error, thread)] = calls
    assert (error.reason, error.fence) == ("gone", lease.fence)
    assert thread == ("fencing-contract-loop" if side.asynchronous else "fencing-on-lost")
    assert side.call(lease.release) is False


def test_on_lost_after_the_loss_is_called_at_once(side: MemorySide) -> None:
    lease = side.call(side.coordinator(ttl=10, renew=False).acquire, "r")
    side.clock.advance(11)
    side.wait_until(lease.lost.is_set)
    calls: list[LeaseLost] = []

    async def register() -> None:  # on the event loop, where there is one
        lease.on_lost(calls.append)

    side.call(register)
    side.wait_until(lambda: calls)
    assert [(error.reason, error.fence) for error in calls] == [("expired", lease.fence)]
    assert side.call(lease.release) is False


def test_a_failing_callback_is_logged(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    lease = side.call(side.coordinator(ttl=10).acquire, "r")
    lease.on_lost(lambda error: 1 / 0)
    side.take_away()
    side.clock.advance(4)
    side.wait_until(lambda: "ZeroDivisionError" in caplog.text)
    assert "failed" in caplog.text
    assert side.call(lease.release) is False


def test_a_blocking_callback_blocks_neither_other_callbacks_nor_renewal() -> None:
    clock, permitted = ManualClock(), threading.Event()
    coordinator = MemoryCoordinator(clock=clock, ttl=10)
    blocking, other, kept = (coordinator.acquire(name) for name in ("blocking", "other", "kept"))
    calls: list[LeaseLost] = []
    blocking.on_lost(lambda error: permitted.wait(30) and None)
    other.on_lost(calls.append)
    coordinator.force_release("blocking")
    coordinator.force_release("other")
    clock.advance(4)
    wait_until(lambda: calls)
    assert [(error.fence, error.reason) for error in calls] == [(other.fence, "gone")]
    for _ in range(3):
        wait_until(lambda: kept.remaining() > 6)
        clock.advance(4)
    assert kept.held
    permitted.set()
    wait_until(lambda: not callback_threads())
    assert kept.release() is True
    assert not blocking.release()
    assert not other.release()


def test_callbacks_have_a_limited_number_of_threads() -> None:
    started, permitted = [], threading.Event()

    def callback(number: int) -> None:
        started.append(number)
        permitted.wait(30)

    for number in range(3 * callbacks_module.MAX_THREADS):
        callbacks_module.call_in_thread(callback, number)
    wait_until(lambda: len(started) == callbacks_module.MAX_THREADS)
    assert len(callback_threads()) == callbacks_module.MAX_THREADS
    permitted.set()
    wait_until(lambda: len(started) == 3 * callbacks_module.MAX_THREADS)
    wait_until(lambda: not callback_threads())
    assert sorted(started) == list(range(3 * callbacks_module.MAX_THREADS))
