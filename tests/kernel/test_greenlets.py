"""What must hold where greenlets take the place of threads, before or after the import of the library. No greenlets
are needed here: the tests replace parts of ``threading``. ``tests/runtimes`` has the real ones.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencing.kernel import process, quirks
from fencing.kernel.lending import Pool
from fencing.kernel.waking import SafeEvent
from fencing.kernel.workers import Worker

ROOT = Path(__file__).resolve().parents[2]
REPLACED = frozenset(("_thread", "queue", "select", "selectors", "socket", "threading", "time"))
"""Modules with parts that are replaced."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("fencing", "storage_guards"):
        for file in (ROOT / package).rglob("*.py"):
            yield file.relative_to(ROOT), ast.parse(file.read_text("utf-8"))


def test_no_class_is_based_on_one_that_may_be_replaced_and_none_is_imported_by_name() -> None:
    """A subclass, or a name, is that of the moment of the import."""
    wrong = []
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in REPLACED:
                wrong.append((str(file), node.lineno))
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base) for base in node.bases}
                wrong += [(str(file), node.lineno) for name in names if name.partition(".")[0] in REPLACED]
    threads = ["class DaemonThread(threading.Thread):"]  # whose start is that of the moment
    assert [(ROOT / file).read_text("utf-8").splitlines()[number - 1] for file, number in wrong] == threads


def test_only_locks_that_greenlets_may_take_twice_are_made_at_import() -> None:
    """A lock of before is one of the thread that all greenlets have in common. One that is not reentrant stops them."""
    wrong = []
    for file, tree in sources():
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "threading.Lock()":
                wrong.append(str(file))
    assert wrong == ["fencing/testing/contract.py"]


def test_an_event_needs_nothing_of_the_one_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Event", None)
    event = SafeEvent()
    assert not event.wait(0)
    event.set()
    assert event.is_set()
    assert event.wait(0)
    event.clear()
    assert not event.is_set()


def test_a_worker_of_before_uses_the_locks_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    made, done = [], SafeEvent()
    worker = Worker("test")
    native: Any = threading.Lock

    def new_lock() -> Any:
        made.append(native())
        return made[-1]

    monkeypatch.setattr(threading, "Lock", new_lock)

    def work() -> None:
        done.set()

    worker.wake(work)
    assert done.wait(60)
    assert worker._wake._lock in made


def test_attributes_of_this_thread_are_those_of_the_present_kind_of_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        number: int | None = None

    mine = process.OfThisThread(Mine)
    mine().number, lone = 1, process.new_local(Mine)
    lone.number = 1
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.extend([mine().number, lone.number]))
    thread.start()
    thread.join()
    assert found == [None, None]
    assert (mine().number, lone.number) == (1, 1)

    class Local:
        """In the place of that of greenlets."""

    with monkeypatch.context() as patch:
        patch.setattr(threading, "local", Local)
        assert mine().number is None
        assert isinstance(mine(), Local)
        assert isinstance(process.new_local(Mine), Local)
    assert mine().number == 1


def test_greenlets_are_known_by_the_sleep_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process.has_greenlets()
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert process.has_greenlets()


@pytest.mark.parametrize("may_change_threads", [False, True])
def test_a_pool_refuses_a_thread_of_gevent_before_it_lends(
    monkeypatch: pytest.MonkeyPatch, may_change_threads: bool
) -> None:
    class Connection:
        used = 0.0

        def close(self) -> None: ...

    pool = Pool(Connection, 1, may_change_threads=may_change_threads)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # greenlets since
    pool.give_back(pool.take(0))
    monkeypatch.setattr(quirks, "is_thread_of_gevent", lambda: True)
    if may_change_threads:
        pool.give_back(pool.free.pop())
        pool.take(0)
    else:
        for take in (pool.free.pop, lambda: pool.take(0)):
            with pytest.raises(RuntimeError, match="take the lock in a greenlet"):
                take()
        monkeypatch.setattr(quirks, "is_thread_of_gevent", lambda: False)
        pool.take(0)
