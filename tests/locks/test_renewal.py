"""Automatic renewal: when leases are renewed, when they are lost, and the thread or task that renews them."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import Any, NoReturn

import pytest

from fencing import AsyncMemoryCoordinator, Lease, LeaseLost, MemoryCoordinator
from fencing.kernel import loop_thread
from fencing.kernel import timer as timer_module
from fencing.kernel.fence import Fence, HasFence
from fencing.kernel.workers import Worker
from fencing.locks import renewal as renewal_module
from fencing.locks.lanes import MOST_AT_ONCE
from fencing.testing import ManualClock
from tests.support import wait_until
from tests.support.loops import until
from tests.support.memory_side import MemorySide, SlowCoordinator

TTL = 10.0
STEP = 4.0
"""Seconds of the manual clock: more than a third of the ttl, so a renewal becomes due in each step."""


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def pass_a_renewal(side: MemorySide, *leases: Any) -> None:
    """Move the clock until the leases are due, and wait until they are renewed."""
    side.clock.advance(STEP)
    side.wait_until(lambda: all(lease.remaining() > TTL - STEP for lease in leases))


# While it is held


def test_a_lease_outlives_its_ttl_and_keeps_its_fence(side: MemorySide) -> None:
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    fence = lease.fence
    for _ in range(20):
        pass_a_renewal(side, lease)
    assert lease.held
    assert not lease.lost.is_set()
    assert lease.fence == fence
    assert side.holder().number == fence.number
    assert side.call(lease.release) is True


def test_without_renewal_a_lease_expires_with_its_ttl(side: MemorySide) -> None:
    one, two = side.coordinator(ttl=TTL, renew=False), side.coordinator(owner="two")
    lease = side.call(one.acquire, "r")
    side.clock.advance(9.8)
    assert lease.held
    assert side.call(two.try_acquire, "r") is None
    side.clock.advance(0.3)
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    second = side.call(two.acquire, "r", timeout=0)
    assert second.fence.number > lease.fence.number
    assert side.call(one.holder, "r").owner == "two"
    assert side.call(lease.release) is False
    assert side.call(second.release) is True


def test_automatic_renewal_ends_with_the_maximal_lifetime(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL, max_lifetime=20)
    lease = side.call(coordinator.acquire, "r")
    lost = lease.lost
    for _ in range(5):
        pass_a_renewal(side, lease)

    def lost_a_second_later() -> bool:
        side.clock.advance(1)
        return bool(lost.is_set())

    side.wait_until(lost_a_second_later)
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    assert side.call(coordinator.holder, "r") is None
    assert side.call(lease.release) is False


def test_renewal_starts_before_the_claims(side: MemorySide) -> None:
    """A claim that takes three times the ttl does not cost the lease."""

    def renewed() -> bool:
        return bool(side.holder().remaining > TTL - STEP)

    class SlowGuard:
        def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
            for _ in range(8):
                side.clock.advance(STEP)
                wait_until(renewed)

        def mark(self, resource: str) -> None: ...

    class AsyncSlowGuard:
        async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
            for _ in range(8):
                side.clock.advance(STEP)
                await until(renewed)

        async def mark(self, resource: str) -> None: ...

    guard = AsyncSlowGuard() if side.asynchronous else SlowGuard()
    lease = side.call(side.coordinator(ttl=TTL, guards=[guard]).acquire, "r", timeout=100)
    assert lease.held
    side.call(lease.renew)
    assert side.call(lease.release) is True


def test_many_leases_are_renewed_in_few_requests(side: MemorySide, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    ask = side.table.ask

    def counted(request: Any, now: float) -> Any:
        requests.append(request.operation)
        return ask(request, now)

    coordinator = side.coordinator(ttl=TTL)
    leases = [side.call(coordinator.acquire, f"r{number}") for number in range(300)]
    monkeypatch.setattr(side.table, "ask", counted)
    for _ in range(3):
        pass_a_renewal(side, *leases)
    assert set(requests) == {"renew"}
    assert len(requests) < 60, "900 renewals, due at a few moments of each round"
    for lease in leases:
        assert side.call(lease.release) is True


def test_a_lock_may_have_another_ttl_than_its_coordinator(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=300)
    short = side.call(coordinator.lock("short", ttl=TTL).acquire)
    long = side.call(coordinator.acquire, "long")
    for _ in range(5):
        pass_a_renewal(side, short)
    assert short.held
    assert long.held
    assert short.remaining() <= TTL < long.remaining()
    assert side.call(short.release) is side.call(long.release) is True


def test_the_log_is_empty_when_all_is_well(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fencing"):
        lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
        for _ in range(3):
            pass_a_renewal(side, lease)
        side.call(lease.release)
    assert not [record for record in caplog.records if record.name == "fencing"]


# When it is lost


def test_a_lock_that_is_gone_is_lost_at_the_next_renewal(side: MemorySide) -> None:
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    lost = lease.lost
    side.take_away()
    side.clock.advance(STEP)
    side.wait_until(lost.is_set)
    assert side.clock() < lease._holding.deadline, "not at the deadline"
    assert side.expect(LeaseLost, lease.ensure_held).reason == "gone"
    assert side.holder() is None, "renewal did not take it again"
    assert side.call(lease.release) is False


def test_a_service_without_answers_means_lost_at_the_deadline(side: MemorySide) -> None:
    coordinator, other = side.coordinator(ttl=TTL), side.coordinator(ttl=TTL)
    leases = [side.call(coordinator.acquire, f"r{number}") for number in range(5)]
    neighbour = side.call(other.acquire, "r")
    events = [lease.lost for lease in leases]
    side.cut_off(coordinator)
    pass_a_renewal(side, neighbour)
    pass_a_renewal(side, neighbour)
    assert all(lease.held for lease in leases)
    pass_a_renewal(side, neighbour)
    side.wait_until(lambda: all(event.is_set() for event in events))
    assert {side.expect(LeaseLost, lease.ensure_held).reason for lease in leases} == {"expired"}
    assert neighbour.held, "another coordinator's lease is renewed meanwhile"
    side.reconnect(coordinator)
    assert not any(side.call(lease.release) for lease in leases)
    assert side.call(neighbour.release) is True


def test_a_renewal_without_an_answer_is_repeated_soon(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL)
    lease = side.call(coordinator.acquire, "r")
    side.cut_off(coordinator)
    side.clock.advance(STEP)
    side.wait_until(lambda: lease._holding.due is not None)  # the first attempt has failed
    side.reconnect(coordinator)
    side.clock.advance(1)
    side.wait_until(lambda: lease.remaining() > TTL - STEP)
    assert side.call(lease.release) is True


def test_a_loss_is_noticed_by_one_step_of_the_clock_over_all_moments(side: MemorySide) -> None:
    lost: list[LeaseLost] = []
    lease = side.call(side.coordinator(ttl=TTL, renew=False).acquire, "r")
    lease.on_lost(lost.append)
    side.clock.advance(11)
    side.wait_until(lambda: lease.lost.is_set() and lost)
    assert lost[0].reason == "expired"


def test_the_deadline_is_watched_while_the_renewal_hangs() -> None:
    clock, stuck, permitted = ManualClock(), threading.Event(), threading.Event()
    coordinator = MemoryCoordinator(clock=clock, ttl=TTL)
    lease = coordinator.acquire("r")
    perform = coordinator._backend.perform

    def hang(effect: Any) -> Any:
        stuck.set()
        permitted.wait(30)
        return perform(effect)

    coordinator._backend.perform = hang  # type: ignore[method-assign]
    clock.advance(STEP)
    assert stuck.wait(30)
    assert lease.held
    clock.advance(TTL)
    assert lease.lost.is_set()
    permitted.set()
    assert lease.release() is False


def test_a_collected_lease_is_not_renewed(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL)
    leases = [side.call(coordinator.acquire, "r")]
    leases[0].on_lost(leases[0].__ne__)  # a reference cycle through the lease itself
    leases.clear()
    with pytest.warns(ResourceWarning, match="was never released"):
        gc.collect()
    for _ in range(3):
        side.clock.advance(STEP)
    assert side.holder() is None


# The thread or the task that renews


def test_an_unforeseen_error_is_logged_and_renewal_continues(
    side: MemorySide, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = side.coordinator(ttl=TTL)
    lease = side.call(coordinator.acquire, "r")
    plan_renew_each = coordinator._backend.plan_renew_each
    failures = iter([True, True])

    def failing(*args: Any, **options: Any) -> Any:
        if next(failures, False):
            raise ZeroDivisionError("unforeseen")
        return plan_renew_each(*args, **options)

    monkeypatch.setattr(coordinator._backend, "plan_renew_each", failing)
    side.clock.advance(STEP)
    side.wait_until(lambda: "unforeseen" in caplog.text and lease._holding.due is not None)
    side.clock.advance(1)
    side.wait_until(lambda: caplog.text.count("ZeroDivisionError: unforeseen") == 2 and lease._holding.due is not None)
    side.clock.advance(1)
    side.wait_until(lambda: lease.remaining() > TTL - STEP)
    assert "renewing 1 leases failed" in caplog.text
    assert side.call(lease.release) is True


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
def test_closing_takes_a_second_however_many_locks_are_held(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = side.coordinator(ttl=TTL)
    leases = [side.call(coordinator.acquire, str(i)) for i in range(9)]
    perform, asked = coordinator._backend.perform, list[Any]()

    def perform_slowly(effect: Any) -> Any:
        asked.append(effect.operation)
        side.clock.advance(0.4)
        return perform(effect)

    async def perform_slowly_async(effect: Any) -> Any:
        return await perform_slowly(effect)

    coordinator._backend.perform = perform_slowly_async if side.asynchronous else perform_slowly
    side.call(coordinator.close)
    assert asked == ["release"] * 3
    assert "6 locks were held that could not be released" in caplog.text
    assert [lease.held for lease in leases].count(True) == 6
    assert all(side.call(lease.release) for lease in leases), "the end of a block still releases"


def test_a_renewal_that_is_under_way_when_the_coordinator_is_closed(
    side: MemorySide, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is closed under it. That is no failure to report."""
    coordinator = side.coordinator(ttl=TTL)
    lease = side.call(coordinator.acquire, "r")
    asked, closed = threading.Event(), threading.Event()
    performs = coordinator._backend.perform

    def fail() -> NoReturn:
        raise RuntimeError("this coordinator was closed")

    def perform(effect: Any) -> Any:
        if effect.operation != "renew":
            return performs(effect)
        asked.set()
        if side.asynchronous:
            return fail_later()
        closed.wait(10)
        fail()

    async def fail_later() -> NoReturn:
        await until(closed.is_set)
        fail()

    coordinator._backend.perform = perform
    side.clock.advance(STEP)
    side.wait_until(asked.is_set)
    side.call(coordinator.close)
    assert side.holder() is None
    closed.set()
    side.wait_until(lambda: lease._holding.due is not None)  # it has failed
    assert "Traceback" not in caplog.text


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, failures = ManualClock(), iter([True])
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name == "fencing-renewal" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    coordinator = MemoryCoordinator(clock=clock, ttl=TTL)
    first = coordinator.acquire("first")
    with pytest.raises(RuntimeError, match="can't start"):  # the library's own timer logs it
        clock.advance(STEP)
    clock.advance(TTL)
    assert first.lost.is_set()
    second = coordinator.acquire("second")
    clock.advance(STEP)
    wait_until(lambda: second.remaining() > TTL - STEP)
    assert second.release() is True
    assert first.release() is False


