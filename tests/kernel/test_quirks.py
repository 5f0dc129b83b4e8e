"""What the library uses of Python beyond its documentation, checked with the Python that runs this."""

from __future__ import annotations

import _thread
import asyncio
import gc
import inspect
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencing.kernel import quirks
from tests.support.interrupted_starts import interrupt_starts


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_version_of_python_is_known() -> None:
    """For a newer version: read what it does in these places, run these tests, then add it to `SEEN`."""
    assert platform.python_implementation() == "CPython"
    if sys.version_info[:2] > release(quirks.SEEN[-1]):
        pytest.skip(f"Python {platform.python_version()} is newer than the newest that these were read in")
    assert release(quirks.SEEN[0]) <= sys.version_info[:2]


def test_each_quirk_has_a_test() -> None:
    found = inspect.getmembers(quirks, inspect.isfunction)
    assert found
    for name, _ in found:
        assert f"quirks.{name}(" in Path(__file__).read_text("utf-8"), name


def test_a_context_manager_that_was_never_entered_is_known() -> None:
    def work() -> Generator[int, None, None]:
        yield 1

    async def work_async() -> AsyncGenerator[int, None]:
        yield 1

    async def enter(manager: Any) -> None:
        async with manager as value:
            assert value == 1

    manager = quirks.GeneratorContextManager(work, (), {})
    assert quirks.NEVER_ENTERED in vars(manager)
    with manager as value:
        assert value == 1
        assert quirks.NEVER_ENTERED not in vars(manager)
    asynchronous = quirks.AsyncGeneratorContextManager(work_async, (), {})
    assert quirks.NEVER_ENTERED in vars(asynchronous)
    asyncio.run(enter(asynchronous))
    assert quirks.NEVER_ENTERED not in vars(asynchronous)


def test_only_these_private_attributes_of_the_standard_library_are_used() -> None:
    """The names that are looked for are those of earlier uses; others are found by reviewers."""
    private = ("._started", "loop._selector", "._log_destroy_pending", "asyncio._", "threading._")
    root = Path(__file__).resolve().parents[2]
    for package in ("fencing", "storage_guards"):
        for file in (root / package).rglob("*.py"):
            if file.samefile(quirks.__file__):
                continue
            text = file.read_text("utf-8")
            assert not [name for name in private if name in text], file


def test_a_thread_that_threading_has_not_started_is_foreign() -> None:
    seen: queue.Queue[bool] = queue.Queue()
    started = threading.Thread(target=lambda: seen.put(quirks.is_foreign_thread()))
    started.start()
    assert [quirks.is_foreign_thread(), seen.get(timeout=60)] == [False, False]
    _thread.start_new_thread(lambda: seen.put(quirks.is_foreign_thread()), ())
    assert seen.get(timeout=60)
    started.join()


