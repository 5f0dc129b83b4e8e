"""Leases whose event loop is busy, hangs or is closed. The loop is blocked by a wait that does not await."""

from __future__ import annotations

import asyncio
import gc
import math
import re
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fencing import AsyncLease, AsyncMemoryCoordinator, LeaseLost, LockTable, MemoryCoordinator
from fencing.kernel import loop_thread, process
from fencing.kernel.timer import timer
from fencing.locks import callbacks, pulse
from fencing.locks.callbacks import call_in_thread
from fencing.testing import ManualClock
from tests.support import wait_until
from tests.support.loops import until

TTL = 10.0
STEP = 4.0
"""Seconds of the manual clock: more than a third of the ttl, so a renewal becomes due in each step."""

Story = Callable[[AsyncMemoryCoordinator, AsyncLease, ManualClock], Any]


def play(story: Story, **options: Any) -> None:
    """Run a story with a lease that is no longer young."""
    clock = ManualClock()

    async def main() -> None:
        async with AsyncMemoryCoordinator(LockTable(), clock=clock, ttl=TTL, **options) as coordinator:
            lease = await coordinator.acquire("r")
            await story(coordinator, lease, clock)

    asyncio.run(main())


def renewed(lease: AsyncLease) -> Callable[[], bool]:
    return lambda: lease.remaining() > TTL - STEP


def is_silent_for(lease: AsyncLease, coordinator: Any, seconds: float) -> Callable[[], bool]:
    mine: pulse.Pulse = coordinator._renewal._pulses[lease._holding.loop]
    return lambda: (mine.unanswered_seconds() or 0.0) > seconds


def test_a_body_that_computes_keeps_its_lease() -> None:
    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        other = MemoryCoordinator(coordinator.table, clock=clock)
        for _ in range(5):
            clock.advance(STEP)
            wait_until(renewed(lease))
            assert other.try_acquire("r") is None
        assert lease.held
        assert not lease.lost.is_set()
        assert await lease.release() is True

    play(story)


def test_a_loop_that_hangs_loses_its_lease() -> None:
    lost: list[LeaseLost] = []

    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        lease.on_lost(lost.append)
        clock.advance(STEP)  # the loop is asked
        wait_until(renewed(lease))
        wait_until(is_silent_for(lease, coordinator, 0.2))
        clock.advance(STEP)
        clock.advance(TTL)
        assert not lease.held
        other = MemoryCoordinator(coordinator.table, clock=clock).try_acquire("r")
        assert other is not None
        other.release()
        with pytest.raises(LeaseLost) as raised:
            lease.ensure_held()
        assert raised.value.reason == "expired"
        says = r"the event loop had not answered for \d+\.\d s, and stall_limit is 0\.2 s"
        assert re.fullmatch(says, raised.value.cause or "")
        await until(lambda: lost)
        assert "had not answered" in str(lost[0])
        assert lease.lost.is_set()

    play(story, stall_limit=0.2)


def test_a_loop_that_answers_again_in_time_keeps_its_lease() -> None:
    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        clock.advance(STEP)
        wait_until(renewed(lease))
        wait_until(is_silent_for(lease, coordinator, 0.1))
        clock.advance(STEP)
        assert lease._holding.hindrance is not None, "its renewal did not begin"
        silence = coordinator._renewal._pulses[asyncio.get_running_loop()]
        await until(lambda: silence._asked_at is None)
        clock.advance(1)  # soon, it is tried again
        await until(renewed(lease))
        assert lease._holding.hindrance is None
        assert await lease.release() is True

    play(story, stall_limit=0.1)


def test_a_busy_loop_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "WARNING_SECONDS", 0.05)

    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        for _ in range(3):
            clock.advance(STEP)
            wait_until(renewed(lease))
        wait_until(lambda: "the event loop has not answered for 0.1 s" in caplog.text)
        clock.advance(STEP)
        wait_until(renewed(lease))
        assert len(caplog.records) == 1
        assert "asyncio.to_thread" in caplog.text
        await until(lambda: "the event loop answers again, after" in caplog.text)
        assert len(caplog.records) == 2

    play(story)


