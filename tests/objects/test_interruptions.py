"""Ctrl-C and cancellation at each request in turn: the error says the truth about the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from fencing import Fence, FencingError, OutcomeUnknown
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.requests import Close, Next
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import probed
from tests.support.sides import Side

R, KEY = "orders:1", "reports/today.csv"
OLD, MINE = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
TIMEOUT = 5.0


@dataclass
class Way:
    """One way to write: what is written to the store, and whether that has happened."""

    claimed: bool
    about: str
    write: Callable[[Any], Any]
    happened: Callable[[ObjectStoreGuard], bool]


def value(guard: ObjectStoreGuard) -> bytes | None:
    current = guard.read(R)
    return None if current is None else current.read("x")


def in_place(guard: ObjectStoreGuard) -> bool:
    stored = guard.get(KEY)
    return stored is not None and stored.data == b"new"


POINTER = "pointer.json"
WAYS = {
    "publish": Way(True, POINTER, lambda it: it.publish(MINE, {"x": b"new"}), lambda it: value(it) == b"new"),
    "claim and publish": Way(
        False, POINTER, lambda it: it.publish(MINE, {"x": b"new"}, claim=True), lambda it: value(it) == b"new"
    ),
    "publish several": Way(
        True, POINTER, lambda it: it.publish(MINE, {"x": b"new", "y": b"2", "z": b"3"}), lambda it: value(it) == b"new"
    ),
    "delete": Way(True, POINTER, lambda it: it.delete(MINE), lambda it: value(it) is None),
    "write": Way(True, KEY, lambda it: it.write(MINE, KEY, b"new"), in_place),
}


class World:
    """A guard that is interrupted ``at`` one of its requests, before or after that is done."""

    def __init__(self, kind: Any, way: Way, fault: str, at: int, done: bool, interrupt: Callable[[], None]) -> None:
        self.store = FaultyStore()
        self.beside = probed(ObjectStoreGuard(self.store.inner))
        self.beside.publish(OLD, {"x": b"old"}, claim=True)
        self.beside.write(OLD, KEY, b"old")
        if way.claimed:
            self.beside.claim(MINE)
        self.store.about = way.about
        self.store.faults.extend([fault] if fault else [])
        self.way, self.at, self.done, self.interrupt = way, at, done, interrupt
        self.guard = probed(kind(self.store, timeout=TIMEOUT))
        self.asked = 0
        self.side = Side(True)
        self._perform = self.guard._perform
        self.guard._perform = self.perform_async if kind is AsyncObjectStoreGuard else self.perform

    @property
    def interrupted(self) -> bool:
        return self.asked >= self.at

    def _is_now(self, request: Any) -> bool:
        self.asked += not isinstance(request, (Next, Close))
        return self.asked == self.at and not isinstance(request, (Next, Close))

    def perform(self, request: Any) -> Any:
        now = self._is_now(request)
        if now and not self.done:
            self.interrupt()
        try:
            return self._perform(request)
        finally:
            if now and self.done:
                self.interrupt()

    async def perform_async(self, request: Any) -> Any:
        now = self._is_now(request)
        if now and not self.done:
            self.interrupt()
            await asyncio.sleep(0)
        try:
            return await self._perform(request)
        finally:
            if now and self.done:
                self.interrupt()
                await asyncio.sleep(0)

    def check(self, cause: BaseException | None, late_first: bool, happened_or_never_begun: bool) -> None:
        """Compare the error with the store. Late requests arrive before ``landed`` is asked, or after it."""
        if late_first:
            self.side.call(self.store.land)
        if isinstance(cause, OutcomeUnknown):
            answer = self.beside.landed(cause)
            self.side.call(self.store.land)
            assert self.way.happened(self.beside) is answer or (answer is None and cause.key)
        else:
            before = self.way.happened(self.beside)
            assert True not in self.side.call(self.store.land)
            assert happened_or_never_begun or not before, "it happened, and there is nothing to ask landed about"
            assert not (before and isinstance(cause, FencingError))
        self.beside.publish(MINE, {"x": b"again"}, claim=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "late_first"),
    [("", False), ("late", False), ("late", True), ("reply lost", False), ("refused though done", False)],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("done", [False, True])
def test_ctrl_c_at_each_request(way: str, fault: str, done: bool, late_first: bool) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for at in count(1):
        world = World(ObjectStoreGuard, WAYS[way], fault, at, done, interrupt)
        try:
            world.way.write(world.guard)
        except KeyboardInterrupt as error:
            world.check(error.__cause__, late_first, False)
        except OutcomeUnknown as error:
            world.check(error, late_first, False)
        if not world.interrupted:
            break
    assert at >= 3


@pytest.mark.parametrize("fault", ["", "late", "reply lost", "refused though done"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    "all_tasks", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["the task", "all tasks"]
)
def test_a_cancellation_at_each_request(way: str, fault: str, done: bool, all_tasks: bool) -> None:
    """Of the task that writes; and of all tasks, as when a loop ends, the one that carries the put too."""

    tasks: list[asyncio.Task[Any]] = []

    def interrupt() -> None:
        for each in asyncio.all_tasks() - {tasks[0]} if all_tasks else {tasks[1]}:
            each.cancel()

    async def write(world: World, causes: list[BaseException | None]) -> None:
        try:
            await world.way.write(world.guard)
        except asyncio.CancelledError as error:
            causes.append(error.__cause__)
        except OutcomeUnknown as error:
            causes.append(error)

    async def causes_in(world: World) -> list[BaseException | None]:
        """Write; return the cause of the interruption, if there was one."""
        causes: list[BaseException | None] = []
        main = asyncio.current_task()
        assert main is not None
        tasks[:] = [main, asyncio.ensure_future(write(world, causes))]
        await asyncio.wait([tasks[1]])
        tasks[1].result()
        return causes

    with asyncio.Runner() as runner:
        for at in count(1):
            world = World(AsyncObjectStoreGuard, WAYS[way], fault, at, done, interrupt)
            for cause in runner.run(causes_in(world)):
                world.check(cause, False, True)
            if not world.interrupted:
                break
    assert at >= 3
