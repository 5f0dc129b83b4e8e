"""The contract of coordinators, as tests that a new backend runs in a few lines::

    class TestMyCoordinator(CoordinatorContract):
        def make(self, **options):
            return MyCoordinator(connect(), **options)

Sync and async coordinators run the same tests. What a backend cannot do (see the capabilities in
``fencing/locks/backend.py``) it must refuse, and the suite looks for the refusal. Needs pytest, or anything else that
collects ``test_`` methods.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import SkipTest

from fencing.kernel.admission import admit_claim, admit_write, as_fence
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.errors import (
    CoordinatorUnavailable,
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    StaleFence,
)
from fencing.kernel.fence import MAX_NUMBER, Fence, HasFence, Mark
from fencing.locks import plans
from fencing.locks.backend import (
    HoldsWithoutTtl,
    OneOfManyWins,
    RenewsGrants,
    Taken,
    TtlPerLock,
    check_capabilities,
)
from fencing.locks.holding import Grant
from fencing.memory import MemoryCoordinator
from fencing.testing.contract import Contract

UNREACHABLE_SECONDS = 4.0
"""What a caller may lose beyond its time-out: an attempt that cannot be interrupted takes a third of the ttl, giving
back takes a second, and the machine may be busy."""

AWKWARD_ENDS = ("", " ", "  ", "ü", "u\u0308", "{tag}:x", "{}{x", "}{", 'quo"te\\', "\n", "\U0001f512", "x" * 480)


class CoordinatorContract(Contract):
    """Every coordinator passes these. Each test uses resources of its own, so the backend need not be empty."""

    short_ttl: float = 0.3
    """Seconds; the shortest ttl that the backend keeps well. Tests that wait for an expiry take a few of these."""

    def make(self, **options: Any) -> Any:
        """Make a new coordinator on the backend under test, as another process would make one. To be overridden."""
        raise AssertionError("override make()")

    def make_expiring(self, ttl: float) -> Any:
        """Make one whose leases expire after ``ttl`` seconds, for want of a renewal. To be overridden where
        ``renew=False`` is refused, as by a backend that keeps a session alive."""
        return self.make(ttl=ttl, renew=False)

    def make_unreachable(self, **options: Any) -> Any:
        """Make one whose service does not answer: it is silent, or away. None: that is not tried."""
        return None

    def teardown_method(self) -> None:
        """Close what was made for a test."""
        for coordinator in self.__dict__.pop("_made", ()):
            if not coordinator.closed:
                self.call(coordinator.close)

    # What is granted

    def test_a_grant_has_a_fence_of_its_resource(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        assert lease.fence.resource == name
        assert lease.held
        assert 0 < lease.remaining() <= coordinator.settings.ttl
        assert self.call(lease.release) is True
        assert self.call(lease.release) is True
        assert not lease.held
        self.expect(LeaseLost, lease.ensure_held)

    def test_numbers_grow_and_tokens_differ(self) -> None:
        name = self._name()
        fences = []
        for coordinator in (self._make(), self._make(), self._make()):
            for _ in range(5):
                lease = self.call(coordinator.acquire, name)
                fences.append(lease.fence)
                self.call(lease.release)
        numbers = [fence.number for fence in fences]
        assert numbers == sorted(set(numbers))
        assert len({fence.token for fence in fences}) == len(fences)

    def test_numbers_grow_across_an_expiry(self) -> None:
        name = self._name()
        first = self.call(self._expiring().acquire, name)
        second = self.call(self._make().acquire, name, timeout=10)
        assert second.fence.number > first.fence.number
        error = self.expect(LeaseLost, first.renew)
        assert error.reason in ("expired", "gone")
        assert self.call(first.release) is False
        self.call(second.renew)  # the late release did not free it
        self.call(second.release)

    def test_any_name_works_and_names_are_told_apart(self) -> None:
        coordinator, name = self._make(), self._name()
        names = [name + end for end in AWKWARD_ENDS]
        leases = [self.call(coordinator.acquire, each, timeout=0) for each in names]
        assert [lease.fence.resource for lease in leases] == names
        for lease in leases:
            assert self.call(lease.release) is True

    # Exclusion

    def test_a_held_lock_is_not_granted_again(self) -> None:
        one, two, name = self._make(owner="one"), self._make(), self._name()
        lease = self.call(one.acquire, name)
        assert self.call(two.try_acquire, name) is None
        error = self.expect(NotAcquired, two.acquire, name, timeout=0.05)
        assert (error.reason, error.resource, error.owner) == ("held", name, "one")
        assert error.waited >= 0.05
        self.call(lease.release)
        self.call(self.call(two.acquire, name, timeout=0).release)

    def test_of_many_who_try_at_once_one_gets_it(self) -> None:
        coordinators, name = [self._make() for _ in range(8)], self._name()
        leases = self.race([partial(self.call, coordinator.try_acquire, name) for coordinator in coordinators])
        granted = [lease for lease in leases if lease is not None]
        if not granted and not _can(coordinators[0], OneOfManyWins):
            granted = [self.call(coordinators[0].acquire, name, timeout=10)]
        assert len(granted) == 1
        self.call(granted[0].release)

    def test_a_waiter_gets_the_lock_when_it_is_released(self) -> None:
        one, two, name = self._make(), self._make(), self._name()
        first = self.call(one.acquire, name)

        def wait() -> Any:
            return self.call(two.acquire, name, timeout=30)

        def release() -> None:
            time.sleep(0.05)  # so that mostly the waiter is there first; right either way
            self.call(first.release)

        second, _ = self.race([wait, release])
        assert second.fence.number > first.fence.number
        self.call(second.release)

    def test_who_gave_up_is_granted_nothing_later(self) -> None:
        one, two, name = self._make(), self._make(), self._name()
        first = self.call(one.acquire, name)
        for timeout in (0.05, 0.01, 0):
            self.expect(NotAcquired, two.acquire, name, timeout=timeout)
        self.call(first.release)
        assert self.call(one.lock(name).holder) is None
        self.call(self.call(one.acquire, name, timeout=0).release)

    # Renewal

    def test_renewal_keeps_the_fence_and_outlasts_the_ttl(self) -> None:
        coordinator, name = self._expiring(), self._name()
        lease = self.call(coordinator.acquire, name)
        fence, end = lease.fence, time.monotonic() + 2 * self.short_ttl
        while time.monotonic() < end:
            self.call(lease.renew)
            assert self.call(coordinator.try_acquire, name) is None
            time.sleep(self.short_ttl / 10)
        assert lease.fence == fence
        assert self.call(lease.release) is True

    def test_a_lease_renews_itself_and_keeps_its_fence(self) -> None:
        coordinator, name = self._make(ttl=self.short_ttl), self._name()
        lease = self.call(coordinator.acquire, name)
        fence, end = lease.fence, time.monotonic() + 3 * self.short_ttl
        while time.monotonic() < end:
            assert self.call(coordinator.try_acquire, name) is None
            lease.ensure_held()
            time.sleep(self.short_ttl / 10)
        assert lease.fence == fence
        assert self.call(lease.release) is True

    def test_many_leases_are_renewed_in_one_request(self) -> None:
        coordinator, count = self._make(), 5
        if not _can(coordinator, RenewsGrants):
            lease = self.call(coordinator.acquire, self._name())
            self.expect(TypeError, lease.renew)
            self.call(lease.release)
            return
        grants = [self._acquire(coordinator, self._name(), plans.new_token()) for _ in range(count)]
        fences = [grant.fence for grant in grants]
        forged = Grant(Fence(fences[1].resource, fences[1].number, plans.new_token()), grants[1].deadline)
        deadline = coordinator.clock() + 5
        asked = [grants[0], forged, *grants[1:]]
        renewed = self._plan(coordinator, coordinator.plan_renew(asked, coordinator.settings, deadline=deadline))
        assert [until is not None for until in renewed] == [True, False, *(True for _ in fences[1:])]
        assert all(until > grants[-1].deadline for until in renewed if until is not None)
        for fence in fences:
            self._plan(coordinator, plans.release(coordinator, fence, coordinator.settings))

    def test_renewal_never_takes_a_lock_that_is_gone(self) -> None:
        coordinator, name = self._expiring(), self._name()
        lease = self.call(coordinator.acquire, name)
        self.wait_until(lambda: self.call(coordinator.lock(name).holder) is None)
        self.expect(LeaseLost, lease.renew)
        assert self.call(coordinator.lock(name).holder) is None
        assert not lease.held

    # Plans: what is safe to repeat

    def test_acquire_is_idempotent_for_its_token(self) -> None:
        coordinator, name, token = self._make(), self._name(), plans.new_token()
        first = self._acquire(coordinator, name, token)
        again = self._acquire(coordinator, name, token)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.fence == again.fence
        assert isinstance(self._acquire(coordinator, name, plans.new_token()), Taken)
        self._plan(coordinator, plans.release(coordinator, first.fence, coordinator.settings))

    def test_what_is_repeated_gets_the_full_ttl_again(self) -> None:
        ttl = max(2.0, 3 * self.short_ttl)
        coordinator, name, token = self._make(ttl=ttl), self._name(), plans.new_token()
        first = self._acquire(coordinator, name, token)
        new = plans.new_token()
        repeats: list[Callable[[], Any]] = [
            lambda: self._acquire(coordinator, name, token),
            lambda: self._remint(coordinator, first.fence, new, 0),
            lambda: self._remint(coordinator, first.fence, new, 0),
        ]
        for repeat in repeats:
            time.sleep(ttl / 4)
            grant = repeat()
            remaining = self.call(coordinator.lock(name).holder).remaining
            assert remaining > 0.9 * ttl
            assert grant.deadline - coordinator.clock() <= remaining
        assert self._plan(coordinator, plans.release(coordinator, grant.fence, coordinator.settings))

    def test_a_floor_is_exceeded(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        self.call(lease.release)
        floor = lease.fence.number + 1_000_000
        grant = self._acquire(coordinator, name, plans.new_token(), floor=floor)
        assert isinstance(grant, Grant)
        assert grant.fence.number > floor
        self._plan(coordinator, plans.release(coordinator, grant.fence, coordinator.settings))

    def test_an_implausible_floor_is_refused_and_nothing_changed(self) -> None:
        coordinator, name = self._make(), self._name()
        before = self.call(coordinator.acquire, name)
        self.call(before.release)
        error = self.expect(MarkImplausible, self._acquire, coordinator, name, plans.new_token(), floor=MAX_NUMBER - 1)
        assert error.number == MAX_NUMBER - 1
        assert self.call(coordinator.lock(name).holder) is None
        after = self.call(coordinator.acquire, name)
        assert before.fence.number < after.fence.number < MAX_NUMBER - 1
        self.call(after.release)

    def test_a_repeated_request_gets_the_same_number_from_another_client(self) -> None:
        """The first client was restarted, its reply was lost."""
        first, name, token = self._make(), self._name(), plans.new_token()
        grant = self._acquire(first, name, token)
        self.call(first.close)
        second = self._make()
        again = self._acquire(second, name, token)
        assert isinstance(again, Grant)
        assert again.fence == grant.fence
        assert self._plan(second, plans.release(second, again.fence, second.settings))

    def test_a_lock_may_have_a_ttl_of_its_own_or_says_that_it_cannot(self) -> None:
        coordinator, name = self._make(), self._name()
        longer = 2 * coordinator.settings.ttl
        if not _can(coordinator, TtlPerLock):
            self.expect(TypeError, coordinator.lock, name, ttl=longer)
            return
        lease = self.call(coordinator.lock(name, ttl=longer).acquire)
        assert lease.remaining() > coordinator.settings.ttl
        assert self.call(coordinator.lock(name).holder).remaining > coordinator.settings.ttl
        assert self.call(lease.release) is True

    def test_a_lock_without_ttl_stays_or_is_refused(self) -> None:
        coordinator, name = self._make(), self._name()
        settings = replace(coordinator.settings, ttl=None)
        if not _can(coordinator, HoldsWithoutTtl):
            self.expect(TypeError, check_capabilities, coordinator, settings, coordinator.settings.ttl)
            return
        deadline = coordinator.clock() + 5
        plan = coordinator.plan_acquire(name, plans.new_token(), settings, floor=0, deadline=deadline)
        grant = self._plan(coordinator, plan)
        assert grant.deadline == float("inf")
        assert self.call(coordinator.lock(name).holder).remaining is None
        assert self._plan(coordinator, plans.release(coordinator, grant.fence, settings))

    def test_remint_replaces_the_fence_and_keeps_the_lock(self) -> None:
        coordinator, name = self._make(), self._name()
        old = self._acquire(coordinator, name, plans.new_token()).fence
        token, floor = plans.new_token(), old.number + 1000
        new = self._remint(coordinator, old, token, floor).fence
        assert new.token == token
        assert new.number > floor
        assert self._remint(coordinator, old, token, floor).fence == new, "a repeated request gets the same fence"
        assert self._remint(coordinator, old, plans.new_token(), floor) is None, "the old fence has lost the lock"
        assert self.call(coordinator.try_acquire, name) is None
        self.expect(LeaseLost, self._plan, coordinator, plans.renew(coordinator, old, coordinator.settings))
        assert not self._plan(coordinator, plans.release(coordinator, old, coordinator.settings))
        assert self._plan(coordinator, plans.release(coordinator, new, coordinator.settings))

    # Claims at acquire

    def test_the_fence_is_claimed_before_acquire_returns(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        lease = self.call(coordinator.acquire, name)
        assert guard.marks[name] == Mark(lease.fence.number, lease.fence.token)
        self.call(lease.release)

    def test_a_counter_that_fell_behind_the_mark_is_repaired(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        lease = self.call(coordinator.acquire, name)
        self.call(lease.release)
        ahead = Mark(lease.fence.number + 10_000_000, plans.new_token())
        guard.marks[name] = ahead
        lease = self.call(coordinator.acquire, name)
        assert lease.fence.number > ahead.number
        assert guard.marks[name].is_of(lease.fence)
        self.call(lease.renew)
        self.call(lease.release)
        following = self.call(self._make().acquire, name)
        assert following.fence.number > lease.fence.number
        self.call(following.release)

    def test_an_equal_number_with_another_token_is_reminted(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        guard.before_claim = lambda fence: guard.marks.setdefault(name, Mark(fence.number, plans.new_token()))
        lease = self.call(coordinator.acquire, name)
        assert len({fence.number for fence in guard.claimed}) == 2
        assert guard.marks[name].is_of(lease.fence)
        self.call(lease.release)

    def test_who_is_superseded_again_and_again_gives_up_and_gives_back(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        guard.before_claim = lambda fence: guard.marks.update({name: Mark(fence.number + 1, plans.new_token())})
        error = self.expect(NotAcquired, coordinator.acquire, name, timeout=20)
        assert error.reason == "superseded"
        assert len(guard.claimed) == plans.CLAIM_ROUNDS
        assert self.call(coordinator.lock(name).holder) is None

    def test_a_poisoned_mark_is_an_operators_job_and_poisons_nothing(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        guard.marks[name] = Mark(MAX_NUMBER, plans.new_token())
        error = self.expect(MarkImplausible, coordinator.acquire, name)
        assert error.number == MAX_NUMBER
        assert self.call(coordinator.lock(name).holder) is None
        lease = self.call(self._make().acquire, name)
        assert lease.fence.number < 2**52
        self.call(lease.release)

    def test_a_coordinator_of_another_kind_took_over(self) -> None:
        """And back again: numbers go on above those of the other one, and its late holder is shut out."""
        guard, name = self._guard(), self._name()
        coordinator = self._make(guards=[guard])
        other = MemoryCoordinator(guards=[_ScriptedGuard(guard.marks)])
        late = self.call(coordinator.acquire, name)
        there = other.acquire(name)
        assert there.fence.number > late.fence.number
        self.expect(StaleFence, admit_write, guard.marks[name], late.fence)
        self.call(late.release)
        ahead = _claimed_an_hour_above(other, there.detach())
        back = self.call(coordinator.acquire, name)
        assert back.fence.number > ahead.number
        self.expect(StaleFence, admit_write, guard.marks[name], ahead)
        self.call(back.release)
        claims = len(guard.claimed)
        again = self.call(coordinator.acquire, name)
        assert len(guard.claimed) == claims + 1, "one claim is enough from then on"
        self.call(again.release)
        assert other.holder(name) is not None, "the two do not exclude each other"

    def test_a_failing_claim_gives_the_lock_back(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()

        def fail(fence: Fence) -> None:
            raise GuardUnavailable("the storage is away", resource=fence.resource)

        guard.before_claim = fail
        self.expect(GuardUnavailable, coordinator.acquire, name)
        assert self.call(coordinator.lock(name).holder) is None

    def test_a_claim_may_take_only_the_callers_remaining_time(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        self.call(self.call(coordinator.acquire, name, timeout=2).release)
        assert 0 < guard.timeouts[0] <= 2

    # Holder, forced release, hand-over

    def test_holder_names_the_holder_and_never_the_token(self) -> None:
        coordinator, name = self._make(owner="worker 7, host b"), self._name()
        assert self.call(coordinator.lock(name).holder) is None
        lease = self.call(coordinator.acquire, name)
        holder = self.call(coordinator.lock(name).holder)
        assert (holder.owner, holder.number) == ("worker 7, host b", lease.fence.number)
        assert 0 <= holder.held_for < 60
        assert 0 < holder.remaining <= coordinator.settings.ttl
        assert lease.fence.token not in repr(holder)
        self.call(lease.release)

    def test_force_release_shuts_the_holder_out(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard], owner="stuck"), self._name()
        lease = self.call(coordinator.acquire, name)
        forced = self.call(coordinator.lock(name).force_release)
        assert forced.fenced
        assert forced.holder.owner == "stuck"
        assert forced.fence.number > lease.fence.number
        assert guard.marks[name].is_of(forced.fence)
        assert self.call(coordinator.lock(name).holder) is None
        self.expect(LeaseLost, lease.renew)
        assert self.call(lease.release) is False

    def test_force_release_without_guards_says_that_it_fenced_nobody(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        forced = self.call(coordinator.lock(name).force_release)
        assert not forced.fenced
        assert self.call(coordinator.lock(name).force_release).holder is None
        assert self.call(lease.release) is False

    def test_a_detached_lease_goes_on_elsewhere_under_a_fence_of_its_own(self) -> None:
        guard = self._guard()
        here, there, name = self._make(guards=[guard]), self._make(guards=[guard]), self._name()
        lease = self.call(here.acquire, name)
        text = str(lease.detach())
        assert lease.ended == "detached"
        assert self.call(lease.release) is False, "it is not ours to release any more"
        adopted = self.call(there.lock(name).adopt, Fence.parse(text))
        assert adopted.fence.number > lease.fence.number
        assert guard.marks[name].is_of(adopted.fence)
        again = self.expect(LeaseLost, here.lock(name).adopt, Fence.parse(text))
        assert again.fence == lease.fence
        assert adopted.held
        assert self.call(adopted.release) is True

    def test_what_is_gone_or_made_up_cannot_be_adopted(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        forged = Fence(name, lease.fence.number + 1, plans.new_token())
        self.expect(LeaseLost, coordinator.lock(name).adopt, forged)
        self.expect(ValueError, coordinator.lock(self._name()).adopt, lease.fence)
        fence = lease.detach()
        self.call(coordinator.lock(name).force_release)
        self.expect(LeaseLost, coordinator.lock(name).adopt, fence)

    # A service that does not answer

    def test_a_service_that_does_not_answer_costs_the_callers_time_and_little_more(self) -> None:
        coordinator, name = self.make_unreachable(ttl=3), self._name()
        if coordinator is None:
            raise SkipTest("make_unreachable() makes none")
        self._keep(coordinator)
        started = time.monotonic()
        error = self.expect(CoordinatorUnavailable, coordinator.acquire, name, timeout=0.3)
        assert error.resource == name
        assert time.monotonic() - started < 0.3 + UNREACHABLE_SECONDS
        if inspect.iscoroutinefunction(coordinator.perform):
            started = time.monotonic()
            self.expect(TimeoutError, self._cancelled_soon, coordinator, name)
            assert time.monotonic() - started < 0.3 + UNREACHABLE_SECONDS

    async def _cancelled_soon(self, coordinator: Any, name: str) -> None:
        async with asyncio.timeout(0.3):
            await coordinator.acquire(name, timeout=60)

    def test_a_closed_coordinator_takes_no_locks(self) -> None:
        coordinator = self._make()
        self.call(coordinator.close)
        self.call(coordinator.close)
        assert "make a new one" in str(self.expect(RuntimeError, coordinator.acquire, self._name()))

    # Plumbing

    def _make(self, **options: Any) -> Any:
        return self._keep(self.make(**options))

    def _expiring(self) -> Any:
        return self._keep(self.make_expiring(self.short_ttl))

    def _keep(self, coordinator: Any) -> Any:
        self.__dict__.setdefault("_made", []).append(coordinator)
        return coordinator

    def _name(self) -> str:
        return f"contract:{plans.new_token()}"

    def _plan(self, coordinator: Any, plan: Plan[Any]) -> Any:
        shell = run_async if inspect.iscoroutinefunction(coordinator.perform) else run
        return self.call(shell, plan, coordinator.perform)

    def _acquire(self, coordinator: Any, name: str, token: str, floor: int = 0) -> Any:
        deadline = coordinator.clock() + 5
        plan = coordinator.plan_acquire(name, token, coordinator.settings, floor=floor, deadline=deadline)
        return self._plan(coordinator, plan)

    def _remint(self, coordinator: Any, fence: Fence, token: str, floor: int) -> Any:
        deadline = coordinator.clock() + 5
        plan = coordinator.plan_remint(fence, token, coordinator.settings, floor=floor, deadline=deadline)
        return self._plan(coordinator, plan)

    def _guard(self) -> Any:
        asynchronous = inspect.iscoroutinefunction(self._make().perform)
        return _AsyncScriptedGuard() if asynchronous else _ScriptedGuard()


def _can(coordinator: Any, capability: Any) -> bool:
    return isinstance(coordinator, capability)


def _claimed_an_hour_above(coordinator: MemoryCoordinator, fence: Fence) -> Fence:
    """What replaces the fence: as if its coordinator's clock were an hour ahead."""
    settings, floor = coordinator.settings, fence.number + 3_600_000_000
    deadline = coordinator.clock() + 5
    plan = coordinator.plan_remint(fence, plans.new_token(), settings, floor=floor, deadline=deadline)
    grant = run(plan, coordinator.perform)
    assert grant is not None
    for guard in settings.guards:
        guard.claim(grant.fence)
    return grant.fence


class _ScriptedGuard:
    """A guard in memory whose next claim a test can upset."""

    def __init__(self, marks: dict[str, Mark] | None = None) -> None:
        self.marks: dict[str, Mark] = {} if marks is None else marks
        self.claimed: list[Fence] = []
        self.timeouts: list[float | None] = []
        self.before_claim: Any = lambda fence: None

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        self._claim(holders, timeout)

    def mark(self, resource: str) -> Mark | None:
        return self.marks.get(resource)

    def _claim(self, holders: tuple[Fence | HasFence, ...], timeout: float | None) -> None:
        self.timeouts.append(timeout)
        for fence in map(as_fence, holders):
            self.claimed.append(fence)
            self.before_claim(fence)
            self.marks[fence.resource] = admit_claim(self.marks.get(fence.resource), fence)


class _AsyncScriptedGuard(_ScriptedGuard):
    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:  # type: ignore[override]
        self._claim(holders, timeout)

    async def mark(self, resource: str) -> Mark | None:  # type: ignore[override]
        return self.marks.get(resource)