def test_a_start_waits_with_the_given_event() -> None:
    calls = []

    class Watched(threading.Event):
        def set(self) -> None:
            calls.append("set")
            super().set()

        def wait(self, timeout: float | None = None) -> bool:
            calls.append("wait")
            return super().wait(timeout)

    thread = threading.Thread(target=int)
    quirks.wait_for_start_with(thread, Watched())
    thread.start()
    thread.join()
    assert sorted(calls) == ["set", "wait"]


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "beside another loop"])
def test_a_loop_apart_is_not_the_running_one_of_others_while_it_waits(inside: bool) -> None:
    """The others are what runs while the loop waits in its selector, as with greenlets."""
    seen: list[Any] = []

    def run_apart(loop: asyncio.AbstractEventLoop) -> None:
        async def work() -> None:
            seen.append(asyncio.get_running_loop())
            await asyncio.sleep(0.001)
            seen.append(asyncio.get_running_loop())

        selector: Any = loop._selector  # type: ignore[attr-defined]
        wait = selector.select

        def wait_beside(seconds: float | None) -> Any:
            running = asyncio._get_running_loop()
            seen.append((running, running and asyncio.current_task(), sys.get_asyncgen_hooks()))
            return wait(seconds)

        selector.select = wait_beside
        apart = quirks.Apart(loop)
        try:
            loop.run_until_complete(work())
        finally:
            apart.end()
            loop.close()

    async def run_inside() -> asyncio.Task[Any] | None:
        task = asyncio.current_task()
        run_apart(asyncio.SelectorEventLoop())
        assert asyncio.get_running_loop() is outer
        assert asyncio.current_task() is task
        return task

    if inside:
        outer = asyncio.SelectorEventLoop()
        outer.call_soon(lambda: hooks.append(sys.get_asyncgen_hooks()))
        hooks: list[Any] = []
        task = outer.run_until_complete(run_inside())
        outer.close()
        assert {each for each in seen if isinstance(each, tuple)} == {(outer, task, hooks[0])}
    else:
        run_apart(asyncio.SelectorEventLoop())
        assert {each for each in seen if isinstance(each, tuple)} == {(None, None, (None, None))}
    assert len({id(each) for each in seen if not isinstance(each, tuple)}) == 1
    assert asyncio._get_running_loop() is None
    assert sys.get_asyncgen_hooks() == (None, None)


class Signal(Exception):
    """Of a signal handler."""


def test_an_interrupted_start_fails_with_a_key_error_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    interrupt_starts(monkeypatch, began, Signal)
    with pytest.raises(KeyError) as raised:
        threading.Thread(target=began.set).start()
    assert isinstance(raised.value.__context__, Signal)
    assert began.is_set()


def test_what_interrupts_a_start_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    interrupt_starts(monkeypatch, began, Signal)
    with pytest.raises(Signal):
        quirks.start(threading.Thread(target=began.set))
    assert began.is_set()


def test_the_running_loop_is_found_and_none_is_no_error() -> None:
    running_loop = quirks.running_loop_getter()
    assert running_loop() is None

    async def find() -> bool:
        return running_loop() is asyncio.get_running_loop()

    assert asyncio.run(find())


@pytest.mark.parametrize("allowed", [False, True])
def test_a_task_that_may_be_left_behind_is_not_logged(allowed: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def sleep() -> None:
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    task = loop.create_task(sleep())
    if allowed:
        quirks.may_be_left_behind(task)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del task
    gc.collect()
    assert ("Task was destroyed but it is pending" in caplog.text) is not allowed


def test_a_thread_that_is_started_as_the_interpreter_ends_is_refused_with_this_text() -> None:
    code = (
        "import atexit, threading\n"
        "def begin():\n"
        "    try:\n"
        "        threading.Thread(target=int).start()\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "atexit.register(begin)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    if sys.version_info < (3, 12):
        assert said == "", "it starts"
    elif said or sys.version_info < (3, 13):  # 3.13.18, 3.14.10 and 3.15.2 raise nothing
        assert quirks.is_ending(RuntimeError(said.strip()))
    assert not quirks.is_ending(RuntimeError("can't start new thread"))


def test_a_subinterpreter_that_has_no_daemon_threads_is_known() -> None:
    """tests/runtimes/test_subinterpreters.py has real ones."""
    assert quirks.is_without_threads(RuntimeError("daemon threads are disabled in this (sub)interpreter"))
    assert quirks.is_without_threads(RuntimeError("thread is not supported for isolated subinterpreters"))
    assert not quirks.is_without_threads(RuntimeError("can't start new thread"))


def test_a_thread_of_gevents_pool_is_known_by_its_first_greenlet(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/runtimes` has the real one."""
    assert not quirks.is_thread_of_gevent()
    loop = SimpleNamespace(parent=type("_WorkerGreenlet", (), {"__module__": "gevent.threadpool"})())
    current = SimpleNamespace(parent=loop)
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(getcurrent=lambda: current))
    assert quirks.is_thread_of_gevent()
    loop.parent = None
    assert not quirks.is_thread_of_gevent()