def test_a_loop_that_was_closed_is_not_said_to_be_busy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked just before its end, so it never answers."""
    monkeypatch.setattr(pulse, "WARNING_SECONDS", 0.02)
    loop, logged = asyncio.new_event_loop(), threading.Event()
    pulse.Pulse(loop).unanswered_seconds()
    loop.close()
    timer().call_at(process.now() + 0.02, lambda: call_in_thread(lambda _: logged.set(), None), lambda: True)
    assert logged.wait(60), "what the timer had to log before is on its way"
    wait_until(lambda: not callbacks._worker.is_running)
    assert not caplog.records


def test_the_end_of_renewal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        others = [await coordinator.acquire(str(number)) for number in range(5)]
        clock.advance(STEP)
        wait_until(lambda: all(renewed(each)() for each in (lease, *others)))
        wait_until(is_silent_for(lease, coordinator, 0.1))
        clock.advance(STEP)
        clock.advance(1)
        wait_until(lambda: "0.1 s, the stall_limit of" in caplog.text)
        await until(lambda: "answers again" in caplog.text)
        assert caplog.text.count("is no longer renewed") == 1
        for each in others:
            await each.release()

    play(story, stall_limit=0.1)


def test_a_lease_whose_loop_was_closed_ends_at_its_next_renewal() -> None:
    clock = ManualClock()
    coordinator = AsyncMemoryCoordinator(clock=clock, ttl=TTL)
    lease = asyncio.run(coordinator.acquire("r"))
    lost = list[LeaseLost]()
    lease.on_lost(lost.append)
    clock.advance(STEP)
    assert not lease.held
    with pytest.raises(LeaseLost, match="its event loop was closed"):
        lease.ensure_held()
    assert not coordinator._renewal._thread.is_running
    clock.advance(TTL)

    async def later() -> None:
        assert lease.lost.is_set()
        async with await coordinator.acquire("r"):
            pass

    asyncio.run(later())


def test_its_callbacks_run_in_its_own_loop() -> None:
    threads: list[threading.Thread] = []

    async def story(coordinator: AsyncMemoryCoordinator, lease: AsyncLease, clock: ManualClock) -> None:
        lease.on_lost(lambda _: threads.append(threading.current_thread()))
        MemoryCoordinator(coordinator.table, clock=clock).force_release("r")
        waiting = asyncio.create_task(lease.lost.wait())
        await asyncio.sleep(0)
        clock.advance(STEP)
        await until(waiting.done)
        await until(lambda: threads)

    play(story)
    assert threads == [threading.current_thread()]


def test_leases_of_two_loops_do_not_depend_on_each_other() -> None:
    """One loop hangs; the lease of the other one goes on."""
    clock, table = ManualClock(), LockTable()
    coordinator = AsyncMemoryCoordinator(table, clock=clock, ttl=TTL, stall_limit=0.2)
    held, over = threading.Event(), threading.Event()
    leases: list[AsyncLease] = []

    async def hang() -> None:
        leases.append(await coordinator.acquire("hangs"))
        held.set()
        over.wait(90)

    thread = threading.Thread(target=asyncio.run, args=(hang(),))
    thread.start()
    assert held.wait(90)

    async def main() -> None:
        lease = await coordinator.acquire("r")
        clock.advance(STEP)
        await until(renewed(lease))
        wait_until(is_silent_for(leases[0], coordinator, 0.2))
        mine = coordinator._renewal._pulses[asyncio.get_running_loop()]
        for _ in range(4):
            await until(lambda: mine._asked_at is None)
            clock.advance(STEP)
            await until(renewed(lease))
        assert not leases[0].held
        assert await lease.release() is True

    try:
        asyncio.run(main())
    finally:
        over.set()
        thread.join()


def test_a_coordinator_that_nobody_has_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "LINGER_SECONDS", 0.05)

    async def main() -> None:
        clock = ManualClock()
        coordinator = AsyncMemoryCoordinator(clock=clock, ttl=TTL)
        lease = await coordinator.acquire("r")
        clock.advance(STEP)
        await until(renewed(lease))
        thread = coordinator._renewal._thread
        assert thread.is_running
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del coordinator, lease, clock
            gc.collect()
        await until(lambda: not thread.is_running)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (0, ValueError, "more than 0 seconds, not 0; leave it out for three times the ttl"),
        (-1.0, ValueError, "more than 0 seconds"),
        (math.nan, ValueError, "finite"),
        (math.inf, ValueError, "finite"),
        (None, TypeError, "a lease whose event loop hangs must end"),
        ("3", TypeError, "number of seconds, not str"),
    ],
)
def test_a_wrong_limit_is_refused(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        AsyncMemoryCoordinator(stall_limit=value)
    with pytest.raises(error, match=says):
        AsyncMemoryCoordinator().lock("r", stall_limit=value)


def test_the_limit_follows_the_ttl_of_the_lock() -> None:
    coordinator = AsyncMemoryCoordinator(ttl=5)
    assert coordinator._backend.settings.stall_seconds == 15
    assert coordinator.lock("r", ttl=2)._settings.stall_seconds == 6
    assert coordinator.lock("r", ttl=2, stall_limit=60)._settings.for_one_try().stall_seconds == 60


def test_threads_have_no_such_limit() -> None:
    with pytest.raises(TypeError, match=r"'stall_limit' is not an option .*threads renew leases beside every work"):
        MemoryCoordinator(stall_limit=3)  # type: ignore[call-arg]


@pytest.mark.thorough
def test_a_busy_body_is_real_time_too() -> None:
    """Without a clock that the test moves: three ttls of work, in one piece."""

    async def main() -> None:
        for ttl in (0.3, 1.2, 4.8):  # a busy machine needs a longer one
            async with AsyncMemoryCoordinator(ttl=ttl) as coordinator:
                lease = await coordinator.acquire("r")
                time.sleep(2 * ttl)  # noqa: ASYNC251 - this is the work
                if lease.held and await lease.release():
                    return
        raise AssertionError("it was lost, three times")

    asyncio.run(main())
