"""Threads and waiting that interruptions cannot break."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fencing.kernel.waking import DaemonThread


class Signal(Exception):
    """Of a signal handler."""


def test_an_interrupted_start_raises_the_handlers_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's start() fails with a KeyError in its place, if the thread runs already."""
    name = next(each for each in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, each))
    really: Any = getattr(threading, name)
    ran = threading.Event()

    def start(*args: Any, **options: Any) -> None:
        really(*args, **options)
        ran.wait(10)
        raise Signal

    monkeypatch.setattr(threading, name, start)
    thread = DaemonThread(ran.set, "interrupted")
    with pytest.raises(Signal):
        thread.start()
    assert ran.is_set()