def test_one_thread_of_a_lane_renews_all_where_no_other_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    wake, refused = Worker.wake, list[Worker]()

    def failing(worker: Worker, work: Any) -> None:
        if worker._most > 1:
            refused.append(worker)
            raise RuntimeError("can't start new thread")
        wake(worker, work)

    monkeypatch.setattr(Worker, "wake", failing)
    clock = ManualClock()
    with MemoryCoordinator(clock=clock, ttl=TTL) as coordinator:
        coordinator._backend.max_renewals = 1
        leases = [coordinator.acquire(str(i)) for i in range(10)]
        for _ in range(3):
            clock.advance(STEP)
            wait_until(lambda: all(lease.remaining() > TTL - STEP for lease in leases))
        assert refused
        assert all(lease.release() for lease in leases)


def test_the_thread_ends_after_the_last_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal_module, "LINGER_SECONDS", 0.05)
    worked: set[threading.Thread] = set()
    clock = ManualClock()
    coordinator = MemoryCoordinator(clock=clock, ttl=TTL)
    perform = coordinator._backend.perform

    def noted(effect: Any) -> Any:
        if threading.current_thread().name == "fencing-renewal":
            worked.add(threading.current_thread())
        return perform(effect)

    monkeypatch.setattr(coordinator._backend, "perform", noted)
    one, two = coordinator.acquire("one"), coordinator.acquire("two")
    clock.advance(STEP)
    wait_until(lambda: one.remaining() > TTL - STEP and two.remaining() > TTL - STEP)
    one.release()
    clock.advance(STEP)
    wait_until(lambda: two.remaining() > TTL - STEP)
    two.release()
    [lane] = coordinator._renewal._lanes.values()
    wait_until(lambda: not lane.worker.is_running)
    for thread in worked:
        thread.join(10)
    assert worked
    assert not any(thread.is_alive() for thread in worked)


