"""Backends with a fault each: the library names the method, or the contract finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fencing import Fence, MemoryCoordinator, hold_all
from fencing.kernel.effects import Plan, run, run_async
from fencing.locks import plans
from fencing.locks.backend import Holder
from fencing.locks.settings import Settings
from fencing.memory.table import LockTable, Request
from fencing.testing import CoordinatorContract
from tests.support.memory_side import MemorySide


def replaced(coordinator: Any, method: str, reply: Any) -> Any:
    """Have a plan of the coordinator's backend return this, after its request."""
    real = getattr(coordinator._backend, method)

    def plan(*args: Any, **options: Any) -> Plan[Any]:
        yield from real(*args, **options)
        return reply

    setattr(coordinator._backend, method, plan)
    return coordinator


# What the library says


@pytest.mark.parametrize(("method", "timeout"), [("plan_acquire", 0), ("plan_queue", 5)])
@pytest.mark.parametrize("reply", [None, 7])
def test_an_acquire_that_returns_no_grant(side: MemorySide, method: str, timeout: float, reply: Any) -> None:
    coordinator = replaced(side.coordinator(), method, reply)
    said = "nothing (None)" if reply is None else "7"
    error = side.expect(TypeError, coordinator.acquire, "r", timeout=timeout)
    name = type(coordinator._backend).__name__
    assert str(error) == f"{method} of {name} returned {said}; it must return a Grant, Taken or Undecided"
    assert side.holder("r") is None, "what it may have taken was given back"


def test_a_forced_release_of_a_free_lock_that_gets_no_grant(side: MemorySide) -> None:
    coordinator = replaced(side.coordinator(), "plan_acquire", None)
    assert "plan_acquire of" in str(side.expect(TypeError, coordinator.force_release, "r"))


def test_a_release_that_returns_nothing(side: MemorySide) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r", timeout=5)
    replaced(coordinator, "plan_release", None)
    error = side.expect(TypeError, lease.release)
    assert str(error).endswith("Backend returned nothing (None); it must return True or False")


@pytest.mark.parametrize("reply", [[], [1.0, 1.0], None])
def test_a_renewal_that_returns_another_number_of_deadlines(side: MemorySide, reply: Any) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r", timeout=5)
    before = lease._holding.deadline
    replaced(coordinator, "plan_renew", reply)
    replaced(coordinator, "plan_renew_each", reply)
    says = "it must return a sequence with one item for each of the 1 grants"
    assert says in str(side.expect(TypeError, lease.renew))
    backend, shell = coordinator._backend, run_async if side.asynchronous else run
    plan = plans.renew_together(backend, [lease._holding], 1.0)
    error = side.expect(TypeError, shell, plan, backend.perform)
    assert str(error).startswith("plan_renew_each of")
    assert lease._holding.deadline == before
    assert lease.held
    side.call(lease.release)


def test_a_release_of_several_that_returns_another_number() -> None:
    side = MemorySide(asynchronous=False)
    coordinator = side.coordinator()

    def plan_release_all(grants: Sequence[Any], settings: Settings, *, deadline: float) -> Plan[Any]:
        yield Request("release", (grants[0].resource, grants[0].token))
        return [True]

    coordinator._backend.plan_release_all = plan_release_all
    hold = hold_all([coordinator.lock(name) for name in "ab"], timeout=5)
    hold.__enter__()
    with pytest.raises(TypeError, match=r"plan_release_all of MemoryBackend returned \[True\]; .* of the 2 grants"):
        hold.__exit__(None, None, None)


# What the contract finds


class Faulty(CoordinatorContract):
    """The contract on a table, with one fault."""

    def __init__(self, fault: Callable[[Any], None]) -> None:
        self.table, self.fault = LockTable(), fault

    def make(self, **options: Any) -> Any:
        made = MemoryCoordinator(self.table, **options)
        self.fault(made._backend)
        return made


def ignores_the_token(backend: Any) -> None:
    real = backend.plan_remint

    def plan_remint(grant: Any, token: str, settings: Settings, **options: Any) -> Plan[Any]:
        holder: Holder | None = yield Request("holder", (grant.resource,))
        held = backend.table._held.get(grant.resource)
        if holder is not None and held.token != token and holder.number == grant.number:
            grant = Fence(grant.resource, grant.number, held.token)
        return (yield from real(grant, token, settings, **options))

    backend.plan_remint = plan_remint


def forces_once(backend: Any) -> None:
    real = backend.plan_force

    def plan_force(resource: str, token: str, settings: Settings, **options: Any) -> Plan[Any]:
        held = backend.table._held.get(resource)
        if held is not None and held.token == token:
            return None
        return (yield from real(resource, token, settings, **options))

    backend.plan_force = plan_force


def forces_any_holder(backend: Any) -> None:
    real = backend.plan_force

    def plan_force(resource: str, token: str, settings: Settings, **options: Any) -> Plan[Any]:
        held = backend.table._held.get(resource)
        if held is not None:
            options["holder"] = replace(options["holder"], number=held.number)
        return (yield from real(resource, token, settings, **options))

    backend.plan_force = plan_force


def releases_in_another_order(backend: Any) -> None:
    def plan_release_all(grants: Sequence[Any], settings: Settings, *, deadline: float) -> Plan[Any]:
        freed = []
        for grant in grants:
            freed.append((yield Request("release", (grant.resource, grant.token))))
        return sorted(freed)

    backend.plan_release_all = plan_release_all


def repeats_one_grant(method: str) -> Callable[[Any], None]:
    def fault(backend: Any) -> None:
        real, made = getattr(backend, method), dict[str, Any]()

        def plan(first: Any, token: str, *args: Any, **options: Any) -> Plan[Any]:
            reply = yield from real(first, token, *args, **options)
            known = made.get(token)
            if known is not None and reply is not None and known.fence == reply.fence:
                return known
            return made.setdefault(token, reply)

        setattr(backend, method, plan)

    return fault


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (ignores_the_token, "test_remint_needs_the_number_and_the_token_of_the_holder"),
        (forces_once, "test_force_is_idempotent_for_its_token"),
        (forces_any_holder, "test_force_is_idempotent_for_its_token"),
        (releases_in_another_order, "test_several_locks_are_released_in_one_request_and_each_is_told_of"),
        (repeats_one_grant("plan_acquire"), "test_acquire_is_idempotent_for_its_token"),
        (repeats_one_grant("plan_remint"), "test_remint_replaces_the_fence_and_keeps_the_lock"),
        (repeats_one_grant("plan_force"), "test_force_is_idempotent_for_its_token"),
    ],
)
def test_the_contract_finds(fault: Callable[[Any], None], test: str) -> None:
    for each in (lambda backend: None, fault):
        suite = Faulty(each)
        try:
            if each is fault:
                with pytest.raises(AssertionError):
                    getattr(suite, test)()
            else:
                getattr(suite, test)()
        finally:
            suite.teardown_method()
