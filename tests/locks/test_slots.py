"""Slots: names and options, blocks inside blocks, and what is asked and given back when a try has no answer."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from fencing import (
    AsyncCoordinator,
    Coordinator,
    CoordinatorUnavailable,
    Fence,
    LeaseLost,
    Mark,
    MemoryCoordinator,
    NotAcquired,
    StaleFence,
    hold_all,
)
from fencing.kernel.effects import Claim, Plan, Shielded, Sleep
from fencing.kernel.fence import new_token
from fencing.kernel.retry import NoReply
from fencing.locks.any_slot import acquire_slot
from fencing.locks.backend import Taken, Undecided
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings
from fencing.memory.plans import MemoryPlans
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.blocks import block, done, elsewhere, play
from tests.support.interrupted_lines import raise_at_line
from tests.support.memory_side import MemorySide

# Names, numbers and options


@pytest.mark.parametrize("count", [0, -1, 65, 2**70])
def test_there_are_1_to_64_slots(side: MemorySide, count: int) -> None:
    with pytest.raises(ValueError, match="must be between 1 and 64"):
        side.coordinator().slots("gpu", count)


@pytest.mark.parametrize("count", [True, 1.5, "4", None])
def test_their_number_is_an_int(side: MemorySide, count: Any) -> None:
    with pytest.raises(TypeError, match="the number of slots must be an int, not"):
        side.coordinator().slots("gpu", count)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a{b", "must not contain braces"),
        ("}", "must not contain braces"),
        ("", "must not be empty"),
        ("x" * 508, "must have at most 507 bytes"),
        ("ü" * 254, "must have at most 507 bytes"),
        ("x" * 600, "must have at most 512 bytes"),
        ("fencing:x", "are reserved"),
        ("a\0", "NUL"),
    ],
)
def test_a_bad_name_is_refused_in_words(side: MemorySide, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        side.coordinator().slots(name, 2)


def test_the_longest_name_fits_with_its_suffix(side: MemorySide) -> None:
    slots = side.coordinator().slots("x" * 507, 64)
    assert max(len(each) for each in slots.resources) == 512


@pytest.mark.parametrize("name", [b"gpu", 3, None])
def test_a_name_is_a_text(side: MemorySide, name: Any) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        side.coordinator().slots(name, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_waiters": 3}, "no max_waiters.* stand in no queue, and are not counted; leave max_waiters=3 out, or"),
        ({"at_least": 3}, r"argument of hold\(\) and locked\(\), of one lock or of slots"),
        ({"reentrant": True}, "not re-entrant"),
        ({"prefix": "x:"}, "option of coordinators"),
        ({"tll": 3}, "not an option of a lock"),
    ],
)
def test_options_that_slots_do_not_have(side: MemorySide, options: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        side.coordinator().slots("gpu", 2, **options)
    with pytest.raises(TypeError, match="max_waiters=None"):
        side.coordinator(max_waiters=3).slots("gpu", 2)
    side.coordinator(max_waiters=3).slots("gpu", 2, max_waiters=None)


def test_they_have_the_options_of_a_lock(side: MemorySide) -> None:
    coordinator = side.coordinator(ttl=10)
    lease = side.call(coordinator.slots("gpu", 1, ttl=60, max_lifetime=90, owner="me").acquire, timeout=0)
    assert lease.remaining() > 50
    assert lease._holding.settings.max_lifetime == 90
    assert side.holder("{gpu}#0").owner == "me"
    assert side.call(lease.release) is True
    lease = side.call(coordinator.slots("gpu", 1, renew=False, ttl=5).acquire, timeout=0)
    side.clock.advance(6)
    assert not lease.held
    again = side.call(coordinator.slots("gpu", 1).acquire, timeout=0)
    assert again.fence.number > lease.fence.number
    assert side.call(lease.release) is False
    assert side.call(again.release) is True


def test_a_prefix_stays_outside_of_the_braces(side: MemorySide) -> None:
    """So the rights of an application, and its listing, have its slots in them."""
    coordinator = side.coordinator(prefix="billing:")
    slots = coordinator.slots("gpu", 2)
    assert slots.resources == ("billing:{gpu}#0", "billing:{gpu}#1")
    assert coordinator.slots("billing:gpu", 2).resources == slots.resources
    lease = side.call(slots.acquire, timeout=0)
    assert side.call(coordinator.holder, f"{{gpu}}#{lease.slot}").number == lease.fence.number
    assert side.call(lease.release) is True
    with pytest.raises(ValueError, match="must not be empty"):
        coordinator.slots("billing:", 2)
    with pytest.raises(ValueError, match="at most 499 bytes"):
        coordinator.slots("x" * 500, 2)
    with pytest.raises(ValueError, match="spreads slots over the nodes"):
        side.coordinator(prefix="{}:").slots("gpu", 2)


def test_a_lease_says_which_slot_it_is_and_a_lock_is_none(side: MemorySide) -> None:
    coordinator = side.coordinator()
    for resource in ("gpu", "{gpu}#64", "{gpu}#02", "{gpu}#", "{}#1", "#1", "{gpu}#1 ", "a{b}c#1"):
        lease = side.call(coordinator.acquire, resource, timeout=0)
        assert not hasattr(lease, "slot"), resource
        with pytest.raises(AttributeError, match="is no slot"):
            _ = lease.slot
        side.call(lease.release)
    coordinator = side.coordinator(guards=[AsyncMemoryGuard() if side.asynchronous else MemoryGuard()])
    lease = side.call(coordinator.slots("g p\nu", 64).acquire, timeout=0)
    adopted = side.call(coordinator.adopt, lease.detach())
    assert adopted.slot == lease.slot
    fresh = side.call(adopted.reclaim)
    assert fresh.slot == lease.slot
    side.call(fresh.release)


def test_what_is_no_lock_is_refused_in_words(side: MemorySide) -> None:
    slots = side.coordinator().slots("gpu", 2)
    with pytest.raises(TypeError, match="hold a slot in a block around this one"):
        hold_all([slots])
    with pytest.raises(TypeError, match=r"takes names of locks, not (Async)?Slots; hold a slot in a block around this"):
        side.coordinator().hold_all(["a", slots])
    with pytest.raises(
        TypeError, match=r"takes names, not (Async)?FencedLock; pass its name, or write fencing\.hold_a"
    ):
        side.coordinator().hold_all([side.coordinator().lock("a")])
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        slots.__reduce_ex__(2)
    side.expect(TypeError, type(slots).__aenter__ if side.asynchronous else type(slots).__enter__, slots)


# Blocks


def test_a_slot_stays_taken_after_its_block(side: MemorySide) -> None:
    """Until the moment that counts from its grant; the other slots are not concerned."""
    slots = side.coordinator(ttl=10).slots("gpu", 2)

    async def story() -> int:
        async with block(slots, timeout=0, at_least=30) as lease:
            side.clock.advance(5)
            return int(lease.slot)

    slot = play(side, story)
    holder = side.holder(f"{{gpu}}#{slot}")
    assert holder.released
    assert holder.remaining == pytest.approx(25)
    other = side.call(slots.acquire, timeout=0)
    assert other.slot == 1 - slot
    assert side.call(slots.try_acquire) is None
    side.call(other.release)
    side.clock.advance(25)
    leases = [side.call(slots.acquire, timeout=0) for _ in range(2)]
    assert {lease.slot for lease in leases} == {0, 1}
    for lease in leases:
        side.call(lease.release)


@pytest.mark.parametrize(("at_least", "says"), [(-1, "between 0 seconds and a year"), (61, "at most max_lifetime")])
def test_wrong_seconds_of_at_least_are_refused(side: MemorySide, at_least: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        side.coordinator(max_lifetime=60).slots("gpu", 2).hold(at_least=at_least)


def test_a_block_inside_a_block_is_one_more_slot(side: MemorySide) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        async with block(coordinator.slots("gpu", 3)) as one, block(coordinator.slots("gpu", 3)) as two:
            assert one.slot != two.slot
            async with block(coordinator.lock(f"{{gpu}}#{3 - one.slot - two.slot}")):
                pass
            async with block(coordinator.slots("gpu", 3)) as three:
                assert {one.slot, two.slot, three.slot} == {0, 1, 2}
        assert side.holder("{gpu}#0") is side.holder("{gpu}#1") is side.holder("{gpu}#2") is None

    play(side, story)


def test_who_holds_all_slots_would_wait_for_itself(side: MemorySide) -> None:
    coordinator = side.coordinator(owner="me")
    slots = coordinator.slots("gpu", 2)
    this = "task" if side.asynchronous else "thread"

    async def story() -> None:
        async with block(slots), block(slots):
            with pytest.raises(
                RuntimeError, match=rf"this {this} holds all 2 slots of '\{{gpu\}}', .* itself for ever"
            ):
                async with block(slots):
                    raise AssertionError("entered")
            with pytest.raises(NotAcquired, match=f"all 2 slots .* are held by this very {this}") as caught:
                async with block(slots, timeout=0):
                    raise AssertionError("entered")
            assert (caught.value.held_by_this, caught.value.slots, caught.value.owner) == (this, 2, "me")
            error = await elsewhere(side, lambda: _error(slots))
            assert (error.held_by_this, error.slots) == (None, 2)
            assert str(error).startswith("all 2 slots of '{gpu}' are held, one by me; none was acquired within 0.00 s")
            async with block(coordinator.slots("gpu", 3)) as third:
                assert third.slot == 2

    play(side, story)


def _error(slots: Any) -> Any:
    if hasattr(slots, "__aenter__"):
        return _error_async(slots)
    with pytest.raises(NotAcquired) as caught, slots.hold(timeout=0):
        pass
    return caught.value


async def _error_async(slots: Any) -> Any:
    with pytest.raises(NotAcquired) as caught:
        async with slots.hold(timeout=0):
            pass
    return caught.value


def test_a_block_of_a_slot_is_one_of_its_lock(side: MemorySide) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        async with block(coordinator.slots("gpu", 4)) as lease:
            with pytest.raises(RuntimeError, match="would wait for itself for ever"):
                async with block(coordinator.lock(lease.fence.resource)):
                    raise AssertionError("entered")
            hold = coordinator.hold_all(["other", lease.fence.resource])
            with pytest.raises(RuntimeError, match="hold all locks in the outer block"):
                await done((hold.__aenter__ if side.asynchronous else hold.__enter__)())
            assert side.holder("other") is None

    play(side, story)


def test_a_block_of_a_lost_slot_counts_no_more(side: MemorySide) -> None:
    coordinator = side.coordinator()

    async def story() -> None:
        async with block(coordinator.slots("gpu", 1)) as lease:
            side.take_away("{gpu}#0")
            lease._holding.lose("gone")
            async with block(coordinator.slots("gpu", 1)) as again:
                assert again.fence.number > lease.fence.number

    side.expect(LeaseLost, play, side, story)


def test_a_block_whose_slot_is_lost_is_cancelled() -> None:
    side = MemorySide(asynchronous=True)
    slots = side.coordinator().slots("gpu", 2)

    async def story() -> None:
        async with slots.hold(timeout=5, cancel_on_loss=True) as lease:
            asyncio.get_running_loop().call_soon(lease._holding.lose, "gone")
            await asyncio.wait_for(asyncio.Event().wait(), 30)

    error = side.expect(LeaseLost, story)
    assert not error.completed
    assert error.fence.resource in slots.resources


def test_a_hold_decorates_and_is_used_once(side: MemorySide) -> None:
    slots = side.coordinator().slots("gpu", 2)
    if side.asynchronous:

        async def held_async() -> bool:
            return side.holder("{gpu}#0") is not side.holder("{gpu}#1")

        assert side.call(slots.hold(timeout=5)(held_async))
    else:

        def held() -> bool:
            return side.holder("{gpu}#0") is not side.holder("{gpu}#1")

        assert slots.hold(timeout=5)(held)()
    assert side.holder("{gpu}#0") is side.holder("{gpu}#1") is None

    async def story() -> None:
        hold = slots.hold(timeout=0)
        for enter in range(2):
            if enter:
                with pytest.raises(TypeError, match="was used before"):
                    await done((hold.__aenter__ if side.asynchronous else hold.__enter__)())
                continue
            await done((hold.__aenter__ if side.asynchronous else hold.__enter__)())
            await done((hold.__aexit__ if side.asynchronous else hold.__exit__)(None, None, None))

    play(side, story)


# What is asked, and what is given back

SETTINGS = Settings(ttl=10.0, owner="me")
NAMES = ("{s}#0", "{s}#1", "{s}#2")


class Ask:
    """The effect: a request of a slot's lock."""

    def __init__(self, operation: str, resource: str, token: str, floor: int = 0) -> None:
        self.operation, self.resource, self.token, self.floor = operation, resource, token, floor


