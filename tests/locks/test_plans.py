"""The plans, stepped through without any server or clock: what is asked, in which order, within what time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest

from fencing import CoordinatorUnavailable, Fence, LeaseLost, Mark, NotAcquired, StaleFence
from fencing.kernel.effects import Claim, Plan, Shielded, Sleep
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import Wake
from fencing.locks import backend, plans, several, waiting
from fencing.locks.backend import Holder, Taken, Undecided
from fencing.locks.holding import Grant
from fencing.locks.lanes import Lane
from fencing.locks.settings import Settings
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.calls import Call, release_call
from fencing.redis.connection_factory import command
from fencing.redis.plans import RedisPlans
from fencing.redis.resp import bulks, script_call
from fencing.redis.waiters import Waiter
from storage_guards import MemoryGuard

GUARD = MemoryGuard()
SETTINGS = Settings(ttl=10.0, owner="me")
HELD = Grant("r", 7, "t" * 22, 1000.0)


class WithoutQueue(RedisPlans):
    """A coordinator without a queue, so that waiters poll."""

    plan_queue = None  # type: ignore[assignment]


class Stepper:
    """Runs a plan; the test answers each effect. Time passes in sleeps, while no message wakes a waiter, and when the
    test moves it."""

    def __init__(self, plans: type[RedisPlans] = RedisPlans) -> None:
        self.redis = plans()
        self.redis.is_waited_for = lambda resource: False  # type: ignore[method-assign]
        self.now = 1000.0
        self.redis.clock = lambda: self.now
        self.effects: list[Any] = []
        self.otherwise: Any = None  # the answer when there is no other one

    def run(self, plan: Plan[Any], *answers: Any) -> Any:
        """Each answer is for one effect that is no sleep: a value to send, an error to throw, or a pair of the seconds
        that pass first and one of these. Nested plans are run in place."""
        remaining = list(answers)
        result = self._run(plan, remaining)
        assert not remaining, f"not asked for: {remaining}"
        return result

    def _run(self, plan: Plan[Any], answers: list[Any]) -> Any:
        send, throw = None, None
        while True:
            try:
                effect = plan.throw(throw) if throw else plan.send(send)
            except StopIteration as stop:
                return stop.value
            send = throw = None
            if isinstance(effect, Shielded):
                send = self._run(effect.plan, answers)
                continue
            self.effects.append(effect)
            if isinstance(effect, Sleep):
                assert effect.seconds >= 0
                self.now += effect.seconds
                continue
            if isinstance(effect, Enlist):
                send = effect.waiter or Waiter(effect.resource, effect.token, Wake(), "hub")
                continue
            if isinstance(effect, (Wait, Leave)):
                self.now += min(effect.seconds, effect.recheck) if isinstance(effect, Wait) else 0
                continue
            assert answers or self.otherwise, f"asked for more: {effect}"
            answer = answers.pop(0) if answers else self.otherwise
            if isinstance(answer, tuple):
                seconds, answer = answer
                self.now += seconds
            if isinstance(answer, BaseException):
                throw = answer
            else:
                send = answer

    def asked(self) -> list[str]:
        return [effect.script.name if isinstance(effect, Call) else type(effect).__name__ for effect in self.effects]

    def slept(self) -> list[float]:
        return [effect.seconds for effect in self.effects if isinstance(effect, Sleep)]


@pytest.fixture
def steps() -> Stepper:
    return Stepper()


@pytest.fixture
def polls() -> Stepper:
    return Stepper(WithoutQueue)


def no_reply(*, may_have_run: bool = True) -> NoReply:
    return NoReply(ConnectionError("cut"), may_have_run=may_have_run)


GRANTED = b"7"
RELEASED = 1
NOT_HELD = 0
GONE = [b"gone"]
HELD_BY_ME = [b"held", 500, 250, b"7", b"me", b"5eed", b"", 3]


# The Redis plans


def test_the_deadline_counts_from_before_the_request_less_the_drift(steps: Stepper) -> None:
    plan = steps.redis.plan_acquire("r", "t" * 22, SETTINGS, floor=0, deadline=1100)
    grant = steps.run(plan, (3.0, GRANTED))
    assert (grant.fence, grant.deadline) == (Fence("r", 7, "t" * 22), 1000 + 10 * 0.99 - 0.002)


def test_the_deadline_of_a_repeated_request_counts_from_the_repetition(steps: Stepper) -> None:
    plan = steps.redis.plan_acquire("r", "t" * 22, SETTINGS, floor=0, deadline=1100)
    grant = steps.run(plan, (3.0, no_reply()), (0.5, GRANTED))
    assert grant.deadline == pytest.approx(1003 + 10 * 0.99 - 0.002)


def test_a_request_is_repeated_word_for_word_and_within_its_deadline(steps: Stepper) -> None:
    plan = steps.redis.plan_acquire("r", "t" * 22, SETTINGS, floor=0, deadline=1001)
    steps.otherwise = (0.15, no_reply())
    with pytest.raises(CoordinatorUnavailable) as caught:
        steps.run(plan)
    assert isinstance(caught.value.__cause__, ConnectionError)
    calls = [effect for effect in steps.effects if isinstance(effect, Call)]
    assert len({(call.script, call.keys, call.args) for call in calls}) == 1
    assert steps.now <= 1001 + 0.15, "no attempt begins after the deadline"
    assert steps.slept()[0] == 0, "the first repetition comes at once: mostly an idle connection was closed"
    assert all(0 < call.timeout <= 10 / 3 for call in calls)
    assert calls[-1].timeout <= 1001 - 1000


def test_one_attempt_takes_at_most_a_third_of_the_ttl(steps: Stepper) -> None:
    with pytest.raises(CoordinatorUnavailable):
        steps.run(
            steps.redis.plan_renew([HELD], SETTINGS, deadline=1000 + 2 * 10 / 3),
            *[(10 / 3, no_reply())] * 2,
        )
    assert [effect.timeout for effect in steps.effects if isinstance(effect, Call)] == pytest.approx([10 / 3, 10 / 3])


def test_the_failure_of_the_longest_attempt_is_reported(steps: Stepper) -> None:
    """A last attempt, cut short by the deadline, would hide that the server's certificate was refused."""
    refused, cut_short = NoReply(ConnectionError("refused"), may_have_run=False), no_reply()
    plan = steps.redis.plan_release(HELD.fence, SETTINGS, deadline=1001)
    with pytest.raises(CoordinatorUnavailable, match="refused"):
        steps.run(plan, (0.99, refused), (0.02, cut_short))


