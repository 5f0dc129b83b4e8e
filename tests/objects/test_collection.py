"""The history of publications, and its collection."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from fencing import Fence, GuardUnavailable, StaleRead
from storage_guards.objects import collect as object_collect
from storage_guards.objects.requests import PAGE, List
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R = "orders:1"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)


@pytest.mark.thorough
def test_history_and_collection(http: Desk) -> None:
    name = "a/ä.csv"
    for fence, count in ((A, 2), (B, 1)):
        http.call(http.guard.claim, fence)
        for number in range(count):
            http.publish(fence, {name: b"%d" % number, "more": b"12345"})
    breaks_off = (bytes(2**20 // (9 - number) * (9 - number)) for number in range(10))
    http.refused(ZeroDivisionError, B, {"left": b"behind", "big": breaks_off})
    history = http.call(http.guard.history, R)
    assert [each.number for each in history] == [1, 1, 2, 2]
    assert [each.current for each in history].count(True) == 1
    assert {name, "more"} in [set(each.sizes) for each in history]
    assert history[0].size == 6
    http.call(http.guard.claim, C)
    assert http.call(http.guard.collect, C, older_than=3600) == []
    assert [each.number for each in http.call(http.guard.collect, C, keep=2)] == [2], "what broke off"
    assert [each.number for each in http.call(http.guard.collect, C, keep=1)] == [1]
    assert [each.number for each in http.call(http.guard.collect, C)] == [1]
    assert http.call(http.guard.collect, C) == []
    assert http.current == {name: b"0", "more": b"12345"}
    http.call(http.guard.delete, C)
    assert [each.number for each in http.call(http.guard.collect, C)] == [2]
    assert http.call(http.guard.history, R) == []
    mark = http.beside.mark(R)
    assert mark is not None
    assert mark.is_of(C)
    for bad in ({"keep": -1}, {"older_than": -1}, {"older_than": float("nan")}):
        http.side.expect(ValueError, http.guard.collect, C, **bad)
    for name, value in (("keep", 1.5), ("older_than", timedelta(hours=1)), ("older_than", "1"), ("older_than", True)):
        http.side.expect(TypeError, http.guard.collect, C, **{name: value})


def test_deleting_twice_is_allowed(http: Desk) -> None:
    for _ in range(3):
        http.publish(A, {"x": b"1", "y": b"2"}, claim=True)
    http.call(http.guard.claim, B)
    plan = http.guard._plan_collect(B, 0, None, False)
    request = next(plan)
    while type(request).__name__ != "Delete":
        request = plan.send(http.side.call(http.guard._perform, request))
    keys = list(request.keys)
    assert len(keys) == 6, "with their manifests"
    http.store.delete(keys[:1])
    http.side.call(http.guard._perform, request)
    http.side.call(http.guard._perform, request)
    assert [each.current for each in http.call(http.guard.history, R)] == [True]


def test_a_partly_current_publication_is_partly_collected(desk: Desk) -> None:
    desk.publish(A, {"kept": b"1", "dropped": b"12", "more": b"123"}, claim=True)
    current = desk.call(desk.guard.read, R)
    desk.publish(A, {"kept": current["kept"], "new": b"1234"})
    desk.call(desk.guard.claim, B)
    assert desk.call(desk.guard.collect, B, keep=1) == []
    assert desk.call(desk.guard.read, R, at=current.id) == current
    (collected,) = desk.call(desk.guard.collect, B)
    assert (collected.sizes, collected.size, collected.current) == ({"dropped": 2, "more": 3}, 5, False)
    assert desk.current == {"kept": b"1", "new": b"1234"}


@pytest.mark.parametrize("number", [404, 405])
def test_a_failed_deletion_is_reported(side: Side, number: int) -> None:
    """Whatever the text of the error looks like: its keys have numbers in them, and names."""

    class Keeps(FaultyStore):
        async def delete_async(self, paths: Any) -> None:
            raise GenericError(f"no answer about {paths}")

    desk = Desk(side, Keeps())
    desk.publish(Fence(R, number, "a" * 22), {"NotFound": b"1"}, claim=True)
    desk.call(desk.guard.delete, newer := Fence(R, number + 1, "b" * 22), claim=True)
    error = desk.side.expect(GuardUnavailable, desk.guard.collect, newer)
    assert "call collect again" in str(error)
    assert len(desk.call(desk.guard.history, R)) == 1


def test_a_collection_is_bounded_and_the_next_call_continues_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_collect, "MOST_LISTED", 3)
    monkeypatch.setattr(object_collect, "BATCH", 2)
    for number in range(5):
        desk.publish(A, {"x": b"%d" % number}, claim=True)
    desk.publish(B, {"x": b"current"}, claim=True)
    rounds = [len(desk.call(desk.guard.collect, B)) for _ in range(5)]
    assert rounds == [2, 2, 2, 1, 0], "three of ten objects each, of which two belong together"
    assert desk.current == {"x": b"current"}
    assert List("", 3 * PAGE, 2.0).seconds >= 3 * 2.0, "a page each"


def test_directories_that_contain_each_other_do_not_mix(side: Side) -> None:
    store = MemoryStore()
    outer, inner = Desk(side, store, prefix="a/"), Desk(side, store, prefix="a/b/data/")
    fences = [Fence("b", number, "f" * 22) for number in (1, 2, 3)]
    names = ["data", "x", "0000000000000001." + "f" * 22, "pointer.json"]
    others = [Fence(name, 1, "o" * 22) for name in names]
    for other in others:
        inner.publish(other, {"x": other.resource.encode()}, claim=True)
    for fence in fences[:2]:
        outer.publish(fence, {"x": b"%d" % fence.number}, claim=True)
    outer.call(outer.guard.delete, fences[2], claim=True)
    assert len(outer.call(outer.guard.history, "b")) == 2
    assert [each.number for each in outer.call(outer.guard.collect, fences[2])] == [1, 2]
    for other in others:
        current = inner.call(inner.guard.read, other.resource)
        assert inner.call(current.read, "x") == other.resource.encode()


def test_a_collected_publication_never_comes_back(desk: Desk) -> None:
    """Neither by its entries, nor by what was read of it."""
    old = desk.publish(A, {"x": b"old"}, claim=True)
    desk.publish(A, {"x": b"new"})
    desk.call(desk.guard.claim, B)
    desk.call(desk.guard.collect, B)
    for options in ({}, {"replacing": old}):
        desk.side.expect(StaleRead, lambda options=options: desk.publish(B, {"x": old["x"]}, **options))
    assert desk.current == {"x": b"new"}


@pytest.mark.thorough
def test_each_store_lists_what_is_behind_a_key(http: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection goes on behind objects that it may not delete."""
    monkeypatch.setattr(object_collect, "MOST_LISTED", 3)
    names = [f"{number} ä" for number in range(7)]
    kept = http.publish(A, dict.fromkeys(names, b"1"), claim=True)
    http.publish(B, {"x": b"left"}, claim=True)
    http.publish(B, {"x": b"left"})
    http.call(http.guard.restore, B, kept)
    http.call(http.guard.claim, C)
    collected = []
    while found := http.call(http.guard.collect, C):
        collected += found
    assert sum(len(each.sizes) for each in collected) == 2
    assert http.current == dict.fromkeys(names, b"1")
    assert len([each for page in http.store.list("fencing/orders=3A1/data/") for each in page]) == 7 + 1