@pytest.mark.thorough
def test_short_holdings_start_no_thread_and_leave_no_calls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_module, "LINGER_SECONDS", 0.05)
    coordinator = MemoryCoordinator(ttl=30)
    before = len(timer_module.timer()._heap)  # of connections that earlier tests have opened
    for _ in range(500):
        coordinator.acquire("r").release()
    assert not coordinator._renewal._lanes
    assert len(timer_module.timer()._heap) - before < 200, "one for each moment of the calendar at most"
    wait_until(lambda: not threads("fencing-timer"))
    assert timer_module.timer()._heap == []


def test_the_loop_that_renews_ends_after_the_last_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "LINGER_SECONDS", 0.05)
    clock = ManualClock()

    async def main() -> None:
        async with AsyncMemoryCoordinator(clock=clock, ttl=TTL) as coordinator:
            thread = coordinator._renewal._thread

            async def hold() -> None:
                lease = await coordinator.acquire("r")
                assert not thread.is_running, "a young lease does not need it"
                clock.advance(STEP)
                await until(lambda: lease.remaining() > TTL - STEP)
                assert thread.is_running
                await lease.release()
                await until(lambda: not thread.is_running)

            for _ in range(2):
                await hold()

    asyncio.run(main())


def test_a_cancelled_renewal_is_tried_again() -> None:
    """As where the loop that renews is ended under it."""
    clock = ManualClock()

    async def main() -> None:
        async with SlowCoordinator("renew", clock=clock, ttl=TTL) as coordinator:
            lease = await coordinator.acquire("r")
            clock.advance(STEP)

            async def cancel() -> None:
                await until(coordinator.asked.is_set)
                coordinator.asked.clear()
                [lane] = coordinator._renewal._lanes.values()
                [renewal] = lane.running
                renewal.get_loop().call_soon_threadsafe(renewal.cancel)
                await until(lambda: not lane.running)
                assert lease.held
                clock.advance(1)

            for _ in range(2):
                await cancel()
            coordinator.permitted.set()
            await until(lambda: lease.remaining() > TTL - STEP)
            assert await lease.release() is True

    asyncio.run(main())