def test_only_the_last_attempt_is_withdrawn(steps: Stepper) -> None:
    plan = steps.redis.plan_acquire("r", "t" * 22, SETTINGS, floor=0, deadline=1000 + 2 * 10 / 3)
    with pytest.raises(CoordinatorUnavailable):
        steps.run(plan, *[(10 / 3, no_reply())] * 2)
    first, second = (effect for effect in steps.effects if isinstance(effect, Call))
    assert (first.last_attempt, second.last_attempt) == (False, True), (
        "an earlier one withdrawn late would free what a later one got"
    )
    assert second.compensation is not None
    assert second.compensation.script.name == "release"


@pytest.mark.parametrize(
    ("answers", "freed"),
    [
        ([RELEASED], True),
        ([NOT_HELD], False),
        ([no_reply(), NOT_HELD], True),
        ([no_reply(may_have_run=False), NOT_HELD], False),
    ],
)
def test_release_is_false_only_for_certain(steps: Stepper, answers: list[Any], freed: bool) -> None:
    assert steps.run(steps.redis.plan_release(Fence("r", 7, "t" * 22), SETTINGS, deadline=1100), *answers) is freed


@pytest.mark.parametrize(("said", "believed"), [(b"r", True), (b"o", False), (b"g", False)])
def test_renewal_believes_the_record(steps: Stepper, said: bytes, believed: bool) -> None:
    [until] = steps.run(steps.redis.plan_renew([HELD], SETTINGS, deadline=1100), said)
    assert until == (1000 + 10 * 0.99 - 0.002 if believed else None)


def test_replies_are_read(steps: Stepper) -> None:
    acquire = steps.redis.plan_acquire
    deadline = 1100.0
    taken = steps.run(acquire("r", "t" * 22, SETTINGS, floor=0, deadline=deadline), [b"taken", 1500, "ü".encode()])
    assert taken == Taken(1.5, "ü")
    assert steps.run(acquire("r", "t" * 22, SETTINGS, floor=0, deadline=deadline), [b"taken", -1, b""]) == Taken(
        math.inf, None, kept_by="foreign"
    )
    holder = steps.redis.plan_holder
    assert steps.run(holder("r", SETTINGS, deadline=deadline), [b"free"]) is None
    held = steps.run(holder("r", SETTINGS, deadline=deadline), HELD_BY_ME)
    assert (held, held.waiting) == (Holder("me", 7, 0.25, 0.5), 3)
    assert steps.run(holder("r", SETTINGS, deadline=deadline), [b"held", -1, -1, b"", b"", b"5eed", b"", -1]) == Holder(
        None, None, None, None
    )


# The lock's plans


def settings(*guards: MemoryGuard) -> Settings:
    return Settings(ttl=10.0, guards=guards, owner="me")


def stale(number: int) -> StaleFence:
    return StaleFence(fence=Fence("r", 7, "t" * 22), mark=Mark(number, "u" * 22))


def test_claims_come_after_the_grant_and_before_anything_else(steps: Stepper) -> None:
    other = MemoryGuard()
    grant = steps.run(plans.acquire(steps.redis, "r", settings(GUARD, other), 5.0), GRANTED, None, None)
    assert steps.asked() == ["acquire", "Claim", "Claim"]
    assert [effect.guard for effect in steps.effects[1:]] == [GUARD, other]
    assert {effect.fences for effect in steps.effects[1:]} == {(grant.fence,)}


