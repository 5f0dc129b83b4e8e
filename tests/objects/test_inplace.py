"""Writing an object in place: what it promises, and what not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from obstore.exceptions import GenericError, PreconditionError
from obstore.store import MemoryStore

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, StaleRead, UnclaimedFence
from storage_guards import AsyncObjectStoreGuard
from storage_guards.objects.in_place import MOST_IN_PLACE
from tests.support import object_guards
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import Place
from tests.support.sides import Side

R, KEY = "orders:1", "reports/today.csv"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)


class Desk(object_guards.Desk):
    """A guard that writes the object ``KEY`` in place."""

    def write(self, fence: Fence, body: bytes, **options: Any) -> Any:
        return self.call(self.guard.write, fence, KEY, body, **options)

    def refused(self, error: type[Exception], fence: Fence, **options: Any) -> Any:
        before = self.beside.get(KEY)
        raised = self.side.expect(error, lambda: self.write(fence, b"refused", **options))
        assert self.beside.get(KEY) == before
        return raised

    @property
    def data(self) -> bytes | None:
        stored = self.call(self.guard.get, KEY)
        return None if stored is None else bytes(stored.data)


@pytest.fixture
def http(place: Place) -> Desk:
    return Desk(place.side, place.server.store(), place.server)


def test_each_writer_is_checked(http: Desk) -> None:
    assert http.data is None
    http.refused(UnclaimedFence, A)
    http.call(http.guard.claim, A)
    http.write(A, b"1")
    http.write(A, b"2")
    assert http.data == b"2"
    stored = http.call(http.guard.get, KEY)
    assert stored.mark.is_of(A)
    http.call(http.guard.claim, B)
    http.refused(StaleFence, A)
    http.refused(StaleFence, A, claim=True)
    http.write(B, b"3")
    assert http.data == b"3"
    http.write(Fence(R, 3, "c" * 22), b"4", claim=True)
    assert http.data == b"4"
    assert bytes(http.store.get(KEY).bytes()) == b"4", "for everyone, under this key"


def test_replacing_what_was_read(http: Desk) -> None:
    http.call(http.guard.claim, A)
    http.write(A, b"1", replacing=None)
    http.refused(StaleRead, A, replacing=None)
    read = http.call(http.guard.get, KEY)
    written = http.write(A, read.data + b"2", replacing=read)
    assert http.refused(StaleRead, A, replacing=read).key == KEY
    http.write(A, b"3", replacing=written)
    assert http.data == b"3"
    http.store.delete(KEY)
    http.refused(StaleRead, A, replacing=http.beside.get(KEY) or written)


def late_put(desk: Desk, read: Any, body: bytes = b"late") -> bool:
    """Let a put of A land now that was sent when the object had the version that was read. Return whether it does."""
    mode: Any = {name: value for name in ("e_tag", "version") if (value := getattr(read.version, name)) is not None}
    attributes: Any = {"fencingmark": f"{A.number}.{A.token}.2", "fencingwrites": "late"}
    try:
        desk.store.put(KEY, body, mode=mode, attributes=attributes)
    except PreconditionError:
        return False
    return True


@pytest.mark.parametrize(
    ("blind", "between"),
    [
        pytest.param(True, (), id="blind, over the same bytes"),
        pytest.param(False, (b"busy",), id="replacing others"),
        pytest.param(True, (b"busy",), id="blind, over others", marks=pytest.mark.thorough),
        pytest.param(False, (), id="replacing the same bytes", marks=pytest.mark.thorough),
    ],
)
def test_no_late_put_replaces_an_acknowledged_write_of_the_same_bytes(
    http: Desk, blind: bool, between: tuple[bytes, ...]
) -> None:
    """Where the same bytes are a new version, the late put is refused. Where they are the old one, the write is."""
    http.call(http.guard.claim, A)
    read = http.write(A, b"idle")
    http.call(http.guard.claim, B)
    for body in between:
        http.write(B, body)
    options = {} if blind else {"replacing": http.call(http.guard.get, KEY)}
    if http.guard._report.versions_return:
        before = http.beside.get(KEY)
        refused = http.side.expect(GuardNotEnforceable, lambda: http.write(B, b"idle", **options))
        assert "the same bytes are the same version" in str(refused)
        assert http.beside.get(KEY) == before
        http.write(B, b"idle, by fence 2", **options)
    else:
        http.write(B, b"idle", **options)
    assert not late_put(http, read)
    http.write(B, b"more")


def test_the_same_bytes_as_those_of_no_guard(http: Desk) -> None:
    """Their version tells: the put was no new one, and so it is not acknowledged."""
    http.store.put(KEY, b"idle")
    read = http.call(http.guard.get, KEY)
    http.call(http.guard.claim, A)
    if http.guard._report.versions_return:
        for options in ({}, {"replacing": read}):
            http.side.expect(GuardNotEnforceable, lambda options=options: http.write(A, b"idle", **options))
        assert http.data == b"idle"
    else:
        http.write(A, b"idle", replacing=read)
    http.write(A, b"more")
    assert not late_put(http, read)


@pytest.mark.parametrize("blind", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["blind", "replacing"])
def test_what_a_late_put_has_replaced_is_named(http: Desk, blind: bool) -> None:
    """Not every return of the same bytes can be told. A restore is not the cause that is named first then."""
    http.call(http.guard.claim, A)
    read = http.write(A, b"idle")
    http.call(http.guard.claim, B)
    written = http.write(B, b"busy")
    http.store.put(KEY, b"idle")  # past the guard
    if not http.guard._report.versions_return:
        assert not late_put(http, read)
        return
    assert late_put(http, read)
    options = {} if blind else {"replacing": written}
    stale = http.refused(StaleRead, B, **options)
    assert "a late put of the older fence 1 has replaced" in str(stale)
    http.write(B, b"again", replacing=http.call(http.guard.get, KEY))
    assert http.data == b"again"


def test_a_write_past_the_guard_makes_reads_stale(http: Desk) -> None:
    http.call(http.guard.claim, A)
    http.store.put(KEY, b"by hand")
    read = http.call(http.guard.get, KEY)
    assert read.mark is None
    http.store.put(KEY, b"by hand again")
    http.refused(StaleRead, A, replacing=read)
    http.write(A, b"1")
    assert http.data == b"1"


@pytest.mark.thorough
def test_racing_increments_lose_nothing(http: Desk) -> None:
    http.call(http.guard.claim, A)
    http.write(A, b"0")

    def increment() -> int:
        done = 0
        for _ in range(8):
            read = http.call(http.guard.get, KEY)
            try:
                http.write(A, b"%d" % (int(read.data) + 1), replacing=read)
                done += 1
            except StaleRead:
                pass
        return done

    assert sum(http.side.race([increment] * 3)) == int(http.data or b"")


def test_a_newer_write_in_the_object_stops_an_older_one_whose_check_is_old(side: Side) -> None:
    """A has passed the check at the pointer; B claims and writes; then A looks at the object."""

    class Between(MemoryStore):
        armed = False

        async def get_async(self, path: str, **options: Any) -> Any:
            if path == KEY and Between.armed:
                Between.armed = False
                await object_guards.probed(AsyncObjectStoreGuard(store)).write(B, KEY, b"by B", claim=True)
            return await super().get_async(path, **options)

    store = Between()
    desk = Desk(side, store)
    desk.call(desk.guard.claim, A)
    desk.write(A, b"by A")
    Between.armed = True
    side.expect(StaleFence, lambda: desk.write(A, b"late"))
    assert desk.data == b"by B"


def test_the_mark_and_the_object_are_read_at_the_same_time(side: Side) -> None:
    """Each waits for the other, so one after the other would be the end of the time."""

    class Both(MemoryStore):
        async def get_async(self, path: str, **options: Any) -> Any:
            if armed:
                await both.wait()
                asked.add(path)
            return await super().get_async(path, **options)

    armed: list[bool] = []
    asked: set[str] = set()
    both = asyncio.Barrier(2)
    desk = Desk(side, Both(), timeout=20.0)
    desk.call(desk.guard.claim, A)
    armed.append(True)
    desk.write(A, b"1")
    assert asked == {KEY, "fencing/orders=3A1/pointer.json"}


@pytest.mark.parametrize("about", [KEY, "pointer.json"])
def test_a_read_without_an_answer_writes_nothing(side: Side, about: str) -> None:
    class Deaf(MemoryStore):
        async def get_async(self, path: str, **options: Any) -> Any:
            if armed and about in path:
                raise GenericError("no answer")
            return await super().get_async(path, **options)

    armed: list[bool] = []
    desk = Desk(side, Deaf())
    desk.call(desk.guard.claim, A)
    armed.append(True)
    assert "nothing was written, retry" in str(side.expect(GuardUnavailable, lambda: desk.write(A, b"1")))
    armed.clear()
    assert desk.data is None


def test_arguments(side: Side) -> None:
    desk = Desk(side, MemoryStore())
    desk.call(desk.guard.claim, A)
    too_big = side.expect(ValueError, desk.guard.write, A, KEY, bytes(MOST_IN_PLACE + 1))
    assert "publish" in str(too_big)
    for body in ("text", 7, None, ["x"]):
        side.expect(TypeError, desk.guard.write, A, KEY, body)
    for key in ("", "fencing/x", "a//b", "../x", "/x", "x" * 1025):
        side.expect(ValueError, desk.guard.write, A, key, b"")
        side.expect(ValueError, desk.guard.get, key)
    side.expect(TypeError, desk.guard.write, A, 7, b"")
    desk.refused(TypeError, A, replacing=b"1")
    other = desk.call(desk.guard.write, A, "other", b"")
    desk.refused(ValueError, A, replacing=other)
    desk.store.put("big", bytes(MOST_IN_PLACE + 1))
    side.expect(ValueError, desk.guard.get, "big")


# Lost replies


def unknown(desk: Desk, fault: str, **options: Any) -> OutcomeUnknown:
    desk.store.about = KEY
    desk.store.faults.append(fault)
    desk.store.deaf_after_fault = True
    error = desk.side.expect(OutcomeUnknown, lambda: desk.write(A, b"new", **options))
    desk.store.deaf = desk.store.deaf_after_fault = False
    assert error.key == KEY
    return error


@pytest.fixture
def faulty(side: Side) -> Desk:
    desk = Desk(side, FaultyStore(), timeout=1.0)
    desk.beside.claim(A)
    desk.beside.write(A, KEY, b"old")
    return desk


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["reply lost", "refused though done", "silent though done"])
def test_one_lost_reply_is_found_out(faulty: Desk, fault: str) -> None:
    faulty.guard._timeout = 2.0  # time to try again
    faulty.store.about = KEY
    faulty.store.faults.append(fault)
    faulty.write(A, b"new", replacing=faulty.beside.get(KEY))
    assert faulty.data == b"new"


def test_the_result_of_an_overwritten_write_is_a_stale_read(http: Desk, place: Place) -> None:
    """Its reply was lost, and by the time the object was looked at somebody had written again."""

    class Between:
        def __getattr__(self, name: str) -> Any:
            return getattr(http.store, name)

        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            result = await http.store.put_async(path, file, **options)
            if path == KEY and armed:
                armed.clear()
                await object_guards.probed(AsyncObjectStoreGuard(http.store), place.server).write(
                    B, KEY, b"by B", claim=True
                )
                raise GenericError("the reply was lost")
            return result

    armed: list[bool] = []
    http.call(http.guard.claim, A)
    http.guard._io.store = Between()
    armed.append(True)
    written = http.write(A, b"by A")
    assert http.data == b"by B"
    http.call(http.guard.claim, C)
    http.side.expect(StaleRead, lambda: http.write(C, b"from A's", replacing=written))
    assert http.data == b"by B"


@pytest.mark.thorough
def test_a_store_that_refuses_all_the_time_leaves_the_outcome_open(faulty: Desk) -> None:
    """A 409 says that another put is in the way: perhaps obstore's own first attempt."""
    faulty.store.about = KEY
    faulty.store.faults.extend(["refused"] * 1000)
    error = faulty.side.expect(OutcomeUnknown, lambda: faulty.write(A, b"new"))
    faulty.store.faults.clear()
    assert faulty.call(faulty.guard.landed, error) is None
    faulty.store.faults.extend(["refused"] * 3)
    faulty.write(A, b"new")
    assert faulty.data == b"new"


def test_it_landed(faulty: Desk) -> None:
    error = unknown(faulty, "reply lost")
    assert faulty.call(faulty.guard.landed, error) is True
    faulty.beside.write(B, KEY, b"newer", claim=True)
    assert faulty.call(faulty.guard.landed, error) is True


def test_the_outcome_is_unknown_until_another_write(faulty: Desk) -> None:
    error = unknown(faulty, "late")
    assert faulty.call(faulty.guard.landed, error) is None
    faulty.beside.write(A, KEY, b"newer")
    assert faulty.call(faulty.guard.landed, error) is False
    assert faulty.side.call(faulty.store.land) == [False]
    assert faulty.data == b"newer"


def test_it_lands_late(faulty: Desk) -> None:
    error = unknown(faulty, "late", replacing=faulty.beside.get(KEY))
    assert faulty.side.call(faulty.store.land) == [True]
    assert faulty.call(faulty.guard.landed, error) is True


def test_landed_is_never_false_where_versions_return(faulty: Desk) -> None:
    error = unknown(faulty, "late")
    faulty.beside.write(A, KEY, b"newer")
    faulty.guard._report = replace(faulty.guard._report, versions_return=True)
    assert faulty.call(faulty.guard.landed, error) is None