def test_a_lost_callback_of_a_renewal_does_not_end_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an exception that another thread throws into this one hits the callback: the rest does not run."""
    clock = ManualClock()
    done, lost = renewal_module.AsyncRenewal._done, list[Any]()

    def interrupted(self: Any, state: Any, task: Any) -> None:
        if task in lost or len(lost) == MOST_AT_ONCE:
            return done(self, state, task)
        lost.append(task)
        raise InterruptedError

    monkeypatch.setattr(renewal_module.AsyncRenewal, "_done", interrupted)

    async def main() -> None:
        async with AsyncMemoryCoordinator(clock=clock, ttl=TTL) as coordinator:
            lease = await coordinator.acquire("r")
            for _ in range(5):
                clock.advance(STEP)
                await until(lambda: lease.remaining() > TTL - STEP / 2)
            assert len(lost) == MOST_AT_ONCE
            assert await lease.release() is True

    asyncio.run(main())


class Gate:
    """Renewals of some resources wait for the test's permission."""

    def __init__(self, side: MemorySide, coordinator: Any, *names: str) -> None:
        self.waiting, self.permitted = 0, False
        perform = coordinator._backend.perform

        def is_held(effect: Any) -> bool:
            return effect.operation == "renew" and any(asked[0] in names for asked in effect.arguments[0])

        def perform_held(effect: Any) -> Any:
            if is_held(effect):
                self.waiting += 1
                wait_until(lambda: self.permitted)
            return perform(effect)

        async def perform_held_async(effect: Any) -> Any:
            if is_held(effect):
                self.waiting += 1
                await until(lambda: self.permitted)
            return await perform(effect)

        coordinator._backend.perform = perform_held_async if side.asynchronous else perform_held