@pytest.mark.parametrize(
    ("renew", "timeout", "left"),
    [
        *[(True, 5.0, 3.0), (True, 60.0, 58.0), (True, 0.0, 1.0), (True, math.inf, 10.0)],
        *[(False, 5.0, 3.0), (False, 60.0, 7.898), (False, 0.0, 1.0), (False, math.inf, 7.898)],
    ],
)
def test_a_claim_gets_what_is_left_of_the_timeout_or_one_ttl(
    steps: Stepper, renew: bool, timeout: float, left: float
) -> None:
    chosen = replace(settings(GUARD), renew=renew)
    steps.run(plans.acquire(steps.redis, "r", chosen, timeout), (2.0, GRANTED), None)
    claim = steps.effects[-1]
    assert isinstance(claim, Claim)
    assert claim.timeout == pytest.approx(left)


def test_a_refused_claim_is_repaired_by_a_new_fence_above_the_mark(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", settings(GUARD), 5.0)
    grant = steps.run(plan, GRANTED, stale(500), b"501", None)
    assert steps.asked() == ["acquire", "Claim", "remint", "Claim"]
    acquire, _, remint, claim = steps.effects
    assert remint.args[3] == 500
    assert remint.args[-2:] == (acquire.args[0], 7), "only while the lock is still held by my token and number"
    assert remint.args[0] != acquire.args[0], "under a new token: the same one would get the same number"
    assert claim.fences[0] == grant.fence == Fence("r", 501, remint.args[0])


def test_a_late_waiter_waits_on_for_a_number_above_the_mark(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", settings(GUARD), 5.0)
    grant = steps.run(plan, GRANTED, stale(500), GONE, b"501", None)
    assert steps.asked() == ["acquire", "Claim", "remint", "Sleep", "acquire", "Claim"]
    assert steps.effects[4].args[3] == 500
    assert grant.fence.number == 501


def test_claims_that_outlast_the_lease_do_not_count(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", settings(GUARD), 60.0)
    grant = steps.run(plan, GRANTED, (11.0, None), GONE, b"8", None)
    assert steps.asked() == ["acquire", "Claim", "release", "Sleep", "acquire", "Claim"]
    assert grant.fence.number == 8


def test_after_five_refused_claims_the_lock_is_superseded(steps: Stepper) -> None:
    answers: list[Any] = [GRANTED]
    for _ in range(plans.CLAIM_ROUNDS):
        answers += [stale(500), GRANTED]
    with pytest.raises(NotAcquired) as caught:
        steps.run(plans.acquire(steps.redis, "r", settings(GUARD), 60.0), *answers[:-1], GRANTED, RELEASED)
    assert caught.value.reason == "superseded"
    assert steps.asked().count("Claim") == plans.CLAIM_ROUNDS
    assert steps.asked()[-1] == "release"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the guard broke")])
def test_whatever_stops_a_claim_the_lock_is_given_back(steps: Stepper, error: BaseException) -> None:
    with pytest.raises(type(error)):
        steps.run(plans.acquire(steps.redis, "r", settings(GUARD), 5.0), GRANTED, error, RELEASED)
    assert steps.asked() == ["acquire", "Claim", "release"]
    assert steps.effects[-1].args == steps.effects[0].args[:1]


def test_waiting_is_jittered_grows_and_is_bounded(polls: Stepper) -> None:
    polls.otherwise = [b"taken", 100_000, b"them"]
    with pytest.raises(NotAcquired) as caught:
        polls.run(plans.acquire(polls.redis, "r", SETTINGS, 3.0))
    assert caught.value.owner == "them"
    assert caught.value.waited == pytest.approx(3.0)
    slept = polls.slept()
    assert 15 <= len(slept) <= 40, "they are 0.1 to 0.2 s apart, but for the first few"
    assert max(slept) <= waiting.POLLING.longest
    assert len(set(slept)) > len(slept) / 2, "jittered"


def test_waiting_wakes_when_the_holders_ttl_ends(polls: Stepper) -> None:
    polls.run(plans.acquire(polls.redis, "r", SETTINGS, 3.0), [b"taken", 1, b""], GRANTED)
    assert polls.slept()[0] <= 0.001


def test_a_last_poll_that_gets_no_reply_in_time_means_held(polls: Stepper) -> None:
    with pytest.raises(NotAcquired) as caught:
        polls.run(
            plans.acquire(polls.redis, "r", SETTINGS, 1.0), (0.5, [b"taken", 100_000, b"them"]), (0.5, no_reply())
        )
    assert caught.value.owner == "them"


def test_a_first_try_that_gets_no_reply_means_unavailable(steps: Stepper) -> None:
    with pytest.raises(CoordinatorUnavailable):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 1.0), (1.0, no_reply()))


def test_a_waiter_uses_all_of_its_time(polls: Stepper) -> None:
    polls.otherwise = [b"taken", 100_000, b"them"]
    with pytest.raises(NotAcquired) as caught:
        polls.run(plans.acquire(polls.redis, "r", SETTINGS, 0.5))
    assert caught.value.waited == pytest.approx(0.5), "neither earlier nor later"
    assert polls.asked()[-2] == "acquire"
    assert polls.slept()[-1] == pytest.approx(waiting.LAST_POLL_SECONDS)


QUEUED = [b"queued", b"1000", 9902, b"them"]


def test_a_waiter_listens_before_it_queues_and_asks_again_with_its_ticket(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", SETTINGS, 60.0)
    grant = steps.run(plan, [b"taken", 9900, b"them"], QUEUED, QUEUED, GRANTED)
    assert steps.asked() == ["acquire", "Enlist", "acquire", *["Wait", "Enlist", "acquire"] * 2, "Leave"]
    asked = [effect.args for effect in steps.effects if isinstance(effect, Call)]
    assert [args[5:] for args in asked] == [(), ("hub", ""), ("hub", "1000"), ("hub", "1000")]
    assert {args[0] for args in asked} == {grant.fence.token}, "one token, so one place"
    enlisted = [effect.waiter for effect in steps.effects if isinstance(effect, Enlist)]
    assert enlisted[1] is enlisted[2] is not None
    [wait, _] = [effect for effect in steps.effects if isinstance(effect, Wait)]
    assert (wait.seconds, wait.recheck) == (60.0, 9.902)
    assert steps.effects[-1].free_at == grant.deadline


def test_the_first_request_queues_where_others_of_the_process_wait(steps: Stepper) -> None:
    steps.redis.is_waited_for = lambda resource: True  # type: ignore[method-assign]
    steps.run(plans.acquire(steps.redis, "r", SETTINGS, 60.0), QUEUED, GRANTED)
    assert steps.asked() == ["Enlist", "acquire", "Wait", "Enlist", "acquire", "Leave"]


def test_trying_once_neither_listens_nor_queues(steps: Stepper) -> None:
    steps.redis.is_waited_for = lambda resource: True  # type: ignore[method-assign]
    with pytest.raises(NotAcquired):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 0.0), [b"taken", 100_000, b""])
    assert steps.asked() == ["acquire"]
    assert steps.effects[0].args[5:] == ()


