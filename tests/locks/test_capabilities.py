"""What a backend cannot do is refused when a coordinator or a lock is made, with what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fencing import Coordinator, FencedLock, MemoryCoordinator
from fencing.locks.backend import Backend
from fencing.locks.capabilities import (
    HoldsWithoutTtl,
    OneOfManyWins,
    Queues,
    RenewsGrants,
    RenewsSession,
    TtlPerLock,
    check_capabilities,
)
from fencing.locks.settings import Settings
from fencing.memory.plans import MemoryPlans
from fencing.redis.plans import RedisPlans


def without(*members: str, **more: Any) -> Callable[..., Coordinator]:
    """A backend like the one in memory, but that it lacks these members."""
    plans = {name: member for name, member in vars(MemoryPlans).items() if name not in (*members, "__dict__")}
    base: Any = type("PoorPlans", (Backend,), plans | more)

    class PoorBackend(base):  # type: ignore[misc]
        def perform(self, effect: Any) -> Any:
            return self.table.ask(effect, self.clock())

    class Poor(Coordinator):
        def __init__(self, **options: Any) -> None:
            super().__init__(PoorBackend(), **options)

    return Poor


def test_redis_has_all_but_a_session() -> None:
    plans: Any = RedisPlans()
    assert all(isinstance(plans, each) for each in (RenewsGrants, TtlPerLock, HoldsWithoutTtl, OneOfManyWins, Queues))
    assert not isinstance(plans, RenewsSession)


def test_memory_has_no_session() -> None:
    backend: Any = MemoryCoordinator()._backend
    assert isinstance(backend, RenewsGrants)
    assert not isinstance(backend, RenewsSession)


def test_waiters_that_are_not_counted_are_not_limited() -> None:
    poor = without("counts_waiters")
    for make in (poor, poor().lock):
        with pytest.raises(TypeError, match="Poor cannot count those who wait; remove max_waiters"):
            make(*(["r"] if make is not poor else []), max_waiters=3)


def test_without_renewal_leases_are_not_renewed() -> None:
    poor = without("plan_renew")
    with pytest.raises(TypeError, match="Poor cannot renew leases; pass renew=False, and a ttl that outlasts the work"):
        poor()
    coordinator = poor(renew=False)
    with pytest.raises(TypeError, match="cannot renew leases"):
        coordinator.lock("r", renew=True)
    with coordinator.hold("r", timeout=1) as lease, pytest.raises(TypeError, match="cannot renew single leases"):
        lease.renew()


def test_renewal_of_a_session_cannot_be_switched_off() -> None:
    poor = without("ttl_per_lock", session_seconds=7.0)
    settings = poor()._backend.settings
    assert (settings.renew, settings.ttl) == (True, 7.0)
    assert poor(ttl=7)._backend.settings.ttl == 7.0
    for option, says in (({"renew": False}, "renew=False"), ({"max_lifetime": 60}, "max_lifetime")):
        for make in (poor, partial(poor().lock, "r")):
            with pytest.raises(TypeError, match=f"always renews the session of all its locks; remove {says}$"):
                make(**option)
    with pytest.raises(ValueError, match=r"the ttl of Poor is that of its session, 7 s, not 10; leave it out"):
        poor(ttl=10)
    with pytest.raises(TypeError, match=r"one ttl for all its locks, 7\.0 s"):
        poor().lock("r", ttl=10)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (["plan_renew", "ttl_per_lock"], "PoorBackend with session_seconds needs plan_renew and max_renewals"),
        ([], "PoorBackend with session_seconds has one ttl for all locks; leave ttl_per_lock out"),
    ],
)
def test_a_session_without_what_belongs_to_it(members: list[str], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        without(*members, session_seconds=7.0)()


def test_one_ttl_for_all_locks() -> None:
    coordinator = without("ttl_per_lock")(ttl=10)
    assert FencedLock(coordinator, "r", owner="me").resource == "r"
    assert FencedLock(coordinator, "r", ttl=10).resource == "r"
    with pytest.raises(TypeError, match=r"one ttl for all its locks, 10.0 s; pass the ttl to the coordinator"):
        FencedLock(coordinator, "r", ttl=11)


def test_no_lock_without_ttl() -> None:
    coordinator = without("holds_without_ttl")()
    with pytest.raises(TypeError, match="has no locks without a ttl; pass a ttl in seconds"):
        check_capabilities(coordinator._backend, Settings(ttl=None), 10.0)


@pytest.mark.parametrize("flag", ["ttl_per_lock", "holds_without_ttl", "one_of_many_wins", "counts_waiters"])
def test_a_capability_is_not_switched_off(flag: str) -> None:
    """A member that is there counts, whatever its value."""
    with pytest.raises(TypeError, match=f"{flag} of PoorBackend must be True; leave it out"):
        without(**{flag: False})()


@pytest.mark.parametrize("most", [0, -1, None, 2.5, True])
def test_a_request_renews_one_lease_at_least(most: Any) -> None:
    with pytest.raises(ValueError, match="max_renewals of PoorBackend must be an int of at least 1"):
        without(max_renewals=most)()
