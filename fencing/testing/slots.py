"""The contract of slots: never more holders than slots, and a fence, a mark and a claim for each slot alone."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fencing.kernel.admission import admit_write
from fencing.kernel.errors import LeaseLost, NotAcquired, StaleFence
from fencing.kernel.fence import Fence, new_token
from fencing.locks import plans
from fencing.locks.backend import Taken
from fencing.locks.capabilities import AcquiresAny, ListsHolders, OneOfManyWins
from fencing.testing.base import CoordinatorTests, has_capability


class Slots(CoordinatorTests):
    """Tests of slots."""

    def test_each_slot_has_one_holder_and_a_fence_of_its_own(self) -> None:
        one, two, name = self._make(owner="one"), self._make(), self._name()
        leases = [self.call(one.slots(name, 3).acquire, timeout=10) for _ in range(3)]
        assert sorted(lease.slot for lease in leases) == [0, 1, 2]
        assert all(lease.fence.resource == f"{{{name}}}#{lease.slot}" for lease in leases)
        assert self.call(two.slots(name, 3).try_acquire) is None
        error = self.expect(NotAcquired, two.slots(name, 3).acquire, timeout=0)
        assert (error.reason, error.owner, error.slots, error.resource) == ("held", "one", 3, f"{{{name}}}")
        assert self.call(leases[1].release) is True
        again = self.call(two.slots(name, 3).acquire, timeout=10)
        assert again.slot == leases[1].slot
        assert again.fence.number > leases[1].fence.number
        assert self.call(leases[1].release) is True, "it was released once, and its successor is not"
        self.call(again.renew)
        for lease in (leases[0], leases[2], again):
            self.call(lease.renew)
            assert self.call(lease.release) is True

    def test_a_request_for_any_slot_is_idempotent_for_its_token(self) -> None:
        """It is repeated after a lost reply, and may begin with another slot: it is given the one that it has."""
        coordinator, name, token = self._make(), self._name(), new_token()
        backend = coordinator._backend
        if not has_capability(coordinator, AcquiresAny):
            return
        resources = [f"{{{name}}}#{slot}" for slot in range(3)]

        def acquire(token: str, first: int) -> Any:
            deadline = backend.clock() + 5
            return self._plan(
                coordinator,
                backend.plan_acquire_any(resources, token, backend.settings, first=first, deadline=deadline),
            )

        grant = acquire(token, 2)
        assert (grant.resource, grant.token) == (resources[2], token)
        for first in range(3):
            again = acquire(token, first)
            assert again.fence == grant.fence, "the same slot and number"
            assert again is not grant, "each answer has a grant of its own"
        others = [acquire(new_token(), 2) for _ in range(2)]
        assert [other.resource for other in others] == resources[:2], "the search goes on with the first"
        taken = acquire(new_token(), 1)
        assert isinstance(taken, Taken)
        assert 0 < taken.remaining <= backend.settings.ttl
        assert taken.owner == backend.settings.owner_label
        for each in (grant, *others):
            assert self._plan(coordinator, plans.release(backend, each, backend.settings))
        late = acquire(token, 0)
        assert late.number > max(each.number for each in (grant, *others)), "a token that has ended gets a new number"
        assert self._plan(coordinator, plans.release(backend, late, backend.settings))

    def test_callers_at_once_get_a_slot_each_and_never_more_than_there_are(self) -> None:
        coordinators, name = [self._make() for _ in range(4)], self._name()
        tries = [partial(self.call, each.slots(name, 2).try_acquire) for each in coordinators]
        granted = [lease for lease in self.race(tries) if lease is not None]
        assert len({lease.slot for lease in granted}) == len(granted) <= 2
        if has_capability(coordinators[0], OneOfManyWins):
            assert len(granted) == 2
        for lease in granted:
            assert self.call(lease.release) is True

    def test_a_waiter_gets_the_slot_that_is_released(self) -> None:
        one, two, name = self._make(), self._make(), self._name()
        first, other = (self.call(one.slots(name, 2).acquire, timeout=10) for _ in range(2))

        def release() -> None:
            time.sleep(0.02)  # so that the waiter usually comes first; the test is right in both orders
            self.call(first.release)

        waited, _ = self.race([partial(self.call, two.slots(name, 2).acquire, timeout=30), release])
        assert waited.slot == first.slot
        assert waited.fence.number > first.fence.number
        self.call(other.renew)
        self.call(waited.release)
        self.call(other.release)

    def test_a_slot_is_a_lock_like_any_other(self) -> None:
        """It is excluded by the lock of its resource, listed, handed over and forced by its name."""
        coordinator, other, name = self._make(owner="one"), self._make(), self._name()
        slots = coordinator.slots(name, 2)
        lock = self.call(other.acquire, f"{{{name}}}#1", timeout=10)
        lease = self.call(slots.acquire, timeout=10)
        assert (lease.slot, lock.slot) == (0, 1)
        assert self.call(slots.try_acquire) is None
        if has_capability(coordinator, ListsHolders):
            found = [resource for resource, _ in self._holders(coordinator, f"{{{name}}}#*")]
            assert sorted(found) == [f"{{{name}}}#0", f"{{{name}}}#1"]
        assert self.call(lock.release) is True
        adopted = self.call(other.adopt, Fence.parse(str(lease.detach())))
        assert adopted.slot == 0
        assert self.call(coordinator.holder, f"{{{name}}}#0").number == adopted.fence.number
        assert self.call(coordinator.force_release, f"{{{name}}}#0").holder.number == adopted.fence.number
        self.expect(LeaseLost, adopted.renew)
        again = self.call(slots.acquire, timeout=10)
        assert self.call(again.release) is True

    def test_a_lower_number_of_slots_leaves_those_above_to_their_holders(self) -> None:
        coordinator, name = self._make(), self._name()
        leases = [self.call(coordinator.slots(name, 3).acquire, timeout=10) for _ in range(3)]
        leases.sort(key=lambda lease: lease.slot)
        assert self.call(leases[0].release) is True
        assert self.call(leases[2].release) is True
        lower = self.call(coordinator.slots(name, 2).acquire, timeout=10)
        assert lower.slot == 0
        assert self.call(coordinator.slots(name, 2).try_acquire) is None
        self.call(leases[1].renew)
        higher = self.call(coordinator.slots(name, 4).acquire, timeout=10)
        assert higher.slot in (2, 3)
        for lease in (lower, leases[1], higher):
            assert self.call(lease.release) is True

    def test_a_guard_refuses_who_has_lost_a_slot_and_nobody_with_another_one(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        leases = [self.call(coordinator.slots(name, 2).acquire, timeout=10) for _ in range(2)]
        lost, kept = leases
        self.call(coordinator.force_release, lost.fence.resource)
        newer = self.call(coordinator.slots(name, 2).acquire, timeout=10)
        assert newer.slot == lost.slot
        self.expect(StaleFence, admit_write, guard.marks[lost.fence.resource], lost.fence)
        assert self.call(lost.release) is False
        for lease in (kept, newer):
            admit_write(guard.marks[lease.fence.resource], lease.fence)
            assert self.call(lease.release) is True

    def test_a_slot_whose_fence_is_refused_is_minted_above_its_mark(self) -> None:
        guard = self._guard()
        coordinator, name = self._make(guards=[guard]), self._name()
        first = self.call(coordinator.slots(name, 1).acquire, timeout=10)
        assert self.call(first.release) is True
        mark: Any = guard.marks[first.fence.resource]
        guard.marks[first.fence.resource] = type(mark)(mark.number + 10_000_000, mark.token)
        lease = self.call(coordinator.slots(name, 1).acquire, timeout=10)
        assert lease.fence.number > mark.number + 10_000_000
        assert guard.marks[lease.fence.resource].is_of(lease.fence)
        assert self.call(lease.release) is True
        assert self.call(coordinator.holder, lease.fence.resource) is None