def test_a_waiter_that_gives_up_leaves_the_queue(steps: Stepper) -> None:
    with pytest.raises(NotAcquired) as caught:
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 3.0), [b"taken", 9900, b"them"], QUEUED, GONE)
    assert caught.value.owner == "them"
    assert caught.value.waited == pytest.approx(3.0)
    assert steps.asked()[-3:] == ["Wait", "Leave", "release"]
    assert steps.effects[-1].args == (steps.effects[0].args[0], "hub")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("closed"), CoordinatorUnavailable("away")])
def test_a_waiter_that_is_stopped_leaves_the_queue(steps: Stepper, error: BaseException) -> None:
    with pytest.raises(type(error)):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 60.0), [b"taken", 9900, b""], QUEUED, error, GONE)
    assert steps.asked()[-4:] == ["acquire", "Leave", "Leave", "release"]


def test_leaving_the_queue_takes_a_second_at_most(steps: Stepper) -> None:
    steps.otherwise = (0.4, no_reply())
    with pytest.raises(NotAcquired):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 0.3), [b"taken", 9900, b""], QUEUED)
    assert steps.now < 1000.3 + backend.GIVE_BACK_SECONDS + 0.5


def test_a_superseded_waiter_waits_again_with_another_token(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", settings(GUARD), 60.0)
    taken = [b"taken", 9900, b""]
    steps.run(plan, taken, QUEUED, GRANTED, stale(500), GONE, taken, QUEUED, b"501", None)
    calls = [effect for effect in steps.effects if isinstance(effect, Call) and effect.script.name == "acquire"]
    assert [call.args[6:] for call in calls] == [(), ("",), ("1000",), (), ("",), ("1000",)]
    assert len({call.args[0] for call in calls}) == 2


def test_packed_requests_equal_unpacked_ones(steps: Stepper) -> None:
    grant = steps.run(plans.acquire(steps.redis, "ü", SETTINGS, 5.0), GRANTED)
    steps.run(plans.release(steps.redis, grant.fence, SETTINGS), RELEASED)
    steps.run(plans.renew(steps.redis, grant, SETTINGS), b"r")
    steps.redis.is_waited_for = lambda resource: True  # type: ignore[method-assign]
    steps.run(plans.acquire(steps.redis, "ü", SETTINGS, 60.0), QUEUED, GRANTED)
    steps.effects = [effect for effect in steps.effects if isinstance(effect, Call)]
    assert steps.asked() == ["acquire", "release", "renew", "acquire", "acquire"]
    for call in steps.effects:
        keys, args = call.keys, call.args
        assert call.packed == script_call(call.script.by_sha, len(keys), len(args), bulks((*keys, *args)))


@pytest.mark.parametrize("token", ["", "t", "t" * 22, "ü" * 22], ids=["empty", "short", "own", "wide"])
@pytest.mark.parametrize("listener", ["", "hub"])
def test_every_token_is_packed_with_its_size(token: str, listener: str) -> None:
    call = release_call("r", token, listener)
    args = (token, listener) if listener else (token,)
    assert call.args == args
    packed = bulks((*call.keys, *args))
    assert call.packed == script_call(call.script.by_sha, len(call.keys), len(args), packed)
    assert command(call, by_text=True) == script_call(call.script.by_text, len(call.keys), len(args), packed)


def test_an_acquire_that_is_cancelled_leaves_the_queue_with_its_compensation(steps: Stepper) -> None:
    steps.redis.is_waited_for = lambda resource: True  # type: ignore[method-assign]
    steps.run(plans.acquire(steps.redis, "r", SETTINGS, 60.0), GRANTED)
    [call] = [effect for effect in steps.effects if isinstance(effect, Call)]
    assert call.compensation is not None
    assert call.compensation.args == (call.args[0], "hub")


def test_trying_once_makes_one_request(steps: Stepper) -> None:
    with pytest.raises(NotAcquired):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 0.0), [b"taken", 100_000, b""])
    assert steps.asked() == ["acquire"]


