"""Elections: what ends a term, and what follows."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fencing import (
    AsyncMemoryCoordinator,
    CoordinatorUnavailable,
    Leader,
    LeaseLost,
    Mark,
    MarkImplausible,
    MemoryCoordinator,
    NotAcquired,
    StaleFence,
)
from fencing.election import terms
from fencing.election.terms import LONGEST_PAUSE, SHORTEST_PAUSE, is_loss, pause_after
from fencing.kernel.errors import FencingError
from fencing.locks.settings import Settings
from fencing.testing.base import ScriptedGuard
from tests.support.loops import until
from tests.support.memory_side import MemorySide, SlowCoordinator

SOON = 30.0  # a limit of the test, not of the product
TTL = 0.1  # of a clock that stands; a pause is real time: 10 to 33 ms


class Replica:
    """An election that runs in a thread, or on the suite's loop. What it does in its terms is given step by step."""

    def __init__(self, side: MemorySide, *steps: Callable[[Any], Any], coordinator: Any = None, **options: Any) -> None:
        self.side = side
        self.coordinator = side.coordinator(ttl=TTL) if coordinator is None else coordinator
        self.election = self.coordinator.election("r", **options)
        self.leases: list[Any] = []
        self.times: list[float] = []
        self._steps = iter(steps)
        self._pool = ThreadPoolExecutor(1)
        self.future: Future[Any] = self._pool.submit(side.call, self.election.run, self._function)

    @property
    def _function(self) -> Callable[[Any], Any]:
        async def lead(lease: Any) -> Any:
            return self._lead(lease)

        return lead if self.side.asynchronous else self._lead

    def _lead(self, lease: Any) -> Any:
        self.leases.append(lease)
        self.times.append(time.monotonic())
        step = next(self._steps, None)
        if step is None:
            self.election.stop()
        else:
            step(lease)

    def result(self) -> None:
        try:
            assert self.future.result(SOON) is None
        finally:
            self.election.stop()
            self._pool.shutdown()


def fail(error: BaseException) -> Callable[[Any], None]:
    def step(lease: Any) -> None:
        raise error

    return step


def stale(lease: Any, resource: str = "r") -> StaleFence:
    fence = lease.fence if resource == "r" else type(lease.fence)(resource, lease.fence.number, lease.fence.token)
    return StaleFence(fence=fence, mark=Mark(fence.number + 1, fence.token, 0))


def test_a_term_follows_a_term_until_the_election_is_stopped(side: MemorySide) -> None:
    replica = Replica(side, lambda lease: None, lambda lease: None)
    replica.result()
    numbers = [lease.fence.number for lease in replica.leases]
    assert len(numbers) == 3
    assert numbers == sorted(numbers)
    assert not any(lease.held for lease in replica.leases)
    assert side.holder() is None
    assert replica.election.stopped


def test_a_function_that_returns_at_once_does_not_spin(side: MemorySide) -> None:
    replica = Replica(side, *[lambda lease: None] * 3)
    replica.result()
    assert all(b - a >= SHORTEST_PAUSE * TTL for a, b in itertools.pairwise(replica.times))


def test_a_pause_is_a_share_of_the_ttl() -> None:
    pauses = [pause_after(Settings(ttl=30)) for _ in range(200)]
    assert 30 * SHORTEST_PAUSE <= min(pauses) < max(pauses) <= 30 * LONGEST_PAUSE
    assert len(set(pauses)) > 100, "replicas that lost together come back at different moments"


def test_an_error_of_the_function_comes_out_when_the_replica_has_resigned(side: MemorySide) -> None:
    error = ZeroDivisionError("mine")
    replica = Replica(side, fail(error))
    with pytest.raises(ZeroDivisionError) as caught:
        replica.result()
    assert caught.value is error
    assert side.holder() is None


