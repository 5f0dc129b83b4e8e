"""The traces that break weaker rules on object stores, step by step: here each is refused.

On a store whose ETags are hashes of the content, as S3's are.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from fencing import Fence, StaleFence, StaleRead, UnclaimedFence
from fencing.kernel.effects import Shielded, Sleep
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.plans import ANYTHING
from storage_guards.objects.requests import Deadline, Delete, List, Put
from tests.support.object_faults import FaultyStore
from tests.support.sides import Side

R = "orders:1"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)


class Found:
    """What a get gives, with a hash of the content as its ETag."""

    def __init__(self, found: Any, data: bytes) -> None:
        self._found, self._data = found, data
        self.meta = {**found.meta, "e_tag": hashed(data)}
        self.attributes = found.attributes

    async def bytes_async(self) -> bytes:
        return self._data

    def stream(self, min_chunk_size: int = 0) -> Any:
        async def pieces() -> Any:
            yield self._data

        return pieces()


def hashed(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class HashingStore(FaultyStore):
    """Its ETags are hashes of the content, and come back with it."""

    async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
        if not hasattr(file, "__aiter__"):
            file = bytes(file)
        try:
            now = bytes(self.inner.get(path).bytes())
        except FileNotFoundError:
            now = None
        if mode == "create" and now is not None:
            raise AlreadyExistsError(path)
        if isinstance(mode, dict) and (now is None or mode["e_tag"] != hashed(now)):
            raise PreconditionError(path)
        self.inner.put(path, file, **options)
        return {"e_tag": hashed(file), "version": None}

    async def get_async(self, path: str, **options: Any) -> Any:
        found = self.inner.get(path)
        return Found(found, bytes(found.bytes()))


class World:
    def __init__(self, side: Side) -> None:
        self.side = side
        self.store = HashingStore()
        kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
        self.guard = kind(self.store)

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        return self.side.call(method, *args, **options)

    def publish(self, fence: Fence, value: Any, **options: Any) -> Any:
        return self.call(self.guard.publish, fence, {"value": value}, **options)

    @property
    def value(self) -> bytes | None:
        current = self.call(self.guard.read, R)
        return None if current is None else bytes(self.call(current.read, "value"))

    @property
    def keys(self) -> list[str]:
        return [
            each["path"]
            for page in self.store.inner.list("fencing/orders=3A1/data")
            for each in page
            if "/~/" in each["path"]
        ]


@pytest.fixture
def world(side: Side) -> World:
    return World(side)


def test_the_premise_of_hashes(world: World) -> None:
    report = world.call(world.guard.verify)
    assert report.versions_return


def test_a_claim_changes_the_etag_that_writes_are_conditional_on(world: World) -> None:
    """Seven steps where a claim changes metadata alone: A's put, under the ETag it read before, is accepted."""
    world.call(world.guard.claim, A)
    _, publication = world.guard._plan_publish(A, {"value": b"late"}, False, ANYTHING)
    steps = _Steps(world, publication)
    put = steps.until(Put, "pointer.json")  # A has passed its check
    world.call(world.guard.claim, B)
    seen_by_b = world.value
    with pytest.raises(StaleFence):
        steps.go_on(put)
    assert world.value is seen_by_b is None


def test_a_stored_state_that_comes_back_is_no_condition_to_begin_from(world: World) -> None:
    """A backup brings its ETag back, too. What was acknowledged to the holder since is gone, so its put must not land.

    Another guard object has written for the same lease. So this one still has the state that the backup has.
    """

    class Lease:
        fence = A

    lease = Lease()
    pointer = "fencing/orders=3A1/pointer.json"
    world.call(world.guard.claim, lease)
    backup = bytes(world.store.inner.get(pointer).bytes())
    kind: Any = type(world.guard)
    world.call(kind(world.store).publish, lease, {"value": b"acknowledged"})
    world.store.inner.put(pointer, backup)
    world.side.expect(UnclaimedFence, world.call, world.guard.publish, lease, {"value": b"late"})
    assert world.value is None


def test_a_deletion_that_is_late_deletes_nothing(world: World) -> None:
    world.publish(A, b"old", claim=True)
    steps = _Steps(world, world.guard._plan_delete(A, False))
    put = steps.until(Put, "pointer.json")
    world.publish(B, b"new", claim=True)
    with pytest.raises(StaleFence):
        steps.go_on(put)
    assert world.value == b"new"


def test_a_claim_that_is_late_is_refused(world: World) -> None:
    steps = _Steps(world, world.guard._plan_claim([A], Deadline(5.0)))
    put = steps.until(Put, "pointer.json")
    world.publish(B, b"new", claim=True)
    with pytest.raises(StaleFence):
        steps.go_on(put)
    assert world.value == b"new"
    assert world.call(world.guard.mark, R).is_of(B)


def test_identical_bytes_do_not_bring_an_old_state_back(world: World) -> None:
    """A's put is late; meanwhile what is current changes to and fro, to the same bytes as when A looked."""
    world.publish(A, b"one", claim=True)
    pointer = "fencing/orders=3A1/pointer.json"
    before = bytes(world.store.inner.get(pointer).bytes())
    world.publish(A, b"two")
    world.publish(A, b"one")
    assert hashed(bytes(world.store.inner.get(pointer).bytes())) != hashed(before)


