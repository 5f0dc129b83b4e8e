"""Calls on helper threads: the caller's own time counts, and few of them go on without their callers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from fencing.kernel.helping import Helpers, Overdue
from fencing.kernel.opening import MOST_OVERDUE
from tests.support import wait_until

caller: ContextVar[str] = ContextVar("caller", default="nobody")


@contextmanager
def hanging() -> Iterator[Callable[[], bool]]:
    """A function that hangs until the end of the block."""
    over = threading.Event()
    try:
        yield lambda: over.wait(90)
    finally:
        over.set()


def test_the_result_and_the_context_of_a_call() -> None:
    caller.set("the test")
    assert Helpers("helper").call(caller.get, 60) == "the test"


def test_the_error_of_a_call() -> None:
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Helpers("helper").call(fail, 60)


def test_so_many_may_be_overdue() -> None:
    helpers = Helpers("helper")
    with hanging() as hang:
        for _ in range(MOST_OVERDUE):
            with pytest.raises(Overdue, match="within"):
                helpers.call(hang, 0.01)
        began = time.monotonic()
        with pytest.raises(Overdue, match="hang"):
            helpers.call(hang, 60)
        assert time.monotonic() - began < 30
    wait_until(lambda: not helpers._overdue)
    assert helpers.call(lambda: 1, 60) == 1


def test_a_caller_that_is_interrupted_leaves_its_call_behind() -> None:
    helpers = Helpers("helper")

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with hanging() as hang:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                helpers.call(hang, 60)
            assert len(helpers._overdue) == 1
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_until(lambda: not helpers._overdue)