def test_force_release_claims_before_it_frees(steps: Stepper) -> None:
    plan = plans.force_release(steps.redis, "r", settings(GUARD))
    result = steps.run(plan, HELD_BY_ME, b"8", None, RELEASED)
    assert steps.asked() == ["holder", "force_release", "Claim", "release"]
    assert result.fenced
    assert result.holder.owner == "me"
    assert steps.effects[1].args[-1] == "5eed", "only from the token that was read"
    assert result.fence.number == 8


def test_adopting_takes_the_lock_over_under_a_fence_of_its_own(steps: Stepper) -> None:
    fence = Fence("r", 7, "t" * 22)
    holding = steps.run(plans.adopt(steps.redis, fence, settings(GUARD)), b"8", None)
    assert steps.asked() == ["remint", "Claim"]
    assert steps.effects[0].args[-2:] == (fence.token, 7), "only while the detached fence holds the lock"
    assert holding.fence == Fence("r", 8, steps.effects[0].args[0])
    with pytest.raises(LeaseLost) as caught:
        steps.run(plans.adopt(steps.redis, fence, settings(GUARD)), GONE)
    assert (caught.value.fence, caught.value.reason) == (fence, "gone")


def test_a_grant_that_cannot_be_tracked_is_given_back(steps: Stepper) -> None:
    """No thread could be started, say."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    steps.redis.track = fail
    with pytest.raises(RuntimeError):
        steps.run(plans.acquire(steps.redis, "r", settings(GUARD), 5.0), GRANTED, RELEASED)
    assert steps.asked() == ["acquire", "release"]


def test_giving_back_takes_a_second_at_most(steps: Stepper) -> None:
    steps.otherwise = (0.4, no_reply())
    with pytest.raises(KeyError):
        steps.run(plans.acquire(steps.redis, "r", settings(GUARD), 0.3), GRANTED, KeyError())
    assert steps.now < 1000 + backend.GIVE_BACK_SECONDS + 0.5


def test_the_superseded_error_has_the_time_waited(steps: Stepper) -> None:
    steps.otherwise = None
    answers: list[Any] = [GRANTED]
    for _ in range(plans.CLAIM_ROUNDS):
        answers += [(0.1, stale(500)), GRANTED]
    with pytest.raises(NotAcquired) as caught:
        steps.run(plans.acquire(steps.redis, "r", settings(GUARD), 60.0), *answers, RELEASED)
    assert caught.value.waited == pytest.approx(0.5)


# A token is not asked with again behind its release


def calls_of(steps: Stepper, script: str) -> list[Call]:
    return [effect for effect in steps.effects if isinstance(effect, Call) and effect.script.name == script]


def given_back(steps: Stepper) -> list[str]:
    """The tokens that are given back in the background, from now on."""
    tokens: list[str] = []
    steps.redis.give_back_later = lambda fence, settings: tokens.append(fence.token)
    return tokens


@pytest.mark.parametrize("queues", [False, True])
def test_a_request_is_not_repeated_behind_its_release(steps: Stepper, queues: bool) -> None:
    steps.redis.is_waited_for = lambda resource: queues  # type: ignore[method-assign]
    tokens = given_back(steps)
    undone = NoReply(ConnectionError("cut"), may_have_run=True, was_undone=True)
    with pytest.raises(CoordinatorUnavailable):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 60.0), no_reply(), (0.5, undone))
    asked = calls_of(steps, "acquire")
    assert len(asked) == 2, "there was time for more"
    assert tokens == [asked[0].token], "the release behind it may be lost"


@pytest.mark.parametrize("before", [(), ([b"taken", 9900, b""], QUEUED)], ids=["first", "queued"])
def test_a_request_that_was_interrupted_is_given_back_once_more(steps: Stepper, before: tuple[Any, ...]) -> None:
    """It may run behind the release: a database serves each connection by itself."""
    tokens = given_back(steps)
    with pytest.raises(KeyboardInterrupt):
        steps.run(plans.acquire(steps.redis, "r", SETTINGS, 60.0), *before, KeyboardInterrupt(), NOT_HELD)
    assert steps.asked()[-1] == "release"
    assert tokens == [steps.effects[-1].args[0]]


def test_a_remint_without_an_answer_is_not_released(steps: Stepper) -> None:
    tokens = given_back(steps)
    plan = steps.redis.plan_remint(HELD.fence, "n" * 22, SETTINGS, floor=0, deadline=1000 + 2 * 10 / 3)
    with pytest.raises(CoordinatorUnavailable):
        steps.run(plan, *[(10 / 3, no_reply())] * 2)
    assert [call.compensation for call in calls_of(steps, "remint")] == [None, None], "also after an interruption"
    assert tokens == []


def test_a_repair_without_an_answer_gives_back_both_tokens(steps: Stepper) -> None:
    plan = plans.acquire(steps.redis, "r", settings(GUARD), 5.0)
    with pytest.raises(CoordinatorUnavailable):
        steps.run(plan, GRANTED, stale(500), (5.0, no_reply()), RELEASED, NOT_HELD)
    [acquire], [remint] = calls_of(steps, "acquire"), calls_of(steps, "remint")
    assert [call.token for call in calls_of(steps, "release")] == [acquire.token, remint.token], "the old one first"


def test_an_adoption_without_an_answer_frees_nothing_and_is_repeated_with_its_token(steps: Stepper) -> None:
    fence, chosen, tokens = Fence("r", 7, "t" * 22), settings(GUARD), given_back(steps)
    for _ in range(2):
        with pytest.raises(CoordinatorUnavailable):
            steps.run(plans.adopt(steps.redis, fence, chosen), (chosen.request_seconds, no_reply()))
    holding = steps.run(plans.adopt(steps.redis, fence, chosen), b"8", None)
    assert {call.token for call in calls_of(steps, "remint")} == {holding.fence.token}
    assert calls_of(steps, "release") == []
    assert tokens == []
    with pytest.raises(LeaseLost):
        steps.run(plans.adopt(steps.redis, fence, chosen), GONE)
    assert calls_of(steps, "remint")[-1].token != holding.fence.token, "it was adopted already"


def test_an_adoption_that_is_interrupted_is_given_back(steps: Stepper) -> None:
    fence, chosen = Fence("r", 7, "t" * 22), settings(GUARD)
    with pytest.raises(KeyboardInterrupt):
        steps.run(plans.adopt(steps.redis, fence, chosen), KeyboardInterrupt(), RELEASED)
    with pytest.raises(LeaseLost):
        steps.run(plans.adopt(steps.redis, fence, chosen), GONE)
    [first, second], [release] = calls_of(steps, "remint"), calls_of(steps, "release")
    assert release.token == first.token != second.token


@pytest.mark.parametrize("operation", ["adopt", "force_release"])
def test_what_too_few_replicas_have_is_given_back(steps: Stepper, operation: str) -> None:
    unreplicated = NotAcquired(resource="r", reason="unreplicated", waited=1.0, replicas=0)
    if operation == "adopt":
        plan: Plan[Any] = plans.adopt(steps.redis, Fence("r", 7, "t" * 22), SETTINGS)
    else:
        plan = plans.force_release(steps.redis, "r", SETTINGS)
    answers = [] if operation == "adopt" else [[b"free"]]
    with pytest.raises(NotAcquired):
        steps.run(plan, *answers, unreplicated, RELEASED)
    *_, asked, released = steps.effects
    assert asked.token == released.token
    assert released.script.name == "release"


def test_few_adoptions_without_an_answer_are_remembered(steps: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_ADOPTIONS", 2)
    for number in (1, 2, 3):
        plans.remember_adoption(steps.redis, (1, Fence("r", number, "t" * 22)), f"token {number}")
    assert list(steps.redis.adoptions.values()) == ["token 2", "token 3"]


class Answering(WithoutQueue):
    """A coordinator whose answers the test gives. They are a third of a second apart."""

    def answer(self, *replies: Any) -> Any:
        self.replies, self.tokens = list(replies), list[str]()
        return self

    def plan_acquire(self, resource: str, token: str, *_: Any, **__: Any) -> Plan[Any]:
        self.tokens.append(token)
        yield Sleep(1 / 3)
        return Grant(resource, 8, token, math.inf) if not self.replies else self.replies.pop(0)


UNDECIDED = Undecided(CoordinatorUnavailable("undecided", resource="r"), 0.5)


def test_an_undecided_request_is_made_again_with_a_new_token() -> None:
    steps = Stepper(Answering)
    backend = cast(Answering, steps.redis).answer(UNDECIDED, UNDECIDED)
    holding = steps.run(plans.acquire(backend, "r", SETTINGS, 5.0))
    assert len(set(backend.tokens)) == 3
    assert holding.fence.token == backend.tokens[-1]
    assert steps.slept()[1::2] == [0.5, 0.5], "the pause that the backend names"


def test_the_pause_between_undecided_requests_grows_and_is_bounded() -> None:
    steps = Stepper(Answering)
    undecided = Undecided(UNDECIDED.error, 0.05)
    backend = cast(Answering, steps.redis).answer(*[undecided] * 4)
    steps.run(plans.acquire(backend, "r", SETTINGS, 5.0))
    assert steps.slept()[1::2] == [0.05, 0.1, 0.2, 0.2]


def test_requests_that_stay_undecided_end_in_their_error_at_the_deadline_of_one_request() -> None:
    steps = Stepper(Answering)
    backend = cast(Answering, steps.redis).answer(*[UNDECIDED] * 100)
    with pytest.raises(CoordinatorUnavailable, match="undecided"):
        steps.run(plans.acquire(backend, "r", SETTINGS, math.inf))
    assert steps.now == pytest.approx(1000 + SETTINGS.request_seconds, abs=0.4)


def test_a_poll_has_a_new_token_only_behind_a_release() -> None:
    steps = Stepper(Answering)
    backend = cast(Answering, steps.redis)
    backend.answer(Taken(9.0, "them"), Taken(9.0, "them", was_undone=True), Taken(9.0, "them"))
    steps.run(plans.acquire(backend, "r", SETTINGS, 5.0))
    first, second, third, fourth = backend.tokens
    assert first == second != third == fourth


def test_a_refusal_names_the_earlier_waiter_that_comes_first() -> None:
    """Of the last reply: the holder has released since. A service of another kind than Redis says so, too."""
    steps = Stepper(Answering)
    backend = cast(Answering, steps.redis)
    for timeout, holders in ((0.0, 0), (2.0, 1)):
        backend.answer(*[Taken(9.0, "holder")] * holders, *[Taken(9.0, "waiter", kept_by="waiter")] * 99)
        with pytest.raises(NotAcquired, match="'r' goes to an earlier waiter first, waiter; it was not") as caught:
            steps.run(plans.acquire(backend, "r", SETTINGS, timeout))
        assert (caught.value.reason, caught.value.owner, caught.value.kept_by) == ("held", "waiter", "waiter")
    backend.answer(Taken(9.0, "waiter", waiters=3, kept_by="waiter"))
    with pytest.raises(NotAcquired, match="'r' goes to an earlier waiter first, waiter, and 3 wait for it"):
        steps.run(plans.acquire(backend, "r", SETTINGS, 5.0))
    parts = [several._Part(backend, name, SETTINGS, lambda grant: grant) for name in "qr"]
    backend.answer(*[Taken(9.0, "waiter", kept_by="waiter")] * 9)
    with pytest.raises(NotAcquired) as caught:
        steps.run(plan_in_place(several.acquire_all(parts, 0.0)))
    assert (caught.value.resource, caught.value.kept_by) == ("q", "waiter")


def plan_in_place(plan: Plan[Any]) -> Plan[Any]:
    """Run the plans of several coordinators as one."""
    send, throw = None, None
    while True:
        try:
            effect = plan.throw(throw) if throw else plan.send(send)
        except StopIteration as stop:
            return stop.value
        send = throw = None
        try:
            if isinstance(effect, several.At):
                send = yield from effect.plan
            else:
                send = yield effect
        except NotAcquired as error:
            throw = error


# Forced release


def test_a_forced_release_names_the_holder_that_was_read_just_before(steps: Stepper) -> None:
    other = [*HELD_BY_ME[:3], b"9", b"another", b"07he", b"", 0]
    plan = plans.force_release(steps.redis, "r", SETTINGS)
    result = steps.run(plan, HELD_BY_ME, GONE, [b"free"], [b"taken", 9000, b"another"], other, b"10", RELEASED)
    assert result.holder == Holder("another", 9, 0.25, 0.5)
    first, second = calls_of(steps, "force_release")
    assert [first.args[-1], second.args[-1]] == ["5eed", "07he"]
    assert len({first.token, second.token, calls_of(steps, "acquire")[0].token}) == 3
    assert calls_of(steps, "release")[0].token == second.token


def test_a_forced_release_of_a_grant_that_has_ended_does_nothing(steps: Stepper) -> None:
    for answer in ([b"free"], [*HELD_BY_ME[:3], b"9", b"another", b"07he", b"", 0]):
        assert steps.run(plans.force_release(steps.redis, "r", SETTINGS, 7), answer) is None
    assert steps.run(plans.force_release(steps.redis, "r", SETTINGS, 7), HELD_BY_ME, GONE, [b"free"]) is None
    assert len(calls_of(steps, "force_release")) == 1


def test_a_forced_release_of_another_librarys_lock_names_it(steps: Stepper) -> None:
    foreign, other = ([*HELD_BY_ME[:3], b"", b"", digest, b"", 0] for digest in (b"5eed", b"07he"))
    seen = Holder(None, None, None, 0.5, digest="5eed")
    for answers in ([[b"free"]], [HELD_BY_ME], [other], [foreign, GONE, other]):
        assert steps.run(plans.force_release(steps.redis, "r", SETTINGS, seen), *answers) is None
    assert [call.args[-1] for call in calls_of(steps, "force_release")] == ["5eed"]


def test_a_forced_release_of_a_lock_that_keeps_changing_hands_gives_up(steps: Stepper) -> None:
    steps.otherwise = GONE
    steps.redis.plan_holder = lambda *_, **__: plan_described()  # type: ignore[method-assign]
    with pytest.raises(CoordinatorUnavailable, match="changing hands"):
        steps.run(plans.force_release(steps.redis, "r", SETTINGS))
    assert steps.now == pytest.approx(1000 + SETTINGS.request_seconds, abs=0.01)


def plan_described() -> Plan[Holder]:
    yield Sleep(0.01)
    return Holder("me", 7, 0.25, 0.5, digest="5eed")


# Renewal in batches


def holding(steps: Stepper, name: str, ttl: float) -> Grant:
    holding = Grant(name, 7, "t" * 22, steps.now + 0.9 * ttl)
    holding.begin(Settings(ttl=ttl), steps.now)
    holding.join_calendar(set())
    return holding


def test_leases_of_one_ttl_share_a_request_and_the_most_urgent_go_first(steps: Stepper) -> None:
    lane = Lane(Settings(ttl=4).lane_ttl, mixes_ttls=False)
    holdings = [holding(steps, name, ttl) for name, ttl in [("long", 5), ("a", 4), ("b", 4), ("c", 4), ("d", 4)]]
    for each in holdings:
        lane.add(each)
    holdings[1].end("released")
    batches = []
    while lane:
        batches.append(list[Grant]())
        lane.take(batches[-1], 2)
    assert [[each.fence.resource for each in batch] for batch in batches] == [["b", "c"], ["d"], ["long"]]
    assert lane.attempt_seconds <= 4 / 3, "it is right for the shortest ttl that belongs here"
    steps.run(plans.renew_together(steps.redis, batches[0], 1.0), b"rg", b"", [b"free"])
    assert steps.effects[1].keys[0].endswith(":forced:c"), "why it is gone"
    assert [each.ended for each in holdings] == [None, "released", None, "gone", None]
    assert holdings[2].deadline == pytest.approx(1000 + 4 * 0.99 - 0.002)


def test_leases_of_several_ttls_share_a_request_where_the_service_can(steps: Stepper) -> None:
    lane = Lane(Settings(ttl=4).lane_ttl, mixes_ttls=True)
    holdings = [holding(steps, f"{ttl:g}", ttl) for ttl in (7.5, 4, 6, 5, 7)]
    for each in holdings:
        lane.add(each)
    batch: list[Grant] = []
    lane.take(batch, 4)
    assert [each.settings.ttl for each in batch] == [4, 5, 6, 7], "the most urgent ones"
    steps.run(plans.renew_together(steps.redis, batch, lane.attempt_seconds), b"rrrr")
    [call] = steps.effects
    assert call.args[::3] == (4000, 5000, 6000, 7000)
    assert [each.deadline for each in batch] == pytest.approx([1000 + ttl * 0.99 - 0.002 for ttl in (4, 5, 6, 7)])
    lane.take(batch := [], 4)
    assert batch == [holdings[0]]
    assert not lane


def test_a_request_without_reply_does_not_use_up_the_others_time(steps: Stepper) -> None:
    each = holding(steps, "r", 60)
    steps.run(plans.renew_together(steps.redis, [each], 1.0), (1.0, no_reply()))
    assert [effect.timeout for effect in steps.effects] == [1.0]
    assert each.ended is None
    assert each.due is not None
    assert each.due < steps.now + each.settings.attempt_seconds / 2, "tried again soon"


def test_a_renewal_that_was_sent_before_a_shortening_does_not_lengthen_it(steps: Stepper) -> None:
    """The two may arrive in any order."""
    held = holding(steps, "r", 10)
    now, believed = steps.now, held.settings.believed_seconds
    held.renewed(now + believed, now)
    first, second = held.expect_ttl(5, now), held.expect_ttl(6, now)
    assert held.deadline == now + 5
    held.renewed(now + believed, now + 0.1)
    first.answered_at = now + 0.2
    held.renewed(now + 0.3 + believed, now + 0.4)
    assert held.deadline == now + 5, "the second one has no answer yet"
    second.answered_at = now + 0.5
    held.renewed(now + 0.4 + believed, now + 0.6)
    assert held.deadline == now + 5
    held.renewed(now + 0.6 + believed, now + 0.7)
    assert held.deadline == now + 0.6 + believed


@pytest.mark.parametrize("first_answer", ["the longer one's", "the shorter one's"])
def test_of_two_requests_at_once_the_shorter_ttl_is_believed(steps: Stepper, first_answer: str) -> None:
    held = holding(steps, "r", 1)
    now = steps.now
    longer, shorter = held.expect_ttl(5, now), held.expect_ttl(1.5, now + 0.1)
    answers = [(longer, now + 5), (shorter, now + 1.6)]
    for request, deadline in answers if first_answer == "the longer one's" else reversed(answers):
        request.answered_at = now + 0.2
        held.renewed(deadline, now + 0.2, request)
        request.is_over = True
    assert held.deadline <= now + 1.6
    for _ in range(100):
        later = held.expect_ttl(5, now + 0.3)
        later.answered_at, later.is_over = now + 0.4, True
        held.renewed(now + 5.3, now + 0.4, later)
    assert held.deadline == now + 5.3
    assert len(held.ttl_requests) <= 2, "and they are not remembered one by one"
