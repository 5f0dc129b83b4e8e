"""The contract of requests: they are safe to repeat, and bounded if no answer comes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import SkipTest

from fencing.kernel.effects import Plan
from fencing.kernel.errors import (
    CoordinatorUnavailable,
    LeaseLost,
    MarkImplausible,
)
from fencing.kernel.fence import MAX_NUMBER, Fence, new_token
from fencing.locks import plans
from fencing.locks.backend import Holder, Taken
from fencing.locks.capabilities import (
    HoldsWithoutTtl,
    Queues,
    ReleasesSeveral,
    RenewsGrants,
    RenewsSession,
    TtlPerLock,
    check_capabilities,
)
from fencing.locks.holding import Grant
from fencing.testing.base import CoordinatorTests, has_capability

UNREACHABLE_SECONDS = 4.0
"""How long a call may take beyond its time-out: an attempt that cannot be interrupted takes a third of the ttl, giving
back takes a second, and the machine may be busy."""


class Requests(CoordinatorTests):
    """Tests of repeated plans, and of a service that does not answer."""

    # Repeated plans

    def test_acquire_is_idempotent_for_its_token(self) -> None:
        coordinator, name, token = self._make(), self._name(), new_token()
        first = self._acquire(coordinator, name, token)
        again = self._acquire(coordinator, name, token)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.fence == again.fence
        assert first is not again, "each answer has a grant of its own, whose deadline and end are its own, too"
        assert isinstance(self._acquire(coordinator, name, new_token()), Taken)
        self._plan(coordinator, plans.release(coordinator._backend, first.fence, coordinator._backend.settings))

    def test_a_repeated_request_gets_the_full_ttl_again(self) -> None:
        pause = max(0.75 * self.short_ttl, 3 * self.time_step)
        ttl = max(10.0, 10 * self.short_ttl, 4 * pause)
        coordinator, name, token = self._make(ttl=ttl), self._name(), new_token()
        first = self._acquire(coordinator, name, token)
        new = new_token()
        requests: list[tuple[Callable[[], Any], float]] = [
            (lambda: self._acquire(coordinator, name, token), 0.0),
            (lambda: self._remint(coordinator, first.fence, new, 0), self.used_share),  # this one makes a grant
            (lambda: self._remint(coordinator, first.fence, new, 0), 0.0),
        ]
        for request, lacks in requests:
            time.sleep(pause)
            before = time.monotonic()
            grant = request()
            _, longest = self._remaining(coordinator, name)
            least = ttl * (1 - lacks) - pause / 2
            if has_capability(coordinator, RenewsSession):  # it is kept alive anyway
                least = ttl / 2
            assert longest > least - (time.monotonic() - before)
            assert grant.deadline - coordinator._backend.clock() <= longest
        assert self._plan(coordinator, plans.release(coordinator._backend, grant.fence, coordinator._backend.settings))

    def test_a_floor_is_exceeded(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        self.call(lease.release)
        floor = lease.fence.number + 1_000_000
        grant = self._acquire(coordinator, name, new_token(), floor=floor)
        assert isinstance(grant, Grant)
        assert grant.fence.number > floor
        self._plan(coordinator, plans.release(coordinator._backend, grant.fence, coordinator._backend.settings))

    def test_an_implausible_floor_is_refused_and_nothing_changed(self) -> None:
        coordinator, name = self._make(), self._name()
        before = self.call(coordinator.acquire, name)
        self.call(before.release)
        error = self.expect(MarkImplausible, self._acquire, coordinator, name, new_token(), floor=MAX_NUMBER - 1)
        assert error.number == MAX_NUMBER - 1
        assert self.call(coordinator.lock(name).holder) is None
        after = self.call(coordinator.acquire, name)
        assert before.fence.number < after.fence.number < MAX_NUMBER - 1
        self.call(after.release)

    def test_a_repeated_request_gets_the_same_number_from_another_client(self) -> None:
        """The first client lost the reply. If its session holds the lock, the second one takes it into its own."""
        first, second, name, token = self._make(), self._make(), self._name(), new_token()
        grant = self._acquire(first, name, token)
        again = self._acquire(second, name, token)
        assert isinstance(again, Grant)
        if again.fence != grant.fence:
            assert has_capability(second, RenewsSession)
            assert again.number > grant.number
            self.expect(LeaseLost, self._plan, first, plans.renew(first._backend, grant, first._backend.settings))
        if has_capability(second, RenewsGrants):
            self._plan(second, plans.renew(second._backend, again, second._backend.settings))
        assert self._plan(second, plans.release(second._backend, again.fence, second._backend.settings))

    def test_a_lock_has_a_ttl_of_its_own_or_refuses_it(self) -> None:
        coordinator, name = self._make(), self._name()
        longer = 2 * coordinator._backend.settings.ttl
        if not has_capability(coordinator, TtlPerLock):
            self.expect(TypeError, coordinator.lock, name, ttl=longer)
            return
        lease = self.call(coordinator.lock(name, ttl=longer).acquire)
        assert lease.remaining() > coordinator._backend.settings.ttl
        assert self._remaining(coordinator, name)[1] > coordinator._backend.settings.ttl
        assert self.call(lease.release) is True

    def test_a_lock_without_ttl_lasts_or_is_refused(self) -> None:
        coordinator, name = self._make(), self._name()
        settings = replace(coordinator._backend.settings, ttl=None)
        if not has_capability(coordinator, HoldsWithoutTtl):
            self.expect(
                TypeError, check_capabilities, coordinator._backend, settings, coordinator._backend.settings.ttl
            )
            return
        deadline = coordinator._backend.clock() + 5
        plan = coordinator._backend.plan_acquire(name, new_token(), settings, floor=0, deadline=deadline)
        grant = self._plan(coordinator, plan)
        assert grant.deadline == float("inf")
        holder = self.call(coordinator.lock(name).holder)
        assert (holder.remaining, holder.expires) == (None, False)
        assert self._plan(coordinator, plans.release(coordinator._backend, grant.fence, settings))

    def test_remint_replaces_the_fence_and_keeps_the_lock(self) -> None:
        coordinator, name = self._make(), self._name()
        old = self._acquire(coordinator, name, new_token())
        token, floor = new_token(), old.number + 1000
        new = self._remint(coordinator, old, token, floor)
        assert new.token == token
        assert new.number > floor
        again = self._remint(coordinator, old, token, floor)
        assert again.fence == new.fence, "a repeated request gets the same fence"
        assert again is not new, "each answer has a grant of its own"
        assert self._remint(coordinator, old, new_token(), floor) is None, "the old fence has lost the lock"
        assert self.call(coordinator.try_acquire, name) is None
        self.expect(
            LeaseLost, self._plan, coordinator, plans.renew(coordinator._backend, old, coordinator._backend.settings)
        )
        assert not self._plan(coordinator, plans.release(coordinator._backend, old, coordinator._backend.settings))
        assert self._plan(coordinator, plans.release(coordinator._backend, new, coordinator._backend.settings))

    def test_remint_needs_the_number_and_the_token_of_the_holder(self) -> None:
        coordinator, name = self._make(), self._name()
        self.call(self.call(coordinator.acquire, name).release)  # so that there is a lower number
        old = self._acquire(coordinator, name, new_token())
        for fence in (Fence(name, old.number, new_token()), Fence(name, old.number - 1, old.token)):
            assert self._remint(coordinator, fence, new_token(), 0) is None
        assert self.call(coordinator.lock(name).holder).number == old.number
        assert self._plan(coordinator, plans.release(coordinator._backend, old, coordinator._backend.settings))

    def test_force_is_idempotent_for_its_token(self) -> None:
        """Its reply can be lost, too."""
        coordinator, name, token = self._make(), self._name(), new_token()
        old = self._acquire(coordinator, name, new_token())
        seen = self.call(coordinator.lock(name).holder)
        first = self._force(coordinator, name, seen, token)
        again = self._force(coordinator, name, seen, token)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.number > old.number
        assert again.fence == first.fence
        assert again is not first, "each answer has a grant of its own"
        assert self._force(coordinator, name, seen) is None, "the holder that was seen has lost the lock"
        assert not self._plan(coordinator, plans.release(coordinator._backend, old, coordinator._backend.settings))
        assert self._plan(coordinator, plans.release(coordinator._backend, again, coordinator._backend.settings))

    def test_several_locks_are_released_in_one_request_and_each_is_told_of(self) -> None:
        coordinator = self._make()
        if not has_capability(coordinator, ReleasesSeveral):
            return
        backend = coordinator._backend
        for which in ([0, 2], [1], [0, 1, 2]):  # of three, those that were freed before
            grants = [self._acquire(coordinator, self._name(), new_token()) for _ in range(3)]
            for i in which:
                assert self._plan(coordinator, plans.release(backend, grants[i], backend.settings))
            deadline = backend.clock() + 5
            plan = backend.plan_release_all(grants, backend.settings, deadline=deadline)
            assert list(self._plan(coordinator, plan)) == [i not in which for i in range(3)]
            for grant in grants:
                assert self.call(coordinator.holder, grant.resource) is None

    def test_a_fence_alone_does_what_its_grant_does(self) -> None:
        """Another process has no more than the text of the fence; this one has what its backend keeps in the grant."""
        one, two = self._make(), self._make()
        for of_grant in (True, False):
            coordinator, name = one if of_grant else two, self._name()
            grant = self._acquire(one, name, new_token())
            known = grant if of_grant else Fence.parse(str(grant.fence))
            new = self._remint(coordinator, known, new_token(), 0)
            assert new.number > grant.number
            if has_capability(coordinator, RenewsGrants):
                assert self._plan(coordinator, plans.renew(coordinator._backend, new, coordinator._backend.settings))
            assert not self._plan(one, plans.release(one._backend, known, one._backend.settings))
            last = new if of_grant else Fence(name, 1, new.token)  # of a request without an answer
            assert self._plan(coordinator, plans.release(coordinator._backend, last, coordinator._backend.settings))
            assert self.call(one.lock(name).holder) is None

    # Late requests

    def test_a_late_acquire_does_not_revive_an_ended_grant(self) -> None:
        """The network has kept an earlier attempt, and delivers it after the release."""
        coordinator, name, token = self._make(), self._name(), new_token()
        ended = self._acquire(coordinator, name, token)
        assert self._plan(coordinator, plans.release(coordinator._backend, ended, coordinator._backend.settings))
        late = self._acquire(coordinator, name, token)
        assert isinstance(late, Grant)
        assert late.number > ended.number
        self.expect(
            LeaseLost, self._plan, coordinator, plans.renew(coordinator._backend, ended, coordinator._backend.settings)
        )
        assert self._remint(coordinator, ended, new_token(), 0) is None, "a fence is adopted once"
        assert self._plan(coordinator, plans.release(coordinator._backend, late.fence, coordinator._backend.settings))

    def test_an_expired_token_does_not_come_back_under_its_old_number(self) -> None:
        name, token = self._name(), new_token()
        coordinator, first = self._first_expiring(name, token)
        ended, patient = first.fence, self._make()  # whose requests may take longer than those of a short ttl
        while self.call(patient.lock(name).holder) is not None:
            time.sleep(self.short_ttl / 10)
        late = self._acquire(coordinator, name, token)
        assert isinstance(late, Grant)
        assert late.fence.number > ended.number
        self._plan(patient, plans.release(patient._backend, late.fence, patient._backend.settings))

    def test_a_late_force_takes_the_lock_from_nobody_else(self) -> None:
        coordinator, name = self._make(), self._name()
        ended = self.call(coordinator.acquire, name)
        seen = self.call(coordinator.lock(name).holder)
        assert self.call(ended.release)
        assert self._force(coordinator, name, seen) is None, "the lock is free"
        lease = self.call(coordinator.acquire, name)
        assert self._force(coordinator, name, seen) is None
        assert self.call(coordinator.lock(name).force_release, seen.number) is None
        assert self.call(coordinator.lock(name).force_release, holder=seen) is None
        self.call(lease.renew)
        forced = self.call(coordinator.lock(name).force_release, lease.fence.number)
        assert forced.holder.number == lease.fence.number
        assert self.call(lease.release) is False
        self.expect(ValueError, coordinator.lock(name).force_release, 0)
        self.expect(TypeError, coordinator.lock(name).force_release, "1")
        self.expect(TypeError, coordinator.lock(name).force_release, holder=1)
        self.expect(TypeError, coordinator.lock(name).force_release, 1, holder=seen)

    def _force(self, coordinator: Any, name: str, holder: Holder, token: str | None = None) -> Grant | None:
        settings, deadline = coordinator._backend.settings, coordinator._backend.clock() + 5
        token = token or new_token()
        plan = coordinator._backend.plan_force(name, token, settings, floor=0, deadline=deadline, holder=holder)
        grant: Grant | None = self._plan(coordinator, plan)
        return grant

    # A service that does not answer

    def test_a_service_that_does_not_answer_costs_the_callers_time_and_little_more(self) -> None:
        coordinator, name = self.make_unreachable(ttl=3), self._name()
        if coordinator is None:
            raise SkipTest("make_unreachable() returns None")
        self._track(coordinator)
        started = time.monotonic()
        error = self.expect(CoordinatorUnavailable, coordinator.acquire, name, timeout=0.3)
        assert error.resource == name
        assert time.monotonic() - started < 0.3 + UNREACHABLE_SECONDS
        if inspect.iscoroutinefunction(coordinator._backend.perform):
            started = time.monotonic()
            self.expect(TimeoutError, self._cancelled_soon, coordinator, name)
            assert time.monotonic() - started < 0.3 + UNREACHABLE_SECONDS

    async def _cancelled_soon(self, coordinator: Any, name: str) -> None:
        async with asyncio.timeout(0.3):
            await coordinator.acquire(name, timeout=60)

    def test_a_grant_that_comes_when_the_coordinator_is_closed_is_given_back(self) -> None:
        """Its session, if it has one, is over, so another client may have the lock already."""
        patient, name = self._make(), self._name()
        for call in ("acquire", "try_acquire"):
            coordinator = self._make(ttl=60)
            self._close_at_the_grant(coordinator)
            error = self.expect(RuntimeError, getattr(coordinator, call), name)
            assert "make a new one" in str(error), call
            self.wait_until(lambda: self.call(patient.lock(name).holder) is None)

    def _close_at_the_grant(self, coordinator: Any) -> None:
        """Close it when the first grant has come, before the caller is told of it."""
        backend, closing = coordinator._backend, object()
        perform = backend.perform

        def closes(plan: Callable[..., Plan[Any]]) -> Callable[..., Plan[Any]]:
            def plan_and_close(*args: Any, **options: Any) -> Plan[Any]:
                reply = yield from plan(*args, **options)
                if isinstance(reply, Grant):
                    yield closing
                return reply

            return plan_and_close

        backend.plan_acquire = closes(backend.plan_acquire)
        if isinstance(backend, Queues):
            backend.plan_queue = closes(backend.plan_queue)  # type: ignore[method-assign]
        backend.perform = lambda effect: coordinator.close() if effect is closing else perform(effect)

    def test_a_closed_coordinator_takes_no_locks(self) -> None:
        coordinator = self._make()
        self.call(coordinator.close)
        self.call(coordinator.close)
        assert "make a new one" in str(self.expect(RuntimeError, coordinator.acquire, self._name()))
