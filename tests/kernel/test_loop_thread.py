"""The event loop in a thread of its own: when it begins, what it does, and how it ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fencing.kernel import loop_thread
from fencing.kernel.loop_thread import LoopThread
from fencing.kernel.workers import PerLoop
from tests.support import wait_until
from tests.support.forks import in_child
from tests.support.loops import until


class Owner:
    """Wants the loop as long as the test does."""

    def __init__(self) -> None:
        self.wants = False
        self.thread = LoopThread("loop under test", self.is_needed)

    def is_needed(self) -> bool:
        return self.wants

    def end(self) -> None:
        self.wants = False
        self.thread.recheck()
        wait_until(lambda: not self.thread.is_running)


def unexpected() -> None:
    raise AssertionError("there is a loop")


def has_count(found: list[Any], count: int) -> bool:
    return len(found) == count


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    monkeypatch.setattr(loop_thread, "LINGER_SECONDS", 0.05)
    owner = Owner()
    yield owner
    owner.end()


def test_calls_share_a_loop_while_it_is_wanted(owner: Owner) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    threads: list[threading.Thread] = []

    def note() -> None:
        loops.append(asyncio.get_running_loop())
        threads.append(threading.current_thread())

    owner.wants = True
    for number in range(3):
        owner.thread.call(note, unexpected)
        wait_until(partial(has_count, loops, number + 1))
    assert len(set(loops)) == len(set(threads)) == 1
    assert threads[0].daemon
    owner.wants = False
    wait_until(lambda: not owner.thread.is_running)
    assert loops[0].is_closed()
    owner.thread.call(note, unexpected)
    wait_until(lambda: len(loops) == 4)
    assert loops[3] is not loops[0]


def test_a_call_that_comes_as_the_loop_ends_is_made(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "LINGER_SECONDS", 0.0)
    made: list[int] = []
    for number in range(300):
        owner.thread.call(partial(made.append, number), unexpected)
        if number % 3 == 0:
            wait_until(partial(has_count, made, number + 1), interval=0.0001)
    wait_until(lambda: made == list(range(300)))


def test_its_end_stops_objects_and_tasks(owner: Owner) -> None:
    stopped: list[str] = []
    cancelled = threading.Event()
    tasks: list[asyncio.Task[None]] = []
    table = PerLoop[str](lambda _: "object", stop=stopped.append)
    without_stop = PerLoop[str](lambda _: "another")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert table[asyncio.get_running_loop()] == "object"  # a new one
            cancelled.set()

    def begin() -> None:
        loop = asyncio.get_running_loop()
        assert (table[loop], without_stop[loop]) == ("object", "another")
        tasks.append(loop.create_task(work()))

    owner.wants = True
    owner.thread.call(begin, unexpected)
    wait_until(lambda: tasks)
    assert not stopped
    owner.end()
    assert stopped == ["object", "object"]
    assert cancelled.is_set()
    assert not table
    assert not without_stop


def test_a_task_that_ignores_its_end_delays_it_by_a_second_at_most(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "CLOSE_SECONDS", 0.1)
    began = threading.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def work() -> None:
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    def begin() -> None:
        task = asyncio.get_running_loop().create_task(work())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        tasks.append(task)

    owner.wants = True
    owner.thread.call(begin, unexpected)
    assert began.wait(60)
    owner.end()


def test_waiting_for_its_end(owner: Owner) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def story() -> None:
        await owner.thread.wait_until_over()  # there was none yet
        owner.wants = True
        owner.thread.call(lambda: loops.append(asyncio.get_running_loop()), unexpected)
        await until(lambda: loops)
        owner.wants = False
        owner.thread.recheck()
        await owner.thread.wait_until_over()
        assert loops[0].is_closed()
        await owner.thread.wait_until_over()

    asyncio.run(story())


def test_a_child_begins_its_own(owner: Owner) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    owner.wants = True
    owner.thread.call(lambda: loops.append(asyncio.get_running_loop()), unexpected)
    wait_until(lambda: loops)

    def check() -> None:
        assert not owner.thread.is_running
        owner.thread.recheck()
        owner.thread.call(lambda: loops.append(asyncio.get_running_loop()), unexpected)
        wait_until(lambda: len(loops) == 2)
        assert loops[1] is not loops[0]
        owner.end()

    in_child(check)
    owner.thread.call(lambda: loops.append(asyncio.get_running_loop()), unexpected)
    wait_until(lambda: len(loops) == 2)
    assert loops[1] is loops[0], "the parent's goes on"


def test_where_no_thread_can_be_started_nothing_is_left(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", failing)
        with pytest.raises(RuntimeError, match="can't start"):
            owner.thread.call(lambda: made.append(1), unexpected)
    owner.thread.call(lambda: made.append(2), unexpected)
    wait_until(lambda: made)
    assert made == [2]


def test_where_no_loop_can_be_made_each_call_is_given_up_once(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the process has no file descriptors left."""

    def failing() -> Any:
        raise OSError(24, "Too many open files")

    given_up: list[BaseException | None] = []
    made: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "SelectorEventLoop", failing)
        owner.thread.call(partial(made.append, 1), lambda: given_up.append(sys.exc_info()[1]))
        wait_until(lambda: given_up and not owner.thread.is_running)
        asyncio.run(owner.thread.wait_until_over())
    assert [str(error) for error in given_up] == ["[Errno 24] Too many open files"]
    owner.thread.call(partial(made.append, 2), unexpected)
    wait_until(lambda: made)
    assert made == [2]
