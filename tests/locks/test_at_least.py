"""``hold(at_least=...)``: the lock stays taken after a block that ended early. The contract has the services' part."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, GuardUnavailable, LeaseLost, NotAcquired
from fencing.testing.base import AsyncScriptedGuard, ScriptedGuard
from tests.support.blocks import block, done, play
from tests.support.loops import until
from tests.support.memory_side import MemorySide, SlowCoordinator


def held(side: MemorySide, lock: Any, inside: Any = lambda lease: None, **options: Any) -> Any:
    """Hold the lock for a block, and return its lease. What ``inside`` returns is awaited."""

    async def story() -> Any:
        async with block(lock, **options) as lease:
            await done(inside(lease))
        return lease

    return play(side, story)


def watch(side: MemorySide, coordinator: Any, after: Callable[[str], object]) -> None:
    """Call ``after`` with the operation of each request, before its answer arrives."""
    perform = coordinator._backend.perform

    def watched(effect: Any) -> Any:
        reply = perform(effect)
        after(effect.operation)
        return reply

    async def watched_async(effect: Any) -> Any:
        reply = await perform(effect)
        after(effect.operation)
        return reply

    coordinator._backend.perform = watched_async if side.asynchronous else watched


def fail(lease: Any) -> None:
    raise ZeroDivisionError("the job failed")


def stays(side: MemorySide, seconds: float) -> bool:
    """Return whether the lock is released, and stays taken for so long from now on."""
    holder = side.holder()
    return holder is not None and holder.released and math.isclose(holder.remaining, seconds, abs_tol=1e-6)


def test_it_counts_from_before_the_request_of_the_grant(side: MemorySide) -> None:
    """Else the next tick of a timer would find it taken, where it comes exactly so many seconds later."""
    coordinator = side.coordinator()
    watch(side, coordinator, lambda operation: side.clock.advance(3 if operation == "acquire" else 0))
    held(side, coordinator.lock("r"), at_least=30)
    assert stays(side, 27)


def test_a_release_without_an_answer_says_how_long_the_lock_may_stay_taken(
    side: MemorySide, caplog: pytest.LogCaptureFixture
) -> None:
    """The request may have got through: then the lock is taken for longer than its ttl."""
    coordinator = side.coordinator(ttl=10)
    held(side, coordinator.lock("r"), lambda lease: side.cut_off(coordinator), at_least=30)
    assert "if it is still held, it frees itself within 30 s" in caplog.text


def test_the_time_of_the_block_counts(side: MemorySide) -> None:
    held(side, side.coordinator().lock("r"), lambda lease: side.clock.advance(4), at_least=30)
    assert stays(side, 26)
    side.clock.advance(25.9)
    side.expect(NotAcquired, side.coordinator().acquire, "r", timeout=0)
    side.clock.advance(0.2)
    assert side.holder() is None


def test_it_does_not_count_while_the_block_waits(side: MemorySide) -> None:
    """Nor while a guard takes its time: the lease is renewed meanwhile, and then it counts from the answer."""
    guard: Any = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()
    guard.before_claim = lambda fence: side.clock.advance(9)
    held(side, side.coordinator(guards=[guard], ttl=10).lock("r"), at_least=30)
    assert stays(side, 21)


def test_the_block_may_be_longer_than_the_ttl_and_at_least_too(side: MemorySide) -> None:
    async def work(lease: Any) -> None:
        for _ in range(10):
            side.clock.advance(2)
            await done(lease.renew())

    held(side, side.coordinator(ttl=6, renew=False).lock("r"), work, at_least=30)
    assert stays(side, 10)


@pytest.mark.parametrize("at_least", [0, 4, 4.0, None])
def test_a_block_that_took_longer_frees_the_lock(side: MemorySide, at_least: float | None) -> None:
    coordinator, operations = side.coordinator(), []  # type: ignore[var-annotated]
    watch(side, coordinator, operations.append)
    held(side, coordinator.lock("r"), lambda lease: side.clock.advance(4), at_least=at_least)
    assert side.holder() is None
    assert operations == ["acquire", "release"], "so that waiters are woken"


def test_a_job_that_failed_keeps_its_lock_too(side: MemorySide) -> None:
    side.expect(ZeroDivisionError, held, side, side.coordinator().lock("r"), fail, at_least=30)
    assert stays(side, 30)


def test_release_frees_the_lock_at_once(side: MemorySide) -> None:
    seen: list[Any] = []

    async def release(lease: Any) -> None:
        seen.append((await done(lease.release()), side.holder()))

    held(side, side.coordinator().lock("r"), release, at_least=30)
    assert seen == [(True, None)]
    assert side.holder() is None


@pytest.mark.parametrize("end", ["release_all", "close"])
def test_a_process_that_is_told_to_end_frees_the_lock_at_once(side: MemorySide, end: str) -> None:
    coordinator = side.coordinator()

    async def end_it(lease: Any) -> None:
        await done(getattr(coordinator, end)())
        assert side.holder() is None

    held(side, coordinator.lock("r"), end_it, at_least=30)
    assert side.holder() is None


def test_a_block_that_has_ended_is_not_freed_by_the_end_of_its_process(side: MemorySide) -> None:
    coordinator = side.coordinator()
    held(side, coordinator.lock("r"), at_least=30)
    side.call(coordinator.close)
    assert stays(side, 30)


def test_a_lease_that_was_lost_is_released_as_ever(side: MemorySide) -> None:
    """It was taken away, or this process stood still beyond the ttl: then others may have had it."""
    error = side.expect(
        LeaseLost, held, side, side.coordinator().lock("r"), lambda lease: side.take_away(), at_least=30
    )
    assert error.completed
    assert side.holder() is None
    side.expect(
        LeaseLost,
        held,
        side,
        side.coordinator(renew=False, ttl=10).lock("r"),
        lambda lease: side.clock.advance(20),
        at_least=30,
    )
    assert side.holder() is None


def test_a_lock_that_was_held_all_the_time_stays_although_its_holder_no_longer_believed_in_it(side: MemorySide) -> None:
    coordinator = side.coordinator(renew=False, ttl=10)
    held(side, coordinator.lock("r"), lambda lease: side.clock.advance(9.95), at_least=30)  # it believed in 9.898
    assert stays(side, 20.05)


def test_the_outermost_of_reentrant_blocks_counts(side: MemorySide) -> None:
    lock = side.coordinator().lock("r", reentrant=True)

    async def story(outer: float | None, inner: float | None) -> Any:
        async with block(lock, at_least=outer), block(lock, at_least=inner):
            side.clock.advance(5)
        return side.holder()

    assert play(side, partial(story, None, 30)) is None
    holder = play(side, partial(story, 30, None))
    assert (holder.released, round(holder.remaining, 6)) == (True, 25)


def test_a_reclaimed_lease_keeps_it(side: MemorySide) -> None:
    guard: Any = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()

    async def reclaim(lease: Any) -> None:
        side.clock.advance(1)
        newest.append(await done(lease.reclaim()))

    newest: list[Any] = []
    held(side, side.coordinator(guards=[guard]).lock("r"), reclaim, at_least=30)
    assert stays(side, 29)
    assert side.holder().number == newest[0].fence.number


def test_a_reclaim_without_an_end_keeps_it(side: MemorySide) -> None:
    guard: Any = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()

    def away(fence: Any) -> None:
        raise GuardUnavailable("the storage is away", resource=fence.resource)

    async def reclaim(lease: Any) -> None:
        guard.before_claim = away
        with pytest.raises(GuardUnavailable):
            await done(lease.reclaim())

    held(side, side.coordinator(guards=[guard]).lock("r"), reclaim, at_least=30)
    assert stays(side, 30)


@pytest.mark.parametrize("answered", [True, False])
def test_a_fence_that_replaces_another_without_an_answer_keeps_it(side: MemorySide, answered: bool) -> None:
    """Also where its release gets no answer either, and goes on in the background."""
    guard: Any = AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()
    coordinator = side.coordinator(guards=[guard])

    def lose(operation: str) -> None:
        if operation == "remint":
            raise CoordinatorUnavailable("the reply was lost", resource="r", address="nowhere")

    async def reclaim(lease: Any) -> None:
        watch(side, coordinator, lose)
        with pytest.raises(CoordinatorUnavailable):
            await done(lease.reclaim())
        if not answered:
            side.cut_off(coordinator)

    held(side, coordinator.lock("r"), reclaim, at_least=30)
    if not answered:
        side.reconnect(coordinator)
        side.wait_until(lambda: side.holder().released)
    assert stays(side, 30)


def test_a_release_without_an_answer_goes_on_in_the_background(side: MemorySide) -> None:
    coordinator = side.coordinator()
    held(side, coordinator.lock("r"), lambda lease: side.cut_off(coordinator), at_least=30)
    assert not side.holder().released
    side.reconnect(coordinator)
    side.wait_until(lambda: side.holder().released)
    assert stays(side, 30)


def test_a_block_whose_end_was_skipped_keeps_it(side: MemorySide) -> None:
    """As by an interruption, or a task that was destroyed."""
    coordinator = side.coordinator()

    async def story() -> None:
        skipped = coordinator.lock("r").hold(at_least=30)
        await done(skipped.__aenter__() if side.asynchronous else skipped.__enter__())
        del skipped

    play(side, story)
    side.wait_until(lambda: side.holder().released)
    assert stays(side, 30)


def test_a_cancelled_release_goes_on() -> None:
    async def story() -> Any:
        coordinator = SlowCoordinator("release_later")

        async def job() -> None:
            async with coordinator.hold("r", at_least=30):
                pass

        task = asyncio.create_task(job())
        await until(coordinator.asked.is_set)
        task.cancel()
        await asyncio.sleep(0)
        coordinator.permitted.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await coordinator.holder("r")

    assert asyncio.run(story()).released


def test_a_tick_of_another_replica_is_left_out(side: MemorySide) -> None:
    ran: list[str] = []

    def job(day: str) -> str:
        ran.append(day)
        return day

    async def job_async(day: str) -> str:
        return job(day)

    job_of = [
        side.coordinator().locked("report:{day}", busy="skip", at_least=30)(job_async if side.asynchronous else job)
        for _ in range(2)
    ]
    assert side.call(job_of[0], "monday") == "monday"
    assert side.call(job_of[1], "monday") is None
    assert side.call(job_of[1], "tuesday") == "tuesday"
    side.clock.advance(30)
    assert side.call(job_of[1], "monday") == "monday"
    assert ran == ["monday", "tuesday", "monday"]


def test_hold_as_a_decorator_keeps_it(side: MemorySide) -> None:
    def job() -> None:
        pass

    async def job_async() -> None:
        pass

    side.call(side.coordinator().hold("r", at_least=30)(job_async if side.asynchronous else job))
    assert stays(side, 30)


@pytest.mark.parametrize(
    ("at_least", "error", "says"),
    [
        (-1, ValueError, "between 0 seconds and a year, not -1"),
        (1e9, ValueError, "between 0 seconds and a year"),
        (math.nan, ValueError, "a finite number"),
        (math.inf, ValueError, "a finite number"),
        (True, TypeError, "number of seconds, not bool"),
        ("30", TypeError, "number of seconds, not str"),
        (61, ValueError, "at most max_lifetime (60 s), not 61"),
    ],
)
def test_wrong_seconds_are_refused_before_anything_is_asked(
    side: MemorySide, at_least: Any, error: type[Exception], says: str
) -> None:
    coordinator = side.coordinator(max_lifetime=60)
    for call in (partial(coordinator.hold, "r"), coordinator.lock("r").hold, partial(coordinator.locked, "r")):
        assert says in str(side.expect(error, call, at_least=at_least))
    held(side, coordinator.lock("r"), at_least=60)
    assert stays(side, 60)


@pytest.mark.parametrize("method", ["acquire", "try_acquire", "hold_all", "lock"])
def test_where_it_is_not_the_error_says_where_it_is(side: MemorySide, method: str) -> None:
    names: Any = ["r"] if method == "hold_all" else "r"
    error = side.expect(TypeError, getattr(side.coordinator(), method), names, at_least=30)
    assert "it is an argument of hold() and locked(), of one lock or of slots" in str(error)
