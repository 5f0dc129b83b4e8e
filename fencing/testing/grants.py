"""The contract of grants, exclusion and renewal."""

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import Any
from unittest import SkipTest

from fencing.kernel.errors import (
    CoordinatorUnavailable,
    FencingError,
    LeaseLost,
    NotAcquired,
)
from fencing.kernel.fence import Fence, new_token
from fencing.locks import plans
from fencing.locks.capabilities import (
    CountsWaiters,
    ListsHolders,
    OneOfManyWins,
    Queues,
    RenewsGrants,
    RenewsSession,
    RenewsSeveralTtls,
    TtlPerLock,
)
from fencing.locks.settings import Settings
from fencing.testing.base import CoordinatorTests, has_capability

AWKWARD_ENDS = ("", " ", "  ", "ü", "u\u0308", "{tag}:x", "{}{x", "}{", 'quo"te\\', "\n", "\U0001f512", "x" * 480)


class Grants(CoordinatorTests):
    """Tests of grants, exclusion and renewal."""

    # Grants

    def test_a_grant_has_a_fence_of_its_resource(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        assert lease.fence.resource == name
        assert lease.held
        assert 0 < lease.remaining() <= coordinator._backend.settings.ttl
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
        def story() -> None:
            name = self._name()
            _, first = self._acquire_expiring(name)
            second = self.call(self._make().acquire, name, timeout=10)
            assert second.fence.number > first.fence.number
            error = self.expect(LeaseLost, first.renew)
            assert error.reason in ("expired", "gone")
            # After a stall it is sent twice. Then the first one may have freed the lock, and it is True.
            assert self.call(first.release) is False
            self.call(second.renew)  # the late release did not free it
            self.call(second.release)

        self._with_enough_time(story)

    def test_any_name_works_and_different_names_are_different_locks(self) -> None:
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
        error = self.expect(NotAcquired, two.acquire, name, timeout=0.5)
        assert (error.reason, error.resource, error.owner, error.kept_by) == ("held", name, "one", None)
        assert error.waited >= 0.5
        self.call(lease.release)
        self.call(self.call(two.acquire, name, timeout=0).release)

    def test_one_of_many_concurrent_tries_gets_the_lock(self) -> None:
        coordinators, name = [self._make() for _ in range(8)], self._name()
        leases = self.race([partial(self.call, coordinator.try_acquire, name) for coordinator in coordinators])
        granted = [lease for lease in leases if lease is not None]
        if not granted and not has_capability(coordinators[0], OneOfManyWins):
            granted = [self.call(coordinators[0].acquire, name, timeout=10)]
        assert len(granted) == 1
        self.call(granted[0].release)

    def test_a_waiter_gets_the_lock_when_it_is_released(self) -> None:
        one, two, name = self._make(), self._make(), self._name()
        first = self.call(one.acquire, name)

        def wait() -> Any:
            return self.call(two.acquire, name, timeout=30)

        def release() -> None:
            time.sleep(0.05)  # so that the waiter usually comes first; the test is right in both orders
            self.call(first.release)

        second, _ = self.race([wait, release])
        assert second.fence.number > first.fence.number
        self.call(second.release)

    def test_a_waiter_that_gave_up_is_granted_nothing_later(self) -> None:
        one, two, name = self._make(), self._make(), self._name()
        first = self.call(one.acquire, name)
        for timeout in (0.05, 0.01, 0):
            # On a busy machine the time-out may pass before there is an answer.
            error = self.expect(FencingError, two.acquire, name, timeout=timeout)
            assert isinstance(error, (NotAcquired, CoordinatorUnavailable))
        self.call(first.release)
        assert self.call(one.lock(name).holder) is None
        self.call(self.call(one.acquire, name, timeout=0).release)

    def test_no_more_wait_than_max_waiters_or_it_is_refused(self) -> None:
        plain, name = self._make(), self._name()
        if not has_capability(plain, CountsWaiters):
            self.expect(TypeError, self._make, max_waiters=2)
            self.expect(TypeError, plain.lock, name, max_waiters=2)
            return
        held = self.call(plain.acquire, name)
        coordinators = [self._make(max_waiters=2) for _ in range(3)]
        refused: list[NotAcquired] = []

        def ask(coordinator: Any) -> bool:
            try:
                lease = self.call(coordinator.acquire, name, timeout=50)
            except NotAcquired as error:
                refused.append(error)
                return False
            return bool(self.call(lease.release))

        def release() -> bool:
            self.wait_until(lambda: len(refused) >= 4, seconds=40)
            return bool(self.call(held.release))

        asked = [partial(ask, each) for each in coordinators * 2]
        assert sorted(self.race([*asked, release])) == [False] * 4 + [True] * 3
        assert {(error.reason, error.waiters) for error in refused} == {("full", 2)}

    def test_a_waiter_counts_until_it_leaves_and_is_not_refused_when_it_asks_again(self) -> None:
        plain = self._make()
        if not has_capability(plain, CountsWaiters):
            raise SkipTest("it limits no waiters")
        coordinator, name, other = self._make(max_waiters=1), self._name(), new_token()
        held = self.call(plain.acquire, name)
        place: Any = None
        token = new_token()
        self._queue(coordinator, name, token)
        for _ in range(2):  # first without its place: the reply to the request before was lost
            place = self._queue(coordinator, name, token, place).place
            assert place is not None
        assert self._queue(coordinator, name, other).waiters == 1
        assert self.expect(NotAcquired, coordinator.acquire, name, timeout=0).reason == "held"
        self._plan(coordinator, place.plan_leave(deadline=coordinator._backend.clock() + 5))
        last = self._queue(coordinator, name, other)
        assert last.waiters is None
        self.call(held.release)
        self._plan(coordinator, last.place.plan_leave(deadline=coordinator._backend.clock() + 5))
        self.call(self.call(coordinator.acquire, name, timeout=5).release)

    def test_how_many_wait_is_told_each_time_or_never(self) -> None:
        coordinator, name = self._make(), self._name()
        held = self.call(coordinator.acquire, name, timeout=5)
        seen, places = [self._waiting(coordinator, name)], []
        if has_capability(coordinator, Queues):
            places = [self._queue(coordinator, name, new_token()).place for _ in range(2)]
            seen.append(self._waiting(coordinator, name))
        for place in filter(None, places):  # a waiter that polls may have none
            self._plan(coordinator, place.plan_leave(deadline=coordinator._backend.clock() + 5))
            seen.append(self._waiting(coordinator, name))
        assert seen in ([0, 2, 1, 0][: len(seen)], [None] * len(seen))
        self.call(held.release)

    def _waiting(self, coordinator: Any, name: str) -> int | None:
        """Return how many wait. A list says the same."""
        waiting: int | None = self.call(coordinator.holder, name).waiting
        if has_capability(coordinator, ListsHolders):
            assert {each.waiting for _, each in self._holders(coordinator, name)} == {waiting}
        return waiting

    def _queue(self, coordinator: Any, name: str, token: str, place: Any = None) -> Any:
        deadline = coordinator._backend.clock() + 5
        plan = coordinator._backend.plan_queue(
            name, token, coordinator._backend.settings, floor=0, deadline=deadline, place=place
        )
        return self._plan(coordinator, plan)

    # Renewal

    def test_renewal_keeps_the_fence_and_outlasts_the_ttl(self) -> None:
        def story() -> None:
            coordinator, name = self._make(ttl=self.short_ttl), self._name()
            if not has_capability(coordinator, RenewsSession):  # nothing renews it but the calls below
                coordinator = self._expiring()
            lease = self.call(coordinator.acquire, name)
            fence, end = lease.fence, time.monotonic() + 1.5 * self.short_ttl
            while time.monotonic() < end:
                self.call(lease.renew)
                assert self.call(coordinator.try_acquire, name) is None
                time.sleep(self.short_ttl / 10)
            assert lease.fence == fence
            assert self.call(lease.release) is True

        self._with_enough_time(story)

    def test_a_lease_renews_itself_and_keeps_its_fence(self) -> None:
        def story() -> None:
            coordinator, name = self._make(ttl=self.short_ttl), self._name()
            lease = self.call(coordinator.acquire, name)
            fence, end = lease.fence, time.monotonic() + 2 * self.short_ttl
            while time.monotonic() < end:
                assert self.call(coordinator.try_acquire, name) is None
                lease.ensure_held()
                time.sleep(self.short_ttl / 10)
            assert lease.fence == fence
            assert self.call(lease.release) is True

        self._with_enough_time(story)

    def test_a_lease_is_renewed_while_its_block_computes(self) -> None:
        """With asyncio, another event loop renews it: ``perform`` runs on several loops, each in its own thread."""

        def story() -> None:
            coordinator, name = self._make(ttl=self.short_ttl), self._name()
            lease = self.call(coordinator.acquire, name)

            async def compute() -> None:
                time.sleep(2 * self.short_ttl)  # noqa: ASYNC251 - it stands for work in one piece

            if inspect.iscoroutinefunction(coordinator._backend.perform):
                self.call(compute)
            else:
                time.sleep(2 * self.short_ttl)
            lease.ensure_held()
            assert self.call(lease.release) is True

        self._with_enough_time(story)

    def test_many_leases_are_renewed_in_one_request(self) -> None:
        coordinator, count = self._make(), 5
        if not has_capability(coordinator, RenewsGrants):
            lease = self.call(coordinator.acquire, self._name())
            self.expect(TypeError, lease.renew)
            self.call(lease.release)
            return
        grants = [self._acquire(coordinator, self._name(), new_token()) for _ in range(count)]
        ended = self._acquire(coordinator, self._name(), new_token())
        assert self._plan(coordinator, plans.release(coordinator._backend, ended, coordinator._backend.settings))
        deadline = coordinator._backend.clock() + 5
        asked = [grants[0], ended, *grants[1:]]
        renewed = self._plan(
            coordinator, coordinator._backend.plan_renew(asked, coordinator._backend.settings, deadline=deadline)
        )
        assert [until is not None for until in renewed] == [True, False, *(True for _ in grants[1:])]
        # A session proves itself by what it has sent a while before, which may be the same again.
        assert all(until >= grants[-1].deadline for until in renewed if until is not None)
        for grant in grants:
            self._plan(coordinator, plans.release(coordinator._backend, grant, coordinator._backend.settings))

    def test_leases_of_several_ttls_are_renewed_in_one_request(self) -> None:
        """Each gets its own; what a lease is believed to have is what its lock has."""
        coordinator = self._make()
        if not all(has_capability(coordinator, each) for each in (RenewsGrants, RenewsSeveralTtls, TtlPerLock)):
            return
        ttl = coordinator._backend.settings.ttl
        locks = [coordinator.lock(self._name(), ttl=ttl / 2, renew=False) for _ in range(3)]
        leases = [self.call(lock.acquire) for lock in locks]
        settings = [Settings(ttl=share * ttl) for share in (0.5, 1, 0.7)]
        plan = coordinator._backend.plan_renew_each(
            [lease._holding for lease in leases], settings, deadline=coordinator._backend.clock() + 5
        )
        renewed = self._plan(coordinator, plan)
        assert renewed[1] > renewed[2] > renewed[0] > coordinator._backend.clock()
        left = [self._remaining(coordinator, lock.resource) for lock in locks]
        assert left[0][0] <= ttl / 2 < left[2][1]
        assert left[2][0] <= 0.7 * ttl < left[1][1]
        assert left[1][0] <= ttl
        for lease in leases:
            self.call(lease.release)

    def test_renewal_never_takes_a_lock_that_is_gone(self) -> None:
        def story() -> None:
            patient, name = self._make(), self._name()
            _, lease = self._acquire_expiring(name)
            self.wait_until(lambda: self.call(patient.lock(name).holder) is None)
            self.expect(LeaseLost, lease.renew)
            assert self.call(patient.lock(name).holder) is None
            assert not lease.held

        self._with_enough_time(story)

    def test_holders_are_listed(self) -> None:
        """The holders that match the pattern, each with its resource, owner and number; none that has released."""
        coordinator, other = self._make(owner="one"), self._make(owner="two")
        if not has_capability(coordinator, ListsHolders):
            self.expect(TypeError, coordinator.holders, "*")
            return
        name = self._name()
        leases = [
            self.call(each.acquire, f"{name}:{end}", timeout=5)
            for each, end in ((coordinator, "a"), (other, "bb"), (other, "[x]"), (other, "\\*"), (other, "ü"))
        ]
        found = {resource: (each.number, each.owner) for resource, each in self._holders(coordinator, f"{name}:*")}
        owners = ["one", "two", "two", "two", "two"]
        expected = {lease.fence.resource: (lease.fence.number, o) for lease, o in zip(leases, owners, strict=True)}
        assert found == expected
        ends = {"?": ["a", "ü"], "??": ["bb", "\\*"], "[x]": ["[x]"], "\\*": ["\\*"], "ü": ["ü"], "b": []}
        for pattern, matching in ends.items():
            names = {resource for resource, _ in self._holders(coordinator, f"{name}:{pattern}")}
            assert names == {f"{name}:{end}" for end in matching}, pattern
        for lease in leases:
            self.call(lease.release)
        assert self._holders(coordinator, f"{name}:*") == []

    # Names

    def test_a_prefix_is_part_of_the_resource(self) -> None:
        """Each name that is told can be passed again: of a fence, of an error, of a listing."""
        guard, name, prefix = self._guard(), self._name(), f"app *?[x] {new_token()}:"
        coordinator, plain = self._make(guards=[guard], prefix=prefix), self._make()
        resource = prefix + name
        lease = self.call(coordinator.acquire, name, timeout=5)
        assert lease.fence.resource == resource == coordinator.lock(name).resource
        assert set(guard.marks) == {resource}
        for each, asked in ((coordinator, name), (coordinator, resource), (plain, resource)):
            assert self.expect(NotAcquired, each.acquire, asked, timeout=0).resource == resource
            assert self.call(each.holder, asked).number == lease.fence.number
        other = self.call(plain.acquire, name, timeout=5)
        adopted = self.call(coordinator.adopt, Fence.parse(str(lease.detach())))
        if has_capability(coordinator, ListsHolders):
            outside = self.call(plain.acquire, prefix.replace("*", "x") + name, timeout=5)
            for pattern in ("*", f"{name}*", f"{prefix}*"):
                assert [found for found, _ in self._holders(coordinator, pattern)] == [resource], pattern
            self.call(outside.release)
        assert self.call(coordinator.force_release, resource, adopted.fence.number).holder is not None
        assert self.call(adopted.release) is False
        assert self.call(plain.holder, name).number == other.fence.number
        self.call(other.release)
