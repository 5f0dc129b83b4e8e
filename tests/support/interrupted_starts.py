"""A start of a thread that a signal handler interrupts, when the new thread runs already."""

from __future__ import annotations

import threading
from typing import Any

import pytest


def interrupt_starts(monkeypatch: pytest.MonkeyPatch, began: threading.Event, error: type[Exception]) -> None:
    """Raise the error in each start of a thread by this thread, once ``began`` is set.

    What earlier tests have left behind may start threads, too: those are not interrupted.
    """
    name = next(each for each in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, each))
    really: Any = getattr(threading, name)
    mine = threading.get_ident()

    def start(*args: Any, **options: Any) -> None:
        really(*args, **options)
        if threading.get_ident() == mine:
            began.wait(10)
            raise error

    monkeypatch.setattr(threading, name, start)
