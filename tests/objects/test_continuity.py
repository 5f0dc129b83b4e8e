"""A store that was restored under a living holder: what was acknowledged is gone, so its next write is refused."""

from __future__ import annotations

from typing import Any

import pytest
from obstore.store import MemoryStore

from fencing import Fence, OutcomeUnknown, UnclaimedFence
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects import changes
from storage_guards.objects.probe import ProbeReport
from tests.support.object_faults import FaultyStore
from tests.support.sides import Side

R, KEY = "orders:1", "reports/today.csv"
MINE, NEWER = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
REPORT = ProbeReport("as given", versions_return=False, races=6, seconds=0.1)
POINTER = "fencing/orders=3A1/pointer.json"


class Lease:
    """A holder, as a lease is one."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence


class Shop:
    """A guard, and backups of its store."""

    def __init__(self, side: Side) -> None:
        self.side, self.store = side, FaultyStore()
        self.guard, self.another = self.new_guard(), self.new_guard(MemoryStore())
        self.another._io.store = self.store  # another guard object, and another object for the same store
        self.lease: Any = Lease(MINE)

    def new_guard(self, store: Any = None) -> Any:
        kind: Any = AsyncObjectStoreGuard if self.side.asynchronous else ObjectStoreGuard
        guard = kind(store or self.store, timeout=1.0)
        guard._report = REPORT
        return guard

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        return self.side.call(method, *args, **options)

    def publish(self, value: bytes, guard: Any = None, holder: Any = None, **options: Any) -> Any:
        return self.call((guard or self.guard).publish, holder or self.lease, {"x": value}, **options)

    def write(self, value: bytes, guard: Any = None, **options: Any) -> Any:
        return self.call((guard or self.guard).write, self.lease, KEY, value, **options)

    def backup(self) -> dict[str, tuple[bytes, dict[str, str]]]:
        found = {}
        for page in self.store.inner.list():
            for each in page:
                result = self.store.inner.get(each["path"])
                found[each["path"]] = bytes(result.bytes()), dict(result.attributes)
        return found

    def restore(self, backup: dict[str, tuple[bytes, dict[str, str]]]) -> None:
        for page in self.store.inner.list():
            self.store.inner.delete([each["path"] for each in page])
        for key, (data, attributes) in backup.items():
            self.store.inner.put(key, data, attributes=attributes)

    def has(self, value: bytes | None) -> None:
        """Check that this is what readers get; None: nothing."""
        found = self.call(self.guard.read, R)
        assert (None if found is None else self.call(found.read, "x")) == value

    def refused(self, work: Any) -> None:
        before = self.backup()[POINTER]
        error = self.side.expect(UnclaimedFence, work)
        assert "discard what was read" in str(error)
        assert self.backup()[POINTER] == before


@pytest.fixture(params=["lease", "fence"])
def shop(side: Side, request: pytest.FixtureRequest) -> Shop:
    shop = Shop(side)
    if request.param == "fence":
        shop.lease = MINE
    return shop


def test_no_write_follows_a_restore_that_took_an_acknowledged_one(shop: Shop) -> None:
    shop.call(shop.guard.claim, shop.lease)
    backup = shop.backup()
    shop.publish(b"120")
    shop.restore(backup)
    shop.refused(lambda: shop.publish(b"90"))
    shop.refused(lambda: shop.publish(b"90", claim=True))
    shop.refused(lambda: shop.call(shop.guard.claim, shop.lease))
    shop.refused(lambda: shop.call(shop.guard.delete, shop.lease))
    shop.refused(lambda: shop.call(shop.guard.collect, shop.lease))
    shop.refused(lambda: shop.write(b"90"))
    newer = Lease(NEWER)
    shop.call(shop.guard.claim, newer)
    shop.publish(b"new", holder=newer)
    shop.has(b"new")


@pytest.mark.parametrize("before", [True, False], ids=["an older fence", "nothing"])
def test_a_claim_after_a_restore_that_took_the_claim(shop: Shop, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    monkeypatch.setattr(changes, "FRESH_SECONDS", -1.0)  # as if some time had passed
    holder = Lease(NEWER)
    if before:
        shop.publish(b"1", claim=True)
    backup = shop.backup()
    shop.publish(b"2", holder=holder, claim=True)
    shop.restore(backup)
    shop.side.expect(UnclaimedFence, shop.guard.claim, holder)
    shop.side.expect(UnclaimedFence, lambda: shop.publish(b"3", holder=holder, claim=True))
    assert shop.backup() == backup
    shop.call(shop.guard.claim, Lease(Fence(R, 3, "c" * 22)))


def test_a_restore_to_the_last_acknowledged_state_does_no_harm(shop: Shop) -> None:
    shop.publish(b"1", claim=True)
    shop.publish(b"2")
    backup = shop.backup()
    shop.restore(backup)
    shop.call(shop.guard.claim, shop.lease)
    shop.publish(b"3")
    shop.has(b"3")
    shop.call(shop.guard.delete, shop.lease)
    shop.call(shop.guard.collect, shop.lease)
    shop.has(None)


def test_another_guard_object_may_have_written_under_the_same_fence(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "FRESH_SECONDS", -1.0)  # as if some time had passed
    shop.publish(b"1", claim=True)
    for _ in range(20):
        shop.publish(b"2", shop.another)
    shop.publish(b"3")
    shop.publish(b"4", shop.another)
    shop.call(shop.guard.claim, shop.lease)
    shop.has(b"4")


def test_another_guard_object_that_raised_seq_again_hides_nothing(shop: Shop) -> None:
    shop.call(shop.guard.claim, shop.lease)
    backup = shop.backup()
    shop.publish(b"1")
    shop.restore(backup)
    for _ in range(3):
        shop.publish(b"2", shop.another)
        shop.refused(lambda: shop.publish(b"3"))


def test_what_a_claim_has_shown_must_still_be_there(shop: Shop) -> None:
    """Another guard object wrote, and this one's holder claims, and reads what was written."""
    shop.call(shop.another.claim, shop.lease)
    backup = shop.backup()
    shop.publish(b"1", shop.another)
    shop.call(shop.guard.claim, shop.lease)
    shop.restore(backup)
    shop.refused(lambda: shop.publish(b"2"))


