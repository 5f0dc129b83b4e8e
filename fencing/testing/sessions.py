"""The contract of sessions: one keeps all leases of a coordinator, and its end ends them all."""

from __future__ import annotations

import gc
import time
import warnings
from typing import Any
from unittest import SkipTest

from fencing.kernel.errors import LeaseLost
from fencing.locks.capabilities import RenewsSession
from fencing.testing.base import CoordinatorTests, has_capability


class Sessions(CoordinatorTests):
    """Tests of backends with ``RenewsSession``. For others, each is skipped."""

    def _of_a_session(self, **options: Any) -> Any:
        coordinator = self._make(**options)
        if not has_capability(coordinator, RenewsSession):
            raise SkipTest("its locks have no session in common")
        return coordinator

    def test_a_session_has_one_ttl_and_is_always_renewed(self) -> None:
        coordinator, name = self._of_a_session(), self._name()
        ttl = coordinator._backend.session_seconds
        assert coordinator._backend.settings.ttl == ttl
        for options in ({"renew": False}, {"max_lifetime": 10 * ttl}, {"ttl": 2 * ttl}):
            self.expect(TypeError, coordinator.lock, name, **options)

    def test_the_end_of_a_session_ends_all_its_leases_at_once(self) -> None:
        coordinator, other = self._of_a_session(), self._make()
        leases = [self.call(coordinator.acquire, self._name(), timeout=10) for _ in range(3)]
        another = self.call(other.acquire, self._name(), timeout=10)
        began = time.monotonic()
        self.end_session(coordinator)
        self.wait_until(lambda: not any(lease.held for lease in leases))
        if time.monotonic() - began < coordinator._backend.session_seconds / 2:  # or else they have also expired
            errors = [self.expect(LeaseLost, lease.ensure_held) for lease in leases]
            assert {error.reason for error in errors} == {"gone"}
            assert all(error.cause for error in errors), "it says that the session is over"
        another.ensure_held()
        for lease in leases:
            again = self.call(coordinator.acquire, lease.fence.resource, timeout=30)
            assert again.fence.number > lease.fence.number
            assert self.call(again.release) is True
        assert self.call(another.release) is True

    def test_a_session_outlives_a_lock_that_was_forced(self) -> None:
        coordinator, other = self._of_a_session(), self._make()
        forced, kept = (self.call(coordinator.acquire, self._name(), timeout=10) for _ in range(2))
        self.call(other.lock(forced.fence.resource).force_release)
        assert self.expect(LeaseLost, forced.renew).reason == "gone"
        self.call(kept.renew)
        kept.ensure_held()
        assert self.call(kept.release) is True

    def test_a_lease_that_is_dropped_is_freed_although_its_session_goes_on(self) -> None:
        coordinator, other = self._of_a_session(), self._make()
        name, kept = self._name(), self.call(coordinator.acquire, self._name(), timeout=10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.call(coordinator.acquire, name, timeout=10)  # its lease is dropped at once
            gc.collect()
        again = self.call(other.acquire, name, timeout=30)
        kept.ensure_held()
        for lease in (again, kept):
            assert self.call(lease.release) is True

    def test_a_session_keeps_a_detached_lease_until_it_ends(self) -> None:
        def story() -> None:
            coordinator, other = self._of_a_session(ttl=self.short_ttl), self._make()
            leases = [self.call(coordinator.acquire, self._name(), timeout=10) for _ in range(2)]
            fences = [self.call(lease.detach) for lease in leases]
            time.sleep(1.5 * self.short_ttl)  # longer than anything lasts without its session
            adopted = self.call(other.adopt, fences[0])
            self.call(coordinator.close)
            adopted.ensure_held()
            assert self.call(adopted.release) is True
            self.wait_until(lambda: self.call(other.lock(fences[1].resource).holder) is None)
            self.expect(LeaseLost, other.adopt, fences[1])

        self._with_enough_time(story)