class OneByOne(MemoryPlans):
    """A service whose every request is answered by the test, and that has none for all slots at once."""

    plan_acquire_any = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(clock=lambda: self.now)
        self.later: list[tuple[str, str]] = []
        self.give_back_later = lambda grant, settings: self.later.append((grant.resource, grant.token))

    def _ask(self, ask: Ask, settings: Settings, deadline: float, may_take: bool) -> Plan[Any]:
        token = ask.token if may_take else None
        answer = yield from self.plan_until_answered(
            lambda timeout, last: ask, ask.resource, settings, deadline, may_take=token
        )
        return answer.value

    def plan_acquire(self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float) -> Plan[Any]:
        ask = Ask("acquire", resource, token, floor)
        reply = yield from self._ask(ask, settings, deadline, True)
        return Grant(resource, reply, token, self.now + 9) if isinstance(reply, int) else reply

    def plan_remint(
        self, grant: Any, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        reply = yield from self._ask(Ask("remint", grant.resource, token, floor), settings, deadline, False)
        return None if reply is None else Grant(grant.resource, reply, token, self.now + 9)

    def plan_release(self, grant: Any, settings: Settings, *, deadline: float) -> Plan[bool]:
        yield from self._ask(Ask("release", grant.resource, grant.token), settings, deadline, False)
        return True


class Story:
    """Runs an acquisition of any of three slots, the first of which is number 1. The test answers each request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(random, "randrange", lambda count: 1)
        self.backend = OneByOne()
        self.asked: list[tuple[str, str, str]] = []
        self.floors: list[int] = []
        self.slept: list[float] = []

    def run(self, timeout: float, *answers: Any, settings: Settings = SETTINGS) -> Any:
        remaining = list(answers)
        plan = acquire_slot(self.backend, "{s}", NAMES, settings, timeout, lambda grant: grant)
        result = self._run(plan, remaining)
        assert not remaining, f"not asked for: {remaining}"
        return result

    def _run(self, plan: Plan[Any], answers: list[Any]) -> Any:
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = plan.throw(throw) if throw else plan.send(send)
            except StopIteration as stop:
                return stop.value
            send = throw = None
            if isinstance(effect, Shielded):
                send = self._run(effect.plan, answers)
            elif isinstance(effect, Sleep):
                self.slept.append(effect.seconds)
                self.backend.now += effect.seconds
            elif isinstance(effect, Claim):
                try:
                    effect.guard.claim(*effect.fences)
                except StaleFence as error:
                    throw = error
            else:
                self.asked.append((effect.operation, effect.resource[-1], effect.token))
                self.floors.append(effect.floor)
                answer = answers.pop(0)
                if isinstance(answer, tuple):
                    self.backend.now += answer[0]
                    answer = answer[1]
                if isinstance(answer, BaseException):
                    throw = answer
                else:
                    send = answer

    def what(self) -> str:
        """Return the operations and their slots."""
        return " ".join(f"{operation[:2]}{slot}" for operation, slot, _ in self.asked)

    def tokens(self) -> list[int]:
        """Return the tokens, numbered in the order in which they came."""
        seen: dict[str, int] = {}
        return [seen.setdefault(token, len(seen)) for _, _, token in self.asked]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    return Story(monkeypatch)


TAKEN = Taken(5.0, "other")


def cut(*, may_have_run: bool = True) -> NoReply:
    return NoReply(ConnectionError("cut"), may_have_run=may_have_run)


def test_each_slot_is_tried_once_from_a_random_one_on(story: Story) -> None:
    grant = story.run(0, TAKEN, TAKEN, 7)
    assert story.what() == "ac1 ac2 ac0"
    assert story.tokens() == [0, 1, 2], "each try has a token of its own"
    assert (grant.resource, grant.token) == ("{s}#0", story.asked[-1][2])
    assert story.slept == []


def test_a_try_without_an_answer_is_repeated_before_the_next_slot(story: Story) -> None:
    """It may have taken the slot: its own token is looked for first."""
    grant = story.run(5, cut(), TAKEN, cut(), 7)
    assert story.what() == "ac1 ac1 ac2 ac2"
    assert story.tokens() == [0, 0, 1, 1]
    assert grant.resource == "{s}#2"
    assert story.backend.later == []


@pytest.mark.parametrize(("timeout", "seconds"), [(0, 1.0), (5, 3.0)])
def test_a_slot_whose_try_is_never_answered_is_given_back_and_no_other_is_tried(
    story: Story, timeout: float, seconds: float
) -> None:
    with pytest.raises(CoordinatorUnavailable, match=r"for '\{s\}#1'"):
        story.run(timeout, *[(seconds, cut())] * 2)
    assert story.what() == "ac1 ac1"
    assert story.backend.later == [("{s}#1", story.asked[0][2])]


def test_an_interruption_gives_back_the_slot_that_was_asked_for(story: Story) -> None:
    with pytest.raises(KeyboardInterrupt):
        story.run(5, TAKEN, KeyboardInterrupt(), True)
    assert story.what() == "ac1 ac2 re2"
    assert story.tokens() == [0, 1, 1]
    assert story.backend.later == [("{s}#2", story.asked[1][2])], "it may run later, so it is released again"


def test_an_interrupted_remint_gives_back_both_fences_of_the_slot(story: Story) -> None:
    guard = MemoryGuard()
    guard.claim(Fence("{s}#1", 50, new_token()))
    with pytest.raises(KeyboardInterrupt):
        story.run(5, 7, KeyboardInterrupt(), True, True, settings=Settings(ttl=10.0, guards=(guard,)))
    assert story.what() == "ac1 re1 re1 re1"
    assert [operation for operation, _, _ in story.asked] == ["acquire", "remint", "release", "release"]
    assert story.tokens() == [0, 1, 0, 1]
    assert story.backend.later == [("{s}#1", story.asked[1][2])]


def test_a_plan_that_is_closed_gives_back_what_it_has_asked_for(story: Story) -> None:
    plan = acquire_slot(story.backend, "{s}", NAMES, SETTINGS, 5, lambda grant: grant)
    ask = plan.send(None)
    plan.close()
    assert story.backend.later == [("{s}#1", ask.token)]


def test_a_slot_without_a_decision_is_asked_for_again_first(story: Story) -> None:
    """Its release may have no answer, so the slot may still be this caller's."""
    undecided = Undecided(CoordinatorUnavailable("split", resource="{s}#2", address="nodes"), 0.1)
    grant = story.run(5, TAKEN, undecided, TAKEN, 7)
    assert story.what() == "ac1 ac2 ac2 ac0"
    assert story.tokens() == [0, 1, 2, 3]
    assert grant.resource == "{s}#0"


def test_no_slot_is_tried_after_the_deadline(story: Story) -> None:
    with pytest.raises(NotAcquired) as caught:
        story.run(5, (3.0, TAKEN), (3.0, TAKEN))
    assert story.what() == "ac1 ac2"
    assert (caught.value.waited, caught.value.owner, caught.value.slots) == (6.0, "other", 3)


def test_a_waiter_polls_and_asks_when_the_first_slot_frees_itself(story: Story) -> None:
    last = [Taken(5.0, "a"), Taken(0.001, "b"), Taken(9.0, "c")]
    grant = story.run(5, *[TAKEN] * 30, *last, 7)
    assert all(0.004 < pause <= 0.2 for pause in story.slept[:-1])
    assert story.slept[-1] == 0.001
    assert grant.resource == "{s}#1"


def test_a_waiter_gives_up_in_time_and_names_the_holder_that_is_over_first(story: Story) -> None:
    answers = itertools.cycle([Taken(50.0, "a"), Taken(40.0, "b"), Taken(90.0, "c")])
    with pytest.raises(NotAcquired, match=r"all 3 slots of '\{s\}' are held, one by b; none was acquired") as caught:
        story.run(1, *itertools.islice(answers, 3 * 40))
    assert 1 <= caught.value.waited < 1.01


def test_a_fence_to_exceed_is_that_of_one_slot(story: Story) -> None:
    """The claims take longer than the lease, so the slot is given back. The others have marks of their own."""
    guard = MemoryGuard()
    guard.claim(Fence("{s}#1", 50, new_token()))
    settings = Settings(ttl=10.0, guards=(guard,))
    grant = story.run(60, 7, None, TAKEN, 8, settings=settings)
    assert story.what() == "ac1 re1 ac1 ac2"
    assert story.floors == [0, 50, 50, 0]
    assert (grant.resource, grant.number) == ("{s}#2", 8)
    assert guard.mark("{s}#1") == Mark(50, guard.mark("{s}#1").token)  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["plan_acquire_any", "plan_acquire"])