@pytest.mark.thorough
def test_a_write_that_was_not_acknowledged_need_not_be_there(shop: Shop) -> None:
    shop.publish(b"1", claim=True)
    shop.store.faults.extend(["request lost"] * 1000)
    shop.side.expect(OutcomeUnknown, lambda: shop.publish(b"2"))
    shop.store.faults.clear()
    shop.publish(b"3")


@pytest.mark.thorough
def test_a_write_that_landed_has_told_of_must_still_be_there(shop: Shop) -> None:
    shop.publish(b"1", claim=True)
    backup = shop.backup()
    shop.store.faults.append("reply lost")
    shop.store.deaf_after_fault = True
    unknown = shop.side.expect(OutcomeUnknown, lambda: shop.publish(b"2"))
    shop.store.deaf = False
    assert shop.call(shop.guard.landed, unknown) is True
    shop.restore(backup)
    shop.refused(lambda: shop.publish(b"3"))


def test_guard_objects_over_one_store_share_what_a_lease_was_acknowledged(side: Side) -> None:
    shop = Shop(side)
    shop.call(shop.guard.claim, shop.lease)
    backup = shop.backup()
    shop.publish(b"1", shop.new_guard())
    shop.restore(backup)
    shop.refused(lambda: shop.publish(b"2", shop.new_guard()))


def test_an_object_in_place_that_was_restored_is_not_written_blindly(shop: Shop) -> None:
    shop.call(shop.guard.claim, shop.lease)
    old = shop.write(b"1")
    backup = shop.backup()
    shop.write(b"2", replacing=old)
    shop.restore(backup)
    shop.refused(lambda: shop.write(b"3"))
    shop.write(b"3", replacing=shop.call(shop.guard.get, KEY))  # that says what it replaces
    shop.write(b"4", shop.another)
    shop.write(b"5")
    shop.store.inner.delete(KEY)
    shop.refused(lambda: shop.write(b"6"))
    shop.write(b"6", replacing=None)
    assert shop.store.inner.get(KEY).bytes() == b"6"


def test_many_writes_in_place_of_another_guard_object_do_no_harm(shop: Shop) -> None:
    shop.write(b"1", claim=True)
    for _ in range(20):
        shop.write(b"2", shop.another)
    shop.write(b"3")
    stored = shop.call(shop.guard.get, KEY)
    assert stored.mark.seq == 22


class OvertakenStore(FaultyStore):
    """A store where another task of the same lease claims just before the first put."""

    is_overtaken = False

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if not self.is_overtaken:
            self.is_overtaken = True
            another = AsyncObjectStoreGuard(self.inner)
            another._report = REPORT
            await another.claim(MINE)
        return await super().put_async(path, file, **options)


@pytest.mark.parametrize("holder", [MINE, Lease(MINE)], ids=["fence", "lease"])
def test_a_claim_that_another_task_made_first_is_no_loss(side: Side, holder: Any) -> None:
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    guard = kind(OvertakenStore(), timeout=5.0)
    guard._report = REPORT
    side.call(guard.claim, holder)
    side.call(guard.claim, holder)
    side.call(guard.publish, holder, {"x": b"1"})
    assert side.call(side.call(guard.read, R).read, "x") == b"1"
