"""`lease.reclaim()`: a new fence for a lease, so that a late request under the old one cannot write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, Fence, GuardUnavailable, LeaseLost, Mark, StaleFence
from fencing.locks import plans
from fencing.locks.holding import RENEWED_AFTER
from fencing.testing.base import AsyncScriptedGuard, ScriptedGuard
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.blocks import block, done, play
from tests.support.memory_side import MemorySide


def scripted(side: MemorySide) -> Any:
    return AsyncScriptedGuard() if side.asynchronous else ScriptedGuard()


def losing(side: MemorySide, coordinator: Any, operation: str, *, before: bool = False) -> list[Any]:
    """Lose the replies to an operation, or the requests, until the list that this returns is cleared. It has them."""
    perform, lost = coordinator._backend.perform, [None]

    def is_lost(effect: Any) -> bool:
        if effect.operation != operation or not lost:
            return False
        lost.append(effect.arguments)
        return True

    def lose() -> None:
        raise CoordinatorUnavailable("the reply was lost", resource="r", address="nowhere")

    def sync(effect: Any) -> Any:
        if not is_lost(effect):
            return perform(effect)
        if not before:
            perform(effect)
        return lose()

    async def asynchronous(effect: Any) -> Any:
        if not is_lost(effect):
            return await perform(effect)
        if not before:
            await perform(effect)
        return lose()

    coordinator._backend.perform = asynchronous if side.asynchronous else sync
    return lost


def unavailable(fence: Fence) -> None:
    raise GuardUnavailable("the storage is away", resource=fence.resource)


def test_the_new_fence_is_claimed_and_the_old_one_is_refused_everywhere(side: MemorySide) -> None:
    guard: Any = AsyncMemoryGuard() if side.asynchronous else MemoryGuard()
    lease = side.call(side.coordinator(guards=[guard]).acquire, "r")
    late = lease.fence  # as a service has it: it knows no lease
    fresh = side.call(lease.reclaim)
    assert type(fresh) is type(lease)
    assert fresh.fence.number > lease.fence.number
    assert side.call(guard.mark, "r").is_of(fresh.fence)
    with pytest.raises(StaleFence):
        side.call(guard.write, late, "key", "late")
    with pytest.raises(LeaseLost, match=r"use the lease that reclaim\(\) returned") as caught:
        side.call(guard.write, lease, "key", "old")
    assert caught.value.reason == lease._ended == "reclaimed"
    assert not lease.held
    side.call(guard.write, fresh, "key", "new")
    assert side.holder().number == fresh.fence.number
    assert side.call(lease.release) is True, "also the old lease releases the lock that its successor holds"
    assert side.holder() is None
    assert fresh._ended == "released"


def test_the_block_of_hold_follows_the_newest_lease(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])

    async def story() -> Any:
        async with block(coordinator.lock("r")) as lease:
            first = await done(lease.reclaim())
            second = await done(first.reclaim())
            assert side.holder().number == second.fence.number
            third = await done(lease.reclaim())
            assert third.fence.number > second.fence.number, "on any of them, it replaces the newest fence"
            assert second._ended == "reclaimed"
        return third

    second = play(side, story)
    assert second._ended == "released"
    assert side.holder() is None


def test_the_successor_is_renewed_and_the_old_lease_is_not(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=9, guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    fresh = side.call(lease.reclaim)
    for _ in range(5):
        side.clock.advance(4)
        side.wait_until(lambda: fresh.remaining() > 4.9)
    assert fresh.held
    assert side.call(fresh.release) is True


def test_max_lifetime_counts_from_the_first_grant(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=9, max_lifetime=20, guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    granted_at = side.clock()
    side.clock.advance(4)
    first = side.call(lease.reclaim)
    second = side.call(first.reclaim)
    for each in (first, second):
        assert each._holding._next_due(granted_at + 10, RENEWED_AFTER) is not None
        assert each._holding._next_due(granted_at + 18, RENEWED_AFTER) is None, "20 seconds after the first grant"
    assert side.call(second.release) is True


def test_a_lost_answer_keeps_the_lock_and_the_next_call_has_the_same_token(side: MemorySide) -> None:
    guard = scripted(side)
    coordinator = side.coordinator(guards=[guard])
    lease = side.call(coordinator.acquire, "r")
    asked = losing(side, coordinator, "remint")
    with pytest.raises(CoordinatorUnavailable, match=r"call reclaim\(\) again, on the same lease"):
        side.call(lease.reclaim)
    assert lease._ended == "reclaimed"
    assert side.holder().number > lease.fence.number, "the lock is kept"
    asked.pop(0)
    [(_, token, *_rest)] = asked
    asked.clear()
    fresh = side.call(lease.reclaim)
    assert fresh.fence == Fence("r", side.holder().number, token)
    assert guard.marks["r"].is_of(fresh.fence)
    assert side.call(fresh.release) is True


@pytest.mark.parametrize("before", [False, True], ids=["reply lost", "request lost"])
def test_leaving_the_block_frees_both_tokens_of_a_remint_without_an_answer(side: MemorySide, before: bool) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])

    async def story() -> None:
        async with block(coordinator.lock("r")) as lease:
            losing(side, coordinator, "remint", before=before)
            with pytest.raises(CoordinatorUnavailable):
                await done(lease.reclaim())
            assert side.holder() is not None

    play(side, story)
    assert side.holder() is None


def test_a_release_without_an_answer_ends_it_for_good(side: MemorySide) -> None:
    """The token that was asked for is behind a release now: it is not asked for again."""
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    remints = losing(side, coordinator, "remint", before=True)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lease.reclaim)
    releases = losing(side, coordinator, "release", before=True)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lease.release)
    requests = len(remints)
    with pytest.raises(LeaseLost) as caught:
        side.call(lease.reclaim)
    assert caught.value.reason == "released"
    assert len(remints) == requests
    releases.clear()
    assert side.call(lease.release) is True
    assert side.holder() is None


def test_a_guard_that_does_not_answer_is_asked_again_for_the_same_fence(side: MemorySide) -> None:
    guard = scripted(side)
    coordinator = side.coordinator(guards=[guard])
    lease = side.call(coordinator.acquire, "r")
    guard.before_claim = unavailable
    for _ in range(2):
        with pytest.raises(GuardUnavailable, match=r"call reclaim\(\) again, on the same lease"):
            side.call(lease.reclaim)
    side.clock.advance(4)
    side.wait_until(lambda: side.holder().remaining > 9)  # the lock is kept, and renewed
    guard.before_claim = lambda fence: None
    fresh = side.call(lease.reclaim)
    assert len({fence.token for fence in guard.claimed}) == 2, "the old lease's, and one for all calls"
    assert fresh.held
    assert side.call(fresh.release) is True


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()], ids=["interrupted", "cancelled"])
def test_an_interruption_leaves_a_state_that_the_next_call_continues(side: MemorySide, error: BaseException) -> None:
    if side.asynchronous is not isinstance(error, asyncio.CancelledError):
        pytest.skip("an interruption of the other side")
    guard = scripted(side)
    lease = side.call(side.coordinator(guards=[guard]).acquire, "r")

    def interrupt(fence: Fence) -> None:
        raise error

    guard.before_claim = interrupt

    async def try_to() -> None:
        with pytest.raises(type(error)):
            await done(lease.reclaim())

    play(side, try_to)
    guard.before_claim = lambda fence: None
    fresh = side.call(lease.reclaim)
    assert guard.claimed[-2:] == [fresh.fence] * 2
    assert side.call(fresh.release) is True


def test_an_adoption_whose_guard_does_not_answer_keeps_the_lock(side: MemorySide) -> None:
    """The error says what to do: adopt the same fence again."""
    guard = scripted(side)
    coordinator = side.coordinator(guards=[guard])
    lock = coordinator.lock("r")
    fence = side.call(lock.acquire).detach()
    guard.before_claim = unavailable
    for _ in range(2):
        with pytest.raises(GuardUnavailable, match="adopt the same fence again"):
            side.call(lock.adopt, fence)
        assert side.holder() is not None
    guard.before_claim = lambda fence: None
    adopted = side.call(lock.adopt, fence)
    assert len({each.token for each in guard.claimed}) == 2, "the detached lease's, and one for all adoptions"
    with pytest.raises(LeaseLost):
        side.call(lock.adopt, fence)
    assert side.call(adopted.release) is True


def test_a_guard_that_has_admitted_a_newer_fence_is_answered_with_a_higher_one(side: MemorySide) -> None:
    guard = scripted(side)
    lease = side.call(side.coordinator(guards=[guard]).acquire, "r")
    guard.marks["r"] = Mark(lease.fence.number + 5_000_000, "x" * 22)
    fresh = side.call(lease.reclaim)
    assert fresh.fence.number > lease.fence.number + 5_000_000
    assert side.call(lease.release) is True


def test_after_five_refusals_the_lease_is_lost_as_stale(side: MemorySide) -> None:
    guard = scripted(side)
    lease = side.call(side.coordinator(guards=[guard]).acquire, "r")

    def overtake(fence: Fence) -> None:
        guard.marks["r"] = Mark(fence.number + 1, "x" * 22)

    guard.before_claim = overtake
    with pytest.raises(LeaseLost) as caught:
        side.call(lease.reclaim)
    assert caught.value.reason == "stale"
    assert len(guard.claimed) == 1 + plans.CLAIM_ROUNDS
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost) as caught:
        side.call(lease.reclaim)
    assert caught.value.reason == "stale"
    assert side.call(lease.release) is True
    assert side.holder() is None


def test_a_lock_that_is_gone_is_lost_and_its_watchers_are_notified(side: MemorySide) -> None:
    lease = side.call(side.coordinator(guards=[scripted(side)]).acquire, "r")
    notified: list[LeaseLost] = []
    lost = lease.lost
    lease.on_lost(notified.append)
    side.take_away()

    async def try_to() -> None:
        with pytest.raises(LeaseLost) as caught:
            await done(lease.reclaim())
        assert (caught.value.reason, caught.value.cause) == ("gone", "force-released by an operator")

    play(side, try_to)
    side.wait_until(lambda: notified)
    assert lost.is_set()
    assert (notified[0].reason, notified[0].fence) == ("gone", lease.fence)
    assert side.call(lease.release) is False


def test_what_watches_the_old_lease_watches_the_new_one(side: MemorySide) -> None:
    lease = side.call(side.coordinator(ttl=9, guards=[scripted(side)]).acquire, "r")
    notified: list[LeaseLost] = []
    lost = lease.lost
    lease.on_lost(notified.append)
    fresh = side.call(lease.reclaim)
    assert not lost.is_set(), "a reclaim is no loss"
    assert not notified

    async def register() -> None:
        lease.on_lost(notified.append)

    side.call(register)
    side.take_away()
    side.clock.advance(4)
    side.wait_until(lambda: len(notified) == 2)
    assert lost.is_set()
    assert fresh.lost.is_set()
    assert {error.fence for error in notified} == {fresh.fence}
    assert side.call(lease.release) is False


def test_cancel_on_loss_follows_the_newest_lease() -> None:
    side = MemorySide(True)
    numbers: list[int] = []

    async def lose_it(coordinator: Any) -> None:
        async with coordinator.lock("r").hold(cancel_on_loss=True) as lease:
            numbers.append(lease.fence.number)
            await lease.reclaim()
            side.take_away()
            side.clock.advance(4)
            await asyncio.sleep(30)

    async def story() -> None:
        coordinator = side.coordinator(ttl=9, guards=[scripted(side)])
        with pytest.raises(LeaseLost) as caught:
            await lose_it(coordinator)
        assert caught.value.fence.number > numbers[0]

    side.call(story)


def test_reentrant_blocks_follow_the_newest_lease_and_an_inner_one_is_refused(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])

    async def story() -> None:
        lock = coordinator.lock("r", reentrant=True)
        async with block(lock) as lease:
            async with block(lock) as inner:
                with pytest.raises(RuntimeError, match="in the outermost block"):
                    await done(inner.reclaim())
                assert lease.held
            fresh = await done(lease.reclaim())
            async with block(lock) as inner:
                assert inner is fresh
                with pytest.raises(RuntimeError, match="in the outermost block"):
                    await done(fresh.reclaim())
            assert fresh.held
        assert side.holder() is None

    play(side, story)


def test_locks_that_are_held_together_are_reclaimed_one_by_one(side: MemorySide) -> None:
    guard = scripted(side)
    coordinator = side.coordinator(guards=[guard])

    async def story() -> None:
        held = coordinator.hold_all(["a", "b"], timeout=5)
        (a, b) = await done(held.__aenter__() if side.asynchronous else held.__enter__())
        try:
            fresh = await done(a.reclaim())
            assert b.held
            assert guard.marks["a"].is_of(fresh.fence)
            assert guard.marks["b"].is_of(b.fence)
        finally:
            nothing = (None, None, None)
            await done(held.__aexit__(*nothing) if side.asynchronous else held.__exit__(*nothing))

    play(side, story)
    assert side.holder("a") is side.holder("b") is None


def test_a_release_during_the_remint_wins(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    perform = coordinator._backend.perform

    def sync(effect: Any) -> Any:
        reply = perform(effect)
        if effect.operation == "remint":
            lease.release()
        return reply

    async def asynchronous(effect: Any) -> Any:
        reply = await perform(effect)
        if effect.operation == "remint":
            await lease.release()
        return reply

    coordinator._backend.perform = asynchronous if side.asynchronous else sync
    with pytest.raises(LeaseLost) as caught:
        side.call(lease.reclaim)
    assert caught.value.reason == "released"
    assert side.holder() is None


def test_two_at_once_are_refused(side: MemorySide) -> None:
    guard = scripted(side)
    lease = side.call(side.coordinator(guards=[guard]).acquire, "r")
    refused: list[BaseException] = []

    def again(fence: Fence) -> None:
        with pytest.raises(RuntimeError, match="wait for its result") as caught:
            lease.reclaim().send(None)
        refused.append(caught.value)

    def again_sync(fence: Fence) -> None:
        with pytest.raises(RuntimeError, match="wait for its result") as caught:
            lease.reclaim()
        refused.append(caught.value)

    guard.before_claim = again if side.asynchronous else again_sync
    fresh = side.call(lease.reclaim)
    assert len(refused) == 1
    assert side.call(fresh.release) is True


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda lease: lease.release(), LeaseLost, "was released"),
        (lambda lease: lease.detach(), LeaseLost, "was detached"),
        (None, TypeError, r"pass guards=\[guard\]"),
    ],
    ids=["released", "detached", "no guards"],
)
def test_what_cannot_be_reclaimed_says_why(
    side: MemorySide, change: Callable[[Any], Any] | None, error: type[Exception], says: str
) -> None:
    lease = side.call(side.coordinator(guards=[] if change is None else [scripted(side)]).acquire, "r")

    async def story() -> None:
        made = None if change is None else change(lease)
        if asyncio.iscoroutine(made):
            await made
        with pytest.raises(error, match=says):
            await done(lease.reclaim())

    play(side, story)
    side.call(lease.release)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_the_timeout_is_checked_before_anything_ends(side: MemorySide, timeout: Any) -> None:
    lease = side.call(side.coordinator(guards=[scripted(side)]).acquire, "r")
    with pytest.raises((TypeError, ValueError), match="timeout"):
        side.call(lease.reclaim, timeout)
    assert lease.held
    side.call(lease.release)


def test_a_block_inside_gets_no_lease_whose_fence_is_not_claimed_yet(side: MemorySide) -> None:
    """What it read could be overwritten by a late request under the old fence."""
    guard = scripted(side)
    coordinator = side.coordinator(guards=[guard])

    async def story() -> None:
        lock = coordinator.lock("r", reentrant=True)
        async with block(lock) as lease:
            guard.before_claim = unavailable
            with pytest.raises(GuardUnavailable):
                await done(lease.reclaim())
            assert not lease._newest.held
            with pytest.raises(LeaseLost):
                async with block(lock):
                    pass
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await done(coordinator.hold_all(["r"]).__aenter__() if side.asynchronous else enter_all(coordinator))
            guard.before_claim = lambda fence: None
            fresh = await done(lease.reclaim())
            async with block(lock) as inner:
                assert inner is fresh

    play(side, story)


def enter_all(coordinator: Any) -> Any:
    return coordinator.hold_all(["r"]).__enter__()


@pytest.mark.parametrize("moment", ["end", "track"])
def test_an_interruption_between_two_lines_is_continued(side: MemorySide, moment: str) -> None:
    guard = scripted(side)
    coordinator = side.coordinator(ttl=9, guards=[guard])
    lease = side.call(coordinator.acquire, "r")
    target: Any = lease._holding if moment == "end" else coordinator._backend
    kind = type(lease._holding)
    real = kind.end if moment == "end" else coordinator._backend.track
    interrupted: list[bool] = []

    def end(holding: Any, how: Any, cause: Any = None) -> Any:
        if how == "reclaimed" and not interrupted:
            interrupted.append(True)
            raise KeyError("interrupted")
        return real(holding, how, cause)

    def track(holding: Any) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyError("interrupted")
        real(holding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind if moment == "end" else target, moment, end if moment == "end" else track)
        with pytest.raises(KeyError):
            side.call(lease.reclaim)
        fresh = side.call(lease.reclaim)
    assert lease._holding.ended == "reclaimed", "it is renewed no more"
    side.clock.advance(4)
    side.wait_until(lambda: fresh.remaining() > 9 - 4)  # without a renewal: equal
    assert not fresh.lost.is_set()
    assert side.call(fresh.release) is True


def test_a_release_at_the_moment_of_succession_is_no_belief(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    track = coordinator._backend.track

    def track_and_release(holding: Any) -> None:
        track(holding)
        lease._asked = True  # as a signal handler's release

    coordinator._backend.track = track_and_release
    with pytest.raises(LeaseLost) as caught:
        side.call(lease.reclaim)
    assert caught.value.reason == "released"
    assert lease._newest._holding.ended == "released"
    assert side.holder() is None


def test_a_thread_that_releases_beside_a_reclaim_frees_what_it_got() -> None:
    """The release waits until the successor is there, and frees that."""
    side = MemorySide(False)
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    track = coordinator._backend.track
    threads: list[threading.Thread] = []

    def track_beside_release(holding: Any) -> None:
        track(holding)
        threads.append(threading.Thread(target=lease.release))
        threads[0].start()

    coordinator._backend.track = track_beside_release
    fresh = lease.reclaim()
    threads[0].join(20)
    assert side.holder() is None
    assert fresh._ended == "released"


def test_a_closed_coordinator_reclaims_nothing(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    losing(side, coordinator, "remint", before=True)
    with pytest.raises(CoordinatorUnavailable):
        side.call(lease.reclaim)
    side.call(coordinator.close)
    with pytest.raises(RuntimeError, match="make a new one"):
        side.call(lease.reclaim)
    assert side.call(lease.release) is True


def test_a_fence_that_is_replaced_while_the_coordinator_is_closed_is_given_back(side: MemorySide) -> None:
    coordinator = side.coordinator(guards=[scripted(side)])
    lease = side.call(coordinator.acquire, "r")
    succeed = lease._succeed

    def closed_meanwhile(grant: Any) -> Any:
        made = succeed(grant)
        coordinator._backend.closed = True
        return made

    lease._succeed = closed_meanwhile
    error = side.expect(RuntimeError, lease.reclaim)
    assert "make a new one" in str(error)
    assert side.holder() is None
    assert not lease._newest.held