def test_identical_data_of_two_holders_do_not_share_a_key(world: World) -> None:
    """Else deleting the one's would delete the other's."""
    first = world.publish(A, b"same", claim=True)
    second = world.publish(B, b"same", claim=True)
    assert first["value"].key != second["value"].key
    third = world.publish(B, b"same")
    assert len({first["value"].key, second["value"].key, third["value"].key}) == 3


def test_a_deletion_does_not_delete_the_mark(world: World) -> None:
    """Eight steps where it does: A, late, finds nothing there and creates it anew."""
    world.publish(A, b"old", claim=True)
    world.call(world.guard.claim, B)
    world.call(world.guard.delete, B)
    assert world.value is None
    world.side.expect(StaleFence, world.publish, A, b"back from the dead")
    world.side.expect(StaleFence, world.publish, A, b"back from the dead", claim=True)
    world.side.expect(StaleFence, world.call, world.guard.claim, A)
    assert world.call(world.guard.mark, R).is_of(B)


def test_an_upload_that_completes_late_overwrites_nothing(world: World) -> None:
    """Eight steps where bodies go straight to a key that readers read: completing an upload knows no condition."""
    world.publish(A, b"by A", claim=True)
    mine = set(world.keys)
    world.call(world.guard.claim, B)
    world.publish(B, b"by B")
    for key in mine:  # what A had sent arrives, again, now
        world.store.inner.put(key, b"late")
    assert world.value == b"by B"


def test_a_paused_collector_deletes_nothing_of_newer_holders(world: World) -> None:
    """B has read the pointer and the listing, and is paused; C uploads, publishes, and carries over what B saw."""
    world.publish(A, b"old", claim=True)
    kept = world.publish(A, b"current")
    world.call(world.guard.claim, B)
    steps = _Steps(world, world.guard._plan_collect(B, 0, None, False))
    delete = steps.until(Delete)
    world.call(world.guard.claim, C)
    world.call(world.guard.publish, C, {"kept": kept["value"], "new": b"by C"})
    steps.go_on(delete)
    current = world.call(world.guard.read, R)
    assert world.call(current.read, "kept") == b"current"
    assert world.call(current.read, "new") == b"by C"


def test_a_collector_that_was_paused_before_it_listed_deletes_nothing_of_newer_holders(world: World) -> None:
    world.publish(A, b"old", claim=True)
    world.call(world.guard.claim, B)
    steps = _Steps(world, world.guard._plan_collect(B, 0, None, False))
    listing = steps.until(List)
    world.publish(C, b"by C", claim=True)
    steps.go_on(listing)
    assert world.value == b"by C"


def test_a_collector_has_claimed(world: World) -> None:
    """Else it could be paused between its look at the pointer and its deletions, and not keep out who comes."""
    world.publish(A, b"old", claim=True)
    world.publish(A, b"current")
    for number in (0, 9):
        world.side.expect(UnclaimedFence, world.call, world.guard.collect, C, keep=number)
    world.call(world.guard.claim, C)
    world.side.expect(StaleFence, world.call, world.guard.collect, A)
    assert len(world.keys) == 2
    collected = world.call(world.guard.collect, C)
    assert [(each.number, each.sizes) for each in collected] == [(1, {"value": 3})]
    assert world.value == b"current"


def test_collected_objects_cannot_be_carried_over(world: World) -> None:
    """An entry of a former publication may be deleted at any time."""
    old = world.publish(A, b"old", claim=True)
    world.publish(A, b"new")
    world.side.expect(StaleRead, world.publish, A, old["value"])
    assert world.value == b"new"


def test_carried_over_objects_are_still_current_at_publication(world: World) -> None:
    """Another thread under the same fence replaces it while the rest is uploaded."""
    old = world.publish(A, b"old", claim=True)
    sync = ObjectStoreGuard(world.store)

    def replaced(*_: Any) -> None:
        sync.publish(A, {"value": b"by another thread"})

    bodies = {"old": old["value"], "new": b"x"}
    world.side.expect(StaleRead, world.call, world.guard.publish, A, bodies, progress=replaced)
    assert world.value == b"by another thread"


class _Steps:
    """A plan, run one request at a time."""

    def __init__(self, world: World, plan: Any) -> None:
        self.world, self.plan = world, _flat(plan)

    def until(self, kind: type, about: str = "") -> Any:
        """Run to the first request of this kind, which is not done yet."""
        request = next(self.plan)
        while not isinstance(request, kind) or about not in repr(request):
            request = self._after(request)
        return request

    def go_on(self, request: Any) -> None:
        """Do it, and everything after it."""
        try:
            while True:
                request = self._after(request)
        except StopIteration:
            pass

    def _after(self, request: Any) -> Any:
        try:
            reply = self.world.side.call(self._do, request)
        except Exception as error:  # noqa: BLE001 - the plan decides what an error means
            return self.plan.throw(error)
        return self.plan.send(reply)

    def _do(self, request: Any) -> Any:
        return None if isinstance(request, Sleep) else self.world.guard._perform(request)


def _flat(plan: Any) -> Any:
    """A plan, and those that it wants shielded, as one."""
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = plan.send(reply) if error is None else plan.throw(error)
        except StopIteration as stop:
            return stop.value
        reply = error = None
        try:
            reply = (yield from _flat(request.plan)) if isinstance(request, Shielded) else (yield request)
        except Exception as raised:  # noqa: BLE001 - as above
            error = raised
