"""``once=`` of publications: of all with one key at most one becomes current."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import AlreadyDone, Fence, OutcomeUnknown, StaleFence, TooOld
from storage_guards.kept import MOST_DONE
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

MINE, NEWER, OTHER = (
    Fence(name, number, f"{number}" * 22) for name, number in (("orders:1", 5), ("orders:1", 6), ("s", 5))
)
DAY = "2026-11-23"


@pytest.fixture
def desk(side: Side) -> Desk:
    return Desk(side, FaultyStore(), timeout=1.0)


def done(desk: Desk, fence: Fence, once: str, **options: Any) -> AlreadyDone:
    before = len(desk.store.puts)
    error = desk.side.expect(AlreadyDone, desk.guard.publish, fence, {"x": b"no"}, once=once, **options)
    assert len(desk.store.puts) == before, "it uploads nothing"
    assert isinstance(error, AlreadyDone)
    return error


def test_at_most_one_publication_of_a_key_becomes_current(desk: Desk) -> None:
    desk.publish(MINE, {"x": b"1"}, claim=True, once=DAY)
    error = done(desk, MINE, DAY)
    assert (error.resource, error.key, error.number, error.is_own) == ("orders:1", DAY, 5, True)
    assert not done(desk, NEWER, DAY, claim=True).is_own
    assert desk.current == {"x": b"1"}
    desk.publish(NEWER, {"x": b"2"}, claim=True)
    desk.call(desk.guard.delete, NEWER)
    done(desk, NEWER, DAY)
    desk.publish(NEWER, {"x": b"3"}, once="2026-11-24")
    done(desk, NEWER, DAY)
    desk.publish(OTHER, {"x": b"1"}, claim=True, once=DAY)
    desk.side.expect(StaleFence, desk.guard.publish, MINE, {"x": b"no"}, once=DAY)


def test_who_is_late_finds_what_was_done_meanwhile(desk: Desk) -> None:
    """The pointer that its upload began from is not the one that it replaces."""

    class Slow:
        def __iter__(self) -> Any:
            yield b"late"
            desk.beside.publish(MINE, {"x": b"1"}, once=DAY)

    desk.call(desk.guard.claim, MINE)
    desk.side.expect(AlreadyDone, desk.guard.publish, MINE, {"x": Slow()}, once=DAY)
    assert desk.current == {"x": b"1"}


@pytest.mark.parametrize("fault", ["reply lost", "request lost", "refused though done"])
def test_a_lost_reply(desk: Desk, fault: str) -> None:
    desk.call(desk.guard.claim, MINE)
    desk.store.faults.append(fault)
    desk.publish(MINE, {"x": b"1"}, once=DAY)  # it is found out
    assert done(desk, MINE, DAY).is_own


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["reply lost", "request lost", "refused though done"])
def test_an_unknown_outcome(desk: Desk, fault: str) -> None:
    desk.call(desk.guard.claim, MINE)
    desk.store.faults.append(fault)
    desk.store.deaf_after_fault = True
    error = desk.side.expect(OutcomeUnknown, desk.guard.publish, MINE, {"x": b"2"}, once="next")
    assert error.once == "next"
    desk.store.deaf = desk.store.deaf_after_fault = False
    landed = desk.call(desk.guard.landed, error)
    assert landed is (fault != "request lost")
    if landed:
        assert done(desk, MINE, "next").is_own
    else:
        desk.publish(MINE, {"x": b"2"}, once="next")
    assert desk.current == {"x": b"2"}


def test_the_lowest_keys_go_first(desk: Desk) -> None:
    desk.call(desk.guard.claim, MINE)
    for number in range(MOST_DONE - 2):
        desk.publish(MINE, {"x": b"1"}, once=f"k{number:03d}")
    for key in ("💥", "a", "B", "ä"):
        desk.publish(MINE, {"x": b"1"}, once=key)
    for late in ("B", "a", "Z"):
        error = desk.side.expect(TooOld, desk.guard.publish, MINE, {"x": b"no"}, once=late)
        assert (error.resource, error.key, error.floor) == ("orders:1", late, "a")
    done(desk, MINE, "ä")
    done(desk, MINE, "k000")
    desk.publish(MINE, {"x": b"1"}, once="k000b")
    desk.side.expect(TooOld, desk.guard.publish, MINE, {"x": b"no"}, once="k000")


@pytest.mark.parametrize(
    ("once", "kind"), [("", ValueError), ("a\0", ValueError), ("x" * 256, ValueError), (1, TypeError)]
)
def test_a_key_is_a_short_text(desk: Desk, once: Any, kind: type[Exception]) -> None:
    desk.refused(kind, MINE, {"x": b"1"}, claim=True, once=once)
