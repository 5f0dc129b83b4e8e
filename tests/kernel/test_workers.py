"""Threads that live while there is work, and the objects of event loops."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fencing.kernel import quirks, workers
from fencing.kernel.workers import DaemonThread, PerLoop, Worker
from tests.support import wait_until
from tests.support.every_step import at_every_step
from tests.support.forks import in_child
from tests.support.interrupted_lines import raise_at_line
from tests.support.interrupted_starts import interrupt_starts

ROOT = Path(__file__).resolve().parents[2]

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


class Signal(Exception):
    """Of a signal handler."""


class Queue:
    """Items, and a worker that takes them."""

    numbers = itertools.count()

    def __init__(self, most: int = 1) -> None:
        self.name = f"queue-{next(self.numbers)}"
        self.worker = Worker(self.name, most)
        self.waiting: deque[int] = deque()
        self.done: list[int] = []
        self.lock = threading.Lock()
        self.working = 0
        self.most_working = 0

    def put(self, item: int) -> None:
        self.waiting.append(item)
        self.worker.wake(self.work)

    def work(self) -> float | None:
        try:
            item = self.waiting.popleft()
        except IndexError:
            return None
        with self.lock:
            self.working += 1
            self.most_working = max(self.most_working, self.working)
        time.sleep(0)
        with self.lock:
            self.working -= 1
        self.done.append(item)
        return 0.0

    def wait_for_end(self) -> None:
        wait_until(lambda: not self.waiting and not self.worker.is_running)
        # one without a number never began: a start that is interrupted at once leaves it in Python's list
        wait_until(lambda: not any(thread.ident for thread in self.threads))

    @property
    def threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == self.name]


def test_an_interrupted_start_raises_the_handlers_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's start() fails with a KeyError in its place, if the thread runs already."""
    ran = threading.Event()
    interrupt_starts(monkeypatch, ran, Signal)
    with pytest.raises(Signal):
        DaemonThread(ran.set, "interrupted").start()
    assert ran.is_set()


def test_a_thread_that_dies_before_it_has_begun_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that was thrown into its starter ended it. The starter waited for ever."""
    monkeypatch.setattr(workers, "START_SECONDS", 0.05)
    ran = threading.Event()
    thread = DaemonThread(ran.set, "dead")
    monkeypatch.setattr(thread, "_bootstrap", lambda: None)
    errors: list[str] = []

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            errors.append(str(error))

    starter = threading.Thread(target=start, daemon=True)
    starter.start()
    starter.join(30)
    assert errors == ["a new thread did not begin within 0.05 s"]
    assert not ran.is_set()


@pytest.mark.parametrize("most", [1, 3])
def test_work_is_done_and_then_the_threads_end(most: int) -> None:
    queue = Queue(most)
    for item in range(100):
        queue.put(item)
    wait_until(lambda: len(queue.done) == 100)
    queue.wait_for_end()
    queue.put(100)
    wait_until(lambda: len(queue.done) == 101)
    assert queue.most_working <= most


def test_as_many_threads_work_as_may_and_no_more() -> None:
    permitted, began = threading.Event(), []

    def work() -> float | None:
        try:
            began.append(waiting.popleft())
        except IndexError:
            return None
        permitted.wait(30)
        return 0.0

    waiting = deque(range(10))
    worker = Worker("three", 3)
    for _ in range(10):
        worker.wake(work)
    wait_until(lambda: len(began) == 3)
    assert len([thread for thread in threading.enumerate() if thread.name == "three"]) == 3
    permitted.set()
    wait_until(lambda: not worker.is_running)
    assert sorted(began) == list(range(10))


def test_it_works_again_after_the_seconds_that_it_said() -> None:
    moments: list[float] = []

    def work() -> float | None:
        moments.append(time.monotonic())
        return 0.05 if len(moments) < 3 else None

    worker = Worker("again")
    worker.wake(work)
    wait_until(lambda: not worker.is_running)
    first, second, third = moments
    assert second - first >= 0.05
    assert third - second >= 0.05


def test_waking_ends_its_wait() -> None:
    calls: list[int] = []

    def work() -> float | None:
        calls.append(1)
        return 3600.0 if len(calls) < 2 else None

    worker = Worker("woken")
    worker.wake(work)
    wait_until(lambda: calls)
    worker.wake(work)
    wait_until(lambda: not worker.is_running)
    assert len(calls) >= 2


def test_work_that_comes_as_the_thread_ends_is_done() -> None:
    """It was woken after it has looked for work, and before it says that there is none."""
    calls: list[int] = []

    def work() -> float | None:
        calls.append(1)
        if len(calls) == 1:
            worker.wake(work)
        return None

    worker = Worker("ending")
    worker.wake(work)
    wait_until(lambda: not worker.is_running)
    assert len(calls) == 2


@pytest.mark.thorough
def test_no_work_is_lost_between_two_threads() -> None:
    queue = Queue()
    for item in range(3000):
        queue.put(item)
        deadline = time.monotonic() + 60
        while len(queue.done) <= item:
            assert time.monotonic() < deadline, f"item {item} is lost"
            time.sleep(0)
    assert queue.done == list(range(3000))
    assert queue.most_working == 1


def test_a_failure_is_logged_and_does_not_end_the_work(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def work() -> float | None:
        calls.append(1)
        if len(calls) == 1:
            raise SystemExit
        if len(calls) == 2:
            raise ZeroDivisionError
        return None

    worker = Worker("failing")
    worker.wake(work)
    wait_until(lambda: not worker.is_running)
    assert len(calls) == 3
    assert "'failing' failed, and continues" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_exception_that_is_thrown_into_the_thread_does_not_end_the_work() -> None:
    """PyThreadState_SetAsyncExc, as tools for time-outs do."""
    calls: list[int] = []

    def work() -> float | None:
        calls.append(threading.get_ident())
        return 3600.0 if len(calls) < 3 else None

    worker = Worker("thrown")
    worker.wake(work)
    wait_until(lambda: calls)
    thrown = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(calls[0]), ctypes.py_object(Signal))
    assert thrown == 1
    worker.wake(work)  # the exception comes as the wait ends, before the work
    wait_until(lambda: len(calls) == 2)
    worker.wake(work)
    wait_until(lambda: not worker.is_running)


def test_an_ending_interpreter_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "is_finalizing", lambda: True)
        with pytest.raises(RuntimeError):
            queue.put(1)
    queue.put(2)
    wait_until(lambda: queue.done == [1, 2])


def test_an_interrupted_wake_leaves_a_worker_that_works() -> None:
    queue = Queue()
    numbers = itertools.count()

    def check() -> None:
        queue.put(next(numbers))
        queue.wait_for_end()
        assert queue.most_working <= 1

    assert at_every_step(lambda: queue.put(next(numbers)), check) > 5


FILES = ("fencing/kernel/workers.py", "fencing/kernel/waking.py", "fencing/kernel/quirks.py", "/threading.py")


@pytest.mark.thorough
@pytest.mark.skipif(
    quirks.SKIPS_EXIT, reason="an interrupted start of a thread leaves a lock of Python's own threading taken on 3.14"
)
def test_an_interruption_at_any_line_of_the_start_leaves_a_worker_that_works() -> None:
    numbers = itertools.count()
    for line in range(1, 1000):
        queue = Queue()
        try:
            _, was_raised = raise_at_line(line, Signal(), FILES, partial(queue.put, next(numbers)))
        except (Signal, RuntimeError):  # the latter of an interrupted threading.Thread
            was_raised = True
        queue.put(next(numbers))
        queue.wait_for_end()
        assert queue.most_working == 1
        if not was_raised:
            break
    else:
        raise AssertionError("it never ends")
    assert line > 20


def test_a_thread_whose_start_was_interrupted_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, began, permitted = Queue(), threading.Event(), threading.Event()

    def work() -> float | None:
        permitted.wait(30)
        return queue.work()

    monkeypatch.setattr(queue, "work", work)
    with monkeypatch.context() as patch:
        run = DaemonThread.run

        def note(thread: DaemonThread) -> None:
            if thread.name.startswith(queue.name):
                began.set()
            run(thread)

        patch.setattr(DaemonThread, "run", note)
        interrupt_starts(patch, began, Signal)
        with pytest.raises(Signal):
            queue.put(1)
    wait_until(lambda: queue.worker.is_running)
    queue.waiting.append(2)
    queue.worker.wake(work)
    assert len(queue.threads) == 1
    permitted.set()


def test_a_signal_handler_may_wake_a_worker_that_is_being_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    start = DaemonThread.start

    def interrupted(thread: DaemonThread) -> None:
        monkeypatch.setattr(DaemonThread, "start", start)
        queue.put(1)  # of the handler
        start(thread)

    monkeypatch.setattr(DaemonThread, "start", interrupted)
    queue.put(2)
    for item in range(3, 100):
        queue.put(item)
    queue.wait_for_end()
    assert sorted(queue.done) == list(range(1, 100))
    assert queue.most_working == 1


def test_a_worker_keeps_nothing_of_its_owner_when_it_has_ended() -> None:
    queue = Queue()
    queue.put(1)
    queue.wait_for_end()
    alive = weakref.ref(queue)
    gc.disable()
    try:
        del queue
        assert alive() is None
    finally:
        gc.enable()


def test_a_worker_does_not_hold_up_the_end_of_the_program() -> None:
    code = """
