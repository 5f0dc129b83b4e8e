"""Who holds what, and who has forced whom out."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import LeaseLost, hold_all
from fencing.etcd import reading
from fencing.etcd.calls import body_of, delete, put, transaction
from fencing.etcd.layout import LOCKS, queue_of
from fencing.kernel.fence import new_token
from tests.support.etcd import EtcdSide, with_faults


def listed(etcd: EtcdSide, coordinator: Any, pattern: str) -> dict[str, Any]:
    async def collect() -> dict[str, Any]:
        return {resource: holder async for resource, holder in coordinator.holders(pattern)}

    if etcd.asynchronous:
        found: dict[str, Any] = etcd.call(collect)
        return found
    return dict(coordinator.holders(pattern))


def test_all_holders_are_listed_page_by_page(etcd: EtcdSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE_KEYS", 3)
    prefix, coordinator = f"listed/{new_token()}", etcd.coordinator(owner="we")
    # A name that begins with another one, and those that differ in what their quoting sorts elsewhere.
    names = [f"{prefix}{end}" for end in ("", "-a", "/b", "0", "%2F", " ", "é", "z")]
    leases = [etcd.call(coordinator.acquire, each) for each in names]
    place = coordinator._backend.plan_queue(
        names[2], new_token(), coordinator._backend.settings, floor=0, deadline=coordinator._backend.clock() + 30
    )
    waiter = etcd.plan(coordinator, place)
    found = listed(etcd, coordinator, f"{prefix}*")
    assert sorted(found) == sorted(names)
    for lease in leases:
        holder = found[lease.fence.resource]
        assert (holder.owner, holder.number) == ("we", lease.fence.number)
        assert 0 < holder.remaining <= 10
        assert 0 <= holder.held_for < 60
        assert holder.waiting == (1 if lease.fence.resource == names[2] else 0)
    etcd.plan(coordinator, waiter.place.plan_leave(deadline=coordinator._backend.clock() + 30))
    for lease in leases:
        assert etcd.call(lease.release)
    assert listed(etcd, coordinator, f"{prefix}*") == {}


def test_how_many_wait_is_told(etcd: EtcdSide) -> None:
    """In the request that reads the holder's key. Keys of other programs count, too."""
    coordinator, resource = etcd.coordinator(), f"waited for/{new_token()}"
    backend = coordinator._backend

    def waiting() -> list[Any]:
        return [etcd.call(coordinator.holder, resource).waiting, listed(etcd, coordinator, resource)[resource].waiting]

    lease = etcd.call(coordinator.acquire, resource)
    seen, waiters = [waiting()], []
    for _ in range(2):
        plan = backend.plan_queue(resource, new_token(), backend.settings, floor=0, deadline=backend.clock() + 30)
        waiters.append(etcd.plan(coordinator, plan).place)
    key = f"{queue_of(resource)}x"
    for change in (put(key, ""), delete(key)):
        steps = body_of(transaction([], [change], []))
        etcd.plan(coordinator, backend.plan_request("kv/txn", steps, key, backend.settings, backend.clock() + 30))
        seen.append(waiting())
    for place in waiters:
        etcd.plan(coordinator, place.plan_leave(deadline=backend.clock() + 30))
        seen.append(waiting())
    assert seen == [[each] * 2 for each in (0, 3, 2, 1, 0)]
    faults = with_faults(coordinator)
    etcd.call(coordinator.holder, resource)
    assert faults.paths == ["kv/txn", "lease/timetolive"], "no request of its own"
    assert etcd.call(lease.release)


def test_keys_of_other_programs_are_listed_under_the_lock_that_they_block(
    etcd: EtcdSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written with a bare slash, a key is in the queue of what is before it. Some are in no queue."""
    monkeypatch.setattr(reading, "PAGE_KEYS", 2)
    prefix, coordinator = f"odd-{new_token()}", etcd.coordinator()
    backend = coordinator._backend
    names = [f"{LOCKS}{prefix}{end}" for end in ("", "/b/key", "-a%2fb/key", "-z")]
    steps = body_of(transaction([], [put(each, "") for each in names], []))
    etcd.plan(coordinator, backend.plan_request("kv/txn", steps, prefix, backend.settings, backend.clock() + 30))
    assert list(listed(etcd, coordinator, f"{prefix}*")) == [prefix]
    assert etcd.call(coordinator.try_acquire, prefix) is None
    assert etcd.call(coordinator.force_release, prefix).holder is not None
    steps = body_of(transaction([], [delete(each) for each in names], []))
    etcd.plan(coordinator, backend.plan_request("kv/txn", steps, prefix, backend.settings, backend.clock() + 30))


def test_a_holder_is_told_who_has_forced_it_out(etcd: EtcdSide) -> None:
    coordinator, other = etcd.coordinator(), etcd.coordinator(owner="an operator")
    resource = f"forced/{new_token()}"
    lease = etcd.call(coordinator.acquire, resource)
    forced = etcd.call(other.force_release, resource)
    assert forced.holder.number == lease.fence.number
    with pytest.raises(LeaseLost, match="an operator"):
        etcd.call(lease.renew)


def test_a_key_that_was_written_by_hand_can_be_forced(etcd: EtcdSide) -> None:
    """It has no lease, so it never ends by itself."""
    coordinator, resource = etcd.coordinator(), f"by hand/{new_token()}"
    backend = coordinator._backend
    written = body_of(transaction([], [put(f"{queue_of(resource)}x", "by hand")], []))
    etcd.plan(coordinator, backend.plan_request("kv/txn", written, resource, backend.settings, backend.clock() + 30))
    assert etcd.call(coordinator.try_acquire, resource) is None
    holder = etcd.call(coordinator.holder, resource)
    assert (holder.number, holder.remaining, holder.expires) == (None, None, False)
    assert etcd.call(coordinator.force_release, resource).holder == holder
    assert etcd.call(etcd.call(coordinator.acquire, resource).release)


@pytest.mark.thorough
def test_several_locks_are_held_together(etcd: EtcdSide) -> None:
    coordinator = etcd.coordinator()
    names = [f"several/{new_token()}" for _ in range(3)]
    locks = [coordinator.lock(each) for each in names]

    async def held_async() -> list[Any]:
        async with hold_all(locks) as leases:
            return [each.fence.number for each in leases]

    if etcd.asynchronous:
        numbers = etcd.call(held_async)
    else:
        with hold_all(locks) as leases:
            numbers = [each.fence.number for each in leases]
    assert len(set(numbers)) == 3
    assert all(etcd.keys(coordinator, each) == [] for each in names)


def test_a_lock_whose_name_begins_with_another_is_another_lock(etcd: EtcdSide) -> None:
    coordinator, resource = etcd.coordinator(), f"names/{new_token()}"
    longer = etcd.call(coordinator.acquire, f"{resource}/more")
    shorter = etcd.call(coordinator.try_acquire, resource)
    assert shorter is not None
    for each in (longer, shorter):
        assert etcd.call(each.release)


@pytest.mark.thorough
@pytest.mark.parametrize("resource", ["a/b", "a b%2F", "é漢😀", "..", "x" * 512, "?#&=+", "\x7f\t"])
def test_any_name_can_be_locked(etcd: EtcdSide, resource: str) -> None:
    coordinator = etcd.coordinator()
    resource = f"{resource[:400]}{new_token()}"
    lease = etcd.call(coordinator.acquire, resource)
    assert etcd.call(coordinator.try_acquire, resource) is None
    assert resource in listed(etcd, coordinator, resource.replace("?", "*").replace("*", "*")[:20] + "*")
    assert etcd.call(lease.release)
