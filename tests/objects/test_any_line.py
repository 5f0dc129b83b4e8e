"""An interruption at any line, or of any request: what it says of the write is so, and ``landed`` can decide it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import pytest

from fencing import Fence, OutcomeUnknown
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects import loop as object_loop
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.requests import Close, Next
from storage_guards.sending import Sending
from tests.support import wait_until
from tests.support.interrupted_lines import raise_at_line
from tests.support.object_faults import FaultyStore

R, KEY = "orders:1", "reports/today.csv"
OLD, MINE = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
REPORT = ProbeReport("as given", versions_return=False, races=6, seconds=0.1)
WHERE = ("storage_guards/objects/", "fencing/kernel/effects.py", "storage_guards/continuity.py")


class SoftTimeLimitExceeded(Exception):
    """As Celery raises it, in a signal handler."""


@dataclass
class Way:
    write: Callable[[Any], Any]
    happened: Callable[[ObjectStoreGuard], bool]


def value(guard: ObjectStoreGuard) -> bytes | None:
    current = guard.read(R)
    return None if current is None else current.read("x")


def in_place(guard: ObjectStoreGuard) -> bool:
    stored = guard.get(KEY)
    return stored is not None and stored.data == b"new"


WAYS = {
    "publish": Way(lambda it: it.publish(MINE, {"x": b"new"}), lambda it: value(it) == b"new"),
    "publish several": Way(
        lambda it: it.publish(MINE, {"x": b"new", "y": b"2", "z": b"3"}), lambda it: value(it) == b"new"
    ),
    "delete": Way(lambda it: it.delete(MINE), lambda it: value(it) is None),
    "write": Way(lambda it: it.write(MINE, KEY, b"new"), in_place),
}


class World:
    """A guard, and one beside it that sees the truth."""

    def __init__(self, kind: Any, way: str) -> None:
        self.way = WAYS[way]
        self.store = FaultyStore()
        self.guard, self.beside = kind(self.store), ObjectStoreGuard(self.store.inner)
        self.guard._report = self.beside._report = REPORT
        self.beside.publish(OLD, {"x": b"old"}, claim=True)
        self.beside.write(OLD, KEY, b"old")
        self.beside.claim(MINE)

    def check(self, error: BaseException) -> bool:
        """The error, or its cause, can be given to landed; or nothing was sent. Return whether something was."""
        unknown = error if isinstance(error, OutcomeUnknown) else error.__cause__
        if not isinstance(unknown, OutcomeUnknown):
            assert self.store.puts[-1:] != ["fencing/orders=3A1/pointer.json"]
            assert self.store.puts[-1:] != [KEY]
            assert not self.way.happened(self.beside)
            return False
        answer = self.beside.landed(unknown)
        assert answer is self.way.happened(self.beside) or (answer is None and unknown.key)
        return True


def interrupt(way: str, error: BaseException, number: int) -> tuple[bool, bool]:
    """Return whether there was such a line, and whether something had been sent by then."""
    world = World(ObjectStoreGuard, way)
    try:
        raised = raise_at_line(number, error, WHERE, lambda: way_of(world))[1]
    except OutcomeUnknown as unknown:
        assert unknown.__cause__ is error
        return True, world.check(unknown)
    except (SoftTimeLimitExceeded, KeyboardInterrupt) as bare:
        assert bare is error
        wait_until(lambda: not asyncio.all_tasks(object_loop._shared_loop()))  # nothing is left running
        sent = world.check(bare)
        assert not sent or isinstance(error, KeyboardInterrupt)
        return True, sent
    assert world.way.happened(world.beside)
    return raised, True


def way_of(world: World) -> Any:
    return world.way.write(world.guard)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was not sent
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, KeyboardInterrupt])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [1, 11])
def test_an_interruption_at_any_line(way: str, error: type[BaseException], step: int) -> None:
    sent = set()
    for number in count(1, step):
        was_there, was_sent = interrupt(way, error("now"), number)
        if not was_there:
            break
        sent.add(was_sent)
    gc.collect()  # of coroutines that were never sent, within the filters above
    assert sent == {False, True}
    assert number > 50


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["", pytest.param("reply lost", marks=pytest.mark.thorough), "late"])
@pytest.mark.parametrize("done", [False, True])
def test_a_cancellation_at_any_request_always_has_a_cause_where_something_was_sent(
    way: str, fault: str, done: bool
) -> None:
    async def run(at: int) -> bool:
        world = await asyncio.to_thread(World, AsyncObjectStoreGuard, way)
        world.store.about = KEY if way == "write" else "pointer.json"
        world.store.faults.extend([fault] if fault else [])
        asked, perform = 0, world.guard._perform

        async def cancelling(request: Any) -> Any:
            nonlocal asked
            counts = not isinstance(request, (Next, Close))
            asked += counts
            now = counts and asked == at
            if now and not done:
                task.cancel()
                await asyncio.sleep(0)
            try:
                return await perform(request)
            finally:
                if now and done:
                    task.cancel()
                    await asyncio.sleep(0)

        world.guard._perform = cancelling
        task = asyncio.ensure_future(way_of(world))
        await asyncio.wait([task])
        try:
            task.result()
        except (asyncio.CancelledError, OutcomeUnknown) as error:
            await asyncio.to_thread(world.check, error)
        return asked >= at

    for at in count(1):
        if not asyncio.run(run(at)):
            break
    assert at >= 3


def test_the_outcome_of_another_write_is_not_taken_for_this_ones() -> None:
    """A signal handler, or a body, may use a guard as well."""
    sending = Sending()
    other = OutcomeUnknown(fence=OLD, seq=1, recent_writes="b" * 16)
    assert sending.explain(other) is other
    sending.unknown = own = OutcomeUnknown(fence=MINE, seq=1, recent_writes="a" * 16)
    assert sending.explain(other) is own
    assert own.__cause__ is other
    assert sending.explain(own) is own
    cancelled = asyncio.CancelledError()
    assert sending.explain(cancelled) is cancelled
    assert cancelled.__cause__ is own


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was not sent
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, KeyboardInterrupt])
def test_a_probe_that_is_interrupted_at_any_line_lets_other_threads_on(error: type[BaseException]) -> None:
    """Only a second exception at the very line that wakes them makes them wait, and only until the probe's bound."""
    waits = []
    for number in chain(range(1, 25), count(25, 25)):
        guard = ObjectStoreGuard(FaultyStore())
        try:
            if not raise_at_line(
                number,
                error("now"),
                (
                    "storage_guards/objects/guard.py",
                    "storage_guards/objects/shared_probe.py",
                ),
                guard.verify,
            )[1]:
                break
        except error:
            pass
        choosing: Any = guard._choosing
        assert not choosing._is_owned()
        if guard._probe is not None and not guard._probe.is_over:
            waits.append(number)
    gc.collect()
    assert number > 20
    assert len(waits) <= 1