import atexit, sys, time
from fencing.kernel.workers import Worker

def work():
    if not calls:
        calls.append(1)
        return 0.0
    time.sleep(600)

def at_the_end():
    try:
        Worker("late").wake(lambda: None)
    except RuntimeError:
        pass  # from Python 3.12 on

atexit.register(at_the_end)
calls = []
Worker("busy").wake(work)
Worker("waiting").wake(lambda: 3600.0)
while not calls:
    time.sleep(0.001)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@forks
def test_a_forked_child_starts_its_own_thread() -> None:
    queue = Queue()
    queue.put(1)
    permitted = threading.Event()
    busy = Worker("busy")
    busy.wake(lambda: None if permitted.wait(60) else 0.0)

    def check() -> None:
        assert not queue.worker.is_running
        assert not busy.is_running
        queue.waiting.clear()
        queue.done.clear()
        queue.put(2)
        wait_until(lambda: queue.done == [2])
        ran = threading.Event()
        busy.wake(ran.set)
        assert ran.wait(30)

    in_child(check)
    permitted.set()
    queue.put(3)
    wait_until(lambda: queue.done == [1, 3])
    wait_until(lambda: not busy.is_running)


@forks
def test_a_fork_while_another_thread_starts_it_leaves_no_lock_taken() -> None:
    queue = Queue()
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with queue.worker._lock:
            held.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)

    def check() -> None:
        queue.put(1)
        wait_until(lambda: queue.done == [1])

    try:
        in_child(check)
    finally:
        ended.set()
        thread.join()


@forks
def test_work_that_forks_is_not_continued_in_the_child() -> None:
    parent, calls, status = os.getpid(), [], []

    def work() -> float | None:
        if os.getpid() != parent:
            os._exit(3)
        calls.append(1)
        child = os.fork()
        if child:
            status.append(os.waitpid(child, 0)[1])
            return None
        return 0.0

    worker = Worker("forking")
    worker.wake(work)
    wait_until(lambda: status)
    assert status == [0]
    assert calls == [1]


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
