"""The contract of claims, forced release and hand-over."""

from __future__ import annotations

from unittest import SkipTest

from fencing.kernel.admission import admit_write
from fencing.kernel.errors import (
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    StaleFence,
)
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark, new_token
from fencing.locks import plans
from fencing.memory.coordinator import MemoryCoordinator
from fencing.testing.base import CoordinatorTests, ScriptedGuard, remint_a_minute_ahead


class Claims(CoordinatorTests):
    """Tests of claims at acquire, forced release and hand-over."""

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
        ahead = Mark(lease.fence.number + 10_000_000, new_token())
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
        guard.before_claim = lambda fence: guard.marks.setdefault(name, Mark(fence.number, new_token()))
        lease = self.call(coordinator.acquire, name)
        assert len({fence.number for fence in guard.claimed}) == 2
        assert guard.marks[name].is_of(lease.fence)
        self.call(lease.release)

    def test_a_grant_that_is_superseded_each_time_is_given_back(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        guard.before_claim = lambda fence: guard.marks.update({name: Mark(fence.number + 1, new_token())})
        error = self.expect(NotAcquired, coordinator.acquire, name, timeout=20)
        assert error.reason == "superseded"
        assert len(guard.claimed) == plans.CLAIM_ROUNDS
        assert self.call(coordinator.lock(name).holder) is None

    def test_a_poisoned_mark_is_an_operators_job_and_poisons_nothing(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        guard.marks[name] = Mark(MAX_NUMBER, new_token())
        error = self.expect(MarkImplausible, coordinator.acquire, name)
        assert error.number == MAX_NUMBER
        assert self.call(coordinator.lock(name).holder) is None
        lease = self.call(self._make().acquire, name)
        assert lease.fence.number < 2**52
        self.call(lease.release)

    def test_a_coordinator_of_another_kind_took_over(self) -> None:
        """Switch to another coordinator and back: numbers keep growing, and late holders are shut out."""
        guard, name = self._guard(), self._name()
        coordinator = self._make(guards=[guard])
        other = MemoryCoordinator(guards=[ScriptedGuard(guard.marks)])
        late = self.call(coordinator.acquire, name)
        there = other.acquire(name)
        assert there.fence.number > late.fence.number
        self.expect(StaleFence, admit_write, guard.marks[name], late.fence)
        self.call(late.release)
        ahead = remint_a_minute_ahead(other, there.detach())
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
        assert holder.held_for is None or 0 <= holder.held_for < 60
        shortest, longest = self._remaining(coordinator, name)
        assert shortest <= coordinator._backend.settings.ttl
        assert longest > 0
        assert lease.fence.token not in repr(holder)
        self.call(lease.release)

    def test_another_programs_lock_is_respected_and_can_be_forced_free(self) -> None:
        """It has no number, and mostly no owner."""
        coordinator, name = self._make(), self._name()
        free = self.take_as_another_program(name)
        if free is None:
            raise SkipTest("take_as_another_program() returns None")
        assert self.call(coordinator.lock(name).holder).number is None
        assert self.call(coordinator.try_acquire, name) is None
        error = self.expect(NotAcquired, coordinator.acquire, name, timeout=0)
        assert (error.reason, error.kept_by) == ("held", "foreign")
        assert self.call(coordinator.lock(name).force_release, 7) is None, "it is no grant"
        assert self.call(coordinator.try_acquire, name) is None
        free()
        self.call(self.call(coordinator.acquire, name, timeout=10).release)
        again = self.take_as_another_program(name)
        assert again is not None
        seen = self.call(coordinator.holder, name)
        forced = self.call(coordinator.force_release, name, holder=seen)
        assert forced.holder.number is None
        lease = self.call(coordinator.acquire, name, timeout=10)
        assert self.call(coordinator.force_release, name, holder=seen) is None, "it is not the holder that was seen"
        self.call(lease.release)
        assert self.call(coordinator.force_release, name, holder=seen) is None, "the lock is free"
        again()

    def test_a_reclaimed_lease_has_a_new_fence_and_keeps_the_lock(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        lease = self.call(coordinator.acquire, name)
        fresh = self.call(lease.reclaim)
        assert fresh.fence.number > lease.fence.number
        assert guard.marks[name].is_of(fresh.fence)
        assert self.call(coordinator.lock(name).holder).number == fresh.fence.number
        assert self.expect(LeaseLost, lease.ensure_held).reason == "reclaimed"
        self.call(fresh.renew)
        assert self.call(fresh.release) is True
        assert self.call(coordinator.lock(name).holder) is None

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

    def test_force_release_without_guards_reports_that_nothing_is_fenced(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        forced = self.call(coordinator.lock(name).force_release)
        assert not forced.fenced
        assert self.call(coordinator.lock(name).force_release).holder is None
        assert self.call(lease.release) is False

    def test_a_detached_lease_is_adopted_elsewhere_under_a_fence_of_its_own(self) -> None:
        guard = self._guard()
        here, there, name = self._make(guards=[guard]), self._make(guards=[guard]), self._name()
        lease = self.call(here.acquire, name)
        text = str(lease.detach())
        assert self.expect(LeaseLost, lease.ensure_held).reason == "detached"
        assert self.call(lease.release) is False, "it is not ours to release any more"
        adopted = self.call(there.lock(name).adopt, Fence.parse(text))
        assert adopted.fence.number > lease.fence.number
        assert guard.marks[name].is_of(adopted.fence)
        again = self.expect(LeaseLost, here.lock(name).adopt, Fence.parse(text))
        assert again.fence == lease.fence
        assert adopted.held
        assert self.call(adopted.release) is True

    def test_a_forged_fence_or_a_lost_lock_cannot_be_adopted(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        forged = Fence(name, lease.fence.number + 1, new_token())
        self.expect(LeaseLost, coordinator.lock(name).adopt, forged)
        self.expect(ValueError, coordinator.lock(self._name()).adopt, lease.fence)
        fence = lease.detach()
        self.call(coordinator.lock(name).force_release)
        self.expect(LeaseLost, coordinator.lock(name).adopt, fence)