def test_a_short_lease_does_not_wait_for_the_requests_of_long_ones(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL)
    coordinator._backend.max_renewals = 1
    names = [str(i) for i in range(MOST_AT_ONCE + 2)]
    gate = Gate(side, coordinator, *names)
    short = side.call(coordinator.acquire, "short")
    long = [side.call(coordinator.lock(name, ttl=3 * TTL).acquire) for name in names]
    for _ in range(3):
        pass_a_renewal(side, short)
    side.wait_until(lambda: gate.waiting == MOST_AT_ONCE)  # the clock stands still meanwhile
    for _ in range(2):
        pass_a_renewal(side, short)
    gate.permitted = True
    side.wait_until(lambda: all(lease.remaining() > TTL for lease in long))
    assert all(side.call(lease.release) for lease in (short, *long))


def test_a_few_requests_of_leases_with_similar_ttls_are_under_way_at_once(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL)
    coordinator._backend.max_renewals = 1
    names = [str(i) for i in range(MOST_AT_ONCE + 2)]
    gate = Gate(side, coordinator, *names)
    leases = [side.call(coordinator.acquire, name) for name in names]
    side.clock.advance(STEP)
    side.wait_until(lambda: gate.waiting == MOST_AT_ONCE)
    gate.permitted = True
    side.wait_until(lambda: all(lease.remaining() > TTL - STEP for lease in leases))
    assert gate.waiting == len(names)
    assert all(side.call(lease.release) for lease in leases)


def test_threads_that_read_the_event_at_once_get_the_same_one() -> None:
    coordinator = MemoryCoordinator()
    for _ in range(50):
        with coordinator.hold("r") as lease:
            events: list[threading.Event] = []

            def read(lease: Lease = lease, events: list[threading.Event] = events) -> None:
                events.append(lease.lost)

            readers = [threading.Thread(target=read) for _ in range(3)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(10)
        assert len(events) == 3
        assert len({id(event) for event in events}) == 1