def test_a_coordinator_that_another_lock_of_the_function_finds_away_is_an_error_of_the_function(
    side: MemorySide,
) -> None:
    with pytest.raises(CoordinatorUnavailable):
        Replica(side, fail(CoordinatorUnavailable("elsewhere"))).result()
    with pytest.raises(NotAcquired):
        Replica(side, fail(NotAcquired(resource="other", reason="held", waited=0.0, owner=None))).result()


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: BaseExceptionGroup("", [error])])
def test_a_leader_that_a_guard_refuses_campaigns_again(
    side: MemorySide, wrap: Callable[[Any], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def refused(lease: Any) -> None:
        raise wrap(stale(lease))

    replica = Replica(side, refused)
    replica.result()
    assert len(replica.leases) == 2
    assert "this replica no longer leads 'r'" in caplog.text


def test_a_stale_fence_of_another_resource_is_an_error_of_the_function(side: MemorySide) -> None:
    def refused(lease: Any) -> None:
        raise stale(lease, "other")

    with pytest.raises(StaleFence):
        Replica(side, refused).result()
    assert not is_loss(BaseExceptionGroup("", [StaleFence(fence=_fence(), mark=None, floor=9), KeyError()]), "r")


def _fence() -> Any:
    lease = MemoryCoordinator().acquire("r")
    lease.release()
    return lease.fence


def test_a_term_that_was_lost_is_followed_by_a_campaign(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    def lose(lease: Any) -> None:
        side.take_away()

    replica = Replica(side, lose)
    replica.result()
    assert len(replica.leases) == 2
    assert replica.leases[0].fence.number < replica.leases[1].fence.number
    assert "this replica no longer leads 'r'" in caplog.text
    assert "gone" in caplog.text or "no longer has it" in caplog.text


def test_a_campaign_goes_on_while_the_coordinator_is_away(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = side.coordinator(ttl=TTL)
    side.cut_off(coordinator)
    replica = Replica(side, coordinator=coordinator)
    side.wait_until(lambda: "tries again" in caplog.text)
    side.reconnect(coordinator)
    replica.result()
    assert len(replica.leases) == 1


def test_campaigns_that_fail_one_after_the_other_are_told_once_a_minute(
    side: MemorySide, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []
    should_warn = terms.Failures.should_warn

    def note(self: terms.Failures) -> bool:
        failures.append(self)
        return should_warn(self)

    monkeypatch.setattr(terms.Failures, "should_warn", note)
    coordinator = side.coordinator(ttl=TTL)
    side.cut_off(coordinator)
    replica = Replica(side, coordinator=coordinator)
    try:
        side.wait_until(lambda: len(failures) >= 3)
        assert caplog.text.count("tries again") == 1
        monkeypatch.setattr(terms, "WARN_EVERY", 0)
        side.wait_until(lambda: caplog.text.count("tries again") >= 2)
    finally:
        side.reconnect(coordinator)
        replica.result()


def test_a_guard_that_is_away_is_asked_again_and_a_broken_set_up_comes_out(side: MemorySide) -> None:
    guard = ScriptedGuard()
    failures: list[Exception] = [FencingError("broken")]
    guard.before_claim = lambda fence: (_ for _ in ()).throw(failures[0]) if failures else None
    coordinator = side.coordinator(ttl=TTL, guards=[_of_side(side, guard)])
    with pytest.raises(FencingError, match="broken"):
        Replica(side, coordinator=coordinator).result()
    failures[0] = MarkImplausible(resource="r", number=2, ceiling=1)
    with pytest.raises(MarkImplausible):
        Replica(side, coordinator=coordinator).result()
    assert side.holder() is None


def _of_side(side: MemorySide, guard: ScriptedGuard) -> Any:
    if not side.asynchronous:
        return guard

    class AsyncScripted:
        async def claim(self, *fences: Any, timeout: float | None = None) -> None:
            guard.claim(*fences, timeout=timeout)

        async def mark(self, resource: str) -> Any:
            return guard.mark(resource)

    return AsyncScripted()


def test_an_election_that_was_stopped_before_never_leads(side: MemorySide) -> None:
    election = side.coordinator().election("r")
    election.stop()
    led: list[Any] = []
    assert side.call(election.run, led.append) is None
    assert not led


def test_a_function_of_the_other_side_is_refused(side: MemorySide) -> None:
    async def asynchronous(lease: Any) -> None: ...

    def sync(lease: Any) -> None: ...

    election = side.coordinator().election("r")
    side.expect(TypeError, election.run, sync if side.asynchronous else asynchronous)
    side.expect(TypeError, election.run, None)
    assert side.holder() is None
    assert not election._candidates


def test_the_leader_is_told_and_nobody_if_there_is_none(side: MemorySide) -> None:
    election = side.coordinator().election("r", value="10.0.0.7:8000")
    assert side.call(election.leader) is None
    if side.asynchronous:

        async def lead() -> tuple[Any, Any]:
            async with election.lead() as lease:
                return lease, await election.leader()

        lease, leader = side.call(lead)
    else:
        with election.lead() as lease:
            leader = election.leader()
    assert leader == Leader("10.0.0.7:8000", lease.fence.number, leader.held_for)
    assert side.call(election.leader) is None


def test_a_value_is_the_owner_of_the_lock_and_by_default_the_coordinators(side: MemorySide) -> None:
    coordinator = side.coordinator(owner="host 7")
    lease = side.call(coordinator.election("r")._lock.acquire)
    assert side.call(coordinator.election("r", value="other").leader).value == "host 7"
    side.call(lease.release)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"value": 7}, TypeError),
        ({"value": ""}, ValueError),
        ({"value": "a\nb"}, ValueError),
        ({"value": "x" * 201}, ValueError),
        ({"owner": "x"}, TypeError),
        ({"reentrant": True}, TypeError),
        ({"ttl": 0}, ValueError),
        ({"tll": 5}, TypeError),
    ],
)
def test_wrong_options_are_refused(side: MemorySide, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        side.coordinator().election("r", **options)


@pytest.mark.parametrize("name", ["", "x" * 513, None])
def test_a_wrong_name_is_refused(side: MemorySide, name: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        side.coordinator().election(name)


@pytest.mark.parametrize("every", [0, 0.001, -1, math.nan, math.inf, None, True, "1"])
def test_a_wrong_pace_of_an_observer_is_refused_when_it_is_given(side: MemorySide, every: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        side.coordinator().election("r").observe(every)


def test_an_observer_is_told_each_change_once(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    observed, coordinator = side.coordinator(), side.coordinator()
    election = observed.election("r")
    seen: list[Any] = []

    def wait_for(count: int) -> None:
        side.wait_until(lambda: len(seen) == count)

    def observe() -> None:
        seen.extend(election.observe(every=0.01))

    async def observe_async() -> None:
        async for leader in election.observe(every=0.01):
            seen.append(leader)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(side.call, observe_async if side.asynchronous else observe)
        try:
            side.wait_until(lambda: seen)
            for count in (2, 4):
                lease = side.call(coordinator.acquire, "r")
                wait_for(count)
                side.call(lease.release)
                wait_for(count + 1)
            side.cut_off(observed)
            side.wait_until(lambda: "is not known at the moment" in caplog.text)
            side.reconnect(observed)
            lease = side.call(coordinator.acquire, "r")
            wait_for(6)
            side.call(lease.release)
        finally:
            election.stop()
        future.result(SOON)
    assert [each is None for each in seen[:6]] == [True, False, True, False, True, False]
    assert seen[1].number < seen[3].number < seen[5].number
    assert caplog.text.count("is not known at the moment") == 1


def test_a_lock_and_an_election_of_one_name_exclude_each_other(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r")
    replica = Replica(side, coordinator=side.coordinator(ttl=TTL))
    side.wait_until(lambda: replica.election._candidates)
    assert not replica.leases
    side.call(lease.release)
    replica.result()
    assert len(replica.leases) == 1


def test_releasing_all_ends_the_term_and_the_election(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=TTL)
    ended = threading.Event()

    def wait(lease: Any) -> None:
        while not (election.stopped or lease.lost.wait(0.005)):
            pass
        ended.set()

    async def wait_async(lease: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    election = coordinator.election("r")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(side.call, election.run, wait_async if side.asynchronous else wait)
        side.wait_until(side.holder)
        side.call(coordinator.release_all)
        assert future.result(SOON) is None
    assert ended.is_set()
    assert side.holder() is None
    assert not coordinator.closed


def test_a_signal_handler_stops_a_campaign_of_its_own_thread() -> None:
    side = MemorySide(asynchronous=False)
    lease = side.coordinator().acquire("r")
    election = side.coordinator().election("r")
    before = signal.signal(signal.SIGALRM, lambda *_: election.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert election.run(lambda lease: pytest.fail("it never leads")) is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lease.release()


class TestTasks:
    """What is true of tasks alone."""

    def test_a_loss_cancels_the_function(self) -> None:
        async def main() -> None:
            side = MemorySide(asynchronous=True)
            election = side.coordinator(ttl=10).election("r", ttl=TTL)
            steps: list[str] = []

            async def lead(lease: Any) -> None:
                if steps:
                    election.stop()
                    return
                side.take_away()
                side.clock.advance(TTL / 2)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    steps.append("cancelled")
                    raise

            await election.run(lead)
            assert steps == ["cancelled"]

        asyncio.run(asyncio.wait_for(main(), SOON))

    def test_an_error_of_the_function_comes_out_although_stop_cancels_the_release(self) -> None:
        async def main() -> None:
            side = MemorySide(asynchronous=True)
            slow = SlowCoordinator("release", table=side.table, clock=side.clock)
            election = slow.election("r")

            async def lead(lease: Any) -> None:
                raise ZeroDivisionError("mine")

            running = asyncio.ensure_future(election.run(lead))
            await until(slow.asked.is_set)
            election.stop()
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the task is cancelled now
            slow.permitted.set()
            with pytest.raises(ZeroDivisionError):
                await running
            assert side.holder() is None

        asyncio.run(asyncio.wait_for(main(), SOON))

    @pytest.mark.parametrize("state", ["campaign", "term", "pause"])
    def test_stopping_leaves_no_cancellation_behind(self, state: str) -> None:
        async def main() -> None:
            side = MemorySide(asynchronous=True)
            coordinator = side.coordinator(ttl=10)
            lease = await coordinator.acquire("r") if state == "campaign" else None
            election = coordinator.election("r")
            led = asyncio.Event()

            async def lead(lease: Any) -> None:
                led.set()
                if state == "term":
                    await asyncio.Event().wait()

            async def replica() -> int:
                await election.run(lead)
                task = asyncio.current_task()
                assert task is not None
                await asyncio.sleep(0)  # a cancellation that is left over would be raised here
                return task.cancelling()

            task = asyncio.create_task(replica())
            if state != "campaign":
                await led.wait()
            for _ in range(3):  # to the wait for the lock, or the pause
                await asyncio.sleep(0)
            assert election._candidates
            election.stop()
            assert await task == 0
            if lease is not None:
                await lease.release()
            assert side.holder() is None

        asyncio.run(asyncio.wait_for(main(), SOON))

    @pytest.mark.parametrize("is_stopped", [False, True])
    def test_a_cancellation_from_elsewhere_comes_out(self, is_stopped: bool) -> None:
        async def main() -> None:
            side = MemorySide(asynchronous=True)
            election = side.coordinator().election("r")
            led = asyncio.Event()

            async def lead(lease: Any) -> None:
                led.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(election.run(lead))
            await led.wait()
            if is_stopped:
                election.stop()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert side.holder() is None

        asyncio.run(asyncio.wait_for(main(), SOON))

    def test_a_function_that_swallows_the_cancellation_ends_the_election_all_the_same(self) -> None:
        async def main() -> None:
            election = AsyncMemoryCoordinator().election("r")

            async def lead(lease: Any) -> None:
                election.stop()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

            await election.run(lead)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

        asyncio.run(asyncio.wait_for(main(), SOON))

    def test_an_error_beats_the_stop(self) -> None:
        async def main() -> None:
            election = AsyncMemoryCoordinator().election("r")

            async def lead(lease: Any) -> None:
                election.stop()
                try:
                    await asyncio.Event().wait()
                finally:
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await election.run(lead)

        asyncio.run(asyncio.wait_for(main(), SOON))


def test_both_sides_have_the_same_methods() -> None:
    from fencing import AsyncElection, Election

    public = {name for name in vars(Election) if not name.startswith("_")}
    assert public == {name for name in vars(AsyncElection) if not name.startswith("_")}
    assert inspect.iscoroutinefunction(AsyncElection.run)


def test_a_loss_is_told_from_other_errors() -> None:
    fence = _fence()
    assert is_loss(LeaseLost(fence=fence, reason="gone"), "r")
    assert not is_loss(LeaseLost(fence=fence, reason="gone"), "other")
    assert not is_loss(KeyError("r"), "r")