def test_a_backend_that_returns_no_grant_is_named(side: MemorySide, method: str) -> None:
    members = {"plan_acquire_any": None} if method == "plan_acquire" else {}
    made: Any = type("Poor", (type(side.coordinator()._backend),), members)
    backend = made(side.table, side.clock)
    coordinator = (AsyncCoordinator if side.asynchronous else Coordinator)(backend)
    real = getattr(backend, method)

    def plan(*args: Any, **options: Any) -> Plan[Any]:
        yield from real(*args, **options)

    setattr(backend, method, plan)
    error = side.expect(TypeError, coordinator.slots("gpu", 3).acquire, timeout=0)
    assert str(error).startswith(f"{method} of Poor returned nothing (None)")
    assert all(side.holder(f"{{gpu}}#{slot}") is None for slot in range(3)), "what it may have taken was given back"


def test_a_request_for_all_that_is_interrupted_is_given_back_in_all(side: MemorySide) -> None:
    """It took one of them, and nobody was told which."""
    coordinator = side.coordinator()
    backend = coordinator._backend
    perform = backend.perform
    asked: list[str] = []

    def interrupted(effect: Any) -> Any:
        asked.append(effect.operation)
        result = perform(effect)
        if effect.operation == "acquire_any":
            if side.asynchronous:
                _finish(result)
            assert sum(side.holder(f"{{gpu}}#{slot}") is not None for slot in range(3)) == 1
            raise Interruption
        return result

    backend.perform = interrupted
    side.expect(Interruption, coordinator.slots("gpu", 3).acquire, timeout=5)
    assert all(side.holder(f"{{gpu}}#{slot}") is None for slot in range(3))
    assert asked[:4] == ["acquire_any", "release", "release", "release"]


def test_an_interruption_at_any_line_is_raised_as_it_is() -> None:
    """Also before the first request, when there is nothing yet to give back."""
    with MemoryCoordinator() as coordinator:
        slots = coordinator.slots("gpu", 2)

        def take() -> None:
            slots.acquire(timeout=5).release()

        for number in itertools.count(1):
            try:
                _, was_raised = raise_at_line(number, Interruption(), ("fencing/locks/any_slot", "locks/plans"), take)
            except Interruption:
                continue
            assert not was_raised
            break
        assert number > 40


class Interruption(BaseException):
    """What a signal handler raises."""


def _finish(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_a_closed_coordinator_gives_no_slots(side: MemorySide) -> None:
    coordinator = side.coordinator()
    slots = coordinator.slots("gpu", 2)
    side.call(coordinator.close)
    side.expect(RuntimeError, slots.acquire, timeout=0)


def test_a_slot_is_named_in_texts() -> None:
    with MemoryCoordinator() as coordinator:
        slots = coordinator.slots("gpu", 2)
        assert repr(slots) == "<Slots of '{gpu}', 2>"
        assert repr(slots.hold(timeout=0)(test_a_slot_is_named_in_texts)).startswith("<function")
