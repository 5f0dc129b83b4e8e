"""Work beside the callers: objects of event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencing.kernel.workers import PerLoop
from tests.support.every_step import at_every_step
from tests.support.forks import in_child

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


class Thing:
    """An object of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.stopped_by: list[int] = []

    def stop(self) -> None:
        self.stopped_by.append(threading.get_ident())


@contextmanager
def two_loops() -> Iterator[tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]]:
    loops = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        yield loops
    finally:
        for loop in loops:
            loop.close()


def test_each_loop_has_one_object() -> None:
    things = PerLoop(Thing)
    with two_loops() as (first, second):
        assert things.get(first) is None
        assert things[first] is things[first] is things.get(first)
        assert things[second] is not things[first]
        assert (things[first].loop, things[second].loop) == (first, second)


def test_objects_of_closed_loops_are_dropped() -> None:
    things = PerLoop(Thing)
    with two_loops() as (first, second):
        assert things[first].loop is first
        first.close()
        assert things[second].loop is second
        assert list(things) == [second]
        second.close()
        assert things.remove(first) is None
        assert not things


def test_many_loops_in_a_row_leave_one_object() -> None:
    things = PerLoop(Thing)

    async def use() -> None:
        assert things[asyncio.get_running_loop()].loop is asyncio.get_running_loop()

    for _ in range(10):
        asyncio.run(use())
    assert len(things) == 1


def test_a_removed_object_is_made_again() -> None:
    things = PerLoop(Thing)
    with two_loops() as (first, second):
        made, other = things[first], things[second]
        assert things.remove(first) is made
        assert things.remove(first) is None
        assert things[first] is not made
        assert things[second] is other


def test_what_is_collected_is_stopped_on_its_loop() -> None:
    things = PerLoop(Thing, stop=Thing.stop)
    with two_loops() as (first, second):
        of_first, of_second = things[first], things[second]
        second.close()
        del things
        assert not of_first.stopped_by, "only on its loop"
        first.run_until_complete(asyncio.sleep(0))
        assert of_first.stopped_by == [threading.get_ident()]
        assert not of_second.stopped_by


def test_a_table_that_was_interrupted_as_it_was_made_can_be_collected(recwarn: pytest.WarningsRecorder) -> None:
    things: Any = PerLoop.__new__(PerLoop)
    del things
    gc.collect()
    assert not recwarn.list


def test_a_table_needs_no_collector() -> None:
    """A coordinator that is dropped closes its connections at once."""
    things = PerLoop(Thing, stop=Thing.stop)
    with two_loops() as (first, _):
        alive = weakref.ref(things[first])
        gc.disable()
        try:
            table = weakref.ref(things)
            del things
            assert table() is None
            first.run_until_complete(asyncio.sleep(0))
            assert alive() is None
        finally:
            gc.enable()


def test_an_interruption_leaves_the_object_of_a_loop_whole() -> None:
    class Pair:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

    with two_loops() as (first, second):
        tables: list[PerLoop[Pair]] = []

        def work() -> None:
            tables.append(PerLoop(Pair))
            tables[-1][first]
            tables[-1].remove(first)

        def check() -> None:
            for things in tables:
                assert things[second].loop is second
                assert things[first].loop is first
            tables.clear()

        assert at_every_step(work, check) > 5


@forks
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("keeps_inherited", [False, True])
def test_a_forked_child_has_none_of_its_parents_objects(keeps_inherited: bool) -> None:
    things = PerLoop(Thing, stop=Thing.stop, keeps_inherited=keeps_inherited)
    with two_loops() as (first, _):
        made = weakref.ref(things[first])

        def check() -> None:
            assert not things
            assert (made() is not None) is keeps_inherited
            assert things[first] is not made()

        in_child(check)
        assert things.get(first) is made()
