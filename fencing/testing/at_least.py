"""The part of the coordinators' suite about locks that stay taken after their release: ``hold(at_least=...)``."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import new_token
from fencing.locks import plans
from fencing.locks.backend import Taken
from fencing.locks.capabilities import LimitsTtl, ReleasesLater, RenewsGrants
from fencing.testing.base import CoordinatorTests, has_capability
from fencing.testing.contract import CALL_SECONDS

LONG = 600.0
"""Seconds for which a lock stays taken that a test frees by force, or the longest that the service can: longer than any
pause of the machine."""

ROUNDED = 0.01
"""Seconds by which a lock may stay taken for longer, because the service counts in steps."""


class AtLeast(CoordinatorTests):
    """Tests of locks that stay taken after their release. Without ``ReleasesLater`` they are refused in words."""

    def test_a_lock_stays_taken_after_its_block(self) -> None:
        coordinator, other, name = self._make(), self._make(), self._name()
        if self._is_refused(coordinator):
            return
        long = self._long(coordinator)
        block = coordinator.hold(name, at_least=long)
        lease = self._enter(block)
        assert self.call(coordinator.holder, name).released is False
        self._leave(block)
        holder = self.call(other.holder, name)
        assert (holder.released, holder.number) == (True, lease.fence.number)
        assert holder.owner == coordinator._backend.settings.owner_label
        assert coordinator._backend.settings.ttl < holder.remaining <= long + self.time_step + ROUNDED
        assert self.call(other.try_acquire, name) is None
        self.expect(NotAcquired, self._enter, coordinator.hold(name, 0, at_least=long))
        forced = self.call(other.force_release, name)
        assert (forced.holder.released, forced.holder.number) == (True, lease.fence.number)
        following = self.call(other.acquire, name, timeout=10)
        assert following.fence.number > forced.fence.number > lease.fence.number
        assert self.call(other.holder, name).released is False
        self.call(following.release)

    def test_a_waiter_gets_the_lock_when_it_frees_itself(self) -> None:
        coordinator, other, name = self._make(), self._make(), self._name()
        if self._is_refused(coordinator):
            return
        began, block = time.monotonic(), coordinator.hold(name, at_least=self.short_ttl)
        lease = self._enter(block)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self.call, other.acquire, name, timeout=CALL_SECONDS / 2)
            self._leave(block)
            following = waiting.result(CALL_SECONDS)
        assert time.monotonic() - began > 0.9 * self.short_ttl, "the clocks of holder and service run alike"
        assert following.fence.number > lease.fence.number
        assert self.call(following.release) is True

    def test_late_requests_of_the_old_token_change_nothing(self) -> None:
        coordinator, name = self._make(), self._name()
        if self._is_refused(coordinator):
            return
        backend, settings, token = coordinator._backend, coordinator._backend.settings, new_token()
        grant = self._acquire(coordinator, name, token)
        long = self._long(coordinator)
        free_at = backend.clock() + long
        assert self._plan(coordinator, plans.release(backend, grant, settings, None, free_at)) is True
        before = self.call(coordinator.holder, name)
        deadline = backend.clock() + 60
        if isinstance(backend, RenewsGrants):
            assert list(self._plan(coordinator, backend.plan_renew([grant], settings, deadline=deadline))) == [None]
        assert self._plan(coordinator, plans.release(backend, grant, settings)) is False
        self._plan(coordinator, plans.release(backend, grant, settings, None, free_at + long))  # True: it was, before
        assert self._remint(coordinator, grant.fence, new_token(), 0) is None
        assert isinstance(self._acquire(coordinator, name, token), Taken)
        after = self.call(coordinator.holder, name)
        assert (after.released, after.number, after.digest) == (True, before.number, before.digest)
        assert after.remaining <= before.remaining + self.time_step
        self.call(coordinator.force_release, name)
        assert self.call(coordinator.holder, name) is None

    def test_a_slot_stays_taken_after_its_block(self) -> None:
        coordinator, name = self._make(), self._name().replace(":", "-")
        if not has_capability(coordinator, ReleasesLater):
            error = self.expect(TypeError, coordinator.slots(name, 1).hold, at_least=1)
            assert f"{coordinator._backend.kind} cannot leave a lock taken" in str(error)
            return
        slots = coordinator.slots(name, 1)
        block = slots.hold(at_least=self._long(coordinator))
        lease = self._enter(block)
        self._leave(block)
        assert self.call(coordinator.holder, lease.fence.resource).released
        assert self.call(slots.try_acquire) is None
        self.call(coordinator.force_release, lease.fence.resource)
        following = self.call(slots.acquire, timeout=10)
        assert following.fence.number > lease.fence.number
        self.call(following.release)

    def test_one_above_the_longest_ttl_is_refused(self) -> None:
        coordinator, name = self._make(), self._name()
        if not (has_capability(coordinator, ReleasesLater) and has_capability(coordinator, LimitsTtl)):
            return
        longest = coordinator._backend.longest_ttl
        for call in (partial(coordinator.hold, name), coordinator.lock(name).hold, partial(coordinator.locked, name)):
            error = self.expect(ValueError, call, at_least=longest + 1)
            assert "at_least must be at most longest_ttl" in str(error)

    def _long(self, coordinator: Any) -> float:
        return min(LONG, coordinator._backend.longest_ttl) if has_capability(coordinator, LimitsTtl) else LONG

    def _is_refused(self, coordinator: Any) -> bool:
        """Return whether the backend cannot do it, and refuses it before it asks for anything."""
        if has_capability(coordinator, ReleasesLater):
            return False
        name = self._name()
        for call in (partial(coordinator.hold, name), coordinator.lock(name).hold, partial(coordinator.locked, name)):
            error = self.expect(TypeError, call, at_least=1)
            assert f"{coordinator._backend.kind} cannot leave a lock taken" in str(error)
            assert "leave at_least out" in str(error)
        return True

    def _enter(self, block: Any) -> Any:
        return self.call(block.__aenter__ if hasattr(block, "_cancel_on_loss") else block.__enter__)

    def _leave(self, block: Any) -> None:
        leave = block.__aexit__ if hasattr(block, "_cancel_on_loss") else block.__exit__
        self.call(leave, None, None, None)
